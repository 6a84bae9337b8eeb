"""How long a run may last, as it is changed while it runs; and who was first: its end or the word that it is to stop."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time

from agent.host import processes
from tests.agent.conftest import AgentProcess, job
from tests.agent.fake_edge import FakeEdge


async def test_a_run_that_is_extended_lasts_longer_also_when_its_agent_starts_again(
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
    assert time.time() - began < limit, "it was told in time"
    await agent.kill()
    await agent.start()
    await edge.until(lambda: time.time() > began + limit + 2)
    assert (await edge.until_state("run-1", "running")).outcome == ""
    await edge.want(dataclasses.replace(wanted, max_runtime_seconds=1))
    assert (await edge.until_state("run-1", "ended")).outcome == "time_limit"


async def test_a_run_that_may_last_for_ever_is_limited_while_it_runs(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    wanted = job("sleep 300")
    await edge.want(wanted)
    await edge.until_state("run-1", "running")
    await edge.want(dataclasses.replace(wanted, max_runtime_seconds=1))
    assert (await edge.until_state("run-1", "ended")).outcome == "time_limit"


async def test_what_had_ended_before_it_was_told_to_stop_has_finished(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await edge.want(wanted := job("until [ -e ~/go ]; do sleep 0.05; done"))
    await edge.until_state("run-1", "running")
    shim = agent.shim("run-1")["pid"]
    os.kill(shim, signal.SIGSTOP)  # it is late, as on a busy host
    main = agent.shim("run-1")["main_pid"]
    (agent.state / "homes" / "ada" / "go").touch()
    await edge.until(lambda: processes.read_process(main) is None)
    await edge.want(dataclasses.replace(wanted, verb="stop", code="evicted_for_guarantee"))
    order = agent.state / "runs" / "run-1" / "order.json"
    await edge.until(lambda: order.exists() and "stop" in json.loads(order.read_text()))
    os.kill(shim, signal.SIGCONT)
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("finished", 0)
