"""Test an overcommitted host: running work holds more CPU and memory than the host now has."""

from __future__ import annotations

from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    QueuedWorkload,
    RunningWorkload,
    Snapshot,
    UnitInfo,
)
from scheduler.core.planner import plan

NOW = 1_000_000


def test_work_that_needs_no_cpu_still_starts_on_the_host() -> None:
    """Let work on a MIG slice hold more CPU and memory than the host has. The waiting work requests none."""
    host = HostInfo(1, "host-1", 1, cpu_milli=4_000, memory_mib=8_000)
    whole = tuple(UnitInfo(n, 1, n, "A100-40GB") for n in range(1, 5))
    part = UnitInfo(5, 1, 5, "A100-40GB", profile="1g.5gb", slots=120)
    running = RunningWorkload(
        1, 1, 1, 1, 1, (5,), NOW - 60, NOW + 600, NOW + 600, cpu_milli=400_000, memory_mib=800_000
    )
    waiting = QueuedWorkload(2, 1, 1, 1, 1, Ask(1), NOW, 600, 600)
    pool = PoolInfo(1, "pool", PoolKind.STATIC, 1, PoolPolicy())
    snapshot = Snapshot(1, (pool,), (host,), (*whole, part), queued=(waiting,), running=(running,))
    assert [p.workload for p in plan(snapshot, NOW).placements] == [2]
