"""A snapshot kept warm by deltas is the one that would be read afresh, and so is every plan made on it."""

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
from tests.core.stories import story
from tests.core.strategies import NOW, snapshots

FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@FEW
@given(snapshots(), snapshots(), snapshots())
def test_a_standing_snapshot_changed_by_deltas_equals_a_fresh_one(
    first: Snapshot, second: Snapshot, third: Snapshot
) -> None:
    standing, before = IncrementalPlanner(first), first
    for after in (second, third):
        standing.change(snapshot_difference(before, after))
        assert standing.snapshot() == sort_rows(after)
        assert repr(standing.plan(NOW)) == repr(plan(after, NOW))
        before = after


@FEW
@given(snapshots(), st.integers(0, 10**6))
def test_the_order_in_which_a_delta_names_rows_does_not_matter(snapshot: Snapshot, seed: int) -> None:
    rows: Any = {}
    for table in fields(snapshot):
        value = getattr(snapshot, table.name)
        rows[table.name] = (
            random.Random(seed).sample(value, len(value)) if isinstance(value, tuple) else value
        )
    standing = IncrementalPlanner(Snapshot(epoch=0))
    arguments: Any = {
        name: tuple(value) if isinstance(value, list) else value for name, value in rows.items()
    }
    standing.change(SnapshotDelta(**arguments))
    assert standing.snapshot() == sort_rows(snapshot)
    assert repr(standing.plan(NOW)) == repr(plan(snapshot, NOW))


@pytest.mark.parametrize("seed", range(25))
def test_a_pool_planned_warm_through_a_day_gets_the_plans_of_a_fresh_reading(seed: int) -> None:
    standing: IncrementalPlanner | None = None
    before: Snapshot | None = None
    for snapshot, now in story(seed, NOW, 25):
        if standing is None or before is None:
            standing = IncrementalPlanner(snapshot)
        else:
            standing.change(snapshot_difference(before, snapshot))
        assert standing.snapshot() == sort_rows(snapshot)
        for explain in (False, True):
            planned = standing.plan(now, explain=explain)
            assert repr(planned) == repr(plan(snapshot, now, explain=explain))
        assert violations(snapshot, planned, now) == []
        before = snapshot


def test_the_same_delta_twice_changes_nothing_more() -> None:
    old, new = crowded(1, NOW), crowded(2, NOW)
    standing = IncrementalPlanner(old)
    for _ in range(2):
        standing.change(snapshot_difference(old, new))
    assert standing.snapshot() == sort_rows(new)


def test_the_difference_of_equals_is_empty() -> None:
    snapshot = crowded(3, NOW)
    assert snapshot_difference(snapshot, sort_rows(snapshot)) == SnapshotDelta()


def test_a_host_may_have_several_maintenance_windows() -> None:
    first, second = MaintenanceInfo(1, NOW + 60, NOW + 120), MaintenanceInfo(1, NOW + 600, NOW + 900)
    standing = IncrementalPlanner(replace(crowded(3, NOW), maintenance=(first,)))
    standing.change(SnapshotDelta(maintenance=(second,)))
    assert standing.snapshot().maintenance == (first, second)
    standing.change(SnapshotDelta(maintenance_gone=(first,)))
    assert standing.snapshot().maintenance == (second,)


@pytest.mark.parametrize("seed", range(12))
def test_with_nobody_asking_why_the_same_is_decided_and_held(seed: int) -> None:
    """A long queue, so that equals of what got nothing are passed over."""
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


def test_what_has_not_changed_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    standing = IncrementalPlanner(crowded(4, NOW))
    first = standing.plan(NOW)
    monkeypatch.setattr(
        "scheduler.core.incremental_planner.plan_pools", lambda *_: pytest.fail("planned again")
    )
    assert standing.plan(NOW) == first


def test_the_numbers_of_asks_start_over_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.core.model.hardware.MAX_CACHED_ASKS", 20)
    before = crowded(1, NOW, waiting=15)
    standing = IncrementalPlanner(before)
    for seed in range(2, 12):
        after = replace(before, queued=crowded(seed, NOW, waiting=15).queued)
        standing.change(snapshot_difference(before, after))
        assert repr(standing.plan(NOW)) == repr(plan(after, NOW))
        assert len(standing._pools[1].hardware._asks_by_row) <= 20 + 15
        before = after
