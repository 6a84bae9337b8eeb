"""Test that a host whose agent cannot write its disk takes no new work, and returns by itself."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from scheduler import services
from scheduler.cycle.schedulable_hosts import is_schedulable
from scheduler.models import Host, Workload
from scheduler.state.states import AdminState
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)
PROBLEM = "Read-only file system"


def report(agent: FakeAgent, problem: str, at: dt.datetime) -> Host:
    """Let the agent report this problem of its disk, and return its host."""
    agent.inventory = replace(agent.inventory, disk_problem=problem)
    agent.sync(at)
    return Host.objects.select_related("pool").get(pk=agent.host.pk)


@pytest.fixture
def agent(world: World) -> FakeAgent:
    return agents_of(world, "alpha")[0]


def test_a_host_with_a_read_only_disk_is_cordoned_with_the_reason_and_returns_by_itself(
    world: World, agent: FakeAgent
) -> None:
    workload = job(world, world.vision, 1, world.now)
    start(world, [agent], world.now)
    host = report(agent, PROBLEM, world.now + SECOND)
    assert host.admin_state == AdminState.CORDONED and not is_schedulable(host)
    assert host.state_reason == "its agent cannot write its disk: Read-only file system"
    assert Workload.objects.get(pk=workload.pk).state == "running", "running work continues"
    host = report(agent, "", world.now + 2 * SECOND)
    assert (host.admin_state, host.state_reason) == (AdminState.IN_SERVICE, "") and is_schedulable(host)
    reasons = list(host.state_changes.order_by("pk").values_list("reason", flat=True))
    assert reasons[-1] == "its agent can write its disk again"


def test_a_host_that_an_operator_has_closed_stays_closed(world: World, agent: FakeAgent) -> None:
    services.cordon_host(agent.host, reason="a new fan", now=world.now)
    for problem in (PROBLEM, ""):
        host = report(agent, problem, world.now + SECOND)
        assert (host.admin_state, host.state_reason) == (AdminState.CORDONED, "a new fan")


def test_a_host_with_a_second_reason_stays_closed(world: World, agent: FakeAgent) -> None:
    host = report(agent, f"{PROBLEM}; and more", world.now)
    assert ";" not in host.state_reason, "a semicolon separates two reasons"
    Host.objects.filter(pk=host.pk).update(state_reason=f"{host.state_reason}; its GPU 3 failed")
    assert report(agent, "", world.now + SECOND).admin_state == AdminState.CORDONED
