"""Test that a run keeps its grace period when the pool's grace period changes."""

from __future__ import annotations

import datetime as dt

import pytest

from scheduler import services
from scheduler.models import Host, Pool, Workload
from scheduler.sweeps import silent_hosts
from scheduler.sync import agent_api
from scheduler.sync.agent_rejections import AgentRejected
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)


def started(world: World, grace: int) -> tuple[Workload, FakeAgent]:
    """Start a job in a pool with a grace period of ``grace`` seconds, then set this period to 10 s.

    Return the job and the agent of its host.
    """
    agents = agents_of(world, "alpha", "beta")
    Pool.objects.filter(pk=world.shared.pk).update(grace_seconds=grace)
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    Pool.objects.filter(pk=world.shared.pk).update(grace_seconds=10)
    host = workload.runs.get().host_id
    Host.objects.exclude(pk=host).update(last_sync_at=world.now + 3600 * SECOND)
    return workload, next(agent for agent in agents if agent.host.pk == host)


def test_the_work_of_a_disconnected_host_is_lost_only_after_the_grace_its_shims_use(world: World) -> None:
    workload, agent = started(world, 600)
    run = workload.runs.get()
    assert agent.wanted[str(run.public_id)].grace_seconds == 600
    silent_hosts.sweep_silent_hosts(world.now + 60 * SECOND)
    run.refresh_from_db()
    assert run.state == "running", "its shim stops it at most 630 s after the last report"
    silent_hosts.sweep_silent_hosts(world.now + 630 * SECOND)
    run.refresh_from_db()
    assert run.state == "running"
    silent_hosts.sweep_silent_hosts(world.now + 641 * SECOND)
    run.refresh_from_db()
    assert (run.state, run.outcome) == ("ended", "host_lost")


def test_another_boot_is_rejected_until_the_grace_of_the_runs_is_over(world: World) -> None:
    _, agent = started(world, 600)
    agent.boot_id = "another boot"
    with pytest.raises(AgentRejected, match="clone"):
        agent.sync(world.now + 60 * SECOND)
    agent.sync(world.now + 641 * SECOND)


def test_a_stopped_run_has_the_grace_it_started_with(world: World) -> None:
    workload, agent = started(world, 600)
    services.cancel_workload(workload, now=world.now + SECOND)
    (wanted,) = agent_api.desired(agent.host.pk, world.now + SECOND).runs
    assert (wanted.verb, wanted.grace_seconds) == ("stop", 600)
    assert Workload.objects.get(pk=workload.pk).gone_by == world.now + 601 * SECOND


def test_a_longer_grace_of_the_pool_also_applies_to_hosts_without_work(world: World) -> None:
    Pool.objects.filter(pk=world.shared.pk).update(grace_seconds=600)
    Host.objects.exclude(name="alpha").update(last_sync_at=world.now + 3600 * SECOND)
    silent_hosts.sweep_silent_hosts(world.now + 60 * SECOND)
    assert Host.objects.get(name="alpha").lease_state == "suspect"
