from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Mask
from scheduler.core.fit import availability
from scheduler.core.fit.cheapest_units import cheapest_units
from scheduler.core.model.hardware import FAR_FUTURE
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import Ask, PoolKind
from scheduler.core.reasons import Reason, ReasonCode, reason_numbers


def fits_on_empty_hosts(board: PoolState, ask: Ask, kind: int, mask: Mask) -> bool:
    """Would an ask fit if it had all these units to itself?"""
    if ask.nvlink:
        return cheapest_units(board, ask, kind, mask, np.zeros(len(board.units), dtype=np.int64)) is not None
    return (
        int(((board.count_units_in(kind, mask) >= ask.units) & board.ground.hosts_with_capacity(ask)).sum())
        >= ask.hosts
    )


def infeasible_reason(board: PoolState, ask: Ask, team: int) -> Reason | None:
    """Why an ask could not be served even by an empty pool, or None."""
    if board.pool.kind is PoolKind.STATIC and board.pool.team != team:
        return ReasonCode.NOT_YOUR_POOL, reason_numbers(owner=board.pool.team, pool=board.pool.id)
    kinds = board.kinds_for(ask)
    if not kinds:
        return ReasonCode.NO_SUCH_HARDWARE, reason_numbers(
            min_compute_capability=ask.min_compute_capability,
            min_memory_mib=ask.min_memory_mib,
            models=list(ask.models),
            profile=ask.profile,
        )
    everything = board.ground.everything
    if not any(fits_on_empty_hosts(board, ask, kind, everything) for kind in kinds):
        largest = max(int(availability.host_counts(board, kind, everything).max(initial=0)) for kind in kinds)
        hosts = int(board.label_mask(ask.labels).sum())
        return ReasonCode.TOO_BIG_FOR_ANY_HOST, reason_numbers(
            hosts=ask.hosts,
            hosts_with_labels=hosts,
            largest=largest,
            units=ask.units,
            **_largest_cpu_and_memory(board, ask, kinds),
        )
    return None


def _largest_cpu_and_memory(board: PoolState, ask: Ask, kinds: list[int]) -> dict[str, int]:
    """Where the CPU and the memory beside its units are what is missing: how much it asks for, and the most that as many hosts of
    one kind have, with its labels and units. What a host does not say is not told."""
    if not (ask.cpu_milli or ask.memory_mib):
        return {}
    most = {"cpu_milli": 0, "memory_mib": 0}
    for kind in kinds:
        there = (
            availability.host_counts(board, kind, board.ground.everything) >= ask.units
        ) & board.label_mask(ask.labels)
        if int((there & board.ground.hosts_with_capacity(ask)).sum()) >= ask.hosts:
            return {}
        if int(there.sum()) >= ask.hosts:
            for name, has in (("cpu_milli", board.cpu_whole), ("memory_mib", board.memory_whole)):
                most[name] = max(most[name], int(np.sort(has[there])[-ask.hosts]))
    asked = {"cpu_milli": ask.cpu_milli, "memory_mib": ask.memory_mib}
    told = [name for name in most if asked[name] and 0 < most[name] < FAR_FUTURE]
    return {name: asked[name] for name in told} | {f"most_{name}": most[name] for name in told}
