"""What a notebook does beside what its kernels say of themselves: a program started in a terminal or left behind by a cell,
a thread that computes while its kernel counts as idle. For GPUs that tell neither use nor activity (slices of older ones)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent.host.processes import Process

IDLE_KERNEL_CPU_SHARE = 0.05  # of one CPU: a kernel that waits uses less
SHELLS = ("ash", "bash", "dash", "fish", "sh", "tcsh", "zsh")
SERVER_MARKER, KERNEL_MARKER = b"gpupool_notebook", b"ipykernel_launcher"


@dataclass
class BackgroundActivity:
    """Of one notebook. ``last`` is when anything was seen last (seconds since the epoch); what was before the first look counts as
    something, since nobody knows."""

    last: float | None = None
    _cpu_seconds: dict[int, float] = field(default_factory=dict)  # of its kernels, at the look before
    _looked_at: float = 0.0

    def look(self, own: Iterable[Process], now: float) -> None:
        """Take in the notebook's processes as they are."""
        processes = list(own)
        kernels = {process.pid: process.cpu_seconds for process in processes if is_kernel(process.pid)}
        parents = {process.parent for process in processes}
        others = [
            process
            for process in processes
            if process.pid not in kernels
            and not (process.name in SHELLS and process.pid not in parents)
            and SERVER_MARKER not in command_line(process.pid)
        ]
        if self.last is None or others or self._computes(kernels, now):
            self.last = now
        self._cpu_seconds, self._looked_at = kernels, now

    def _computes(self, kernels: dict[int, float], now: float) -> bool:
        allowed = IDLE_KERNEL_CPU_SHARE * max(0.0, now - self._looked_at)
        return any(used - self._cpu_seconds.get(pid, 0.0) > allowed for pid, used in kernels.items())


def is_kernel(pid: int) -> bool:
    """Whether this process is a notebook's Python kernel."""
    return KERNEL_MARKER in command_line(pid)


def command_line(pid: int) -> bytes:
    """As it was started; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
