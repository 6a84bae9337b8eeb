"""Test that cancelling ends a workload, even one that is already stopping and would otherwise be requeued."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from scheduler import services
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import engine
from scheduler.models import Host, Run, Workload
from scheduler.sweeps import time_limits
from tests.fakes import FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)


def on_one_host(world: World, **also: object) -> tuple[Workload, FakeAgent]:
    """Return a placed job and the agent of its host. The agent has not received the start order yet."""
    workload = job(world, world.vision, 4, world.now, **also)
    engine.run_cycle("test", world.now)
    return workload, FakeAgent.of(Run.objects.get(workload=workload).host)


def assert_cancel_ends(workload: Workload, agent: FakeAgent, at: dt.datetime) -> None:
    """Cancel the workload and assert that it ends as cancelled."""
    assert services.cancel_workload(workload, now=at)
    for step in (1, 2, 3):
        agent.sync(at + step * SECOND)
    engine.run_cycle("test", at + 4 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.outcome) == ("ended", ReasonCode.CANCELLED)


def test_a_cancel_is_honoured_while_a_late_start_is_withdrawn(world: World) -> None:
    workload, agent = on_one_host(world)
    late = world.now + 130 * SECOND
    Host.objects.update(last_sync_at=late)
    time_limits.requeue_late_starts(late)
    workload.refresh_from_db()
    assert (workload.state, workload.stop_requested) == ("stopping", ReasonCode.START_FAILED)
    assert_cancel_ends(workload, agent, late + SECOND)


def test_a_cancel_is_honoured_while_work_stops_because_of_its_gpu(world: World) -> None:
    workload, agent = on_one_host(world)
    for step in (1, 2):
        agent.sync(world.now + step * SECOND)
    gpu = workload.allocations.select_related("unit__gpu").first()
    assert gpu is not None
    services.quarantine_gpu(gpu.unit.gpu, reason="fell off the bus", now=world.now + 3 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.stop_requested) == ("stopping", ReasonCode.GPU_ERROR)
    assert_cancel_ends(workload, agent, world.now + 4 * SECOND)


@pytest.mark.parametrize("retries", [2, pytest.param(0, marks=pytest.mark.long)])
def test_a_cancel_is_honoured_while_a_gang_stops_because_of_a_failed_member(
    world: World, retries: int
) -> None:
    workload = job(world, world.vision, 4, world.now, hosts=2, most_retries=retries)
    engine.run_cycle("test", world.now)
    agents = [FakeAgent.of(run.host) for run in Run.objects.filter(workload=workload).order_by("rank")]
    for step in (1, 2):
        for agent in agents:
            agent.sync(world.now + step * SECOND)
    agents[0].end(agents[0].running[0], world.now + 3 * SECOND, outcome="failed")
    agents[0].sync(world.now + 4 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "stopping"
    assert_cancel_ends(workload, agents[1], world.now + 5 * SECOND)


def test_a_cancel_is_honoured_while_a_member_of_a_gang_stops_by_itself(world: World) -> None:
    workload = job(world, world.vision, 4, world.now, hosts=2)
    engine.run_cycle("test", world.now)
    agents = [FakeAgent.of(run.host) for run in Run.objects.filter(workload=workload).order_by("rank")]
    for step in (1, 2):
        for agent in agents:
            agent.sync(world.now + step * SECOND)
    stopping_run = agents[0].running[0]
    # The run of one member is still stopping, e.g. because of a slow epilog.
    agents[0].runs[stopping_run] = replace(agents[0].runs[stopping_run], state="stopping")
    agents[0].sync(world.now + 3 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "stopping"
    assert services.cancel_workload(workload, now=world.now + 4 * SECOND)
    verbs = {
        host: run.verb
        for host, run in ((a.host.name, a.sync(world.now + 5 * SECOND).runs[0]) for a in agents)
    }
    assert set(verbs.values()) == {"stop"}, verbs
