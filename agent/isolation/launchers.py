"""How a workload's process tree is closed in. Behind one seam: a ``Launcher`` makes of a ``SandboxRequest`` what the shim does and starts.

bubblewrap: private mount, pid, ipc, network and host name spaces, /dev with only the held GPU nodes, no capabilities, no nested
user namespaces; of the file system only the system, the interpreter, the owner's home and the run's own folders.
plain: no isolation at all. For a laptop; said loudly in the host's inventory.

Where the agent is root both start workloads as the team's own user. The folders of a run lie below the agent's, which nobody else
may enter, so the shim first shows them to that user at ``STAGE_ROOT``, in a mount name space of the run's own.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent.shim import socket_filter, workload_entry

PROBE_TIMEOUT_SECONDS = 20
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# The parts of /etc that programs need; /etc/shadow, ssh keys and service passwords are not among them.
ETC_FILES = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "fonts",
    "host.conf",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.so.preload",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "mime.types",
    "networks",
    "nsswitch.conf",
    "OpenCL",
    "os-release",
    "pki/tls/certs",
    "pki/ca-trust",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vulkan",
)
PROC_READ_ONLY = (
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
    "/proc/acpi",
    "/proc/scsi",
    "/proc/mtrr",
)
NVIDIA_SHARED_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
SANDBOX_ROOT = Path("/run/gpupool")
STAGE_ROOT = Path("/run/gpupool")  # an empty folder of the host, over which each run mounts its own
SANDBOX_UID = 1000


@dataclass(frozen=True)
class SandboxRequest:
    """What one run may see. All paths are paths of the host."""

    command: list[str]
    owner: str
    home: Path
    checkpoint: Path
    inbox: Path  # the agent writes, the workload reads
    outbox: Path  # the workload writes: its socket, its declared load
    tmp: Path
    tools: Path
    devices: list[str] = field(default_factory=list)  # nodes of the held GPUs
    exposed: list[Path] = field(default_factory=list)  # further paths, read-only, chosen by the operator
    user: int | None = None  # the host's user (and group) it runs as; None: the agent's own
    memory_mib: int = 0  # what it may use; 0: no limit


@dataclass(frozen=True)
class SandboxPaths:
    """The paths of a Box as the workload sees them."""

    home: Path
    checkpoint: Path
    inbox: Path
    outbox: Path
    tmp: Path
    tools: Path


@dataclass(frozen=True)
class LaunchCommand:
    """What the shim does to start a run, in this order: show ``stage``, become ``user``, go to ``cwd``, start ``argv``."""

    argv: list[str]
    cwd: str
    stage: list[tuple[str, str]] = field(
        default_factory=list
    )  # (path of the host, where the run's user finds it)
    user: int | None = None


class Launcher(Protocol):
    """One way to start workloads. A further one (podman with CDI, say) has to promise this:

    - ``prepare`` and ``launch`` start nothing and don't wait; what they write lies in ``box.inbox``, which the workload only reads.
    - The argv that ``launch`` gives stays in the foreground until the workload's last process has ended, and ends with its exit
      code (128 + N for signal N). All of the workload's processes are its descendants, so that the shim can count, signal and
      end them, or, where a service starts them elsewhere, members of the control groups that the shim was told of.
    - It passes on standard output and error, and gives the workload its environment and no other descriptor. No program that runs
      outside of the sandbox gets that environment: a loader obeys it (LD_PRELOAD).
    - TERM to the workload's own processes reaches them; KILL to the argv's process ends everything below it.
    - Of GPU device nodes the workload sees ``box.devices`` and no other; of files what ``SandboxRequest`` names, at the paths of ``view``.
    - With ``box.user`` nothing of the workload runs as another user of the host, and it can't become one.
    """

    name: str

    def prepare(self, box: SandboxRequest) -> None:
        """Write what the sandbox needs into the run's folders."""

    def view(self, box: SandboxRequest) -> SandboxPaths:
        """Where the workload finds its folders."""

    def launch(self, box: SandboxRequest) -> LaunchCommand:
        """How to start ``box.command``."""


