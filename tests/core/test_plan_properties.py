"""Test that the plan verifier finds no violation in any plan, and that the order of rows is irrelevant."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.plan_verifier import violations, window_violations
from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.planner import plan
from scheduler.core.promises.reservation_windows import (
    WINDOW_VALID_SECONDS,
    WindowCheckResult,
    check_reservation_window,
)
from scheduler.core.reasons import ReasonCode
from tests.core.crowded import crowded
from tests.core.strategies import NOW, WindowAsked, snapshots, windows
from tests.seeds import seeds

LARGE_SNAPSHOTS = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@LARGE_SNAPSHOTS
@given(snapshots())
def test_a_plan_breaks_no_promise(snapshot: Snapshot) -> None:
    assert violations(snapshot, plan(snapshot, NOW), NOW) == []


@LARGE_SNAPSHOTS
@given(snapshots(), st.integers(0, 10**6))
def test_the_order_of_rows_does_not_change_the_plan(snapshot: Snapshot, seed: int) -> None:
    shuffled: dict[str, Any] = {}
    for row in fields(snapshot):
        value = getattr(snapshot, row.name)
        if isinstance(value, tuple):
            shuffled[row.name] = tuple(random.Random(seed).sample(value, len(value)))
    assert repr(plan(replace(snapshot, **shuffled), NOW)) == repr(plan(snapshot, NOW))


@LARGE_SNAPSHOTS
@given(snapshots())
def test_planning_does_not_change_the_snapshot(snapshot: Snapshot) -> None:
    before = repr(snapshot)
    plan(snapshot, NOW)
    assert repr(snapshot) == before


@LARGE_SNAPSHOTS
@given(st.data())
def test_a_window_that_fits_breaks_no_promise(data: st.DataObject) -> None:
    snapshot = data.draw(snapshots())
    asked = data.draw(windows(snapshot))
    answer = check_window(snapshot, asked)
    assert (
        window_violations(
            snapshot,
            asked.ask,
            asked.team,
            asked.pool,
            asked.start,
            asked.end,
            answer,
            NOW,
            asked.may_exceed_guarantee,
        )
        == []
    )
    for window in answer.first_windows:
        for now in (NOW, NOW + WINDOW_VALID_SECONDS):
            assert check_window(snapshot, replace(asked, start=window.start, end=window.end), now).fits


def check_window(snapshot: Snapshot, asked: WindowAsked, now: int = NOW) -> WindowCheckResult:
    return check_reservation_window(
        snapshot,
        asked.ask,
        asked.team,
        asked.pool,
        asked.start,
        asked.end,
        now,
        may_exceed_guarantee=asked.may_exceed_guarantee,
        horizon=24 * 3600,
    )


@pytest.mark.parametrize("block", seeds(short=1, total=5))
def test_the_plan_of_a_crowded_pool_breaks_no_promise(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        snapshot = crowded(seed, NOW)
        assert violations(snapshot, plan(snapshot, NOW), NOW) == [], seed


@pytest.mark.parametrize("block", seeds(short=1, total=3))
def test_a_plan_without_explanations_has_the_same_decisions(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        snapshot = crowded(seed, NOW)
        short, full = plan(snapshot, NOW, explain=False), plan(snapshot, NOW)
        assert (short.placements, short.evictions, short.bindings) == (
            full.placements,
            full.evictions,
            full.bindings,
        )
        assert short.unbound == full.unbound


def test_a_pool_without_hosts_refuses_every_workload() -> None:
    snapshot = crowded(1, NOW)
    empty = replace(snapshot, hosts=(), units=(), running=(), maintenance=())
    planned = plan(empty, NOW)
    assert {r.code for r in planned.refusals} == {ReasonCode.NO_SUCH_HARDWARE}
    assert len(planned.refusals) == len(snapshot.queued)
    nothing = Snapshot(epoch=3)
    assert plan(nothing, NOW) == Plan(epoch=3)


def test_work_of_an_unknown_pool_is_refused() -> None:
    snapshot = replace(crowded(1, NOW), pools=())
    assert {r.code for r in plan(snapshot, NOW).refusals} == {ReasonCode.NOT_YOUR_POOL}
