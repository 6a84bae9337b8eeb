"""Test the limit on retries of a workload that fails on several hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.coordination import locks
from scheduler.models import Command, Run, Workload
from scheduler.runs import attempts
from scheduler.state.states import RunState
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_job_lifecycle import job
from tests.telemetry.rows import at, hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


def fail(
    work: Workload, world: World, host: str, minute: int, outcome: str, seconds: int = 20, stop_code: str = ""
) -> Workload:
    """Run an attempt of ``seconds`` on the host, and end it with ``outcome``. Returns the workload.

    ``stop_code`` is the code of an ordered stop. If it is empty, no stop is ordered.
    """
    Workload.objects.filter(pk=work.pk).update(state="running", stop_requested=stop_code)
    held = hold(work, units_of(world.hosts[host])[0], at(9, minute))
    run = Run.objects.get(pk=held.run_id)
    if stop_code:
        Command.objects.create(host=run.host, run=run, verb="stop", code=stop_code, created_at=at(9, minute))
    ended = at(9, minute + seconds // 60, seconds % 60)
    assert attempts.end_run(run, outcome=outcome, exit_code=1, at=ended, now=ended)
    fresh = locks.workloads([work.pk])[work.pk]
    attempts.settle_workload(fresh, ended)
    assert Run.objects.get(pk=run.pk).state == RunState.ENDED
    return Workload.objects.get(pk=work.pk)


def test_a_workload_that_cannot_start_on_three_hosts_ends_and_names_their_number(world: World) -> None:
    work = workload(world, world.vision)
    assert fail(work, world, "alpha", 0, "start_failed").state == "queued"
    assert fail(work, world, "beta", 5, "start_failed").state == "queued"
    done = fail(work, world, "gamma", 10, "start_failed")
    assert (done.state, done.outcome, done.outcome_numbers["failed_on_hosts"]) == ("ended", "start_failed", 3)


@pytest.mark.parametrize(
    "outcome",
    [
        "prolog_failed",
        *(pytest.param(fault, marks=pytest.mark.long) for fault in ("host_full", "gpu_unreadable")),
    ],
)
def test_faults_of_the_host_use_no_retry_of_the_workload(world: World, outcome: str) -> None:
    work = workload(world, world.vision, most_retries=2)
    for minute, host in enumerate(["alpha", "beta", "gamma", "alpha", "beta", "gamma", "alpha"]):
        work = fail(work, world, host, 2 * minute, outcome)
        assert (work.state, work.reason_code, work.failures, work.lost_attempts) == ("queued", outcome, 0, 0)
        assert work.not_before is not None


@pytest.mark.parametrize(
    "host_fault",
    [
        "host_full",
        "",
        *(pytest.param(fault, marks=pytest.mark.long) for fault in ("prolog_failed", "gpu_unreadable")),
    ],
)
def test_the_agent_reports_whether_the_host_caused_a_failed_start(world: World, host_fault: str) -> None:
    (agent,) = agents_of(world, "alpha")
    work = job(world, world.vision, 1, world.now)
    start(world, [agent], world.now)
    (run,) = agent.running
    agent.end(run, world.now, outcome="start_failed")
    agent.runs[run] = replace(agent.runs[run], **({host_fault: True} if host_fault else {}))
    agent.sync(world.now)
    assert Run.objects.get(public_id=run).outcome == (host_fault or "start_failed")
    assert Workload.objects.get(pk=work.pk).lost_attempts == (0 if host_fault else 1)


@pytest.mark.parametrize(
    ("disk_ran_low", "outcome", "lost"), [(True, "disk_ran_low", 1), (False, "out_of_disk", 0)]
)
def test_the_agent_reports_whether_it_stopped_work_because_of_low_disk_space(
    world: World, disk_ran_low: bool, outcome: str, lost: int
) -> None:
    (agent,) = agents_of(world, "alpha")
    work = job(world, world.vision, 1, world.now)
    start(world, [agent], world.now)
    (run,) = agent.running
    agent.end(run, world.now, outcome="out_of_disk")
    agent.runs[run] = replace(agent.runs[run], host_full=disk_ran_low)
    agent.sync(world.now)
    assert Run.objects.get(public_id=run).outcome == outcome
    row = Workload.objects.get(pk=work.pk)
    assert (row.state, row.lost_attempts, row.failures) == ("queued" if lost else "ended", lost, 0)


def test_a_workload_that_fails_quickly_on_three_hosts_ends_despite_remaining_retries(world: World) -> None:
    work = workload(world, world.vision, most_retries=10)
    for minute, host in ((0, "alpha"), (5, "beta")):
        assert fail(work, world, host, minute, "failed").state == "queued"
    assert fail(work, world, "gamma", 10, "failed").state == "ended"


def test_a_workload_that_fails_after_a_while_keeps_its_retries(world: World) -> None:
    work = workload(world, world.vision, most_retries=10)
    for minute, host in ((0, "alpha"), (5, "beta"), (10, "gamma")):
        assert fail(work, world, host, minute, "failed", seconds=120).state == "queued"


def test_repeated_failures_on_one_host_count_as_one_host(world: World) -> None:
    work = workload(world, world.vision)
    for minute in (0, 5, 10):
        assert fail(work, world, "alpha", minute, "start_failed").state == "queued"


def test_a_failure_after_an_ordered_stop_does_not_count_against_the_host(world: World) -> None:
    work = workload(world, world.vision, most_retries=10)
    for minute, host in ((0, "alpha"), (5, "beta")):
        assert fail(work, world, host, minute, "failed", stop_code="evicted_for_guarantee").state == "queued"
    assert fail(work, world, "gamma", 10, "failed").state == "queued", "only the failure on gamma counts"


def test_the_preempting_workload_is_remembered_until_the_minimum_runtime_is_over(world: World) -> None:
    winner, other = workload(world, world.language), workload(world, world.robotics)
    work = workload(world, world.vision, evicted_for_workload=winner)
    work = fail(work, world, "alpha", 0, "checkpointed", stop_code="evicted_for_guarantee")
    assert (work.state, work.evicted_by) == ("queued", winner)
    short, whole = world.shared.minimum_runtime_seconds - 1, world.shared.minimum_runtime_seconds
    work = fail(work, world, "alpha", 5, "host_lost", seconds=short)
    assert (work.state, work.evicted_by) == ("queued", winner)
    work = fail(work, world, "beta", 15, "drained", seconds=whole)
    assert (work.state, work.evicted_by) == ("queued", None)
    Workload.objects.filter(pk=work.pk).update(evicted_by=winner, evicted_for_workload=other)
    work = fail(
        Workload.objects.get(pk=work.pk), world, "beta", 25, "checkpointed", stop_code="evicted_for_priority"
    )
    assert (work.state, work.evicted_by) == ("queued", other), "the last preempting workload is kept"
