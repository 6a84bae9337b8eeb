"""Test earmarked units: units that victims freed for a workload are kept for it until it starts."""

from __future__ import annotations

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    QueuedWorkload,
    Snapshot,
    UnitInfo,
)
from scheduler.core.planner import plan

NOW = 1_000_000


def test_spare_capacity_does_not_block_units_earmarked_for_a_workload() -> None:
    """Check that the workload starts on its earmarked unit.

    The best place would be the last free unit of the other host, but that unit is spare capacity.
    """
    hosts = tuple(HostInfo(n, f"host-{n}", 1) for n in (1, 2))
    units = tuple(
        UnitInfo(host * 10 + n, host, host * 10 + n, "A100-40GB")
        for host, size in ((1, 1), (2, 4))
        for n in range(size)
    )
    waiting = QueuedWorkload(1, 1, 1, 1, 1, Ask(1), NOW, 600, 600, earmarked_units=(20,))
    pool = PoolInfo(1, "pool", PoolKind.STATIC, 1, PoolPolicy(spare_slots=4 * SLOTS_PER_GPU))
    planned = plan(Snapshot(1, (pool,), hosts, units, queued=(waiting,)), NOW)
    assert {p.workload: p.units for p in planned.placements} == {1: (20,)}
