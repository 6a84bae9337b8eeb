"""Test the number of queries that committing a plan takes."""

from __future__ import annotations

import datetime as dt

from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduler.cycle import engine
from scheduler.models import Decision, Run, Workload
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)


def queries_of_a_cycle(world: World, starting: int, at: dt.datetime) -> int:
    """Return the number of queries of a cycle that starts ``starting`` jobs."""
    before = Run.objects.count()
    for _ in range(starting):
        job(world, world.vision, 1, at)
    with CaptureQueriesContext(connection) as captured:
        engine.run_cycle("test", at)
    assert Run.objects.count() - before == starting
    return len(captured)


def test_starting_many_jobs_takes_as_many_queries_as_starting_one(world: World) -> None:
    queries_of_a_cycle(world, 1, world.now)  # the first cycle acquires leadership
    few = queries_of_a_cycle(world, 1, world.now + SECOND)
    assert queries_of_a_cycle(world, 6, world.now + 2 * SECOND) == few


def test_jobs_placed_in_one_cycle_have_a_decision_each(world: World) -> None:
    jobs = [job(world, world.vision, units, world.now) for units in (1, 2, 3)]
    engine.run_cycle("test", world.now)
    for queued, units in zip(jobs, (1, 2, 3), strict=True):
        row = Workload.objects.get(pk=queued.pk)
        assert (row.state, row.attempt, row.reason_code) == ("placed", 1, "free_within_guarantee")
        assert row.reason_numbers["units"] == units and row.position is None and row.borrowed_slots == 0
        decision = Decision.objects.get(workload=queued)
        assert (decision.kind, decision.numbers["units"]) == ("placed", units)
        assert Run.objects.get(workload=queued).attempt == 1
