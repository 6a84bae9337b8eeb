"""Test that the report of a failed run's end names the hardware events of its GPU."""

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


def plant_xids(agent: AgentProcess, *codes: int, gpu: int) -> str:
    """Return a command that makes a simulated GPU report these Xids."""
    program = f"{sys.executable} -m agent plant-xid --state {agent.state} --gpu {gpu} --code"
    return " ".join(f"{program} {code} &&" for code in codes)


async def test_a_failed_run_reports_the_events_of_its_gpu(edge: FakeEdge, agent: AgentProcess) -> None:
    whole, part = agent.units[0], agent.units[1]
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    await edge.want(job(f"{plant_xids(agent, 31, 79, gpu=0)} exit 3", units=[whole], environment=environment))
    await edge.want(
        job(f"{plant_xids(agent, 48, gpu=1)} exit 3", units=[part], environment=environment, generation=2)
    )
    for run, codes in (("run-1", {"xid:31", "xid:79"}), ("run-2", {"xid:48"})):
        seen = await edge.until_state(run, "ended")
        assert (seen.outcome, seen.exit_code, set(seen.gpu_events)) == ("failed", 3, codes)
    reported = {(event.gpu, event.code) for event in edge.health}
    assert {code for _, code in reported} == {"xid:31", "xid:79", "xid:48"}, (
        "the events were sent before or with the end"
    )


async def test_a_finished_run_reports_no_gpu_events(edge: FakeEdge, agent: AgentProcess) -> None:
    unit = agent.units[0]
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    await edge.want(job(f"{plant_xids(agent, 79, gpu=0)} true", units=[unit], environment=environment))
    seen = await edge.until_state("run-1", "ended")
    assert (seen.outcome, seen.gpu_events) == ("finished", [])
    await edge.want(job("exit 3", units=[unit], generation=2))
    assert (await edge.until_state("run-2", "ended")).gpu_events == [], "the event is older than this run"


async def test_an_end_is_reported_if_the_driver_hangs(
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


def test_codes_are_selected_by_gpu_and_time_without_duplicates(tmp_path: Path) -> None:
    store, now = HealthEventStore(tmp_path / "health"), time.time()
    for name, gpu, code, ts in (
        ("a", "GPU-1", "xid:79", now - 400),
        ("b", "GPU-1", "xid:31", now - 20),
        ("c", "GPU-2", "xid:48", now - 20),
        ("d", "GPU-1", "xid:45", now - 10),
        ("e", "GPU-1", "xid:31", now - 5),
        ("f", "GPU-1", "xid:94", now + 60),
    ):
        assert store.note(HardwareEvent(name, gpu, "xid", code, ts)) is not None
    assert store.codes_between(frozenset({"GPU-1"}), now - 300, now + 10) == ["xid:31", "xid:45"]
