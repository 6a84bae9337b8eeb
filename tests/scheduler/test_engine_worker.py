"""Test the engine as a Celery worker over Valkey.

A commit wakes the engine with a nudge (a message over Valkey). If the nudge is lost, the periodic sweep wakes
it. Only one engine is the leader.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from benchmarks.harness.pool_rows import make_pool_rows
from config.celery import app
from scheduler import services
from scheduler.models import Allocation, Host, Leader, Run, Workload
from scheduler.state import nudge
from tests.fakes import FakeAgent
from tests.scheduler.conftest import engine_process
from tests.waiting import wait_until
from tests.world import A100, H100, TeamOfWorld, World, build_world, make_host, queue_workload

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def live_world(transactional_db: None) -> World:
    """Return a committed organisation with the current time, visible to other processes."""
    return build_world(timezone.now())


def queue(world: World, team: TeamOfWorld, units: int = 1, **overrides: object) -> Workload:
    fields: dict[str, object] = {
        "kind": "job",
        "type": "training",
        "name": "a job",
        "pool": world.shared,
        "project": team.project,
        "owner": team.member,
        "units": units,
        "models_wanted": [H100],
        "max_runtime_seconds": 3600,
        "preemptible": True,
        "command": "true",
        **overrides,
    }
    return queue_workload(now=timezone.now(), **fields)  # type: ignore[arg-type]


def state_of(workload: Workload) -> str:
    return Workload.objects.values_list("state", flat=True).get(pk=workload.pk)


def test_a_submission_is_decided_without_a_periodic_cycle(
    engine_worker: subprocess.Popen[bytes], live_world: World
) -> None:
    """Run no periodic task, so that only a commit wakes the engine. `./run bench wake` measures the time."""
    for _ in range(10):
        workload = queue(live_world, live_world.vision)
        wait_until(lambda w=workload: state_of(w) != "queued")  # type: ignore[misc]
        assert state_of(workload) == "placed"


@pytest.mark.parametrize(
    ("gpus", "waiting", "rounds"),
    [(400, 10, 1), pytest.param(1_000, 100, 2, marks=pytest.mark.long)],
    ids=["small", "large"],
)
def test_every_event_wakes_the_engine(
    engine_worker: subprocess.Popen[bytes], transactional_db: None, gpus: int, waiting: int, rounds: int
) -> None:
    """Check requests, ended work, returned hosts and approvals in a half-full pool with a queue."""
    fleet = make_pool_rows(gpus, waiting, timezone.now())
    lone = make_host("lone", fleet.pool, [H100], timezone.now())
    Host.objects.filter(pk=lone.pk).update(labels={"only": "lone"})
    agent = FakeAgent.of(lone)

    def wait_decided(workload: Workload) -> None:
        wait_until(lambda: state_of(workload) != "queued")

    def lone_job() -> Workload:
        return fleet.queue(timezone.now(), 0, models_wanted=[H100], labels_required={"only": "lone"})

    def end_what_runs() -> None:
        for _ in range(2):
            agent.sync(timezone.now())
        agent.end(agent.running[0], timezone.now())
        agent.sync(timezone.now())

    for number in range(rounds):
        wait_decided(fleet.queue(timezone.now(), number))
        wait_decided(lone_job())
        second = lone_job()
        wait_until(lambda: Workload.objects.get(pk=second.pk).reason_code != "")  # noqa: B023
        end_what_runs()
        wait_decided(second)
        services.cordon_host(lone, reason="test", now=timezone.now())
        end_what_runs()
        closed_out = lone_job()
        wait_until(lambda: Workload.objects.get(pk=closed_out.pk).reason_code != "")  # noqa: B023
        services.return_host(lone, now=timezone.now())
        wait_decided(closed_out)
        end_what_runs()
        reservation, _ = services.confirm_reservation(  # as an approval does
            owner=fleet.owners[0],
            project=fleet.projects[0],
            pool=fleet.pool,
            name="now",
            units=1,
            models_wanted=[A100],
            start=timezone.now(),
            end=timezone.now() + dt.timedelta(hours=1),
            now=timezone.now(),
        )
        assert reservation is not None
        wait_until(lambda: reservation.bound_units.exists())  # noqa: B023


def test_work_that_cannot_start_gets_its_reason(
    engine_worker: subprocess.Popen[bytes], live_world: World
) -> None:
    first = queue(live_world, live_world.vision)
    wait_until(lambda: state_of(first) != "queued")
    workload = queue(live_world, live_world.vision, units=9)
    wait_until(lambda: Workload.objects.get(pk=workload.pk).reason_code != "")
    assert Workload.objects.get(pk=workload.pk).reason_code == "too_big_for_any_host"


def test_the_sweep_decides_if_every_nudge_is_lost(
    engine_worker: subprocess.Popen[bytes], live_world: World
) -> None:
    workload = queue(live_world, live_world.vision)
    wait_until(lambda: state_of(workload) != "queued")
    nudge.redis_connection().set(nudge.ENGINE_KEY, "1", px=60_000)  # suppresses every nudge
    lost = queue(live_world, live_world.vision)
    assert nudge.redis_connection().llen("engine") == 0, "no message is waiting"
    active = app.control.inspect(timeout=10.0, limit=1).active()  # without the limit, it waits 10 seconds
    assert active and not any(active.values()), "and none is being handled"
    assert state_of(lost) == "queued"
    app.send_task("scheduler.tasks.sweep", queue="engine")
    wait_until(lambda: state_of(lost) == "placed")


@pytest.mark.long
def test_a_job_runs_is_preempted_and_resumes_through_the_real_engine(
    engine_worker: subprocess.Popen[bytes], live_world: World
) -> None:
    live_world.shared.minimum_runtime_seconds = 0
    live_world.shared.save()
    agents = [FakeAgent.of(live_world.hosts[name]) for name in ("alpha", "beta")]

    def until(condition: Callable[[], bool]) -> None:
        """Sync the agents until the condition is true. Acknowledges a checkpoint for each notice."""

        def step() -> bool:
            for agent in agents:
                agent.sync(timezone.now())
                for run, wanted in agent.wanted.items():
                    if wanted.verb == "notice" and agent.runs[run].checkpoint_at is None:
                        agent.checkpoint(run, timezone.now())
            return condition()

        wait_until(step)

    borrowers = [queue(live_world, live_world.robotics, units=8) for _ in range(2)]
    until(lambda: all(state_of(w) == "running" for w in borrowers))
    claimant = queue(live_world, live_world.vision, units=8, preemptible=False)
    until(lambda: state_of(claimant) == "running")
    victim = Workload.objects.get(evicted_by=claimant)
    assert victim in borrowers and victim.state == "queued" and victim.checkpoint_at is not None
    assert victim.runs.get().outcome == "checkpointed"

    services.cancel_workload(claimant, now=timezone.now())
    until(lambda: state_of(victim) == "running")
    assert state_of(claimant) == "ended"
    assert Run.objects.filter(workload=victim).count() == 2
    until(lambda: Allocation.objects.filter(period__upper_inf=True).count() == 16)


@pytest.mark.long
def test_after_a_killed_engine_nothing_is_started_twice_and_nothing_is_lost(
    live_world: World, tmp_path: Path
) -> None:
    with engine_process(tmp_path / "killed.log") as first:
        warm_up = queue(live_world, live_world.vision)
        wait_until(lambda: state_of(warm_up) != "queued")
        workloads = [queue(live_world, live_world.teams[n % 3]) for n in range(12)]
        os.killpg(first.pid, signal.SIGKILL)
    nudge.redis_connection().flushdb()  # the killed engine's queue is lost as well
    with engine_process(tmp_path / "next.log"):

        def all_are_placed() -> bool:
            app.send_task("scheduler.tasks.sweep", queue="engine")
            return not Workload.objects.filter(pk__in=[w.pk for w in workloads], state="queued").exists()

        wait_until(all_are_placed, every=0.2)
    assert Run.objects.count() == 13
    assert Allocation.objects.filter(period__upper_inf=True).values("unit").distinct().count() == 13


@pytest.mark.long
def test_the_engine_recovers_from_an_emptied_valkey(
    engine_worker: subprocess.Popen[bytes], live_world: World
) -> None:
    warm_up = queue(live_world, live_world.vision)
    wait_until(lambda: state_of(warm_up) != "queued")
    nudge.redis_connection().flushdb()
    workload = queue(live_world, live_world.vision)
    wait_until(lambda: state_of(workload) == "placed")
    assert Run.objects.filter(workload__in=[warm_up, workload]).count() == 2


def test_a_submission_is_committed_at_once_while_valkey_is_down(
    live_world: World, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.REDIS_URL = "unix:///nowhere/valkey"
    monkeypatch.setattr(nudge, "_outage", type(nudge._outage)())
    nudge.redis_connection.cache_clear()
    try:
        assert state_of(queue(live_world, live_world.vision)) == "queued"
    finally:
        nudge.redis_connection.cache_clear()


@pytest.mark.long
def test_a_frozen_engine_is_replaced_and_does_not_lead_after_it_resumes(
    engine_worker: subprocess.Popen[bytes], live_world: World, tmp_path: Path
) -> None:
    first = queue(live_world, live_world.vision)
    wait_until(lambda: state_of(first) == "placed")
    before = Leader.objects.get(pk=1)
    os.killpg(engine_worker.pid, signal.SIGSTOP)
    try:
        with engine_process(tmp_path / "second.log"):
            workload = queue(live_world, live_world.vision)
            nudge.redis_connection().delete(nudge.ENGINE_KEY)

            def taken_over() -> bool:
                app.send_task("scheduler.tasks.sweep", queue="engine")
                return state_of(workload) == "placed"

            wait_until(taken_over, every=0.2)
            after = Leader.objects.get(pk=1)
            assert after.epoch == before.epoch + 1 and after.holder != before.holder
            os.killpg(engine_worker.pid, signal.SIGCONT)
            second = queue(live_world, live_world.vision)
            wait_until(lambda: state_of(second) == "placed")
            assert Leader.objects.get(pk=1).holder == after.holder
    finally:
        os.killpg(engine_worker.pid, signal.SIGCONT)
    third = queue(live_world, live_world.vision)

    def back() -> bool:
        app.send_task("scheduler.tasks.sweep", queue="engine")
        return state_of(third) == "placed"

    wait_until(back, every=0.2)
