"""Limits of CPU, memory, number of processes and device nodes per run, where the host's control groups can be written: version 1,
version 2, or both at once (hybrid: version 1 has the controllers, version 2 is there without them).

The kernel's documentation: admin-guide/cgroup-v1 (cpu, memory, pids, devices) and admin-guide/cgroup-v2.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

CONTROLLERS = ("cpu", "memory", "pids")
DEVICES = "devices"  # version 1 only: in version 2 it is a program for the kernel, not a file
PERIOD_MICROSECONDS = 100_000
MOST_PROCESSES = 16_384  # of one run: a fork bomb stays its owner's trouble
FOLDER = "gpupool"
# What every program may open: null, zero, full, random, urandom, tty, ptmx, pseudo terminals. The numbers are those of the kernel's
# admin-guide/devices.txt.
HARMLESS = ("c 1:3", "c 1:5", "c 1:7", "c 1:8", "c 1:9", "c 5:0", "c 5:2", "c 136:*")


@dataclass(frozen=True)
class Group:
    """Where one controller's groups of ours are made."""

    controller: str
    folder: Path
    version: int


@dataclass(frozen=True)
class Limits:
    """Of one run; 0 means no limit. ``devices``: the only nodes beside the harmless ones that it may open; None: any."""

    cpu_milli: int = 0
    memory_mib: int = 0
    processes: int = MOST_PROCESSES
    devices: list[str] | None = None


@dataclass(frozen=True)
class Made:
    """A run's groups: ``procs`` are the files into which its first process writes its pid, ``memory_events`` counts the processes
    that were killed for memory ('' where nothing does)."""

    procs: list[str] = field(default_factory=list)
    memory_events: str = ""


class Cgroups:
    """The control groups of this host's runs. ``notes`` says which limits it can't set, ``layout`` which kind of groups it has."""

    def __init__(self, mounts: Path = Path("/proc/mounts"), most_processes: int = MOST_PROCESSES) -> None:
        self.most_processes = most_processes
        self.layout, self._groups = _find(mounts)
        lacking = [name for name in CONTROLLERS if name not in self.limited]
        self.notes = (
            [f"No limits of {', '.join(lacking)} per workload: control groups can't be written."] if lacking else []
        )
        if DEVICES not in self.limited:
            self.notes.append(
                "Only the sandbox keeps workloads from device nodes of others: there is no devices controller to forbid them too."
            )

    @property
    def limited(self) -> list[str]:
        """The controllers that limits can be set with."""
        return [group.controller for group in self._groups]

    @property
    def limits_memory(self) -> bool:
        return "memory" in self.limited

    @property
    def complete(self) -> bool:
        """Whether CPU, memory and number of processes can all be limited."""
        return set(CONTROLLERS) <= set(self.limited)

    def make(self, name: str, limits: Limits) -> Made:
        """Make a run's groups under a name that no other run has. Raises OSError."""
        files: dict[str, None] = {}
        events = ""
        for group in self._groups:
            folder = group.folder / name
            if not group.folder.is_dir():  # systemd removes what it finds empty, whoever made it
                _made(group.folder) if group.version == 1 else _second_version(group.folder.parent)
            folder.mkdir(exist_ok=True)
            for setting, value in _settings(group, folder, limits):
                (folder / setting).write_text(value)
            files[str(folder / "cgroup.procs")] = None
            if group.controller == "memory":
                events = str(folder / ("memory.events" if group.version == 2 else "memory.oom_control"))
        return Made(list(files), events)

    def members(self, name: str) -> set[int]:
        """Pids of the processes in a run's groups; empty also where it has none."""
        found: set[int] = set()
        for folder in self._folders(name):
            with contextlib.suppress(OSError):
                found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        return found - {0}

    def everybody(self) -> set[int]:
        """Pids of the processes in the groups of any run here, of other agents too. Only who may write the groups gets into one."""
        names: set[str] = set()
        for group in self._groups:
            with contextlib.suppress(OSError):  # a run's group that goes just now
                names.update(entry.name for entry in group.folder.iterdir() if entry.is_dir())
        return {pid for name in names for pid in self.members(name)}

    def remove(self, name: str) -> None:
        """Remove the groups of a run of which no process is left."""
        for folder in self._folders(name):
            # Gone already, or a process is still on its way out: an empty folder harms nobody.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _folders(self, name: str) -> set[Path]:
        return {group.folder / name for group in self._groups}


def _settings(group: Group, folder: Path, limits: Limits) -> list[tuple[str, str]]:
    """What to write into which file, in order."""
    if group.controller == "pids":
        return [("pids.max", str(limits.processes))]
    if group.controller == "memory":
        return _memory(group, folder, limits.memory_mib << 20) if limits.memory_mib else []
    if group.controller == DEVICES:
        return _devices(limits.devices)
    quota = limits.cpu_milli * PERIOD_MICROSECONDS // 1000
    if not quota:
        return []
    if group.version == 2:
        return [("cpu.max", f"{quota} {PERIOD_MICROSECONDS}")]
    return [("cpu.cfs_period_us", str(PERIOD_MICROSECONDS)), ("cpu.cfs_quota_us", str(quota))]


def _memory(group: Group, folder: Path, size: int) -> list[tuple[str, str]]:
    """Memory, and no way round it through swap where the kernel counts that."""
    if group.version == 2:
        swap = [("memory.swap.max", "0")] if (folder / "memory.swap.max").exists() else []
        return [("memory.max", str(size)), *swap]
    both = "memory.memsw.limit_in_bytes"
    return [("memory.limit_in_bytes", str(size)), *([(both, str(size))] if (folder / both).exists() else [])]


def _devices(nodes: list[str] | None) -> list[tuple[str, str]]:
    if nodes is None:
        return []
    allowed = [f"{rule} rwm" for rule in HARMLESS]
    for node in nodes:
        with contextlib.suppress(OSError):  # one that is not there can't be opened
            seen = os.stat(node)
            kind = "c" if stat.S_ISCHR(seen.st_mode) else "b"
            allowed.append(f"{kind} {os.major(seen.st_rdev)}:{os.minor(seen.st_rdev)} rw")
    return [("devices.deny", "a"), *(("devices.allow", rule) for rule in allowed)]


def _find(mounts: Path) -> tuple[str, list[Group]]:
    """(v1, v2, hybrid or none; one group per controller that can be used). Version 1 counts first: a controller is in one only."""
    found: dict[str, Group] = {}
    versions: set[int] = set()
    for line in mounts.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        root = Path(place)
        if kind == "cgroup":
            versions.add(1)
            for controller in set(options.split(",")) & {*CONTROLLERS, DEVICES}:
                if _made(root / FOLDER):
                    found[controller] = Group(controller, root / FOLDER, 1)
        elif kind == "cgroup2":
            versions.add(2)
            for controller in _second_version(root):
                found.setdefault(controller, Group(controller, root / FOLDER, 2))
    layout = {(): "none", (1,): "v1", (2,): "v2"}.get(tuple(sorted(versions)), "hybrid")
    return layout, [found[name] for name in (*CONTROLLERS, DEVICES) if name in found]


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
