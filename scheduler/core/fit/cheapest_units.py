from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints, Mask
from scheduler.core.fit import availability
from scheduler.core.fit.preferences import rank_by_preferences, spread_over_racks
from scheduler.core.fit.topology import nvlink_islands, order_by_proximity
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.core.model.snapshot import Ask


def cheapest_units(board: PoolState, ask: Ask, kind: int, mask: Mask, cost: Ints) -> list[int] | None:
    """Like ``unit_selection.choose``, but by what taking each unit would cost, then by its wishes, then in one NVLink island, then tightest,
    then the lower host; of hosts that cost the same those near each other."""
    units = availability.units_of_kind_in(board, kind, mask)
    if ask.nvlink:
        units = _cheapest_nvlink_groups(board, ask, units, cost)
    hosts = board.host_of[units]
    # One key and a stable sort: units come by host already, so there is little left to sort.
    order = np.argsort(hosts * (int(cost.max(initial=0)) + 1) + cost[units], kind="stable")
    units, hosts = units[order], hosts[order]
    counts = np.bincount(hosts, minlength=len(board.hosts))
    suitable = (counts >= ask.units) & board.ground.hosts_with_capacity(ask)
    if int(suitable.sum()) < ask.hosts:
        return None
    place_on_host = np.arange(len(units)) - (np.cumsum(counts) - counts)[hosts]
    taken = (place_on_host < ask.units) & suitable[hosts]
    host_cost = np.bincount(hosts[taken], weights=cost[units[taken]], minlength=len(board.hosts))
    candidates = np.flatnonzero(suitable)
    tightest = candidates[np.lexsort((candidates, counts[candidates]))]
    split = np.zeros(len(board.hosts), dtype=np.bool_)
    if ask.units > 1 and ask.profile == WHOLE_GPU_PROFILE and nvlink_islands(board.ground).matter:
        taken, split = _in_one_island(board, ask, units, cost, taken, host_cost)
    places = np.arange(len(tightest)) + len(tightest) * split[tightest]
    ranks = rank_by_preferences(board.ground, ask, tightest, counts[tightest], places)
    by_cost = tightest[np.lexsort((ranks, host_cost[tightest]))]
    if ask.hosts > 1:  # of hosts that cost the same; nobody goes for a wish
        front = by_cost[host_cost[by_cost] <= host_cost[by_cost[ask.hosts - 1]]]
        sorted_ = (
            spread_over_racks(board.ground, by_cost)
            if ask.spread
            else order_by_proximity(board.ground, ask.hosts, front)
        )
        by_cost = sorted_[np.argsort(host_cost[sorted_], kind="stable")]
    return sorted(int(u) for u in units[taken & np.isin(hosts, by_cost[: ask.hosts])])


def _in_one_island(
    board: PoolState, ask: Ask, units: Ints, cost: Ints, taken: Mask, host_cost: Ints
) -> tuple[Mask, Mask]:
    """Which of ``units`` to take, as ``taken`` says, but in one NVLink island of a host where that costs no more: the smallest
    that will do. And the hosts on which they would be in several."""
    within = nvlink_islands(board.ground)
    of = within.of[units]
    order = np.lexsort((np.arange(len(units)), cost[units], of))
    order = order[of[order] >= 0]
    members = np.bincount(of[order], minlength=len(within.host))
    place = np.arange(len(order)) - (np.cumsum(members) - members)[of[order]]
    first = order[place < ask.units]
    price = np.bincount(of[first], weights=cost[units[first]], minlength=len(within.host))
    will_do = np.flatnonzero((members >= ask.units) & (price <= host_cost[within.host]))
    will_do = will_do[np.lexsort((will_do, members[will_do], within.host[will_do]))]
    hosts, which = np.unique(within.host[will_do], return_index=True)
    split = np.ones(len(board.hosts), dtype=np.bool_)
    split[hosts] = False
    chosen = np.zeros(len(within.host), dtype=np.bool_)
    chosen[will_do[which]] = True
    together = np.zeros(len(units), dtype=np.bool_)
    together[first[chosen[of[first]]]] = True
    return np.where(split[board.host_of[units]], taken, together), split


def _cheapest_nvlink_groups(board: PoolState, ask: Ask, units: Ints, cost: Ints) -> Ints:
    """Of each host's units only those of the one NVLink group that would serve an ask most cheaply."""
    groups: dict[tuple[int, int], list[int]] = {}
    for unit in (int(u) for u in units):
        group = board.units[unit].nvlink_group
        if group is not None:
            groups.setdefault((int(board.host_of[unit]), group), []).append(unit)
    best: dict[int, tuple[int, list[int]]] = {}
    for (host, _), members in sorted(groups.items()):
        if len(members) >= ask.units:
            price = sum(sorted(int(cost[u]) for u in members)[: ask.units])
            if host not in best or price < best[host][0]:
                best[host] = price, members
    return np.array(sorted(u for _, members in best.values() for u in members), dtype=np.int64)
