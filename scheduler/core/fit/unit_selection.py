"""Where an ask fits: which hosts and units may serve it, and which of them is best.

Which place is best is the placement rule's to say (``ranking_for_profile``), among those that keep together what belongs together:
slices and shares go on the GPU used most; units of a host come from one NVLink island if they can; the hosts of a gang from
one island that spans hosts, else from one rack, else from as few racks as will do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.arrays import Ints, Mask, intersection
from scheduler.core.fit.availability import host_counts, units_of_kind_in
from scheduler.core.fit.host_ranking import HostRanking, PlacementTerms
from scheduler.core.fit.preferences import rank_by_preferences, spread_over_racks
from scheduler.core.fit.topology import nvlink_islands, order_by_proximity
from scheduler.core.model.hardware import PoolHardware, UnitKind
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.core.model.snapshot import Ask
from scheduler.core.scoring.demand_mix import nodes_with_capacity

AFFINITY_WEIGHT = 1 << 40  # outweighs every difference the placement rule can make


@dataclass(frozen=True, slots=True)
class HostResources:
    """CPU (thousandths) and memory (MiB) that each host has to give beside its GPUs."""

    cpu_milli: Ints
    memory_mib: Ints


def suitable_hosts(board: PoolState, ask: Ask, counts: Ints, beside: HostResources | None = None) -> Mask:
    """Hosts with enough units, every label, and enough CPU and memory."""
    cpu = board.cpu_free if beside is None else beside.cpu_milli
    memory = board.memory_free if beside is None else beside.memory_mib
    mask = nodes_with_capacity(board.wanted(ask).need, cpu, memory, counts, counts)
    if ask.labels:
        mask = intersection(mask, board.label_mask(ask.labels))
    return mask


def choose_units(
    board: PoolState, ask: Ask, kind: int, available: Mask | None = None, beside: HostResources | None = None
) -> list[int] | None:
    """The best units of one kind for a whole ask, or None when they are not there.

    ``available`` and ``beside`` are given to ask "what if" (somebody was gone); otherwise what is free now counts.
    """
    counts = host_counts(board, kind, available)
    hosts = suitable_hosts(board, ask, counts, beside).nonzero()[0]
    return (
        choose_units_on_hosts(board, ask, kind, hosts, counts, available, beside)
        if len(hosts) >= ask.hosts
        else None
    )


def choose_units_on_hosts(
    board: PoolState,
    ask: Ask,
    kind: int,
    hosts: Ints,
    counts: Ints,
    available: Mask | None = None,
    beside: HostResources | None = None,
) -> list[int] | None:
    """As ``choose_units``, for who knows already how many units each host has to take, and which hosts suit: enough of them."""
    free = board.free if available is None else available
    ranks = rank_hosts(board, ask, kind, counts[hosts], hosts, free, beside)
    keys = rank_by_preferences(board.ground, ask, hosts, counts[hosts], ranks)
    if ask.hosts == 1 and not ask.nvlink:
        return pick_units_on_host(board, ask, kind, int(hosts[keys.argmin()]), free)
    chosen: list[int] = []
    found = 0
    best_first = hosts[keys.argsort(kind="stable")]
    for host in (
        spread_over_racks(board.ground, best_first)
        if ask.spread
        else order_by_proximity(board.ground, ask.hosts, best_first)
    ):
        units = pick_units_on_host(board, ask, kind, int(host), free)
        if units is not None:
            chosen += units
            found += 1
            if found == ask.hosts:
                return chosen
    return None


def kinds_in_order(board: PoolState, ask: Ask) -> list[int]:
    """The kinds that serve an ask, the first to be tried first: as ``kinds_for`` says, and among models that an ask without a
    wish finds equally capable, those first that others could best do without (the rule's model price)."""
    kinds = board.kinds_for(ask)
    if ask.models or len(kinds) < 2 or not has_equally_capable_models(board.ground):
        return kinds
    rule = ranking_for_profile(board, ask.profile)
    return sorted(kinds, key=lambda k: (*capability(board.kinds[k]), rule.model_price(k), k))


def capability(kind: UnitKind) -> tuple[int, int]:
    """What an ask by properties can tell kinds apart by."""
    return kind.memory_mib, kind.compute_capability


def has_equally_capable_models(ground: PoolHardware) -> bool:
    """Are there kinds of one profile that only their models tell apart?"""
    if "several as capable" not in ground.derived:
        sorts = [(kind.profile, capability(kind)) for kind in ground.kinds]
        ground.derived["several as capable"] = len(set(sorts)) < len(sorts)
    return bool(ground.derived["several as capable"])


def rank_hosts(
    board: PoolState,
    ask: Ask,
    kind: int,
    counts: Ints,
    hosts: Ints,
    free: Mask,
    beside: HostResources | None = None,
) -> Ints:
    """The rank of each candidate host, lower is better; equal ranks fall to the lower host.

    First what keeps things together (slices and shares on a GPU that is in use already, several units in one NVLink
    island), then the placement rule.
    """
    cpu = board.cpu_free if beside is None else beside.cpu_milli
    memory = board.memory_free if beside is None else beside.memory_mib
    ranks = ranking_for_profile(board, ask.profile).ranks(ask, kind, counts, cpu[hosts], memory[hosts])
    if ask.profile != WHOLE_GPU_PROFILE:
        return ranks - AFFINITY_WEIGHT * fullest_gpu(board, kind, free)[hosts]
    if ask.units > 1 and nvlink_islands(board.ground).matter:
        return ranks + AFFINITY_WEIGHT * (largest_island(board, kind, free)[hosts] < ask.units)
    return ranks


def ranking_for_profile(board: PoolState, profile: str) -> HostRanking:
    """The placement rule for units of one profile, made when first needed in a cycle."""
    known = board.rankings.get(profile)
    if known is None:
        known = board.rankings[profile] = HostRanking(board, profile)
    return known


def placement_terms(board: PoolState, ask: Ask, kind: int, units: list[int]) -> PlacementTerms:
    """Why these units, about to be taken for an ask: the placement rule's terms, added up over the hosts."""
    rule, found = ranking_for_profile(board, ask.profile), PlacementTerms(0, 0, 0, 0)
    for at in range(0, len(units), ask.units):
        here = units[at : at + ask.units]
        host = int(board.host_of[here[0]])
        kept = sum(not board.free[unit] for unit in here)  # for this workload, so not counted as free
        count = int(board.counts[kind][host]) + kept
        found += rule.terms(ask, kind, count, int(board.cpu_free[host]), int(board.memory_free[host]))
    return found


def largest_island(board: PoolState, kind: int, free: Mask) -> Ints:
    """Per host: the most takeable units of a kind within one NVLink island."""
    within = nvlink_islands(board.ground)
    chosen = units_of_kind_in(board, kind, intersection(free, within.of >= 0))
    members = np.bincount(within.of[chosen], minlength=len(within.host))
    largest = np.zeros(len(board.hosts), dtype=np.int64)
    np.maximum.at(largest, within.host, members)
    return largest


def fullest_gpu(board: PoolState, kind: int, free: Mask) -> Ints:
    """Per host: the most slots in use on a GPU that still has a takeable slice of this kind."""
    chosen = units_of_kind_in(board, kind, free)
    fullest = np.zeros(len(board.hosts), dtype=np.int64)
    np.maximum.at(fullest, board.host_of[chosen], board.gpu_used[board.gpu_of[chosen]])
    return fullest


def pick_units_on_host(board: PoolState, ask: Ask, kind: int, host: int, free: Mask) -> list[int] | None:
    """Which of a host's takeable units: in one NVLink group if there is one, slices on the fullest GPUs."""
    first, last = int(board.first_unit[host]), int(board.first_unit[host + 1])
    units: list[int] = (first + (free[first:last] & (board.kind[first:last] == kind)).nonzero()[0]).tolist()
    return pick_units(board, ask, units)


def pick_units(board: PoolState, ask: Ask, units: list[int]) -> list[int] | None:
    """``ask.units`` of one host's takeable units, given in order."""
    if len(units) < ask.units:
        return None
    if ask.profile != WHOLE_GPU_PROFILE:
        units.sort(key=lambda u: (-int(board.gpu_used[board.gpu_of[u]]), u))
        return units[: ask.units]
    if not ask.nvlink and not nvlink_islands(board.ground).matter:
        return units[: ask.units]
    groups: dict[int, list[int]] = {}
    for unit in units:
        group = board.units[unit].nvlink_group
        if group is not None:
            groups.setdefault(group, []).append(unit)
    for _, members in sorted(groups.items(), key=lambda item: (len(item[1]), item[0])):
        if len(members) >= ask.units:
            return members[: ask.units]
    return None if ask.nvlink else units[: ask.units]
