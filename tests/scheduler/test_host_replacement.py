"""Test that a new machine replaces a host.

The work of the old machine keeps its GPUs until it must have ended: after lease, grace and margin.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import pytest

from agent.protocol import JoinRequest, RunSeen
from scheduler import services
from scheduler.coordination import leases
from scheduler.models import Host, Run
from scheduler.runs import commands
from scheduler.state.states import RunState
from scheduler.sync import agent_api
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)


def test_a_join_frees_no_gpu_before_lease_grace_and_margin_of_the_previous_agent_end(
    world: World,
) -> None:
    agents = agents_of(world, "alpha", "beta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    run = workload.runs.get()
    old = next(agent for agent in agents if agent.host.pk == run.host_id)
    at = world.now + 100 * SECOND
    old.sync(at)
    token = services.issue_join_token(old.host, now=at)
    agent_api.join(JoinRequest(1, token, old.host.name, "another instance", "another boot"), at + SECOND)
    new = FakeAgent.of(Host.objects.get(pk=run.host_id))
    new.inventory, new.start = old.inventory, "another start"

    def ends(seconds: Iterable[int]) -> int | None:
        for second in seconds:
            agent_api.sync(old.host.pk, new.observed(), at + second * SECOND)
            if Run.objects.get(pk=run.pk).state == RunState.ENDED:
                return second
        return None

    longest = int(leases.lease_rules().silent_seconds(workload.pool.grace_seconds))
    before = (2, longest // 3, 2 * longest // 3, longest - 1)
    assert ends(before) is None, "shims of the old machine may still run the work"
    assert ends(range(longest, longest + 40, 3)) is not None
    assert Run.objects.get(pk=run.pk).outcome == "host_lost"


@pytest.mark.long
@pytest.mark.parametrize("began", [True, False])
def test_a_joined_agent_neither_starts_nor_ends_the_runs_of_the_previous_agent(
    world: World, began: bool
) -> None:
    agents = agents_of(world, "alpha", "beta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    run = workload.runs.get()
    if not began:  # the agent has the start order and has not reported the run yet
        Run.objects.update(state=RunState.PLACED)
    old = next(agent for agent in agents if agent.host.pk == run.host_id)
    at = world.now + 100 * SECOND
    old.sync(at)
    if not began:
        Run.objects.update(state=RunState.PLACED)
    token = services.issue_join_token(old.host, now=at)
    agent_api.join(JoinRequest(1, token, old.host.name, "another instance", "another boot"), at + SECOND)
    new = FakeAgent.of(Host.objects.get(pk=run.host_id))
    new.inventory, new.start = old.inventory, "another start"
    assert agent_api.sync(old.host.pk, new.observed(), at + 2 * SECOND).runs == [], (
        "the run would start a second time"
    )
    workload.refresh_from_db()
    commands.order_stop(workload, code="cancelled", grace_seconds=1, now=at + 3 * SECOND)
    assert agent_api.sync(old.host.pk, new.observed(), at + 4 * SECOND).runs == [], (
        "the new agent would report that the run has ended"
    )
    for state, outcome in (("ended", "start_failed"), ("running", "")):
        new.runs[str(run.public_id)] = RunSeen(str(run.public_id), run.generation, state, outcome=outcome)
        agent_api.sync(old.host.pk, new.observed(), at + 5 * SECOND)
        run.refresh_from_db()
        assert run.state == (RunState.RUNNING if began else RunState.PLACED)
        assert run.allocations.filter(period__upper_inf=True).count() == 8
    new.runs.clear()
    for second in range(0, 60, 3):
        agent_api.sync(
            old.host.pk,
            new.observed(),
            at + leases.lease_rules().silent_seconds(workload.pool.grace_seconds) * SECOND + second * SECOND,
        )
    run.refresh_from_db()
    workload.refresh_from_db()
    assert (run.outcome, workload.outcome) == ("host_lost", "cancelled")


def test_an_agent_that_joins_again_keeps_its_runs(world: World) -> None:
    agents = agents_of(world, "alpha", "beta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    run = workload.runs.get()
    agent = next(agent for agent in agents if agent.host.pk == run.host_id)
    agent.sync(world.now + 100 * SECOND)
    host = Host.objects.get(pk=run.host_id)
    token = services.issue_join_token(host, now=world.now + 100 * SECOND)
    agent_api.join(
        JoinRequest(1, token, host.name, host.agent_instance, host.boot_id), world.now + 101 * SECOND
    )
    desired = agent.sync(world.now + 102 * SECOND)
    assert [wanted.run for wanted in desired.runs] == [str(run.public_id)]
    run.refresh_from_db()
    assert run.state == RunState.RUNNING
