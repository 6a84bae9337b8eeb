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
DEVICES_CONTROLLER = "devices"  # version 1 only: in version 2 it is a program for the kernel, not a file
CPU_PERIOD_MICROSECONDS = 100_000
MAX_PROCESSES_PER_RUN = 16_384  # of one run: a fork bomb stays its owner's trouble
PARENT_GROUP = "gpupool"
# What every program may open: null, zero, full, random, urandom, tty, ptmx, pseudo terminals. The numbers are those of the kernel's
# admin-guide/devices.txt.
ALWAYS_ALLOWED_DEVICES = ("c 1:3", "c 1:5", "c 1:7", "c 1:8", "c 1:9", "c 5:0", "c 5:2", "c 136:*")


@dataclass(frozen=True)
class ControllerRoot:
    """Where one controller's groups of ours are made."""

    controller: str
    folder: Path
    version: int


@dataclass(frozen=True)
class CgroupLimits:
    """Of one run; 0 means no limit. ``devices``: the only nodes beside the harmless ones that it may open; None: any."""

    cpu_milli: int = 0
    memory_mib: int = 0
    processes: int = MAX_PROCESSES_PER_RUN
    devices: list[str] | None = None


@dataclass(frozen=True)
class RunCgroups:
    """A run's groups: ``procs`` are the files into which its first process writes its pid, ``memory_events`` counts the processes
    that were killed for memory ('' where nothing does)."""

    procs: list[str] = field(default_factory=list)
    memory_events: str = ""


class Cgroups:
    """The control groups of this host's runs. ``notes`` says which limits it can't set, ``layout`` which kind of groups it has."""

    def __init__(
        self, mounts: Path = Path("/proc/mounts"), most_processes: int = MAX_PROCESSES_PER_RUN
    ) -> None:
        self.max_processes = most_processes
        self.layout, self._groups = _find_controllers(mounts)
        lacking = [name for name in CONTROLLERS if name not in self.available_controllers]
        self.notes = (
            [f"No limits of {', '.join(lacking)} per workload: control groups can't be written."]
            if lacking
            else []
        )
        if DEVICES_CONTROLLER not in self.available_controllers:
            self.notes.append(
                "Only the sandbox keeps workloads from device nodes of others: there is no devices controller to forbid them too."
            )

    @property
    def available_controllers(self) -> list[str]:
        """The controllers that limits can be set with."""
        return [group.controller for group in self._groups]

    @property
    def limits_memory(self) -> bool:
        return "memory" in self.available_controllers

    @property
    def complete(self) -> bool:
        """Whether CPU, memory and number of processes can all be limited."""
        return set(CONTROLLERS) <= set(self.available_controllers)

    def make(self, name: str, limits: CgroupLimits) -> RunCgroups:
        """Make a run's groups under a name that no other run has. Raises OSError."""
        files: dict[str, None] = {}
        events = ""
        for group in self._groups:
            folder = group.folder / name
            if not group.folder.is_dir():  # systemd removes what it finds empty, whoever made it
                _ensure_directory(group.folder) if group.version == 1 else _enable_v2_controllers(
                    group.folder.parent
                )
            folder.mkdir(exist_ok=True)
            for setting, value in _limit_files(group, folder, limits):
                (folder / setting).write_text(value)
            files[str(folder / "cgroup.procs")] = None
            if group.controller == "memory":
                events = str(folder / ("memory.events" if group.version == 2 else "memory.oom_control"))
        return RunCgroups(list(files), events)

    def members(self, name: str) -> set[int]:
        """Pids of the processes in a run's groups; empty also where it has none."""
        found: set[int] = set()
        for folder in self._folders(name):
            with contextlib.suppress(OSError):
                found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        return found - {0}

    def all_run_pids(self) -> set[int]:
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


def _limit_files(group: ControllerRoot, folder: Path, limits: CgroupLimits) -> list[tuple[str, str]]:
    """What to write into which file, in order."""
    if group.controller == "pids":
        return [("pids.max", str(limits.processes))]
    if group.controller == "memory":
        return _memory_limit_files(group, folder, limits.memory_mib << 20) if limits.memory_mib else []
    if group.controller == DEVICES_CONTROLLER:
        return _device_rules(limits.devices)
    quota = limits.cpu_milli * CPU_PERIOD_MICROSECONDS // 1000
    if not quota:
        return []
    if group.version == 2:
        return [("cpu.max", f"{quota} {CPU_PERIOD_MICROSECONDS}")]
    return [("cpu.cfs_period_us", str(CPU_PERIOD_MICROSECONDS)), ("cpu.cfs_quota_us", str(quota))]


def _memory_limit_files(group: ControllerRoot, folder: Path, size: int) -> list[tuple[str, str]]:
    """Memory, and no way round it through swap where the kernel counts that."""
    if group.version == 2:
        swap = [("memory.swap.max", "0")] if (folder / "memory.swap.max").exists() else []
        return [("memory.max", str(size)), *swap]
    both = "memory.memsw.limit_in_bytes"
    return [("memory.limit_in_bytes", str(size)), *([(both, str(size))] if (folder / both).exists() else [])]


def _device_rules(nodes: list[str] | None) -> list[tuple[str, str]]:
    if nodes is None:
        return []
    allowed = [f"{rule} rwm" for rule in ALWAYS_ALLOWED_DEVICES]
    for node in nodes:
        with contextlib.suppress(OSError):  # one that is not there can't be opened
            seen = os.stat(node)
            kind = "c" if stat.S_ISCHR(seen.st_mode) else "b"
            allowed.append(f"{kind} {os.major(seen.st_rdev)}:{os.minor(seen.st_rdev)} rw")
    return [("devices.deny", "a"), *(("devices.allow", rule) for rule in allowed)]


def _find_controllers(mounts: Path) -> tuple[str, list[ControllerRoot]]:
    """(v1, v2, hybrid or none; one group per controller that can be used). Version 1 counts first: a controller is in one only."""
    found: dict[str, ControllerRoot] = {}
    versions: set[int] = set()
    for line in mounts.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        root = Path(place)
        if kind == "cgroup":
            versions.add(1)
            for controller in set(options.split(",")) & {*CONTROLLERS, DEVICES_CONTROLLER}:
                if _ensure_directory(root / PARENT_GROUP):
                    found[controller] = ControllerRoot(controller, root / PARENT_GROUP, 1)
        elif kind == "cgroup2":
            versions.add(2)
            for controller in _enable_v2_controllers(root):
                found.setdefault(controller, ControllerRoot(controller, root / PARENT_GROUP, 2))
    layout = {(): "none", (1,): "v1", (2,): "v2"}.get(tuple(sorted(versions)), "hybrid")
    return layout, [found[name] for name in (*CONTROLLERS, DEVICES_CONTROLLER) if name in found]


def _enable_v2_controllers(root: Path) -> list[str]:
    """Controllers that groups of ours can use below this mount."""
    try:
        there = set((root / "cgroup.controllers").read_text().split()) & set(CONTROLLERS)
        if not there or not _ensure_directory(root / PARENT_GROUP):
            return []
        for folder in (root, root / PARENT_GROUP):
            for controller in sorted(there):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return []
    return sorted(there)


def _ensure_directory(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return True
