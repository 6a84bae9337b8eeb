"""Choose the units with the lowest total cost for an ask (the hardware that a workload requests).

The caller gives the cost of each unit, for example the cost of evicting the workload on it.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints, Mask
from scheduler.core.fit import availability
from scheduler.core.fit.preferences import rank_by_preferences, spread_over_racks
from scheduler.core.fit.topology import nvlink_islands, order_by_proximity
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.core.model.snapshot import Ask


def cheapest_units(state: PoolState, ask: Ask, kind: int, mask: Mask, cost: Ints) -> list[int] | None:
    """Return the cheapest units of one kind for an ask, or None if the ask does not fit.

    The units are chosen from ``mask``. ``cost`` has the cost of every unit of the pool. These criteria order
    hosts with equal cost; the first has the most weight:

    1. the ask's preferences (labels, spreading),
    2. whether the units can come from one NVLink island (such hosts come first),
    3. the number of units in ``mask`` (the host with the fewest comes first),
    4. the index of the host (the lowest comes first).

    If the ask needs several hosts, hosts with equal cost are then reordered. Hosts near each other come
    first. If the ask is to be spread, hosts on different racks come first instead.
    """
    units = availability.units_of_kind_in(state, kind, mask)
    if ask.nvlink:
        units = _cheapest_nvlink_groups(state, ask, units, cost)
    hosts = state.host_of[units]
    # Sort by host, then by cost. The units are already ordered by host, so one combined key and a stable sort
    # are fast.
    order = np.argsort(hosts * (int(cost.max(initial=0)) + 1) + cost[units], kind="stable")
    units, hosts = units[order], hosts[order]
    counts = np.bincount(hosts, minlength=len(state.hosts))
    suitable = (counts >= ask.units) & state.hardware.hosts_with_capacity(ask)
    if int(suitable.sum()) < ask.hosts:
        return None
    position_on_host = np.arange(len(units)) - (np.cumsum(counts) - counts)[hosts]
    taken = (position_on_host < ask.units) & suitable[hosts]
    host_cost = np.bincount(hosts[taken], weights=cost[units[taken]], minlength=len(state.hosts))
    candidates = np.flatnonzero(suitable)
    tightest = candidates[np.lexsort((candidates, counts[candidates]))]
    split = np.zeros(len(state.hosts), dtype=np.bool_)
    if ask.units > 1 and ask.profile == WHOLE_GPU_PROFILE and nvlink_islands(state.hardware).matter:
        taken, split = _in_one_island(state, ask, units, cost, taken, host_cost)
    places = np.arange(len(tightest)) + len(tightest) * split[tightest]
    ranks = rank_by_preferences(state.hardware, ask, tightest, counts[tightest], places)
    by_cost = tightest[np.lexsort((ranks, host_cost[tightest]))]
    if ask.hosts > 1:  # Reorder only hosts of equal cost, so that a preference never causes an eviction.
        front = by_cost[host_cost[by_cost] <= host_cost[by_cost[ask.hosts - 1]]]
        ordered = (
            spread_over_racks(state.hardware, by_cost)
            if ask.spread
            else order_by_proximity(state.hardware, ask.hosts, front)
        )
        by_cost = ordered[np.argsort(host_cost[ordered], kind="stable")]
    return sorted(int(u) for u in units[taken & np.isin(hosts, by_cost[: ask.hosts])])


def _in_one_island(
    state: PoolState, ask: Ask, units: Ints, cost: Ints, taken: Mask, host_cost: Ints
) -> tuple[Mask, Mask]:
    """Return two masks: the units to take, and the hosts on which no NVLink island is suitable.

    An island is a group of GPUs of one host that NVLink connects. It is suitable if it has enough units, and
    if these units cost no more than the host's units in ``taken``. On each host, the units of the smallest
    suitable island are taken. On a host without a suitable island, the units in ``taken`` are taken.
    """
    islands = nvlink_islands(state.hardware)
    island_of = islands.of[units]
    order = np.lexsort((np.arange(len(units)), cost[units], island_of))
    order = order[island_of[order] >= 0]
    members = np.bincount(island_of[order], minlength=len(islands.host))
    position = np.arange(len(order)) - (np.cumsum(members) - members)[island_of[order]]
    cheapest = order[position < ask.units]
    price = np.bincount(island_of[cheapest], weights=cost[units[cheapest]], minlength=len(islands.host))
    sufficient = np.flatnonzero((members >= ask.units) & (price <= host_cost[islands.host]))
    sufficient = sufficient[np.lexsort((sufficient, members[sufficient], islands.host[sufficient]))]
    hosts, index = np.unique(islands.host[sufficient], return_index=True)
    split = np.ones(len(state.hosts), dtype=np.bool_)
    split[hosts] = False
    chosen = np.zeros(len(islands.host), dtype=np.bool_)
    chosen[sufficient[index]] = True
    taken_together = np.zeros(len(units), dtype=np.bool_)
    taken_together[cheapest[chosen[island_of[cheapest]]]] = True
    return np.where(split[state.host_of[units]], taken, taken_together), split


def _cheapest_nvlink_groups(state: PoolState, ask: Ask, units: Ints, cost: Ints) -> Ints:
    """Return, for each host, all units of the NVLink island that can serve the ask at the lowest cost.

    The result has no units of hosts without a large enough island.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for unit in (int(u) for u in units):
        group = state.units[unit].nvlink_group
        if group is not None:
            groups.setdefault((int(state.host_of[unit]), group), []).append(unit)
    best: dict[int, tuple[int, list[int]]] = {}
    for (host, _), members in sorted(groups.items()):
        if len(members) >= ask.units:
            price = sum(sorted(int(cost[u]) for u in members)[: ask.units])
            if host not in best or price < best[host][0]:
                best[host] = price, members
    return np.array(sorted(u for _, members in best.values() for u in members), dtype=np.int64)
