"""Computes the limits of a run that its request leaves open, from the run's share of the GPUs of its host.

A run with a quarter of the GPUs gets a quarter of the memory, processes and temporary files. Its weight for
the CPU is a quarter, too: it may use idle CPU, and gets its share when other runs need theirs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from agent.isolation.cgroups import MAX_CPU_WEIGHT, CgroupLimits
from agent.protocol import SLOTS_PER_GPU, GpuSeen, RunWanted

# Memory that runs leave to the system and the agent: this share, up to the maximum.
RESERVED_MEMORY_SHARE, MAX_RESERVED_MIB = 0.05, 8192
# A run gets at least this much, however small its share is, because an interpreter with libraries needs it.
MIN_MEMORY_MIB, MIN_PROCESSES = 1024, 512
MIN_SCRATCH_BYTES = 1 << 30
# While less of the disk is used, no run lacks space, and no run has a limit of temporary files.
SCRATCH_SHARED_FROM = 0.5


def host_memory_mib() -> int:
    """Return the memory of this host in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def gpu_share(unit_uuids: Collection[str], gpus: Iterable[GpuSeen]) -> float:
    """Return the share of these units in the GPUs of the host, from 0 to 1.

    Return 1 if the units are unknown, so that a run is not limited because a GPU could not be read.
    """
    gpus = list(gpus)
    wanted = set(unit_uuids)
    slots = {unit.uuid: unit.slots for gpu in gpus for unit in gpu.units}
    if not wanted or not wanted <= slots.keys():
        return 1.0
    return min(1.0, sum(slots[uuid] for uuid in wanted) / (SLOTS_PER_GPU * len(gpus)))


def run_limits(
    wanted: RunWanted,
    gpus: Iterable[GpuSeen],
    memory_mib: int,
    max_processes: int,
    devices: list[str] | None = None,
) -> CgroupLimits:
    """Return the limits of a run. A limit that its request leaves open is its share of the host.

    ``memory_mib``: the memory of the host. ``max_processes``: the limit of a run with all GPUs of the host.
    """
    share = gpu_share(wanted.unit_uuids, gpus)
    usable = memory_mib - min(MAX_RESERVED_MIB, int(memory_mib * RESERVED_MEMORY_SHARE))
    default_memory = max(MIN_MEMORY_MIB, int(usable * share))
    return CgroupLimits(
        cpu_milli=wanted.cpu_milli,
        memory_mib=wanted.memory_mib or min(default_memory, memory_mib),
        processes=min(max_processes, max(MIN_PROCESSES, int(max_processes * share))),
        devices=devices,
        cpu_weight=max(1, round(MAX_CPU_WEIGHT * share)),
    )


def scratch_limit_bytes(share: float, disk_bytes: int, used_bytes: int) -> int:
    """Return the limit of a run's temporary files; 0 means no limit.

    There is no limit while less than SCRATCH_SHARED_FROM of the disk is used, or if the limit would exceed
    the size of the disk.
    """
    limit = max(MIN_SCRATCH_BYTES, int(disk_bytes * share))
    return 0 if used_bytes < disk_bytes * SCRATCH_SHARED_FROM or limit >= disk_bytes else limit
