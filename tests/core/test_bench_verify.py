"""Test that `./run bench verify` counts its examples and detects a broken planner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import verify as bench
from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.planner import plan
from tests.core.crowded import crowded

NOW = 1_000_000


def test_every_example_is_counted_and_none_breaks_a_promise() -> None:
    figures = bench.main(["--examples", "12", "--workers", "2"])
    assert (figures["examples"], figures["violations"], figures["broken"]) == (12, 0, {})


@pytest.mark.parametrize("argument", ["0", "-1", "many"])
def test_an_invalid_number_of_examples_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--examples", argument])
    assert "whole number from 1" in capsys.readouterr().err


def test_a_plan_that_depends_on_the_order_of_rows_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def order_dependent_plan(snapshot: Snapshot, now: int) -> Plan:
        return replace(
            plan(snapshot, now), placements=plan(snapshot, now).placements[: snapshot.queued[0].id % 2]
        )

    monkeypatch.setattr(bench, "plan", order_dependent_plan)
    examples = (crowded(seed, NOW) for seed in range(3, 20))
    snapshot = next(example for example in examples if plan(example, NOW).placements)
    found = [bench.judged(snapshot, plan(snapshot, NOW), NOW, seed) for seed in range(6)]
    assert any(bench.ORDER_PROMISE in dict(broken) for broken in found)


@pytest.mark.long
def test_an_example_is_reduced_to_the_rows_that_break_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    def incomplete_plan(snapshot: Snapshot, now: int) -> Plan:
        """Leave the workload with the highest id without an answer."""
        planned = plan(snapshot, now)
        last = max((q.id for q in snapshot.queued), default=0)
        kept: Any = tuple(r for r in planned.refusals if r.workload != last)
        return replace(
            planned, refusals=kept, placements=tuple(p for p in planned.placements if p.workload != last)
        )

    monkeypatch.setattr(bench, "plan", incomplete_plan)
    small = bench.reduced(
        crowded(3, NOW), "every waiting workload has exactly one placement or refusal", NOW, 1
    )
    assert len(small.queued) == 1 and not (small.running or small.hosts or small.units or small.reservations)


def test_an_example_that_raises_is_counted_and_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_plan(snapshot: Snapshot, now: int) -> Plan:
        if snapshot.running:
            raise ValueError("no idea")
        return plan(snapshot, now)

    monkeypatch.setattr(bench, "plan", failing_plan)
    small = bench.reduced(crowded(3, NOW), bench.PLAN_PROMISE, NOW, 1)
    assert len(small.running) == 1 and not small.queued