class PlainLauncher:
    """No isolation but, where the agent is root, the team's own user."""

    name = "plain"

    def prepare(self, box: SandboxRequest) -> None:
        return

    def view(self, box: SandboxRequest) -> SandboxPaths:
        if box.user is None:
            return SandboxPaths(box.home, box.checkpoint, box.inbox, box.outbox, box.tmp, box.tools)
        return SandboxPaths(
            STAGE_ROOT / "home",
            STAGE_ROOT / "checkpoint",
            STAGE_ROOT / "in",
            STAGE_ROOT / "out",
            STAGE_ROOT / "tmp",
            STAGE_ROOT / "tools",
        )

    def launch(self, box: SandboxRequest) -> LaunchCommand:
        view = self.view(box)
        if box.user is None:
            return LaunchCommand(box.command, str(box.home))
        pairs = (
            (getattr(box, name), getattr(view, name))
            for name in ("home", "checkpoint", "inbox", "outbox", "tmp", "tools")
        )
        return LaunchCommand(
            box.command, str(view.home), [(str(here), str(there)) for here, there in pairs], box.user
        )


class BubblewrapLauncher:
    """A private view of the machine, made by bwrap without a service and without being root."""

    name = "bubblewrap"

    def __init__(self, program: str, *, nested: bool = False, network: str = "private") -> None:
        self.program = program
        self.nested = nested  # whether user namespaces can be made inside, as bwrap before 0.8 leaves it
        self.network = network  # private: nothing but a loopback of its own; else what it is started in

    def prepare(self, box: SandboxRequest) -> None:
        """The sandbox's only user has the owner's name."""
        (box.inbox / "passwd").write_text(
            f"{box.owner}:x:{SANDBOX_UID}:{SANDBOX_UID}::/home/{box.owner}:/bin/bash\n"
        )
        (box.inbox / "group").write_text(f"{box.owner}:x:{SANDBOX_UID}:\n")
        for name in ("passwd", "group"):
            (box.inbox / name).chmod(0o644)

    def view(self, box: SandboxRequest) -> SandboxPaths:
        return SandboxPaths(
            home=Path("/home") / box.owner,
            checkpoint=SANDBOX_ROOT / "checkpoint",
            inbox=SANDBOX_ROOT / "in",
            outbox=SANDBOX_ROOT / "out",
            tmp=Path("/tmp"),
            tools=SANDBOX_ROOT / "tools",
        )

    def launch(self, box: SandboxRequest) -> LaunchCommand:
        view, stage = self.view(box), _StagedMounts(box.user)
        argv = [
            self.program,
            *_namespace_arguments(self.nested, self.network),
            *_system_mounts(),
            *("--bind", stage.at(box.tmp), "/tmp", "--symlink", "../tmp", "/var/tmp"),
            *_interpreter_mounts(stage),  # after /tmp, below which it may lie
            *("--proc", "/proc", *_read_only_proc_mounts(), "--dev", "/dev"),
            *(
                argument
                for node in gpu_device_nodes(box.devices)
                for argument in ("--dev-bind-try", node, node)
            ),
            *_shared_memory_mounts(box.memory_mib),
            *(argument for path in box.exposed for argument in ("--ro-bind-try", stage.at(path), str(path))),
            *("--bind", stage.at(box.home), str(view.home)),
            *("--ro-bind", stage.at(box.tools / "bin"), str(view.tools / "bin")),
            *("--ro-bind", stage.at(box.tools / "python"), str(view.tools / "python")),
            *("--ro-bind", stage.at(box.tools / "notebook"), str(view.tools / "notebook")),
            *("--ro-bind", stage.at(box.inbox), str(view.inbox)),
            *("--ro-bind-try", f"{stage.at(box.inbox)}/passwd", "/etc/passwd"),
            *("--ro-bind-try", f"{stage.at(box.inbox)}/group", "/etc/group"),
            *("--bind", stage.at(box.outbox), str(view.outbox)),
            *("--bind", stage.at(box.checkpoint), str(view.checkpoint)),
            *("--remount-ro", "/", "--chdir", str(view.home)),
            *("--", *box.command),
        ]
        return LaunchCommand(argv, "/", stage.mounts, box.user)


class _StagedMounts:
    """Where a path of the host is for the user who starts the sandbox: there, or shown at the stage where that user can't go."""

    def __init__(self, user: int | None) -> None:
        self.user = user
        self.mounts: list[tuple[str, str]] = []

    def at(self, path: Path | str) -> str:
        here = str(path)
        if self.user is None:
            return here
        known = dict(self.mounts)
        if here not in known:
            known[here] = str(STAGE_ROOT / str(len(known)))
            self.mounts.append((here, known[here]))
        return known[here]


def _namespace_arguments(nested: bool, network: str) -> list[str]:
    return [
        *("--unshare-user", "--uid", str(SANDBOX_UID), "--gid", str(SANDBOX_UID)),
        *(() if nested else ("--disable-userns",)),
        *(("--unshare-net",) if network == "private" else ()),
        *(
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
            "--hostname",
            "workload",
        ),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    ]


