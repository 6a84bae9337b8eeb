"""Choose units for an ask (the hardware that a workload requests).

First find the hosts on which the ask fits, then choose the best of them. Units that belong together are kept
together:

- MIG slices and shares are placed on the GPU with the most slots in use.
- Units of one host come from one NVLink island (GPUs that NVLink connects) if possible.
- The hosts of a gang (a workload on several hosts) come from one NVLink island that spans hosts if possible.
  The next choices are one rack, and then as few racks as possible.

If several hosts are equal in these points, the placement rule (``ranking_for_profile``) decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.arrays import Ints, Mask, intersection
from scheduler.core.fit.availability import host_counts, units_of_kind_in
from scheduler.core.fit.host_ranking import HostRanking
from scheduler.core.fit.preferences import rank_by_preferences, spread_over_racks
from scheduler.core.fit.topology import nvlink_islands, order_by_proximity
from scheduler.core.model.hardware import PoolHardware, UnitKind
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.core.model.snapshot import Ask
from scheduler.core.scoring.demand_mix import nodes_with_capacity
from scheduler.core.scoring.placement_rule import PlacementTerms

AFFINITY_WEIGHT = 1 << 40  # larger than every difference between ranks of the placement rule


@dataclass(frozen=True, slots=True)
class HostResources:
    """The free CPU (thousandths of a core) and free memory (MiB) of each host."""

    cpu_milli: Ints
    memory_mib: Ints


def suitable_hosts(state: PoolState, ask: Ask, counts: Ints, resources: HostResources | None = None) -> Mask:
    """Return the mask of hosts that have all labels of the ask and enough units, CPU and memory.

    ``counts`` has the number of available units of each host. If ``resources`` is None, the function uses the
    CPU and memory that are free now.
    """
    cpu = state.cpu_free if resources is None else resources.cpu_milli
    memory = state.memory_free if resources is None else resources.memory_mib
    mask = nodes_with_capacity(state.resolve_ask(ask).need, cpu, memory, counts, counts)
    if ask.labels:
        mask = intersection(mask, state.label_mask(ask.labels))
    return mask


def choose_units(
    state: PoolState,
    ask: Ask,
    kind: int,
    available: Mask | None = None,
    resources: HostResources | None = None,
) -> list[int] | None:
    """Return the best units of one kind for an ask, or None if the ask does not fit.

    The units are on as many hosts as the ask needs. ``available`` (units) and ``resources`` (CPU and memory)
    can describe a hypothetical state, for example the state after evicted work has stopped. If they are None,
    the function uses the units, CPU and memory that are free now.
    """
    counts = host_counts(state, kind, available)
    hosts = suitable_hosts(state, ask, counts, resources).nonzero()[0]
    return (
        choose_units_on_hosts(state, ask, kind, hosts, counts, available, resources)
        if len(hosts) >= ask.hosts
        else None
    )


def choose_units_on_hosts(
    state: PoolState,
    ask: Ask,
    kind: int,
    hosts: Ints,
    counts: Ints,
    available: Mask | None = None,
    resources: HostResources | None = None,
) -> list[int] | None:
    """Return the best units on ``hosts`` for an ask, or None if the ask needs more hosts.

    One host's part of the ask must fit on each of these hosts (see ``suitable_hosts``). ``counts`` has the
    number of available units of each host of the pool.
    """
    free = state.free if available is None else available
    ranks = rank_hosts(state, ask, kind, counts[hosts], hosts, free, resources)
    keys = rank_by_preferences(state.hardware, ask, hosts, counts[hosts], ranks)
    if ask.hosts == 1 and not ask.nvlink:
        return pick_units_on_host(state, ask, kind, int(hosts[keys.argmin()]), free)
    chosen: list[int] = []
    hosts_found = 0
    best_first = hosts[keys.argsort(kind="stable")]
    for host in (
        spread_over_racks(state.hardware, best_first)
        if ask.spread
        else order_by_proximity(state.hardware, ask.hosts, best_first)
    ):
        units = pick_units_on_host(state, ask, kind, int(host), free)
        if units is not None:
            chosen += units
            hosts_found += 1
            if hosts_found == ask.hosts:
                return chosen
    return None


def kinds_in_order(state: PoolState, ask: Ask) -> list[int]:
    """Return the kinds of units that serve an ask, in the order in which the planner tries them.

    If the ask lists models, this is the order of its list. Otherwise the least capable kind comes first.
    Among equally capable kinds, the kind with the lowest ``model_price`` comes first, because other work
    needs its model least.
    """
    kinds = state.kinds_for(ask)
    if ask.models or len(kinds) < 2 or not has_equally_capable_models(state.hardware):
        return kinds
    ranking = ranking_for_profile(state, ask.profile)
    return sorted(kinds, key=lambda k: (*capability(state.kinds[k]), ranking.model_price(k), k))


def capability(kind: UnitKind) -> tuple[int, int]:
    """Return (memory in MiB, compute capability). An ask can require a minimum of both."""
    return kind.memory_mib, kind.compute_capability


def has_equally_capable_models(hardware: PoolHardware) -> bool:
    """Return True if the pool has two kinds with equal profile, memory and compute capability."""
    if "several as capable" not in hardware.derived:
        capabilities = [(kind.profile, capability(kind)) for kind in hardware.kinds]
        hardware.derived["several as capable"] = len(set(capabilities)) < len(capabilities)
    return bool(hardware.derived["several as capable"])


def rank_hosts(
    state: PoolState,
    ask: Ask,
    kind: int,
    counts: Ints,
    hosts: Ints,
    free: Mask,
    resources: HostResources | None = None,
) -> Ints:
    """Return the rank of each host in ``hosts``; a lower rank is better.

    For slices and shares, hosts with a fuller GPU come first. For several whole GPUs, hosts on which one
    NVLink island has enough of them come first. Otherwise the placement rule decides. If two hosts have equal
    ranks, callers choose the host with the lower index.
    """
    cpu = state.cpu_free if resources is None else resources.cpu_milli
    memory = state.memory_free if resources is None else resources.memory_mib
    ranks = ranking_for_profile(state, ask.profile).ranks(ask, kind, counts, cpu[hosts], memory[hosts])
    if ask.profile != WHOLE_GPU_PROFILE:
        return ranks - AFFINITY_WEIGHT * fullest_gpu(state, kind, free)[hosts]
    if ask.units > 1 and nvlink_islands(state.hardware).matter:
        return ranks + AFFINITY_WEIGHT * (largest_island(state, kind, free)[hosts] < ask.units)
    return ranks


def ranking_for_profile(state: PoolState, profile: str) -> HostRanking:
    """Return the host ranking for units of one profile.

    A ranking is created at its first use in each cycle (run of the planner).
    """
    cached = state.rankings.get(profile)
    if cached is None:
        cached = state.rankings[profile] = HostRanking(state, profile)
    return cached


def placement_terms(state: PoolState, ask: Ask, kind: int, units: list[int]) -> PlacementTerms:
    """Return the terms of the placement rule for ``units``, added up over their hosts."""
    ranking, terms = ranking_for_profile(state, ask.profile), PlacementTerms(0, 0, 0, 0)
    for first in range(0, len(units), ask.units):
        host_units = units[first : first + ask.units]
        host = int(state.host_of[host_units[0]])
        # Units that evictions freed for this workload are not in ``free_counts``, so they are added.
        earmarked = sum(not state.free[unit] for unit in host_units)
        count = int(state.free_counts[kind][host]) + earmarked
        terms += ranking.terms(ask, kind, count, int(state.cpu_free[host]), int(state.memory_free[host]))
    return terms


def largest_island(state: PoolState, kind: int, free: Mask) -> Ints:
    """Return, for each host, the largest number of available units of ``kind`` within one NVLink island."""
    islands = nvlink_islands(state.hardware)
    chosen = units_of_kind_in(state, kind, intersection(free, islands.of >= 0))
    members = np.bincount(islands.of[chosen], minlength=len(islands.host))
    largest = np.zeros(len(state.hosts), dtype=np.int64)
    np.maximum.at(largest, islands.host, members)
    return largest


def fullest_gpu(state: PoolState, kind: int, free: Mask) -> Ints:
    """Return, for each host, the slots in use on the fullest GPU that has an available unit of a kind."""
    chosen = units_of_kind_in(state, kind, free)
    fullest = np.zeros(len(state.hosts), dtype=np.int64)
    np.maximum.at(fullest, state.host_of[chosen], state.gpu_used[state.gpu_of[chosen]])
    return fullest


def pick_units_on_host(state: PoolState, ask: Ask, kind: int, host: int, free: Mask) -> list[int] | None:
    """Return as many available units of one kind on a host as the ask needs per host (``ask.units``).

    Return None if there are not enough. The units are in one NVLink island if possible. Slices are on the
    GPUs with the most slots in use.
    """
    first, last = int(state.first_unit[host]), int(state.first_unit[host + 1])
    units: list[int] = (first + (free[first:last] & (state.kind[first:last] == kind)).nonzero()[0]).tolist()
    return pick_units(state, ask, units)


def pick_units(state: PoolState, ask: Ask, units: list[int]) -> list[int] | None:
    """Return as many of one host's available ``units`` as the ask needs per host (``ask.units``).

    Return None if there are not enough, or if the ask requires NVLink and no NVLink island has enough.
    """
    if len(units) < ask.units:
        return None
    if ask.profile != WHOLE_GPU_PROFILE:
        units.sort(key=lambda u: (-int(state.gpu_used[state.gpu_of[u]]), u))
        return units[: ask.units]
    if not ask.nvlink and not nvlink_islands(state.hardware).matter:
        return units[: ask.units]
    groups: dict[int, list[int]] = {}
    for unit in units:
        group = state.units[unit].nvlink_group
        if group is not None:
            groups.setdefault(group, []).append(unit)
    for _, members in sorted(groups.items(), key=lambda item: (len(item[1]), item[0])):
        if len(members) >= ask.units:
            return members[: ask.units]
    return None if ask.nvlink else units[: ask.units]
