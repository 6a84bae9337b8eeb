"""Test a run that stops without an order of the server, e.g. at its time limit, but cannot be killed.

Its GPUs are quarantined.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from scheduler.models import Gpu
from scheduler.state.states import RepairState
from scheduler.sweeps import stuck_processes, time_limits
from scheduler.sync import agent_api
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_gangs import placed
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SECOND, MINUTE = dt.timedelta(seconds=1), dt.timedelta(minutes=1)


def is_stuck(agent: FakeAgent, run: str) -> None:
    """Let the agent report the run as stopping from now on. The run never ends."""
    agent.runs[run] = replace(agent.runs[run], state="stopping")


def test_a_run_that_survives_its_time_limit_quarantines_its_gpus(world: World) -> None:
    agents = agents_of(world, "alpha", "beta")
    workload = job(world, world.vision, 8, world.now, max_runtime_seconds=60)
    start(world, agents, world.now)
    run = workload.runs.get()
    agent = next(candidate for candidate in agents if candidate.host.pk == run.host_id)
    is_stuck(agent, str(run.public_id))
    begin = world.now + 62 * SECOND
    for minute in range(10):
        agent_api.sync(agent.host.pk, agent.observed(), begin + minute * MINUTE)
        time_limits.stop_at_time_limits(begin + minute * MINUTE)
        stuck_processes.sweep_stuck_processes(begin + minute * MINUTE)
    gpus = Gpu.objects.filter(host_id=run.host_id)
    assert {gpu.repair_state for gpu in gpus} == {RepairState.QUARANTINED}


@pytest.mark.long
def test_a_gang_member_that_cannot_be_killed_quarantines_its_gpus(world: World) -> None:
    workload, agents = placed(world)
    for step in (1, 2):
        for agent in agents:
            agent.sync(world.now + step * SECOND)
    agents[1].end(agents[1].running[0], world.now + 3 * SECOND, outcome="failed", exit_code=1)
    agents[1].sync(world.now + 3 * SECOND)
    (stuck,) = agents[0].running
    is_stuck(agents[0], stuck)
    for minute in range(1, 10):
        agent_api.sync(agents[0].host.pk, agents[0].observed(), world.now + minute * MINUTE)
        stuck_processes.sweep_stuck_processes(world.now + minute * MINUTE)
    held = Gpu.objects.filter(units__allocations__period__upper_inf=True).distinct()
    assert held and {gpu.repair_state for gpu in held} == {RepairState.QUARANTINED}
    workload.refresh_from_db()
    assert workload.gone_by is not None
