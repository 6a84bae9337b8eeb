"""Units that others left for a workload are its own until it starts: whatever else the pool keeps free."""

from __future__ import annotations

from scheduler.core.model import SLOTS_PER_GPU, Ask, Host, Policy, Pool, PoolKind, Queued, Snapshot, Unit
from scheduler.core.planner import plan

NOW = 1_000_000


def test_spare_capacity_does_not_keep_work_off_the_units_kept_for_it() -> None:
    """The tighter place is on spare capacity, the units kept for it are elsewhere."""
    hosts = tuple(Host(n, f"host-{n}", 1) for n in (1, 2))
    units = tuple(Unit(host * 10 + n, host, host * 10 + n, "A100-40GB") for host in (1, 2) for n in range(4))
    waiting = Queued(1, 1, 1, 1, 1, Ask(1), NOW, 600, 600, earmarked_units=(20,))
    other = Queued(2, 1, 1, 1, 1, Ask(3), NOW, 600, 600, earmarked_units=(21, 22, 23))
    pool = Pool(1, "pool", PoolKind.STATIC, 1, Policy(spare_slots=4 * SLOTS_PER_GPU))
    planned = plan(Snapshot(1, (pool,), hosts, units, queued=(waiting, other)), NOW)
    assert {p.workload: p.units for p in planned.placements} == {1: (20,), 2: (21, 22, 23)}