def _system_mounts() -> list[str]:
    arguments: list[str] = []
    for path in SYSTEM_FOLDERS:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    for name in ETC_FILES:
        arguments += ["--ro-bind-try", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"]
    return arguments


def _interpreter_mounts(stage: _StagedMounts) -> list[str]:
    """The Python that notebooks use, where it is not part of the system."""
    folders = {os.path.realpath(path) for path in (sys.base_prefix, sys.base_exec_prefix)}
    folders |= {os.path.abspath(path) for path in (sys.prefix, sys.exec_prefix)}
    outside = sorted(path for path in folders if path != "/usr" and not path.startswith("/usr/"))
    return [argument for path in outside for argument in ("--ro-bind", stage.at(path), path)]


def _read_only_proc_mounts() -> list[str]:
    """What of /proc sets the whole machine is not to be written: the kernel asks only for the user there, not for powers. So where
    the agent is root and gives a run no user of its own, a run could have the host execute what it likes (core_pattern)."""
    return [argument for path in PROC_READ_ONLY for argument in ("--ro-bind-try", path, path)]


def _shared_memory_mounts(memory_mib: int) -> list[str]:
    """/dev/shm of a size, and nothing else to write in /dev: both are memory, of the host where no limit holds the workload."""
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    size = min(memory_mib << 20, half) if memory_mib else half
    return ["--size", str(size), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]


def gpu_device_nodes(devices: list[str]) -> list[str]:
    """Every device node that the holder of these needs: theirs, and those that all GPUs share; none for who holds none."""
    return [*NVIDIA_SHARED_DEVICES, *devices] if devices else []


@dataclass(frozen=True)
class LauncherChoice:
    """What this host can do. ``users``: whether workloads run as a user of their team; ``notes`` says what is lacking."""

    launcher: Launcher
    users: bool
    notes: list[str]


def choose_launcher(
    wanted: str, probe: Path, network: str = "private", user: int | None = None
) -> LauncherChoice:
    """The launcher for this host, by trying. ``wanted``: auto, bubblewrap or plain. ``probe``: an empty folder. ``network``:
    private for a loopback of its own, else that of whoever starts it. ``user``: one that teams may have; None: no user per team.

    Raises RuntimeError when bubblewrap is demanded and does not run here.
    """
    if user is not None:
        STAGE_ROOT.mkdir(exist_ok=True, mode=0o755)
    if wanted == "plain":
        return _choose_plain(
            "No isolation: workloads run as plain processes, because this agent was started so.", probe, user
        )
    program = shutil.which("bwrap")
    if program is None:
        return _fall_back_to_plain(wanted, "bwrap is not installed", probe, user)
    first_problem = ""
    for launcher, with_user in _bubblewrap_candidates(program, network, user):
        problem = _probe_failure(launcher, probe, with_user)
        if not problem:
            return LauncherChoice(
                launcher,
                with_user is not None,
                _isolation_gaps(launcher, network, user, with_user, first_problem),
            )
        first_problem = first_problem or problem
    return _fall_back_to_plain(wanted, first_problem, probe, user)


def _bubblewrap_candidates(
    program: str, network: str, user: int | None
) -> list[tuple[BubblewrapLauncher, int | None]]:
    """Every way to use bubblewrap that is as tight as ``network`` allows, and then what is left where those don't run."""
    networks = ("private", "host") if network == "private" else ("host",)
    users = (None,) if user is None else (user, None)
    return [
        (BubblewrapLauncher(program, nested=nested, network=own), each)
        for own in networks
        for each in users
        for nested in (False, True)
    ]


def _isolation_gaps(
    launcher: BubblewrapLauncher, network: str, user: int | None, with_user: int | None, problem: str
) -> list[str]:
    """What this sandbox does not keep apart. ``problem``: why the tightest one does not run here, or ''."""
    notes = _no_team_users_note(user, "" if with_user is not None else problem)
    if launcher.nested:
        notes.append(f"Workloads can make user namespaces of their own inside the sandbox: {problem}.")
    if launcher.network == "host" and network == "private":
        notes.append(_open_network_note(problem))
    return notes


def _open_network_note(why: str) -> str:
    return (
        f"Workloads use the host's network: they reach the internet and whatever listens on the host, other workloads "
        f"included ({why})."
    )


def _no_team_users_note(user: int | None, problem: str) -> list[str]:
    if user is None:
        return ["Every workload runs as the same user of the host: there is no user id per team."]
    if problem:
        return [
            f"Every workload runs as the same user of the host: a user id per team does not work here ({problem})."
        ]
    return []


def _fall_back_to_plain(wanted: str, problem: str, probe: Path, user: int | None) -> LauncherChoice:
    if wanted == "bubblewrap":
        raise RuntimeError(f"--launcher: bubblewrap does not run here: {problem}")
    note = f"NO ISOLATION: bubblewrap does not run here ({problem}). Workloads run as plain processes."
    return _choose_plain(note, probe, user)


def _choose_plain(note: str, probe: Path, user: int | None) -> LauncherChoice:
    problem = "" if user is None else _probe_failure(PlainLauncher(), probe, user)
    return LauncherChoice(
        PlainLauncher(), user is not None and not problem, [note, *_no_team_users_note(user, problem)]
    )


def can_restrict_abstract_sockets(launcher: Launcher) -> bool:
    """Whether runs can be kept from abstract sockets of others."""
    return workload_entry.landlock_version() >= workload_entry.SCOPES_SINCE_ABI and not _is_setuid(launcher)


def can_filter_socket_families(launcher: Launcher) -> bool:
    """Whether runs can be kept from sockets that belong to no network."""
    return socket_filter.supports_seccomp_filters() and not _is_setuid(launcher)


def _is_setuid(launcher: Launcher) -> bool:
    """A bwrap that becomes root by itself can't do that when it is kept from something before."""
    return isinstance(launcher, BubblewrapLauncher) and bool(os.stat(launcher.program).st_mode & stat.S_ISUID)


def abstract_socket_note(launcher: Launcher, network: str) -> list[str]:
    """What to say of abstract sockets of others where ``launcher`` starts runs in the host's network and can't close them."""
    if network == "internet" or (isinstance(launcher, BubblewrapLauncher) and launcher.network == "private"):
        return []  # they belong to a network
    if can_restrict_abstract_sockets(launcher):
        return []
    return [
        "Workloads reach services of the host, root's too, and other workloads where these listen without a port or a file "
        "(abstract sockets): this host can't close them. Linux 6.12 and newer can."
    ]


def socket_family_note(launcher: Launcher) -> list[str]:
    """What to say of sockets that belong to no network where they can't be closed."""
    if can_filter_socket_families(launcher):
        return []
    return [
        "Workloads can make sockets of every kind, also of those that no network confines (AF_VSOCK reaches the hypervisor of a "
        "virtual machine, or the virtual machines of this host): this host can't close them."
    ]


def _probe_failure(launcher: Launcher, folder: Path, user: int | None) -> str:
    """Why a workload can't be started so here, as ``user`` and with the interpreter of notebooks; '' when one was."""
    folders = {name: folder / name for name in ("home", "checkpoint", "inbox", "outbox", "tmp", "tools")}
    for path in folders.values():
        path.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "python", "notebook"):
        (folders["tools"] / name).mkdir(exist_ok=True)
    box = SandboxRequest(
        command=[sys.executable, "-I", "-S", "-c", "print('works')"],
        owner="probe",
        home=folders["home"],
        checkpoint=folders["checkpoint"],
        inbox=folders["inbox"],
        outbox=folders["outbox"],
        tmp=folders["tmp"],
        tools=folders["tools"],
        user=user,
    )
    launch = launcher.launch(box)
    spec = shim_entry_spec(launcher, launch)
    argv, given = launch.argv, -1
    try:
        if isinstance(launcher, BubblewrapLauncher):
            argv, given = workload_entry.argv_with_environment(argv, {"LANG": "C.UTF-8"})
        if user is not None:
            for name in ("home", "checkpoint", "outbox", "tmp"):
                os.chown(folders[name], user, user)
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            pass_fds=[given] if given >= 0 else [],
            preexec_fn=lambda: workload_entry.enter_workload(spec),
        )
    except (
        subprocess.SubprocessError
    ) as error:  # what went wrong between fork and exec comes without its reason
        return str(error)
    except OSError as error:
        return str(error)
    finally:
        if given >= 0:
            os.close(given)
        shutil.rmtree(folder, ignore_errors=True)
    return (
        ""
        if done.stdout == "works\n"
        else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    )


def shim_entry_spec(launcher: Launcher, launch: LaunchCommand) -> dict[str, Any]:
    """What of a run's spec the shim needs to enter the sandbox (``workload_entry.enter``)."""
    return {
        "launcher": launcher.name,
        "user": launch.user,
        "stage": [list(pair) for pair in launch.stage],
        "stage_at": str(STAGE_ROOT),
        "own_sockets": can_restrict_abstract_sockets(launcher),
        "known_families": can_filter_socket_families(launcher),
    }
