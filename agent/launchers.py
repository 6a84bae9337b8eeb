"""How a workload's process tree is closed in. Behind one seam: ``Launcher.argv(Box)`` gives the command the shim starts.

bubblewrap: private mount, pid, ipc, network and host name spaces, /dev with only the held GPU nodes, no capabilities, no nested
user namespaces; of the file system only the system, the interpreter, the owner's home and the run's own folders.
plain: no isolation at all. For a laptop; said loudly in the host's inventory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

PROBE_SECONDS = 20
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# The parts of /etc that programs need; /etc/shadow, ssh keys and service passwords are not among them.
ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "fonts", "host.conf", "hosts", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "locale.alias", "locale.conf", "localtime", "magic", "mime.types",
    "networks", "nsswitch.conf", "OpenCL", "os-release", "pki/tls/certs", "pki/ca-trust", "protocols", "resolv.conf",
    "services", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vulkan",
)  # fmt: skip
NVIDIA_SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
INSIDE = Path("/run/gpupool")
SANDBOX_ID = 1000


@dataclass(frozen=True)
class Box:
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


@dataclass(frozen=True)
class View:
    """The paths of a Box as the workload sees them."""

    home: Path
    checkpoint: Path
    inbox: Path
    outbox: Path
    tmp: Path
    tools: Path


class Launcher(Protocol):
    """One way to start workloads."""

    name: str

    def prepare(self, box: Box) -> None:
        """Write what the sandbox needs into the run's folders."""

    def view(self, box: Box) -> View:
        """Where the workload finds its folders."""

    def argv(self, box: Box) -> list[str]:
        """The command that starts ``box.command`` in its sandbox."""


class Plain:
    """No isolation."""

    name = "plain"

    def prepare(self, box: Box) -> None:
        return

    def view(self, box: Box) -> View:
        return View(box.home, box.checkpoint, box.inbox, box.outbox, box.tmp, box.tools)

    def argv(self, box: Box) -> list[str]:
        return box.command


class Bubblewrap:
    """A private view of the machine, made by bwrap without a service and without being root."""

    name = "bubblewrap"

    def __init__(self, program: str, *, nested: bool = False, network: str = "private") -> None:
        self.program = program
        self.nested = nested  # whether user namespaces can be made inside, as bwrap before 0.8 leaves it
        self.network = network  # private: nothing but a loopback of its own; host: the host's

    def prepare(self, box: Box) -> None:
        """The sandbox's only user has the owner's name."""
        (box.inbox / "passwd").write_text(f"{box.owner}:x:{SANDBOX_ID}:{SANDBOX_ID}::/home/{box.owner}:/bin/bash\n")
        (box.inbox / "group").write_text(f"{box.owner}:x:{SANDBOX_ID}:\n")

    def view(self, box: Box) -> View:
        return View(
            home=Path("/home") / box.owner,
            checkpoint=INSIDE / "checkpoint",
            inbox=INSIDE / "in",
            outbox=INSIDE / "out",
            tmp=Path("/tmp"),
            tools=INSIDE / "tools",
        )

    def argv(self, box: Box) -> list[str]:
        view = self.view(box)
        return [
            self.program,
            *_namespaces(self.nested, self.network),
            *_system(),
            *("--bind", str(box.tmp), "/tmp", "--symlink", "../tmp", "/var/tmp"),
            *_interpreter(),  # after /tmp, below which it may lie
            *("--proc", "/proc", "--dev", "/dev"),
            *_gpu_nodes(box.devices),
            *(argument for path in box.exposed for argument in ("--ro-bind-try", str(path), str(path))),
            *("--bind", str(box.home), str(view.home)),
            *("--ro-bind", str(box.tools / "bin"), str(view.tools / "bin")),
            *("--ro-bind", str(box.tools / "python"), str(view.tools / "python")),
            *("--ro-bind", str(box.tools / "notebook"), str(view.tools / "notebook")),
            *("--ro-bind", str(box.inbox), str(view.inbox)),
            *("--ro-bind-try", str(box.inbox / "passwd"), "/etc/passwd"),
            *("--ro-bind-try", str(box.inbox / "group"), "/etc/group"),
            *("--bind", str(box.outbox), str(view.outbox)),
            *("--bind", str(box.checkpoint), str(view.checkpoint)),
            *("--remount-ro", "/", "--chdir", str(view.home)),
            *("--", *box.command),
        ]


