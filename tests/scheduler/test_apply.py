"""What committing a plan costs, however much of it there is."""

from __future__ import annotations

import datetime as dt

from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduler.cycle import engine
from scheduler.models import Decision, Run, Workload
from tests.scheduler.test_life_of_a_job import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)


def queries_of_a_cycle(world: World, starting: int, at: dt.datetime) -> int:
    """How many queries a cycle asks that starts so many jobs."""
    before = Run.objects.count()
    for _ in range(starting):
        job(world, world.vision, 1, at)
    with CaptureQueriesContext(connection) as captured:
        engine.run_cycle("test", at)
    assert Run.objects.count() - before == starting
    return len(captured)


def test_starting_many_asks_no_more_queries_than_starting_one(world: World) -> None:
    queries_of_a_cycle(world, 1, world.now)  # the first takes the lead
    few = queries_of_a_cycle(world, 1, world.now + SECOND)
    assert queries_of_a_cycle(world, 6, world.now + 2 * SECOND) == few


def test_what_starts_together_is_told_one_by_one(world: World) -> None:
    jobs = [job(world, world.vision, units, world.now) for units in (1, 2, 3)]
    engine.run_cycle("test", world.now)
    for made, units in zip(jobs, (1, 2, 3), strict=True):
        found = Workload.objects.get(pk=made.pk)
        assert (found.state, found.attempt, found.reason_code) == ("placed", 1, "free_within_guarantee")
        assert found.reason_numbers["units"] == units and found.position is None and found.borrowed_slots == 0
        decision = Decision.objects.get(workload=made)
        assert (decision.kind, decision.numbers["units"]) == ("placed", units)
        assert Run.objects.get(workload=made).attempt == 1
