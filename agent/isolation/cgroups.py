"""Limits CPU, memory, processes and device nodes per run, if the host's control groups are writable.

Supports version 1, version 2, and both at once. The last case is called hybrid; there version 1 usually has
the controllers. The kernel's documentation describes the controllers in admin-guide/cgroup-v1 (cpu, memory,
pids, devices) and admin-guide/cgroup-v2.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

CONTROLLERS = ("cpu", "memory", "pids")
DEVICES_CONTROLLER = "devices"  # version 1 only; version 2 needs a BPF program instead of a file
CPU_PERIOD_MICROSECONDS = 100_000
MAX_PROCESSES_PER_RUN = 16_384  # a fork bomb then harms only its own run
PARENT_GROUP = "gpupool"
# In this order: null, zero, full, random, urandom, tty, ptmx, pseudo terminals. Source: the kernel's
# admin-guide/devices.txt.
ALWAYS_ALLOWED_DEVICES = ("c 1:3", "c 1:5", "c 1:7", "c 1:8", "c 1:9", "c 5:0", "c 5:2", "c 136:*")


@dataclass(frozen=True)
class ControllerRoot:
    """The folder in which the control groups of one controller are created."""

    controller: str
    folder: Path
    version: int


@dataclass(frozen=True)
class CgroupLimits:
    """The limits of one run; 0 means no limit.

    ``devices``: the device nodes that the run may open in addition to ALWAYS_ALLOWED_DEVICES. None means that
    the run may open every device node.
    """

    cpu_milli: int = 0
    memory_mib: int = 0
    processes: int = MAX_PROCESSES_PER_RUN
    devices: list[str] | None = None


@dataclass(frozen=True)
class RunCgroups:
    """The control groups of one run.

    The first process of the run writes its pid into each file of ``procs`` to join the groups.
    ``memory_events`` is the file in which the kernel counts the processes that it killed because of the
    memory limit; '' if there is no such file.
    """

    procs: list[str] = field(default_factory=list)
    memory_events: str = ""


class Cgroups:
    """The control groups of this host's runs.

    ``notes``: sentences about limits that cannot be set. ``layout``: v1, v2, hybrid or none.
    """

    def __init__(
        self, mounts: Path = Path("/proc/mounts"), max_processes: int = MAX_PROCESSES_PER_RUN
    ) -> None:
        self.max_processes = max_processes
        self.layout, self._groups = _find_controllers(mounts)
        missing = [name for name in CONTROLLERS if name not in self.available_controllers]
        self.notes = (
            [f"No limits of {', '.join(missing)} per workload: control groups are not writable."]
            if missing
            else []
        )
        if DEVICES_CONTROLLER not in self.available_controllers:
            self.notes.append(
                "Only the sandbox denies access to the device nodes of other workloads: "
                "this host has no devices controller."
            )

    @property
    def available_controllers(self) -> list[str]:
        """Return the controllers that can set limits."""
        return [group.controller for group in self._groups]

    @property
    def limits_memory(self) -> bool:
        return "memory" in self.available_controllers

    @property
    def limits_everything(self) -> bool:
        """Return True if CPU, memory and the number of processes can all be limited."""
        return set(CONTROLLERS) <= set(self.available_controllers)

    def make(self, name: str, limits: CgroupLimits) -> RunCgroups:
        """Create a run's groups under a unique name. Raises OSError."""
        files: dict[str, None] = {}
        events = ""
        for group in self._groups:
            folder = group.folder / name
            if not group.folder.is_dir():  # systemd removes empty groups
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
        """Return the pids in a run's groups; an empty set if the run has no groups."""
        found: set[int] = set()
        for folder in self._folders(name):
            with contextlib.suppress(OSError):
                found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        return found - {0}

    def all_run_pids(self) -> set[int]:
        """Return the pids in the groups of all runs on this host, including the runs of other agents.

        The result can be trusted, because only root can move a process into or out of these groups.
        """
        names: set[str] = set()
        for group in self._groups:
            with contextlib.suppress(OSError):  # a group may be removed at the same time
                names.update(entry.name for entry in group.folder.iterdir() if entry.is_dir())
        return {pid for name in names for pid in self.members(name)}

    def remove(self, name: str) -> None:
        """Remove the groups of a run that has no process any more."""
        for folder in self._folders(name):
            # Ignore errors: the group may be removed already, or one of its processes may still be exiting. A
            # group that remains is harmless.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _folders(self, name: str) -> set[Path]:
        return {group.folder / name for group in self._groups}


def _limit_files(group: ControllerRoot, folder: Path, limits: CgroupLimits) -> list[tuple[str, str]]:
    """Return the (file, value) pairs that set the limits, in the order in which to write them."""
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
    """Return the (file, value) pairs that limit memory. If the kernel accounts for swap, they forbid swap."""
    if group.version == 2:
        swap = [("memory.swap.max", "0")] if (folder / "memory.swap.max").exists() else []
        return [("memory.max", str(size)), *swap]
    memory_and_swap = "memory.memsw.limit_in_bytes"
    return [
        ("memory.limit_in_bytes", str(size)),
        *([(memory_and_swap, str(size))] if (folder / memory_and_swap).exists() else []),
    ]


def _device_rules(nodes: list[str] | None) -> list[tuple[str, str]]:
    if nodes is None:
        return []
    allowed = [f"{rule} rwm" for rule in ALWAYS_ALLOWED_DEVICES]
    for node in nodes:
        with contextlib.suppress(OSError):  # a missing node can't be opened anyway
            seen = os.stat(node)
            kind = "c" if stat.S_ISCHR(seen.st_mode) else "b"
            allowed.append(f"{kind} {os.major(seen.st_rdev)}:{os.minor(seen.st_rdev)} rw")
    return [("devices.deny", "a"), *(("devices.allow", rule) for rule in allowed)]


def _find_controllers(mounts: Path) -> tuple[str, list[ControllerRoot]]:
    """Return the layout (v1, v2, hybrid or none), and one ControllerRoot per usable controller.

    The kernel gives each controller to one version of control groups. If both versions nevertheless list a
    controller, version 1 is used.
    """
    roots: dict[str, ControllerRoot] = {}
    versions: set[int] = set()
    for line in mounts.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        root = Path(place)
        if kind == "cgroup":
            versions.add(1)
            for controller in set(options.split(",")) & {*CONTROLLERS, DEVICES_CONTROLLER}:
                if _ensure_directory(root / PARENT_GROUP):
                    roots[controller] = ControllerRoot(controller, root / PARENT_GROUP, 1)
        elif kind == "cgroup2":
            versions.add(2)
            for controller in _enable_v2_controllers(root):
                roots.setdefault(controller, ControllerRoot(controller, root / PARENT_GROUP, 2))
    layout = {(): "none", (1,): "v1", (2,): "v2"}.get(tuple(sorted(versions)), "hybrid")
    return layout, [roots[name] for name in (*CONTROLLERS, DEVICES_CONTROLLER) if name in roots]


def _enable_v2_controllers(root: Path) -> list[str]:
    """Enable the available controllers for groups below this mount. Return the names of these controllers."""
    try:
        available = set((root / "cgroup.controllers").read_text().split()) & set(CONTROLLERS)
        if not available or not _ensure_directory(root / PARENT_GROUP):
            return []
        for folder in (root, root / PARENT_GROUP):
            for controller in sorted(available):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return []
    return sorted(available)


def _ensure_directory(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return True