def _namespaces(nested: bool, network: str) -> list[str]:
    return [
        *("--unshare-user", "--uid", str(SANDBOX_ID), "--gid", str(SANDBOX_ID)),
        *(() if nested else ("--disable-userns",)),
        *(("--unshare-net",) if network == "private" else ()),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "workload"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    ]


def _system() -> list[str]:
    arguments: list[str] = []
    for path in SYSTEM:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    for name in ETC:
        arguments += ["--ro-bind-try", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"]
    return arguments


def _interpreter() -> list[str]:
    """The Python that notebooks use, where it is not part of the system."""
    folders = {os.path.realpath(path) for path in (sys.base_prefix, sys.base_exec_prefix)}
    folders |= {os.path.abspath(path) for path in (sys.prefix, sys.exec_prefix)}
    outside = sorted(path for path in folders if path != "/usr" and not path.startswith("/usr/"))
    return [argument for path in outside for argument in ("--ro-bind", path, path)]


def _gpu_nodes(devices: list[str]) -> list[str]:
    if not devices:
        return []
    return [argument for node in (*NVIDIA_SHARED, *devices) for argument in ("--dev-bind-try", node, node)]


def choose(wanted: str, probe: Path, network: str = "private") -> tuple[Launcher, list[str]]:
    """The launcher for this host and notes about what it lacks. ``wanted``: auto, bubblewrap or plain. ``probe``: an empty folder.
    ``network``: private or host.

    Raises RuntimeError when bubblewrap is demanded and does not run here.
    """
    if wanted == "plain":
        return Plain(), ["No isolation: workloads run as plain processes, because this agent was started so."]
    program = shutil.which("bwrap")
    if program is None:
        return _without(wanted, "bwrap is not installed")
    first_problem = ""
    for launcher in _from_the_tightest(program, network):
        problem = _trouble(launcher, probe)
        if not problem:
            return launcher, _lacks(launcher, network, first_problem)
        first_problem = first_problem or problem
    return _without(wanted, first_problem)


def _from_the_tightest(program: str, network: str) -> list[Bubblewrap]:
    """Every way to use bubblewrap that is as tight as ``network`` allows, and then what is left where those don't run."""
    networks = ("private", "host") if network == "private" else ("host",)
    return [Bubblewrap(program, nested=nested, network=own) for own in networks for nested in (False, True)]


def _lacks(launcher: Bubblewrap, network: str, problem: str) -> list[str]:
    """What this sandbox does not keep apart. ``problem``: why the tightest one does not run here, or ''."""
    notes = ["Every workload runs as the same user of the host: there is no user id per team."]
    if launcher.nested:
        notes.append(f"Workloads can make user namespaces of their own inside the sandbox: {problem}.")
    if launcher.network == "host":
        why = "as this agent was started" if network == "host" else problem
        notes.append(
            f"Workloads use the host's network: they reach the internet and whatever listens on the host, other workloads "
            f"included ({why})."
        )
    return notes


def _without(wanted: str, problem: str) -> tuple[Launcher, list[str]]:
    if wanted == "bubblewrap":
        raise RuntimeError(f"--launcher: bubblewrap does not run here: {problem}")
    return Plain(), [f"NO ISOLATION: bubblewrap does not run here ({problem}). Workloads run as plain processes."]


def _trouble(launcher: Bubblewrap, folder: Path) -> str:
    """Why a sandbox can't be made here; '' when one was made."""
    folders = {name: folder / name for name in ("home", "checkpoint", "inbox", "outbox", "tmp", "tools")}
    for path in folders.values():
        path.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "python", "notebook"):
        (folders["tools"] / name).mkdir(exist_ok=True)
    box = Box(
        command=["/bin/sh", "-c", "echo works"],
        owner="probe",
        home=folders["home"],
        checkpoint=folders["checkpoint"],
        inbox=folders["inbox"],
        outbox=folders["outbox"],
        tmp=folders["tmp"],
        tools=folders["tools"],
    )
    try:
        done = subprocess.run(launcher.argv(box), capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return "" if done.stdout == "works\n" else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
