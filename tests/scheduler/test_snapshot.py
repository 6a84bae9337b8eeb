"""Test the planner's snapshot and the number of queries it takes."""

from __future__ import annotations

import datetime as dt
import random

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduler import services
from scheduler.core.planner import plan
from scheduler.cycle import core_values, engine, snapshot, snapshot_rows
from scheduler.models import DecayedUse, Workload
from tests.fakes import FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.world import H100, World

HOUR = dt.timedelta(hours=1)


def reserve(world: World, units: int, start: dt.datetime, hours: int = 4) -> object:
    reservation, answer = services.confirm_reservation(
        owner=world.vision.lead,
        project=world.vision.project,
        pool=world.shared,
        name="course",
        units=units,
        models_wanted=[H100],
        start=start,
        end=start + hours * HOUR,
        now=world.now,
    )
    assert reservation is not None, answer
    return reservation


def queries_of_a_snapshot(world: World, pool_ids: list[int] | None) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        snapshot.take_snapshot(pool_ids, world.now)
    return len(captured)


def test_a_snapshot_takes_the_same_number_of_queries_for_any_number_of_rows(world: World) -> None:
    job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    few = queries_of_a_snapshot(world, None)
    for _ in range(30):
        job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    reserve(world, 2, world.now + 48 * HOUR)
    services.close_budget_gate(
        action="refuse_new", numbers={}, until=world.now + HOUR, now=world.now, team=world.language.team
    )
    services.set_maintenance(
        world.hosts["beta"], start=world.now + 9 * HOUR, end=world.now + 10 * HOUR, reason="x", now=world.now
    )
    assert queries_of_a_snapshot(world, None) == few == snapshot_rows.SNAPSHOT_QUERIES
    assert queries_of_a_snapshot(world, [world.shared.pk]) == snapshot_rows.SNAPSHOT_QUERIES


@pytest.mark.django_db(transaction=True)
def test_a_snapshot_outside_a_transaction_is_consistent_and_read_only() -> None:
    with CaptureQueriesContext(connection) as captured:
        snapshot.take_snapshot(None, dt.datetime(2026, 3, 2, tzinfo=dt.UTC))
    assert "REPEATABLE READ, READ ONLY" in [q["sql"] for q in captured if "ISOLATION" in q["sql"]][0]


def test_a_snapshot_contains_running_queued_and_reserved_work(world: World) -> None:
    running, waiting = job(world, world.vision, 8, world.now), job(world, world.vision, 16, world.now)
    engine.run_cycle("test", world.now)
    reservation = reserve(world, 2, world.now + 48 * HOUR)
    taken = snapshot.take_snapshot([world.shared.pk], world.now)
    assert [(r.id, len(r.units), r.until - r.started) for r in taken.running] == [(running.pk, 8, 8 * 3600)]
    assert [(q.id, q.ask.units, q.ask.models) for q in taken.queued] == [(waiting.pk, 16, (H100,))]
    assert [r.id for r in taken.reservations] == [reservation.pk]  # type: ignore[attr-defined]
    assert {h.name for h in taken.hosts} == {"alpha", "beta", "gamma"} and len(taken.units) == 22 + 14


def test_evictions_are_counted_separately_from_failures_and_lost_hosts(world: World) -> None:
    running = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    Workload.objects.filter(pk=running.pk).update(attempt=7, failures=1, lost_attempts=2)
    assert snapshot.take_snapshot(None, world.now).running[0].evictions == 3


def test_the_same_rows_give_the_same_plan(world: World) -> None:
    for number in range(20):
        job(world, random.Random(number).choice(world.teams), 1 + number % 4, world.now)
    at = core_values.epoch_seconds(world.now)
    assert plan(snapshot.take_snapshot(None, world.now), at) == plan(
        snapshot.take_snapshot(None, world.now), at
    )


def test_a_closed_budget_blocks_new_work_until_it_is_opened(world: World) -> None:
    workload = job(world, world.vision, 1, world.now)
    services.close_budget_gate(
        action="refuse_new",
        numbers={"limit": "100"},
        until=world.now + HOUR,
        now=world.now,
        team=world.vision.team,
    )
    engine.run_cycle("test", world.now)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code, workload.reason_numbers) == (
        "queued",
        "budget_closed",
        {"limit": "100"},
    )
    services.open_budget_gate(action="refuse_new", team=world.vision.team)
    engine.run_cycle("test", world.now)
    workload.refresh_from_db()
    assert workload.state == "placed"


def test_a_budget_that_stops_borrowing_does_not_affect_the_guarantee(world: World) -> None:
    services.close_budget_gate(
        action="stop_borrowing",
        numbers={},
        until=world.now + HOUR,
        now=world.now,
        project=world.robotics.project,
    )
    within, above = job(world, world.robotics, 2, world.now), job(world, world.robotics, 1, world.now)
    engine.run_cycle("test", world.now)
    assert [Workload.objects.get(pk=w.pk).state for w in (within, above)] == ["placed", "queued"]


def test_decayed_use_grows_while_units_are_held_and_halves_in_a_week_afterwards(world: World) -> None:
    workload = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    agents = [FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta")]
    for agent in agents:
        agent.sync(world.now)
        agent.sync(world.now)
    later = world.now + HOUR
    engine.run_cycle("test", later)
    used = DecayedUse.objects.get(team=world.vision.team, pool=world.shared)
    assert used.slot_seconds == pytest.approx(840 * 3600, rel=0.01) and used.as_of == later
    services.cancel_workload(workload, now=later)
    for agent in agents:
        agent.sync(later)
        agent.sync(later)
    week = later + dt.timedelta(days=7)
    engine.run_cycle("test", week)
    used.refresh_from_db()
    assert used.slot_seconds == pytest.approx(840 * 1800, rel=0.01)


def test_a_reason_is_written_only_when_it_changes(world: World) -> None:
    job(world, world.vision, 9, world.now)
    first = engine.run_cycle("test", world.now)
    again = engine.run_cycle("test", world.now + dt.timedelta(seconds=5))
    assert first is not None and again is not None
    assert (first.reasons_written, again.reasons_written) == (1, 0)
