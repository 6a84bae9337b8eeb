"""Test IncrementalPlanner: a snapshot changed by deltas equals a new snapshot and gets the same plans."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.plan_verifier import violations
from scheduler.core.incremental_planner import IncrementalPlanner
from scheduler.core.model.snapshot import MaintenanceInfo, Snapshot
from scheduler.core.model.snapshot_delta import SnapshotDelta, snapshot_difference, sort_rows
from scheduler.core.planner import plan
from scheduler.core.reasons import ReasonCode
from tests.core.crowded import crowded
from tests.core.pool_history import pool_history
from tests.core.strategies import NOW, snapshots
from tests.seeds import seeds

LARGE_SNAPSHOTS = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@LARGE_SNAPSHOTS
@given(snapshots(), snapshots(), snapshots())
def test_a_snapshot_changed_by_deltas_equals_a_new_snapshot(
    first: Snapshot, second: Snapshot, third: Snapshot
) -> None:
    planner, before = IncrementalPlanner(first), first
    for after in (second, third):
        planner.change(snapshot_difference(before, after))
        assert planner.snapshot() == sort_rows(after)
        assert repr(planner.plan(NOW)) == repr(plan(after, NOW))
        before = after


@LARGE_SNAPSHOTS
@given(snapshots(), st.integers(0, 10**6))
def test_the_order_of_rows_in_a_delta_does_not_matter(snapshot: Snapshot, seed: int) -> None:
    rows: Any = {}
    for table in fields(snapshot):
        value = getattr(snapshot, table.name)
        rows[table.name] = (
            random.Random(seed).sample(value, len(value)) if isinstance(value, tuple) else value
        )
    planner = IncrementalPlanner(Snapshot(epoch=0))
    arguments: Any = {
        name: tuple(value) if isinstance(value, list) else value for name, value in rows.items()
    }
    planner.change(SnapshotDelta(**arguments))
    assert planner.snapshot() == sort_rows(snapshot)
    assert repr(planner.plan(NOW)) == repr(plan(snapshot, NOW))


@pytest.mark.parametrize("seed", seeds(short=2, total=25))
def test_a_pool_changed_step_by_step_gets_the_plans_of_new_snapshots(seed: int) -> None:
    planner: IncrementalPlanner | None = None
    before: Snapshot | None = None
    for snapshot, now in pool_history(seed, NOW, 25):
        if planner is None or before is None:
            planner = IncrementalPlanner(snapshot)
        else:
            planner.change(snapshot_difference(before, snapshot))
        assert planner.snapshot() == sort_rows(snapshot)
        for explain in (False, True):
            planned = planner.plan(now, explain=explain)
            assert repr(planned) == repr(plan(snapshot, now, explain=explain))
        assert violations(snapshot, planned, now) == []
        before = snapshot


def test_a_delta_applied_twice_changes_nothing_the_second_time() -> None:
    old, new = crowded(1, NOW), crowded(2, NOW)
    planner = IncrementalPlanner(old)
    for _ in range(2):
        planner.change(snapshot_difference(old, new))
    assert planner.snapshot() == sort_rows(new)


def test_the_difference_of_equal_snapshots_is_empty() -> None:
    snapshot = crowded(3, NOW)
    assert snapshot_difference(snapshot, sort_rows(snapshot)) == SnapshotDelta()


def test_a_host_may_have_several_maintenance_windows() -> None:
    first, second = MaintenanceInfo(1, NOW + 60, NOW + 120), MaintenanceInfo(1, NOW + 600, NOW + 900)
    planner = IncrementalPlanner(replace(crowded(3, NOW), maintenance=(first,)))
    planner.change(SnapshotDelta(maintenance=(second,)))
    assert planner.snapshot().maintenance == (first, second)
    planner.change(SnapshotDelta(maintenance_gone=(first,)))
    assert planner.snapshot().maintenance == (second,)


@pytest.mark.parametrize("seed", seeds(short=2, total=12))
def test_a_plan_without_explanations_has_the_same_decisions_and_held_units(seed: int) -> None:
    """Use a long queue, so that the planner skips workloads that are equal to a refused workload."""
    snapshot = crowded(seed, NOW, hosts=4, waiting=80)
    quiet, full = plan(snapshot, NOW, explain=False), plan(snapshot, NOW)
    assert (quiet.placements, quiet.evictions, quiet.bindings) == (
        full.placements,
        full.evictions,
        full.bindings,
    )
    held = [(r.workload, r.expected_start, r.held_units) for r in full.refusals if r.held_units]
    assert [(r.workload, r.expected_start, r.held_units) for r in quiet.refusals if r.held_units] == held
    kept = [(r.workload, r.blockers) for r in full.refusals if r.code == ReasonCode.WAITS_FOR_EVICTION]
    assert [
        (r.workload, r.blockers) for r in quiet.refusals if r.code == ReasonCode.WAITS_FOR_EVICTION
    ] == kept
    assert violations(snapshot, full, NOW) == []


def test_the_cache_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.core.model.hardware.MAX_CACHED_ASKS", 20)
    before = crowded(1, NOW, waiting=15)
    planner = IncrementalPlanner(before)
    for seed in range(2, 12):
        after = replace(before, queued=crowded(seed, NOW, waiting=15).queued)
        planner.change(snapshot_difference(before, after))
        assert repr(planner.plan(NOW)) == repr(plan(after, NOW))
        assert len(planner._pools[1].hardware._asks_by_row) <= 20 + 15
        before = after
