"""Starts workloads in a bubblewrap sandbox."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agent.isolation.launchers import (
    STAGE_ROOT,
    LaunchCommand,
    SandboxPaths,
    SandboxRequest,
    gpu_device_nodes,
    groups_of,
)

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


# The parts of /etc that programs need, without /etc/shadow, ssh keys and service passwords.
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


SANDBOX_ROOT = Path("/run/gpupool")


SANDBOX_UID = 1000


class BubblewrapLauncher:
    """Starts workloads with bwrap, which needs neither a service nor root."""

    name = "bubblewrap"

    def __init__(self, program: str, *, nested: bool = False, network: str = "private") -> None:
        self.program = program
        # True: workloads can create user namespaces inside the sandbox. bwrap before 0.8 can't prevent this.
        self.nested = nested
        # "private": the workload has only a loopback device. Otherwise it has the network of bwrap's parent.
        self.network = network

    def prepare(self, box: SandboxRequest) -> None:
        """Write the files passwd and group, with the owner as the only user."""
        uid, gid = _sandbox_ids(box)
        home = self.view(box).home
        (box.inbox / "passwd").write_text(f"{box.account_name}:x:{uid}:{gid}::{home}:/bin/bash\n")
        (box.inbox / "group").write_text(f"{box.account_name}:x:{gid}:\n")
        for name in ("passwd", "group"):
            (box.inbox / name).chmod(0o644)

    def view(self, box: SandboxRequest) -> SandboxPaths:
        return SandboxPaths(
            # A person with a shared home finds it at the path that it has on the host.
            home=box.person.home if box.person else Path("/home") / box.owner,
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
            *_namespace_arguments(self.nested, self.network, _sandbox_ids(box)),
            *_system_mounts(),
            *("--bind", stage.at(box.tmp), "/tmp", "--symlink", "../tmp", "/var/tmp"),
            *_interpreter_mounts(stage),  # mounted after /tmp, because /tmp may contain the interpreter
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
        return LaunchCommand(argv, "/", stage.mounts, box.user, *groups_of(box.person))


class _StagedMounts:
    """Maps each host path to a path that the run's user can access.

    If the run has the agent's user (``user`` is None), the paths stay unchanged. Otherwise each path gets a
    mount point below STAGE_ROOT. ``mounts`` collects the pairs (host path, mount point) for the shim.
    """

    def __init__(self, user: int | None) -> None:
        self.user = user
        self.mounts: list[tuple[str, str]] = []

    def at(self, path: Path | str) -> str:
        source = str(path)
        if self.user is None:
            return source
        known = dict(self.mounts)
        if source not in known:
            known[source] = str(STAGE_ROOT / str(len(known)))
            self.mounts.append((source, known[source]))
        return known[source]


def _sandbox_ids(box: SandboxRequest) -> tuple[int, int]:
    """Return the uid and the gid that the workload sees.

    A person has the own numbers, so that programs agree with the owners of files in the shared home.
    """
    return (box.person.uid, box.person.gid) if box.person else (SANDBOX_UID, SANDBOX_UID)


def _namespace_arguments(nested: bool, network: str, ids: tuple[int, int]) -> list[str]:
    return [
        *("--unshare-user", "--uid", str(ids[0]), "--gid", str(ids[1])),
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
    """Return the arguments that mount the Python of notebooks; [] if this Python is below /usr."""
    folders = {os.path.realpath(path) for path in (sys.base_prefix, sys.base_exec_prefix)}
    folders |= {os.path.abspath(path) for path in (sys.prefix, sys.exec_prefix)}
    outside = sorted(path for path in folders if path != "/usr" and not path.startswith("/usr/"))
    return [argument for path in outside for argument in ("--ro-bind", stage.at(path), path)]


def _read_only_proc_mounts() -> list[str]:
    """Return the arguments that make the settings of the whole machine in /proc read-only.

    For these files the kernel checks only the user, not the capabilities. If the agent is root, a run may
    have the user root too. Such a run could make the host execute any program by writing
    /proc/sys/kernel/core_pattern.
    """
    return [argument for path in PROC_READ_ONLY for argument in ("--ro-bind-try", path, path)]


def _shared_memory_mounts(memory_mib: int) -> list[str]:
    """Return the arguments for a /dev/shm of limited size and a read-only /dev.

    Both file systems are in the host's memory. Without these limits, a workload without a control group could
    fill the memory of the host.
    """
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    size = min(memory_mib << 20, half) if memory_mib else half
    return ["--size", str(size), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
