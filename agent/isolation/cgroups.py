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
IO_CONTROLLERS = {1: "blkio", 2: "io"}  # by version; they only measure, and set no limit
DEVICES_CONTROLLER = "devices"  # version 1 only; version 2 needs a BPF program instead of a file
CPU_PERIOD_MICROSECONDS = 100_000
MAX_CPU_WEIGHT = 1_000  # of a run with all GPUs of the host; the kernel's default is 100
V1_CPU_SHARES_PER_WEIGHT = 10  # the default is 1,024 in version 1 and 100 in version 2
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

    ``cpu_weight``: the weight of the run while runs compete for the CPU, up to MAX_CPU_WEIGHT. 0 means the
    kernel's default.

    ``devices``: the device nodes that the run may open in addition to ALWAYS_ALLOWED_DEVICES. None means that
    the run may open every device node.
    """

    cpu_milli: int = 0
    memory_mib: int = 0
    processes: int = MAX_PROCESSES_PER_RUN
    devices: list[str] | None = None
    cpu_weight: int = 0


@dataclass(frozen=True)
class RunCgroups:
    """The control groups of one run.

    The first process of the run writes its pid into each file of ``procs`` to join the groups.
    ``memory_events`` is the file in which the kernel counts the processes that it killed because of the
    memory limit; '' if there is no such file.
    """

    procs: list[str] = field(default_factory=list)
    memory_events: str = ""


@dataclass(frozen=True)
class CgroupUse:
    """The use of all processes of a run, including processes that have ended. None: not measured.

    ``memory_mib`` and ``memory_peak_mib`` include the file cache that the run caused. ``io_*`` count the
    bytes that reached block devices.
    """

    cpu_seconds: float | None = None
    memory_peak_mib: int | None = None
    memory_mib: int | None = None
    io_read_bytes: int | None = None
    io_written_bytes: int | None = None


class Cgroups:
    """The control groups of this host's runs.

    ``notes``: sentences about limits that cannot be set. ``layout``: v1, v2, hybrid or none.
    """

    def __init__(
        self, mounts: Path = Path("/proc/mounts"), max_processes: int = MAX_PROCESSES_PER_RUN
    ) -> None:
        self.max_processes = max_processes
        self.layout, self._groups, self._io = _find_controllers(mounts)
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
        if self._io is not None:
            # A host that can't measure reads and writes still starts the run.
            with contextlib.suppress(OSError):
                if not self._io.folder.is_dir():
                    _ensure_directory(self._io.folder) if self._io.version == 1 else _enable_v2_io(
                        self._io.folder.parent
                    )
                (self._io.folder / name).mkdir(exist_ok=True)
                files[str(self._io.folder / name / "cgroup.procs")] = None
        return RunCgroups(list(files), events)

    def members(self, name: str) -> set[int]:
        """Return the pids in a run's groups; an empty set if the run has no groups."""
        found: set[int] = set()
        for folder in self._folders(name):
            with contextlib.suppress(OSError):
                found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        return found - {0}

    def use(self, name: str) -> CgroupUse:
        """Return what a run has used. Values that this kernel does not count are None."""
        cpu: float | None = None
        memory: int | None = None
        peak: int | None = None
        for group in self._groups:
            folder = group.folder / name
            if group.controller == "cpu":
                cpu = _cpu_seconds(group, folder)
            elif group.controller == "memory":
                is_v2 = group.version == 2
                memory = _mib(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
                peak = _mib(folder / ("memory.peak" if is_v2 else "memory.max_usage_in_bytes"))
        read, written = (None, None) if self._io is None else _io_bytes(self._io, self._io.folder / name)
        return CgroupUse(cpu, peak, memory, read, written)

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
        roots = [*self._groups, self._io] if self._io is not None else self._groups
        return {group.folder / name for group in roots}


def _cpu_seconds(group: ControllerRoot, folder: Path) -> float | None:
    """Return the CPU time of a group; None if the kernel does not count it in this group.

    Version 1 counts it with another controller, cpuacct, which usually has the same folders as cpu.
    """
    if group.version == 1:
        nanoseconds = _whole_number(folder / "cpuacct.usage")
        return None if nanoseconds is None else nanoseconds / 1e9
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "cpu.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "usage_usec":
                return int(value) / 1e6
    return None


def _mib(path: Path) -> int | None:
    size = _whole_number(path)
    return None if size is None else size >> 20


def _io_bytes(group: ControllerRoot, folder: Path) -> tuple[int | None, int | None]:
    """Return the bytes that a group has read and written; (None, None) if the kernel does not count them.

    A group that has not used a device yet has an empty file, which means 0.
    """
    counts = {"read": 0, "write": 0}
    try:
        if group.version == 2:  # 8:0 rbytes=1459200 wbytes=314773504 rios=192 ...
            for line in (folder / "io.stat").read_text().splitlines():
                values = dict(entry.partition("=")[::2] for entry in line.split()[1:])
                counts["read"] += int(values.get("rbytes", 0))
                counts["write"] += int(values.get("wbytes", 0))
        else:  # 8:0 Read 1459200
            for line in (folder / "blkio.throttle.io_service_bytes").read_text().splitlines():
                _, *rest = line.split()
                if len(rest) == 2 and rest[0].lower() in counts:
                    counts[rest[0].lower()] += int(rest[1])
    except (OSError, ValueError):
        return None, None
    return counts["read"], counts["write"]


def _whole_number(path: Path) -> int | None:
    """Return the number in a file; None if there is no such file, or if it has no number."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _limit_files(group: ControllerRoot, folder: Path, limits: CgroupLimits) -> list[tuple[str, str]]:
    """Return the (file, value) pairs that set the limits, in the order in which to write them."""
    if group.controller == "pids":
        return [("pids.max", str(limits.processes))]
    if group.controller == "memory":
        return _memory_limit_files(group, folder, limits.memory_mib << 20) if limits.memory_mib else []
    if group.controller == DEVICES_CONTROLLER:
        return _device_rules(limits.devices)
    return _cpu_limit_files(group, limits)


def _cpu_limit_files(group: ControllerRoot, limits: CgroupLimits) -> list[tuple[str, str]]:
    """Return the (file, value) pairs of the weight and the limit of CPU."""
    files: list[tuple[str, str]] = []
    if limits.cpu_weight:
        is_v2 = group.version == 2
        weight = limits.cpu_weight if is_v2 else limits.cpu_weight * V1_CPU_SHARES_PER_WEIGHT
        files.append(("cpu.weight" if is_v2 else "cpu.shares", str(weight)))
    quota = limits.cpu_milli * CPU_PERIOD_MICROSECONDS // 1000
    if quota and group.version == 2:
        files.append(("cpu.max", f"{quota} {CPU_PERIOD_MICROSECONDS}"))
    elif quota:
        files += [("cpu.cfs_period_us", str(CPU_PERIOD_MICROSECONDS)), ("cpu.cfs_quota_us", str(quota))]
    return files


def _memory_limit_files(group: ControllerRoot, folder: Path, size: int) -> list[tuple[str, str]]:
    """Return the (file, value) pairs that limit memory.

    If the kernel accounts for swap, a run can't use swap beyond this limit.
    """
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


def _find_controllers(mounts: Path) -> tuple[str, list[ControllerRoot], ControllerRoot | None]:
    """Return the layout (v1, v2, hybrid or none), one ControllerRoot per usable controller, and that of I/O.

    The kernel gives each controller to one version of control groups. If both versions nevertheless list a
    controller, version 1 is used.
    """
    roots: dict[str, ControllerRoot] = {}
    io: ControllerRoot | None = None
    versions: set[int] = set()
    for line in mounts.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        root = Path(place)
        if kind == "cgroup":
            versions.add(1)
            if IO_CONTROLLERS[1] in options.split(",") and _ensure_directory(root / PARENT_GROUP):
                io = ControllerRoot(IO_CONTROLLERS[1], root / PARENT_GROUP, 1)
            for controller in set(options.split(",")) & {*CONTROLLERS, DEVICES_CONTROLLER}:
                if _ensure_directory(root / PARENT_GROUP):
                    roots[controller] = ControllerRoot(controller, root / PARENT_GROUP, 1)
        elif kind == "cgroup2":
            versions.add(2)
            for controller in _enable_v2_controllers(root):
                roots.setdefault(controller, ControllerRoot(controller, root / PARENT_GROUP, 2))
            if io is None and _enable_v2_io(root):
                io = ControllerRoot(IO_CONTROLLERS[2], root / PARENT_GROUP, 2)
    layout = {(): "none", (1,): "v1", (2,): "v2"}.get(tuple(sorted(versions)), "hybrid")
    return layout, [roots[name] for name in (*CONTROLLERS, DEVICES_CONTROLLER) if name in roots], io


def _enable_v2_io(root: Path) -> bool:
    """Make the kernel count the reads and writes of groups below this mount. Return False if it can't."""
    try:
        if IO_CONTROLLERS[2] not in (root / "cgroup.controllers").read_text().split():
            return False
        if not _ensure_directory(root / PARENT_GROUP):
            return False
        for folder in (root, root / PARENT_GROUP):
            (folder / "cgroup.subtree_control").write_text(f"+{IO_CONTROLLERS[2]}")
    except OSError:
        return False
    return True


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
