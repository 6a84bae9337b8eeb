"""Test that each program in examples/, run as a job by a real agent, gives the same result if preempted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge
from tests.conftest import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples"
PYTHON = EXAMPLES / "bin" / "python"
SLOW = "0.1"  # seconds added to each step
# One thread, because the number of threads changes the last bits of a sum.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}


DOCUMENTED_IN = {
    "plain_python.py": "workload-contract.md",
    "pytorch_training.py": "workload-contract.md",
    "lightning_training.py": "workload-contract.md",
    "transformers_training.py": "workload-contract.md",
    "ddp_training.py": "gangs.md",
    "ray_cluster.sh": "gangs.md",
}


def documented(name: str) -> str:
    """Return the code of an example as the documentation shows it."""
    text = (ROOT / "docs" / DOCUMENTED_IN[name]).read_text()
    found = re.search(rf"<!-- examples/{re.escape(name)} -->\n```\w*\n(.*?)```", text, re.S)
    assert found is not None, f"docs/{DOCUMENTED_IN[name]} does not show examples/{name}"
    return found[1]


@pytest.mark.parametrize(
    "name", sorted(path.name for path in FOLDER.glob("*") if path.suffix in (".py", ".sh"))
)
def test_the_documentation_shows_the_tested_examples(name: str) -> None:
    assert documented(name) == (FOLDER / name).read_text()


def command(python: str, name: str) -> str:
    return f"{python} -c {shlex.quote((FOLDER / name).read_text())}"


async def run_preempted(
    edge: FakeEdge, agent: AgentProcess, line: str, steps: dict[str, str], begun: str, times: int = 2
) -> list[str]:
    """Run the command, preempt it `times` times, and let it end. Return the output of each attempt.

    Each preemption comes after the command has printed `begun`. Preempted attempts run slowly, so that they
    do not end before the notice.
    """
    last = times + 1
    for attempt in range(1, last + 1):
        run = f"run-{attempt}"
        pace = {"PAUSE": SLOW} if attempt <= times else {}
        wanted = job(
            line,
            generation=attempt,
            workload="preempted",
            attempt=attempt,
            environment={**ENVIRONMENT, **steps, **pace},
            units=[agent.units[0]],
        )
        await edge.want(wanted)
        if attempt <= times:
            await edge.until(lambda run=run: begun in edge.log(run) or _ended(edge, run), 90)  # type: ignore[misc]
            await edge.change(run, verb="notice", code="evicted_for_guarantee")
        ended = await edge.until_state(run, "ended", 90)
        assert ended.outcome == ("checkpointed" if attempt <= times else "finished"), edge.log(run)
    return [await agent.printed(f"run-{attempt}") for attempt in range(1, last + 1)]


def _ended(edge: FakeEdge, run: str) -> bool:
    seen = edge.seen(run)
    return seen is not None and seen.state == "ended"


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["plain", pytest.param("bubblewrap", marks=pytest.mark.sandbox)])
async def test_plain_python_ends_with_the_same_sum_after_preemption(
    edge: FakeEdge, make_agent: MakeAgent, launcher: str
) -> None:
    agent = await make_agent(launcher=launcher)
    outputs = await run_preempted(
        edge, agent, f"echo begun; {command('python', 'plain_python.py')}", {}, "begun"
    )
    assert outputs[-1] == f"begun\nsum {sum(range(100))}\n"


@pytest.mark.torch
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("torch")
async def test_pytorch_ends_with_identical_weights_after_preemption(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    agent = await make_agent()
    line = command(str(PYTHON), "pytorch_training.py")
    undisturbed = job(line, generation=100, environment={**ENVIRONMENT, "STEPS": "300"})
    await edge.want(undisturbed)
    outputs = await run_preempted(edge, agent, line, {"STEPS": "300"}, "begins")
    undisturbed_output = await agent.printed("run-100")
    assert "attempt 1 begins after step 0\n" in undisturbed_output
    begins = [int(re.search(r"attempt \d begins after step (\d+)", text)[1]) for text in outputs]  # type: ignore[index]
    assert 0 == begins[0] < begins[1] < begins[2] < 300, begins
    assert outputs[-1].splitlines()[-1] == undisturbed_output.splitlines()[-1]
    assert re.fullmatch(r"weights [0-9a-f]{64} loss \d+\.\d+", outputs[-1].splitlines()[-1])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("lightning_training.py", marks=pytest.mark.lightning),
        pytest.param("transformers_training.py", marks=pytest.mark.transformers),
    ],
)
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("torch")
async def test_trainers_stop_on_notice_and_resume(edge: FakeEdge, make_agent: MakeAgent, name: str) -> None:
    agent = await make_agent()
    first, last = await run_preempted(
        edge, agent, command(str(PYTHON), name), {"STEPS": "200"}, "begun", times=1
    )
    saved = int(re.search(r"saved after step (\d+)", first)[1])  # type: ignore[index]
    assert 0 < saved < 200
    assert last.splitlines()[-1] == "steps 200"
