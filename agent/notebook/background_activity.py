"""Detects activity of a notebook that its kernels do not report.

Examples are a program in a terminal, a process that a cell has started, or a thread that computes while its
kernel counts as idle. The result is used for units that report neither utilisation nor processes, such as MIG
instances of older GPU models.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent.host.processes import Process

IDLE_KERNEL_CPU_SHARE = 0.05  # share of one CPU; an idle kernel uses less
SHELLS = ("ash", "bash", "dash", "fish", "sh", "tcsh", "zsh")
SERVER_MARKER, KERNEL_MARKER = b"gpupool_notebook", b"ipykernel_launcher"


@dataclass
class BackgroundActivity:
    """The background activity of one notebook.

    ``last``: time of the last activity in seconds since the epoch. The first call of ``look`` counts as
    activity, because the earlier state is unknown.
    """

    last: float | None = None
    # By pid of each kernel: its CPU time at the previous call of ``look``.
    _cpu_seconds: dict[int, float] = field(default_factory=dict)
    _looked_at: float = 0.0

    def look(self, own: Iterable[Process], now: float) -> None:
        """Update the activity from the present processes of the notebook."""
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
    """Return True if the process is a Python kernel of a notebook."""
    return KERNEL_MARKER in command_line(pid)


def command_line(pid: int) -> bytes:
    """Return the command line of a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
