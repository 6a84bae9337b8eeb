"""A machine that joins as a host speaks for itself: what the machine before it still runs keeps its GPUs and is not begun twice."""

from __future__ import annotations

import datetime as dt

from agent.protocol import JoinRequest
from scheduler import agent_api, leases, services
from scheduler.models import Host, Run
from scheduler.states import RunState
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_life_of_a_job import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)


def test_a_join_frees_nothing_before_lease_grace_and_margin_of_the_agent_before_are_over(world: World) -> None:
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

    def ends(after: range) -> int | None:
        for second in after:
            agent_api.sync(old.host.pk, new.observed(), at + second * SECOND)
            if Run.objects.get(pk=run.pk).state == RunState.ENDED:
                return second
        return None

    longest = int(leases.rules().silent_seconds(workload.pool.grace_seconds))
    assert ends(range(2, longest, 3)) is None, "shims of the machine before may still keep it"
    assert ends(range(longest, longest + 40, 3)) is not None
    assert Run.objects.get(pk=run.pk).outcome == "host_lost"
