"""Test a job from the queue to its end on PostgreSQL.

The tests plan the job, apply the plan, and let fake agents sync.
"""

from __future__ import annotations

import datetime as dt

from scheduler import services
from scheduler.core.model.snapshot import Priority
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import engine
from scheduler.models import Allocation, Command, Decision, Run, Workload
from scheduler.sweeps import time_limits
from tests.fakes import FakeAgent
from tests.world import H100, TeamOfWorld, World, queue_workload

SECOND = dt.timedelta(seconds=1)


def job(world: World, team: TeamOfWorld, units: int, now: dt.datetime, **also: object) -> Workload:
    """Queue a job of the team's member in the shared pool, on H100s."""
    fields: dict[str, object] = {
        "kind": "job",
        "type": "training",
        "name": f"{team.team.slug} x {units}",
        "pool": world.shared,
        "project": team.project,
        "owner": team.member,
        "units": units,
        "models_wanted": [H100],
        "max_runtime_seconds": 3600 * 8,
        "preemptible": True,
        "command": "train",
        **also,
    }
    return queue_workload(now=now, **fields)  # type: ignore[arg-type]


def test_a_job_is_placed_started_and_ended(world: World) -> None:
    now = world.now
    agents = {name: FakeAgent.of(host) for name, host in world.hosts.items()}
    workload = job(world, world.vision, 4, now)

    applied = engine.run_cycle("test", now)
    assert applied is not None and not applied.rejected
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code) == ("placed", ReasonCode.FREE_WITHIN_GUARANTEE)
    run = Run.objects.get()
    agent = next(a for a in agents.values() if a.host.pk == run.host_id)

    desired = agent.sync(now + SECOND)
    assert [(w.verb, w.generation, len(w.unit_uuids)) for w in desired.runs] == [("start", run.generation, 4)]
    agent.sync(now + 2 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "running" and workload.started_at == now + 2 * SECOND

    agent.end(str(run.public_id), now + 100 * SECOND)
    assert agent.sync(now + 101 * SECOND).runs == []
    workload.refresh_from_db()
    assert (workload.state, workload.outcome, workload.ended_at) == ("ended", "finished", now + 100 * SECOND)
    held = Allocation.objects.filter(workload=workload)
    assert {(a.period.lower, a.period.upper, a.end_code) for a in held} == {
        (now, now + 100 * SECOND, "finished")
    }
    assert not Command.objects.filter(done_at__isnull=True).exists()
    assert agent.sync(now + 102 * SECOND).runs == [] and agent.runs == {}


def test_a_job_that_evicts_work_of_its_own_team_does_not_report_a_borrower(
    world: World,
) -> None:
    now, later = world.now, world.now + dt.timedelta(seconds=1000)
    agents = [FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta")]  # the hosts with H100

    def sync(at: dt.datetime) -> None:
        for agent in agents:
            agent.sync(at)

    outranked = job(world, world.vision, 8, now, priority=Priority.LOW)
    job(world, world.language, 8, now)
    engine.run_cycle("test", now)
    for step in (1, 2):
        sync(now + step * SECOND)
    urgent = job(world, world.vision, 8, later, priority=Priority.HIGH)
    engine.run_cycle("test", later)
    urgent.refresh_from_db()
    outranked.refresh_from_db()
    assert (outranked.state, outranked.stop_requested) == ("notice", ReasonCode.EVICTED_FOR_PRIORITY)
    assert urgent.reason_code == ReasonCode.WAITS_FOR_EVICTION and urgent.room_made_by_own_team is True

    sync(later + SECOND)
    # The outranked job must not be in the queue when the urgent job starts.
    services.cancel_workload(outranked, now=later + 2 * SECOND)
    for step in (3, 4):
        sync(later + step * SECOND)
    engine.run_cycle("test", later + 5 * SECOND)
    urgent.refresh_from_db()
    assert (urgent.state, urgent.reason_code) == ("placed", ReasonCode.OUTRANKED_WITHIN_TEAM)
    assert urgent.room_made_by_own_team is None


# Not split: the test is one sequence of events.
def test_a_preempted_job_is_requeued_keeps_its_queue_position_and_resumes(world: World) -> None:
    now = world.now
    agents = [FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta")]  # the hosts with H100

    def sync(at: dt.datetime) -> None:
        for agent in agents:
            agent.sync(at)

    borrower = job(world, world.robotics, 8, now)
    owner_of_rest = job(world, world.language, 8, now)
    engine.run_cycle("test", now)
    for step in (1, 2):
        sync(now + step * SECOND)
    assert Workload.objects.filter(state="running").count() == 2

    later = now + dt.timedelta(seconds=1000)
    claimant = job(world, world.vision, 8, later, priority=Priority.NORMAL, preemptible=False)
    engine.run_cycle("test", later)
    victims = Workload.objects.filter(state="notice")
    assert [v.stop_requested for v in victims] == [ReasonCode.EVICTED_FOR_GUARANTEE]
    victim = victims.get()
    assert victim in (borrower, owner_of_rest) and victim.evicted_for_workload == claimant
    claimant.refresh_from_db()
    assert claimant.state == "queued" and claimant.reason_code == ReasonCode.WAITS_FOR_EVICTION
    assert len(claimant.earmarked_units) == 8 and claimant.room_made_by_own_team is False

    sync(later + SECOND)
    for agent in agents:
        for run, wanted in agent.wanted.items():
            if wanted.verb == "notice":
                agent.checkpoint(run, later + 5 * SECOND)
    sync(later + 6 * SECOND)  # the checkpoint is acknowledged, so the stop follows at once
    victim.refresh_from_db()
    assert victim.state == "stopping" and victim.checkpoint_at == later + 5 * SECOND
    sync(later + 7 * SECOND)
    sync(later + 8 * SECOND)
    victim.refresh_from_db()
    assert (victim.state, victim.evicted_by, victim.submitted_at) == ("queued", claimant, now)
    assert victim.runs.get().outcome == ReasonCode.CHECKPOINTED

    engine.run_cycle("test", later + 9 * SECOND)
    claimant.refresh_from_db()
    assert claimant.state == "placed" and claimant.earmarked_units == []
    victim.refresh_from_db()
    assert victim.state == "queued" and victim.reason_code not in ("", ReasonCode.EVICTED_FOR_GUARANTEE)
    for step in (10, 11):
        sync(later + step * SECOND)

    for agent in agents:
        for run in agent.running:
            if Run.objects.get(public_id=run).workload == claimant:
                agent.end(run, later + 20 * SECOND)
    sync(later + 21 * SECOND)
    engine.run_cycle("test", later + 22 * SECOND)
    for step in (23, 24):
        sync(later + step * SECOND)
    victim.refresh_from_db()
    assert (victim.state, victim.attempt) == ("running", 2)
    kinds = list(Decision.objects.filter(workload=victim).order_by("pk").values_list("kind", flat=True))
    assert kinds[0] == "placed" and kinds[1] == "evicted" and kinds[-1] == "placed"


def test_an_expired_notice_becomes_a_stop(world: World) -> None:
    now = world.now
    agent = FakeAgent.of(world.hosts["alpha"])
    workload = job(world, world.vision, 8, now)
    engine.run_cycle("test", now)
    run = Run.objects.get()
    agent = FakeAgent.of(run.host)
    agent.sync(now + SECOND)
    agent.sync(now + 2 * SECOND)
    services.drain_host(run.host, reason="fan", now=now + 3 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "notice"
    time_limits.stop_after_notice(now + 20 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "notice"
    time_limits.stop_after_notice(now + 34 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "stopping"
    agent.sync(now + 35 * SECOND)
    agent.sync(now + 36 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code, workload.failures) == ("queued", ReasonCode.DRAINED, 0)
    engine.run_cycle("test", now + 37 * SECOND)
    again = Run.objects.get(workload=workload, attempt=2)
    assert again.host != run.host and again.generation > run.generation
