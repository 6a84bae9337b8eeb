"""Test changes of the time limit of a running run, and a stop that arrives after the run's end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time

import pytest

from agent.host import processes
from tests.agent.conftest import AgentProcess, job
from tests.agent.fake_edge import FakeEdge


@pytest.mark.long
async def test_an_extended_run_keeps_its_limit_after_an_agent_restart(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    limit = 8
    wanted = job("sleep 300", max_runtime_seconds=limit)
    await edge.want(wanted)
    began = (await edge.until_state("run-1", "running")).started_at
    assert began is not None
    await edge.want(dataclasses.replace(wanted, max_runtime_seconds=3600))
    order = agent.state / "runs" / "run-1" / "order.json"
    await edge.until(lambda: json.loads(order.read_text()).get("max_runtime_seconds") == 3600)
    assert time.time() - began < limit, "the new limit arrived in time"
    await agent.kill()
    await agent.start()
    await edge.until(lambda: time.time() > began + limit + 2)
    assert (await edge.until_state("run-1", "running")).outcome == ""
    await edge.want(dataclasses.replace(wanted, max_runtime_seconds=1))
    assert (await edge.until_state("run-1", "ended")).outcome == "time_limit"


async def test_an_unlimited_run_can_be_limited_while_it_runs(edge: FakeEdge, agent: AgentProcess) -> None:
    wanted = job("sleep 300")
    await edge.want(wanted)
    await edge.until_state("run-1", "running")
    await edge.want(dataclasses.replace(wanted, max_runtime_seconds=1))
    assert (await edge.until_state("run-1", "ended")).outcome == "time_limit"


async def test_a_run_that_ended_before_a_stop_has_finished(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(wanted := job("until [ -e ~/go ]; do sleep 0.05; done"))
    await edge.until_state("run-1", "running")
    shim = agent.shim("run-1")["pid"]
    os.kill(shim, signal.SIGSTOP)  # the shim reacts late, as on a busy host
    main = agent.shim("run-1")["main_pid"]
    (agent.state / "homes" / "ada" / "go").touch()
    await edge.until(lambda: processes.read_process(main) is None)
    await edge.want(dataclasses.replace(wanted, verb="stop", code="evicted_for_guarantee"))
    order = agent.state / "runs" / "run-1" / "order.json"
    await edge.until(lambda: order.exists() and "stop" in json.loads(order.read_text()))
    os.kill(shim, signal.SIGCONT)
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("finished", 0)
