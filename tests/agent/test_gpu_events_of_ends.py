"""A program that dies of its GPU: what the GPU told goes with the word of the run's end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from agent.gpu.health_events import HealthEventStore
from agent.gpu.reader import HardwareEvent
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge
from tests.agent.test_nvml import faults, nvml_library

__all__ = ["faults", "nvml_library"]


def plants(agent: AgentProcess, *codes: int, gpu: int) -> str:
    """A command that has a simulated GPU report these."""
    program = f"{sys.executable} -m agent plant-xid --state {agent.state} --gpu {gpu} --code"
    return " ".join(f"{program} {code} &&" for code in codes)


async def test_the_end_of_a_program_that_dies_of_its_gpu_names_what_the_gpu_told(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    whole, part = agent.units[0], agent.units[1]
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    await edge.want(job(f"{plants(agent, 31, 79, gpu=0)} exit 3", units=[whole], environment=environment))
    await edge.want(
        job(f"{plants(agent, 48, gpu=1)} exit 3", units=[part], environment=environment, generation=2)
    )
    for run, codes in (("run-1", {"xid:31", "xid:79"}), ("run-2", {"xid:48"})):
        seen = await edge.until_state(run, "ended")
        assert (seen.outcome, seen.exit_code, set(seen.gpu_events)) == ("failed", 3, codes)
    told = {(event.gpu, event.code) for event in edge.health}
    assert {code for _, code in told} == {"xid:31", "xid:79", "xid:48"}, (
        "and the events went out with the end, or before"
    )


async def test_what_a_gpu_told_is_no_matter_of_a_run_that_ends_well_or_is_stopped(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    unit = agent.units[0]
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    await edge.want(job(f"{plants(agent, 79, gpu=0)} true", units=[unit], environment=environment))
    seen = await edge.until_state("run-1", "ended")
    assert (seen.outcome, seen.gpu_events) == ("finished", [])
    await edge.want(job("exit 3", units=[unit], generation=2))
    assert (await edge.until_state("run-2", "ended")).gpu_events == [], "it was told before this run began"


async def test_an_end_is_told_also_where_the_driver_does_not_answer(
    edge: FakeEdge, make_agent: MakeAgent, faults: Path
) -> None:
    agent = await make_agent("--simulate", "", "--simulate-mig", "")
    await edge.want(job("until [ -e go ]; do sleep 0.05; done; exit 3", units=["GPU-fake-0"]))
    await edge.until_state("run-1", "running")
    faults.write_text("hang")
    (agent.state / "homes" / "ada" / "go").touch()
    seen = await edge.until_state("run-1", "ended")
    assert (seen.outcome, seen.gpu_events) == ("failed", [])
    faults.unlink()


def test_codes_are_those_of_these_gpus_and_of_that_time_each_once(tmp_path: Path) -> None:
    kept, now = HealthEventStore(tmp_path / "health"), time.time()
    for name, gpu, code, ts in (
        ("a", "GPU-1", "xid:79", now - 400),
        ("b", "GPU-1", "xid:31", now - 20),
        ("c", "GPU-2", "xid:48", now - 20),
        ("d", "GPU-1", "xid:45", now - 10),
        ("e", "GPU-1", "xid:31", now - 5),
        ("f", "GPU-1", "xid:94", now + 60),
    ):
        assert kept.note(HardwareEvent(name, gpu, "xid", code, ts)) is not None
    assert kept.codes_between(frozenset({"GPU-1"}), now - 300, now + 10) == ["xid:31", "xid:45"]
