"""How a workload's process tree is closed in. Behind one seam: a ``Launcher`` makes of a ``SandboxRequest`` what the shim does and starts.

bubblewrap: private mount, pid, ipc, network and host name spaces, /dev with only the held GPU nodes, no capabilities, no nested
user namespaces; of the file system only the system, the interpreter, the owner's home and the run's own folders.
plain: no isolation at all. For a laptop; said loudly in the host's inventory.

Where the agent is root both start workloads as the team's own user. The folders of a run lie below the agent's, which nobody else
may enter, so the shim first shows them to that user at ``STAGE_ROOT``, in a mount name space of the run's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

NVIDIA_SHARED_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
STAGE_ROOT = Path("/run/gpupool")  # an empty folder of the host, over which each run mounts its own


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


def gpu_device_nodes(devices: list[str]) -> list[str]:
    """Every device node that the holder of these needs: theirs, and those that all GPUs share; none for who holds none."""
    return [*NVIDIA_SHARED_DEVICES, *devices] if devices else []
