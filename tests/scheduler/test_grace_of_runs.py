"""The grace that a run's host was told at its start is the one that its shim keeps to, whatever its pool says by now."""

from __future__ import annotations

import datetime as dt

import pytest

from scheduler import services
from scheduler.models import Host, Pool, Workload
from scheduler.sweeps import silent_hosts
from scheduler.sync import agent_api
from scheduler.sync.agent_api import AgentRejected
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_life_of_a_job import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)


def started(world: World, grace: int) -> tuple[Workload, FakeAgent]:
    """A job that was started with this grace, and its agent; its pool's grace is 10 s since."""
    agents = agents_of(world, "alpha", "beta")
    Pool.objects.filter(pk=world.shared.pk).update(grace_seconds=grace)
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    Pool.objects.filter(pk=world.shared.pk).update(grace_seconds=10)
    host = workload.runs.get().host_id
    Host.objects.exclude(pk=host).update(last_sync_at=world.now + 3600 * SECOND)
    return workload, next(agent for agent in agents if agent.host.pk == host)


def test_a_cut_off_host_keeps_its_work_until_the_grace_that_its_shims_were_told_is_over(world: World) -> None:
    workload, agent = started(world, 600)
    run = workload.runs.get()
    assert agent.wanted[str(run.public_id)].grace_seconds == 600
    silent_hosts.sweep_silent_hosts(world.now + 60 * SECOND)
    run.refresh_from_db()
    assert run.state == "running", "its shim stops it 630 s after the last word at the latest"
    silent_hosts.sweep_silent_hosts(world.now + 630 * SECOND)
    run.refresh_from_db()
    assert run.state == "running"
    silent_hosts.sweep_silent_hosts(world.now + 641 * SECOND)
    run.refresh_from_db()
    assert (run.state, run.outcome) == ("ended", "host_lost")


def test_another_boot_is_not_believed_before_that(world: World) -> None:
    _, agent = started(world, 600)
    agent.boot_id = "another boot"
    with pytest.raises(AgentRejected, match="clone"):
        agent.sync(world.now + 60 * SECOND)
    agent.sync(world.now + 641 * SECOND)


def test_what_is_stopped_has_the_grace_that_it_was_told(world: World) -> None:
    workload, agent = started(world, 600)
    services.cancel_workload(workload, now=world.now + SECOND)
    (wanted,) = agent_api.desired(agent.host.pk, world.now + SECOND).runs
    assert (wanted.verb, wanted.grace_seconds) == ("stop", 600)
    assert Workload.objects.get(pk=workload.pk).gone_by == world.now + 601 * SECOND


def test_a_pool_that_gives_more_grace_waits_longer_for_hosts_that_hold_nothing(world: World) -> None:
    Pool.objects.filter(pk=world.shared.pk).update(grace_seconds=600)
    Host.objects.exclude(name="alpha").update(last_sync_at=world.now + 3600 * SECOND)
    silent_hosts.sweep_silent_hosts(world.now + 60 * SECOND)
    assert Host.objects.get(name="alpha").lease_state == "suspect"
