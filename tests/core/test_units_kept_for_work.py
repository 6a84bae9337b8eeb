"""Test earmarked units: units that victims freed for a workload are kept for it until it starts."""

from __future__ import annotations

import pytest

from benchmarks.plan_verifier import violations
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


@pytest.mark.parametrize(("spare", "unit"), [(4, 10), (5, 20)])
def test_a_workload_that_starts_outside_its_earmarked_unit_does_not_use_spare_capacity(
    spare: int, unit: int
) -> None:
    """Check on which of five free units a workload starts. One of the units is earmarked for it.

    The best place is another unit: the only unit of its host. If the pool keeps four units as spare capacity,
    the workload may start there, because its earmarked unit then becomes free. If the pool keeps all five
    units, the workload starts on its earmarked unit, which does not count as spare capacity.
    """
    hosts = tuple(HostInfo(n, f"host-{n}", 1) for n in (1, 2))
    units = tuple(
        UnitInfo(host * 10 + n, host, host * 10 + n, "A100-40GB")
        for host, size in ((1, 1), (2, 4))
        for n in range(size)
    )
    waiting = QueuedWorkload(1, 1, 1, 1, 1, Ask(1), NOW, 600, 600, earmarked_units=(20,))
    pool = PoolInfo(1, "pool", PoolKind.STATIC, 1, PoolPolicy(spare_slots=spare * SLOTS_PER_GPU))
    snapshot = Snapshot(1, (pool,), hosts, units, queued=(waiting,))
    planned = plan(snapshot, NOW)
    assert {p.workload: p.units for p in planned.placements} == {1: (unit,)}
    assert violations(snapshot, planned, NOW) == []
