"""Test recorded start estimates, their outcomes, and the likely ranges derived from them."""

from __future__ import annotations

import datetime as dt

from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduler import services
from scheduler.core.explain.start_ranges import MAX_OUTCOMES, MIN_OUTCOMES
from scheduler.cycle import engine
from scheduler.models import Pool, StartEstimate, Workload
from scheduler.queue import start_estimates
from tests.scheduler.test_job_lifecycle import SECOND, job
from tests.world import World

HOUR, MINUTE = dt.timedelta(hours=1), dt.timedelta(minutes=1)


def past(
    world: World,
    count: int,
    estimated: dt.timedelta,
    waited: dt.timedelta,
    latest: dt.timedelta | None = None,
) -> None:
    """Record ``count`` past waiting times of one job that ended a minute apart.

    Each was estimated as ``estimated`` and in fact lasted ``waited``. ``latest`` is the longest announced
    waiting time, or None if no range was announced.
    """
    waited_often = job(world, world.vision, 1, world.now)
    begins = [world.now - number * MINUTE - waited for number in range(count)]
    StartEstimate.objects.bulk_create(
        StartEstimate(
            workload=waited_often,
            pool=world.shared,
            attempt=number,
            told_at=begun,
            expected_start=begun + estimated,
            latest=begun + latest if latest else None,
            over_at=begun + waited,
            started=True,
        )
        for number, begun in enumerate(begins)
    )
    Workload.objects.update(state="ended", ended_at=world.now)


def crowded(world: World) -> Workload:
    """Fill a team's guarantee and return a job that waits for the guarantee."""
    now = world.now
    job(world, world.vision, 8, now, preemptible=False)
    engine.run_cycle("test", now)
    waiting = job(world, world.vision, 8, now + SECOND, preemptible=False)
    engine.run_cycle("test", now + SECOND)
    waiting.refresh_from_db()
    assert waiting.state == "queued" and waiting.expected_start is not None
    return waiting


def test_the_first_estimate_of_a_wait_is_kept(world: World) -> None:
    waiting = crowded(world)
    estimate = StartEstimate.objects.get(workload=waiting)
    assert (estimate.told_at, estimate.expected_start, estimate.latest) == (
        world.now + SECOND,
        waiting.expected_start,
        None,
    )
    engine.run_cycle("test", world.now + HOUR)  # a later estimate does not replace the first
    for runs in Workload.objects.filter(state="placed"):
        services.cancel_workload(runs, now=world.now + HOUR)
    Workload.objects.filter(pk=waiting.pk).update(expected_start=None)
    engine.run_cycle("test", world.now + 2 * HOUR)
    estimate.refresh_from_db()
    assert StartEstimate.objects.count() == 1 and estimate.expected_start == waiting.expected_start


def test_a_placement_closes_the_estimate(world: World) -> None:
    waiting = crowded(world)
    start_estimates.close_placed_estimates([waiting.pk], world.now + 3 * HOUR)
    estimate = StartEstimate.objects.get()
    assert estimate.started and estimate.over_at == world.now + 3 * HOUR
    Workload.objects.filter(pk=waiting.pk).update(attempt=1)
    start_estimates.record_first_estimates(
        {waiting.pk: int((world.now + 9 * HOUR).timestamp())}, world.now + 4 * HOUR
    )
    # The requeued work waits a second time.
    assert [row.attempt for row in StartEstimate.objects.order_by("pk")] == [0, 1]


def test_work_that_starts_at_once_has_no_estimate(world: World) -> None:
    job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    assert not StartEstimate.objects.exists()


def test_a_likely_range_needs_enough_outcomes_of_the_same_pool(world: World) -> None:
    past(world, MIN_OUTCOMES - 1, HOUR, 2 * HOUR)
    expected = world.now + HOUR
    few = start_estimates.past_starts_by_pool([world.shared.pk], world.now)[world.shared.pk]
    assert start_estimates.likely_range(few, expected, world.now) is None
    past(world, 1, HOUR, 2 * HOUR)
    enough = start_estimates.past_starts_by_pool([world.shared.pk], world.now)[world.shared.pk]
    assert start_estimates.likely_range(enough, expected, world.now) == (
        expected,
        world.now + 2 * HOUR + SECOND,
    )
    assert enough.median_error == 3600
    own = Pool.objects.exclude(pk=world.shared.pk).get().pk
    other = start_estimates.past_starts_by_pool([own], world.now)[own]
    assert other.started_count == 0 and start_estimates.likely_range(other, expected, world.now) is None


def test_an_estimate_with_a_range_is_judged_by_the_end_of_the_range(world: World) -> None:
    past(world, MIN_OUTCOMES, HOUR, 2 * HOUR)
    waiting = crowded(world)
    estimate = StartEstimate.objects.get(workload=waiting)
    assert estimate.latest is not None and estimate.latest > estimate.expected_start
    late = estimate.latest + HOUR
    # The work still waits and is already late.
    overdue = start_estimates.past_starts_by_pool([world.shared.pk], late)[world.shared.pk]
    assert (overdue.with_range, overdue.started_in_range_count) == (1, 0)
    start_estimates.close_placed_estimates([waiting.pk], estimate.latest)
    settled = start_estimates.past_starts_by_pool([world.shared.pk], late)[world.shared.pk]
    assert (settled.with_range, settled.started_in_range_count) == (1, 1)


def test_the_record_is_bounded_and_estimates_of_cancelled_work_are_closed(world: World) -> None:
    waiting = crowded(world)
    services.cancel_workload(waiting, now=world.now + MINUTE)
    start_estimates.prune_estimates()
    closed = StartEstimate.objects.get(workload=waiting)
    assert closed.over_at == world.now + MINUTE and not closed.started
    # A cancelled wait does not count as an outcome.
    assert (
        start_estimates.past_starts_by_pool([world.shared.pk], world.now + HOUR)[world.shared.pk].errors == ()
    )
    past(world, MAX_OUTCOMES + 5, HOUR, HOUR)
    start_estimates.prune_estimates()
    assert StartEstimate.objects.count() == MAX_OUTCOMES


def test_recording_estimates_takes_the_same_number_of_queries_for_any_number(world: World) -> None:
    crowded(world)
    counts = []
    for number, more in ((2, 1), (3, 6)):
        at = world.now + number * SECOND
        for _ in range(more):
            job(world, world.vision, 8, at, preemptible=False)
        with CaptureQueriesContext(connection) as asked:
            engine.run_cycle("test", at)
        counts.append(len(asked))
    assert counts[0] == counts[1]
    assert StartEstimate.objects.count() == 8
