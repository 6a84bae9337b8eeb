"""Check whether a pool could serve an ask (the hardware that a workload requests) if the pool were empty."""

from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Mask
from scheduler.core.fit import availability
from scheduler.core.fit.cheapest_units import cheapest_units
from scheduler.core.model.hardware import FAR_FUTURE
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import Ask, PoolKind
from scheduler.core.reasons import Reason, ReasonCode, reason_numbers


def fits_on_empty_hosts(state: PoolState, ask: Ask, kind: int, mask: Mask) -> bool:
    """Return True if the ask fits on units of one kind that are in ``mask``. All of them count as free."""
    if ask.nvlink:
        return cheapest_units(state, ask, kind, mask, np.zeros(len(state.units), dtype=np.int64)) is not None
    return (
        int(((state.count_units_in(kind, mask) >= ask.units) & state.hardware.hosts_with_capacity(ask)).sum())
        >= ask.hosts
    )


def infeasible_reason(state: PoolState, ask: Ask, team: int) -> Reason | None:
    """Return the reason why even an empty pool could not serve an ask of a team.

    Return None if an empty pool could serve the ask.
    """
    if state.pool.kind is PoolKind.STATIC and state.pool.team != team:
        return ReasonCode.NOT_YOUR_POOL, reason_numbers(owner=state.pool.team, pool=state.pool.id)
    kinds = state.kinds_for(ask)
    if not kinds:
        return ReasonCode.NO_SUCH_HARDWARE, reason_numbers(
            min_compute_capability=ask.min_compute_capability,
            min_memory_mib=ask.min_memory_mib,
            models=list(ask.models),
            profile=ask.profile,
        )
    all_units = state.hardware.all_units
    if not any(fits_on_empty_hosts(state, ask, kind, all_units) for kind in kinds):
        largest = max(int(availability.host_counts(state, kind, all_units).max(initial=0)) for kind in kinds)
        hosts = int(state.label_mask(ask.labels).sum())
        return ReasonCode.TOO_BIG_FOR_ANY_HOST, reason_numbers(
            hosts=ask.hosts,
            hosts_with_labels=hosts,
            largest=largest,
            units=ask.units,
            **_largest_cpu_and_memory(state, ask, kinds),
        )
    return None


def _largest_cpu_and_memory(state: PoolState, ask: Ask, kinds: list[int]) -> dict[str, int]:
    """Return the numbers that explain why the hosts have too little CPU or memory for the ask.

    The result has the requested amounts and the largest possible amounts (``most_...``). It is empty if CPU
    and memory are not the obstacle. A largest possible amount is the highest request that ``ask.hosts`` hosts
    of one kind could all satisfy. Only hosts with the ask's labels and enough units are considered. Example:
    if an ask needs 2 hosts and they have 32 and 64 cores, ``most_cpu_milli`` is 32000. Unknown amounts are
    left out.
    """
    if not (ask.cpu_milli or ask.memory_mib):
        return {}
    most_available = {"cpu_milli": 0, "memory_mib": 0}
    for kind in kinds:
        with_units = (
            availability.host_counts(state, kind, state.hardware.all_units) >= ask.units
        ) & state.label_mask(ask.labels)
        if int((with_units & state.hardware.hosts_with_capacity(ask)).sum()) >= ask.hosts:
            return {}
        if int(with_units.sum()) >= ask.hosts:
            for name, capacity in (("cpu_milli", state.cpu_capacity), ("memory_mib", state.memory_capacity)):
                most_available[name] = max(
                    most_available[name], int(np.sort(capacity[with_units])[-ask.hosts])
                )
    asked = {"cpu_milli": ask.cpu_milli, "memory_mib": ask.memory_mib}
    named = [name for name in most_available if asked[name] and 0 < most_available[name] < FAR_FUTURE]
    return {name: asked[name] for name in named} | {f"most_{name}": most_available[name] for name in named}
