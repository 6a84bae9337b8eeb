"""Defines the launchers. A ``Launcher`` turns a ``SandboxRequest`` into the command that the shim starts.

The shim is the process that supervises a run and starts its workload.

bubblewrap: The workload has private namespaces for mounts, pids, ipc, network and host name. It has no
capabilities and can't create user namespaces. /dev has only the device nodes of the held GPUs. The workload
sees only these parts of the file system: the system, the interpreter, the owner's home and the run's folders.

plain: There is no isolation. This launcher is meant for a laptop. The host's inventory names the launcher.

If the agent is root, both launchers start workloads as the Unix user of their team, or of their owner if the
pool says so. This user may not enter the agent's state folder, which contains the run's folders. Therefore
the shim first mounts the run's folders at ``STAGE_ROOT``, in a private mount namespace of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.isolation.team_users import PersonUser

NVIDIA_SHARED_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
STAGE_ROOT = Path("/run/gpupool")  # an empty folder of the host; each run mounts its own folders here


@dataclass(frozen=True)
class SandboxRequest:
    """The paths, devices and user of one run. All paths are paths of the host."""

    command: list[str]
    owner: str
    home: Path
    checkpoint: Path
    inbox: Path  # folder that the agent writes and the workload reads
    outbox: Path  # folder that the workload writes, with its socket and its declared load
    tmp: Path
    tools: Path
    devices: list[str] = field(default_factory=list)  # device nodes of the held GPUs
    exposed: list[Path] = field(default_factory=list)  # further read-only paths, chosen by the operator
    user: int | None = None  # uid of the workload on the host; None: the agent's uid and gid
    memory_mib: int = 0  # memory limit; 0: no limit
    person: PersonUser | None = None  # None: the gid is the uid, and there are no further groups

    @property
    def account_name(self) -> str:
        """Return the name of the user inside of the sandbox."""
        return self.person.name if self.person else self.owner


@dataclass(frozen=True)
class SandboxPaths:
    """The paths of a SandboxRequest as the workload sees them."""

    home: Path
    checkpoint: Path
    inbox: Path
    outbox: Path
    tmp: Path
    tools: Path


@dataclass(frozen=True)
class LaunchCommand:
    """The steps with which the shim starts a run.

    The shim mounts ``stage``, becomes ``user``, changes to the folder ``cwd`` and starts ``argv``.
    """

    argv: list[str]
    cwd: str
    stage: list[tuple[str, str]] = field(default_factory=list)  # (path of the host, its mount point)
    user: int | None = None
    group: int | None = None  # None: the gid is the uid
    groups: tuple[int, ...] = ()  # further groups


class Launcher(Protocol):
    """One way to start workloads.

    Each implementation must guarantee the rules below. "The launcher process" is the process that runs the
    argv of ``launch``.

    - ``prepare`` and ``launch`` start nothing and do not block.
    - ``prepare`` and ``launch`` write only to ``box.inbox``, which the workload can only read.
    - The launcher process stays in the foreground until the workload's last process has ended, and exits
      with the workload's exit code (128 + N for signal N).
    - All processes of the workload descend from the launcher process, so that the shim can count, signal and
      end them. If a service starts the processes as its own children, they must be in the control groups that
      the shim knows.
    - The workload gets the standard output and the standard error of the launcher process, and no other
      descriptor.
    - The workload gets its environment. No program outside of the sandbox gets this environment, because it
      may contain LD_PRELOAD, which would load the workload's code into the program.
    - The workload's processes receive a SIGTERM that is sent to them. A SIGKILL to the launcher process also
      ends its descendants.
    - The workload sees the GPU device nodes ``box.devices`` and no other GPU device node. It sees the files
      of the request at the paths of ``view``.
    - If ``box.user`` is set, all processes of the workload run as this user of the host, and can't become
      another user. Their groups are those of ``box.person``; without it, the only group is the user's own.
    """

    name: str

    def prepare(self, box: SandboxRequest) -> None:
        """Write the files that the sandbox needs into the run's folders."""

    def view(self, box: SandboxRequest) -> SandboxPaths:
        """Return the paths of the folders as the workload sees them."""

    def launch(self, box: SandboxRequest) -> LaunchCommand:
        """Return the steps that start ``box.command``."""


class PlainLauncher:
    """Starts plain processes without isolation. If the agent is root, they run as the team's Unix user."""

    name = "plain"

    def prepare(self, box: SandboxRequest) -> None:
        return

    def view(self, box: SandboxRequest) -> SandboxPaths:
        if box.user is None:
            return SandboxPaths(box.home, box.checkpoint, box.inbox, box.outbox, box.tmp, box.tools)
        return SandboxPaths(
            box.person.home if box.person else STAGE_ROOT / "home",
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
        # The home of a person is used at its own path, which the person may reach.
        names = ("home", "checkpoint", "inbox", "outbox", "tmp", "tools")[1 if box.person else 0 :]
        pairs = [(str(getattr(box, name)), str(getattr(view, name))) for name in names]
        return LaunchCommand(box.command, str(view.home), pairs, box.user, *groups_of(box.person))


def groups_of(person: PersonUser | None) -> tuple[int | None, tuple[int, ...]]:
    """Return the gid and the further groups of a LaunchCommand."""
    return (person.gid, person.groups) if person else (None, ())


def gpu_device_nodes(devices: list[str]) -> list[str]:
    """Return the device nodes that all GPUs share, followed by ``devices``; [] if ``devices`` is empty."""
    return [*NVIDIA_SHARED_DEVICES, *devices] if devices else []
