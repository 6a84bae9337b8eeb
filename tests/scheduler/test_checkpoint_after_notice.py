"""Test that only a checkpoint after the notice ends the notice early, even if the host's clock is wrong."""

from __future__ import annotations

import datetime as dt

import pytest

from scheduler import services
from scheduler.models import Host, Run, Workload
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)


def running_job(world: World) -> tuple[Workload, Run, FakeAgent]:
    agents = agents_of(world, "alpha", "beta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    run = workload.runs.get()
    return workload, run, next(agent for agent in agents if agent.host.pk == run.host_id)


def drain(workload: Workload, run: Run, at: dt.datetime) -> Workload:
    services.drain_host(Host.objects.get(pk=run.host_id), reason="a fan", now=at)
    workload.refresh_from_db()
    assert workload.state == "notice"
    return workload


@pytest.mark.parametrize(
    "skew", [HOUR, *(pytest.param(skew, marks=pytest.mark.long) for skew in (-HOUR, dt.timedelta()))]
)
def test_a_checkpoint_before_the_notice_does_not_shorten_the_notice(world: World, skew: dt.timedelta) -> None:
    workload, run, agent = running_job(world)
    saved = world.now + 300 * SECOND
    agent.checkpoint(str(run.public_id), saved + skew)
    agent.sync(saved)
    drain(workload, run, saved + 60 * SECOND)
    for seconds in (61, 65):
        agent.sync(saved + seconds * SECOND)
    workload.refresh_from_db()
    assert workload.state == "notice"


@pytest.mark.parametrize(
    "skew", [HOUR, *(pytest.param(skew, marks=pytest.mark.long) for skew in (-HOUR, dt.timedelta()))]
)
def test_a_checkpoint_after_the_notice_ends_the_notice(world: World, skew: dt.timedelta) -> None:
    workload, run, agent = running_job(world)
    agent.checkpoint(str(run.public_id), world.now + 10 * SECOND + skew)
    agent.sync(world.now + 10 * SECOND)
    drain(workload, run, world.now + 60 * SECOND)
    agent.sync(world.now + 61 * SECOND)
    agent.checkpoint(str(run.public_id), world.now + 62 * SECOND + skew)
    agent.sync(world.now + 63 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "stopping"


def test_a_checkpoint_time_ahead_of_the_server_is_limited_to_now_and_stored_once(world: World) -> None:
    _, run, agent = running_job(world)
    agent.checkpoint(str(run.public_id), world.now + HOUR)
    agent.sync(world.now + 5 * SECOND)
    run.refresh_from_db()
    assert run.checkpoint_at == world.now + 5 * SECOND, "never ahead of the server"
    before = agent.heard_by_short_way
    for seconds in (10, 15, 20):
        agent.sync(world.now + seconds * SECOND)
    run.refresh_from_db()
    assert (run.checkpoint_at, agent.heard_by_short_way) == (world.now + 5 * SECOND, before + 3)


def test_the_checkpoint_time_never_moves_backwards(world: World) -> None:
    workload, run, agent = running_job(world)
    agent.checkpoint(str(run.public_id), world.now + 5 * SECOND)
    agent.sync(world.now + 5 * SECOND)
    agent.checkpoint(str(run.public_id), world.now - HOUR)  # the host's clock was set back
    agent.sync(world.now + 10 * SECOND)
    run.refresh_from_db()
    workload.refresh_from_db()
    assert run.checkpoint_at == workload.checkpoint_at == world.now + 5 * SECOND
