"""`./run bench verify` in small: it counts its examples, and a broken planner does not get past it."""

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


def test_it_counts_every_example_and_finds_nothing() -> None:
    figures = bench.main(["--examples", "12", "--workers", "2"])
    assert (figures["examples"], figures["violations"], figures["broken"]) == (12, 0, {})


@pytest.mark.parametrize("argument", ["0", "-1", "many"])
def test_a_wrong_number_of_examples_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--examples", argument])
    assert "whole number from 1" in capsys.readouterr().err


def test_a_plan_that_depends_on_the_order_of_rows_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(snapshot: Snapshot, now: int) -> Plan:
        return replace(
            plan(snapshot, now), placements=plan(snapshot, now).placements[: snapshot.queued[0].id % 2]
        )

    monkeypatch.setattr(bench, "plan", careless)
    examples = (crowded(seed, NOW) for seed in range(3, 20))
    snapshot = next(each for each in examples if plan(each, NOW).placements)
    found = [bench.judged(snapshot, plan(snapshot, NOW), NOW, seed) for seed in range(6)]
    assert any(bench.ORDER_PROMISE in dict(broken) for broken in found)


def test_an_example_is_reduced_to_the_rows_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(snapshot: Snapshot, now: int) -> Plan:
        """Says nothing to the workload with the highest id."""
        planned = plan(snapshot, now)
        last = max((q.id for q in snapshot.queued), default=0)
        kept: Any = tuple(r for r in planned.refusals if r.workload != last)
        return replace(
            planned, refusals=kept, placements=tuple(p for p in planned.placements if p.workload != last)
        )

    monkeypatch.setattr(bench, "plan", forgetful)
    small = bench.reduced(crowded(3, NOW), "every waiting workload has exactly one placement or refusal", NOW, 1)
    assert len(small.queued) == 1 and not (small.running or small.hosts or small.units or small.reservations)


def test_a_pool_without_a_plan_is_counted_and_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    def helpless(snapshot: Snapshot, now: int) -> Plan:
        if snapshot.running:
            raise ValueError("no idea")
        return plan(snapshot, now)

    monkeypatch.setattr(bench, "plan", helpless)
    small = bench.reduced(crowded(3, NOW), bench.PLAN_PROMISE, NOW, 1)
    assert len(small.running) == 1 and not small.queued
