"""A workload that fails on one host after the other is not tried for ever: the hosts are not at fault."""

from __future__ import annotations

import pytest

from scheduler import attempts, locks
from scheduler.models import Run, Workload
from scheduler.states import RunState
from tests.telemetry.rows import at, hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


def fail(work: Workload, world: World, host: str, minute: int, outcome: str, seconds: int = 20) -> Workload:
    """Another attempt of it, on this host, that ends so."""
    Workload.objects.filter(pk=work.pk).update(state="running")
    held = hold(work, units_of(world.hosts[host])[0], at(9, minute))
    run = Run.objects.get(pk=held.run_id)
    ended = at(9, minute + seconds // 60, seconds % 60)
    assert attempts.end_run(run, outcome=outcome, exit_code=1, at=ended, now=ended)
    fresh = locks.workloads([work.pk])[work.pk]
    attempts.settle(fresh, ended)
    assert Run.objects.get(pk=run.pk).state == RunState.ENDED
    return Workload.objects.get(pk=work.pk)


def test_one_that_could_not_start_on_three_hosts_ends_with_their_number(world: World) -> None:
    work = workload(world, world.vision)
    assert fail(work, world, "alpha", 0, "start_failed").state == "queued"
    assert fail(work, world, "beta", 5, "start_failed").state == "queued"
    done = fail(work, world, "gamma", 10, "start_failed")
    assert (done.state, done.outcome, done.outcome_numbers["failed_on_hosts"]) == ("ended", "start_failed", 3)


def test_a_prolog_that_fails_on_every_host_burns_nothing_of_the_workload(world: World) -> None:
    work = workload(world, world.vision, most_retries=2)
    for minute, host in enumerate(["alpha", "beta", "gamma", "alpha", "beta", "gamma", "alpha"]):
        work = fail(work, world, host, 2 * minute, "prolog_failed")
        assert (work.state, work.reason_code, work.failures, work.lost_attempts) == ("queued", "prolog_failed", 0, 0)
        assert work.not_before is not None


def test_one_that_fails_at_once_everywhere_uses_no_more_of_its_retries(world: World) -> None:
    work = workload(world, world.vision, most_retries=10)
    for minute, host in ((0, "alpha"), (5, "beta")):
        assert fail(work, world, host, minute, "failed").state == "queued"
    assert fail(work, world, "gamma", 10, "failed").state == "ended"


def test_one_that_fails_after_a_while_has_all_its_retries(world: World) -> None:
    work = workload(world, world.vision, most_retries=10)
    for minute, host in ((0, "alpha"), (5, "beta"), (10, "gamma")):
        assert fail(work, world, host, minute, "failed", seconds=120).state == "queued"


def test_one_host_that_fails_it_again_and_again_is_one(world: World) -> None:
    work = workload(world, world.vision)
    for minute in (0, 5, 10):
        assert fail(work, world, "alpha", minute, "start_failed").state == "queued"
