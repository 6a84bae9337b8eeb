"""Limits of CPU, memory and number of processes per run, where the host's control groups can be written: version 1, 2 or both.

The kernel's documentation: admin-guide/cgroup-v1 (cpu, memory, pids) and admin-guide/cgroup-v2.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("cpu", "memory", "pids")
PERIOD_MICROSECONDS = 100_000
MOST_PROCESSES = 16_384  # of one run: a fork bomb stays its owner's trouble
FOLDER = "gpupool"


@dataclass(frozen=True)
class Group:
    """Where one controller's groups of ours are made."""

    controller: str
    folder: Path
    version: int


class Cgroups:
    """The control groups of this host's runs. ``notes`` says which limits it can't set."""

    def __init__(self, mounts: Path = Path("/proc/mounts")) -> None:
        self._groups = _find(mounts)
        lacking = [name for name in CONTROLLERS if name not in {group.controller for group in self._groups}]
        self.notes = (
            [f"No limits of {', '.join(lacking)} per workload: control groups can't be written."] if lacking else []
        )

    @property
    def limits_memory(self) -> bool:
        return any(group.controller == "memory" for group in self._groups)

    def make(self, name: str, *, cpu_milli: int, memory_mib: int) -> list[str]:
        """Make a run's groups under a name that no other run has; 0 means no limit.

        Gives the files into which the run's first process writes its pid. Raises OSError.
        """
        files: dict[str, None] = {}
        for group in self._groups:
            folder = group.folder / name
            folder.mkdir(exist_ok=True)
            for setting, value in _settings(group, cpu_milli, memory_mib):
                (folder / setting).write_text(value)
            files[str(folder / "cgroup.procs")] = None
        return list(files)

    def remove(self, name: str) -> None:
        """Remove the groups of a run of which no process is left."""
        for folder in {group.folder / name for group in self._groups}:
            # Gone already, or a process is still on its way out: an empty folder harms nobody.
            with contextlib.suppress(OSError):
                folder.rmdir()


def _settings(group: Group, cpu_milli: int, memory_mib: int) -> list[tuple[str, str]]:
    quota = cpu_milli * PERIOD_MICROSECONDS // 1000
    if group.controller == "pids":
        return [("pids.max", str(MOST_PROCESSES))]
    if group.controller == "memory":
        name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
        return [(name, str(memory_mib << 20))] if memory_mib else []
    if not quota:
        return []
    if group.version == 2:
        return [("cpu.max", f"{quota} {PERIOD_MICROSECONDS}")]
    return [("cpu.cfs_period_us", str(PERIOD_MICROSECONDS)), ("cpu.cfs_quota_us", str(quota))]


def _find(mounts: Path) -> list[Group]:
    found: dict[str, Group] = {}
    for line in mounts.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        root = Path(place)
        if kind == "cgroup":
            for controller in set(options.split(",")) & set(CONTROLLERS):
                if _made(root / FOLDER):
                    found[controller] = Group(controller, root / FOLDER, 1)
        elif kind == "cgroup2":
            for controller in _second_version(root):
                found.setdefault(controller, Group(controller, root / FOLDER, 2))
    return [found[name] for name in CONTROLLERS if name in found]


def _second_version(root: Path) -> list[str]:
    """Controllers that groups of ours can use below this mount."""
    try:
        there = set((root / "cgroup.controllers").read_text().split()) & set(CONTROLLERS)
        if not there or not _made(root / FOLDER):
            return []
        for folder in (root, root / FOLDER):
            for controller in sorted(there):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return []
    return sorted(there)


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return True
