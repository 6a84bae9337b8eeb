"""The worked examples of examples/, run as jobs of a real agent: preempted twice, they end as if nothing had been."""

from __future__ import annotations

import asyncio
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
BEFORE_NOTICE_SECONDS = 0.4
SLOW = "0.1"  # seconds that a step takes longer
# One thread: how many add up a sum decides its last bits, on any framework.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}


SHOWN = {
    "plain_python.py": "workload-contract.md",
    "pytorch_training.py": "workload-contract.md",
    "lightning_training.py": "workload-contract.md",
    "transformers_training.py": "workload-contract.md",
    "ddp_training.py": "gangs.md",
    "ray_cluster.sh": "gangs.md",
}


def documented(name: str) -> str:
    """The code of an example as the documentation shows it."""
    text = (ROOT / "docs" / SHOWN[name]).read_text()
    found = re.search(rf"<!-- examples/{re.escape(name)} -->\n```\w*\n(.*?)```", text, re.S)
    assert found is not None, f"docs/{SHOWN[name]} does not show examples/{name}"
    return found[1]


@pytest.mark.parametrize(
    "name", sorted(path.name for path in FOLDER.glob("*") if path.suffix in (".py", ".sh"))
)
def test_the_documentation_shows_the_examples_as_they_are_run(name: str) -> None:
    assert documented(name) == (FOLDER / name).read_text()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_python_of_the_oldest_version_that_serves(path: Path) -> None:
    compile(path.read_text(), str(path), "exec", dont_inherit=True)


def command(python: str, name: str) -> str:
    return f"{python} -c {shlex.quote((FOLDER / name).read_text())}"


async def preempted(
    edge: FakeEdge, agent: AgentProcess, line: str, steps: dict[str, str], begun: str, times: int = 2
) -> list[str]:
    """Run it, send it away ``times`` times once it has said ``begun``, let it end. What each attempt wrote.

    Those that are sent away are made slow: they must not have ended before the word reaches them."""
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
            await asyncio.sleep(BEFORE_NOTICE_SECONDS)
            await edge.change(run, verb="notice", code="evicted_for_guarantee")
        ended = await edge.until_state(run, "ended", 90)
        assert ended.outcome == ("checkpointed" if attempt <= times else "finished"), edge.log(run)
    return [await agent.printed(f"run-{attempt}") for attempt in range(1, last + 1)]


def _ended(edge: FakeEdge, run: str) -> bool:
    seen = edge.seen(run)
    return seen is not None and seen.state == "ended"


@pytest.mark.parametrize("launcher", ["plain", pytest.param("bubblewrap", marks=pytest.mark.sandbox)])
async def test_plain_python_ends_with_the_same_sum(
    edge: FakeEdge, make_agent: MakeAgent, launcher: str
) -> None:
    agent = await make_agent(launcher=launcher)
    said = await preempted(edge, agent, f"echo begun; {command('python', 'plain_python.py')}", {}, "begun")
    assert said[-1] == f"begun\nsum {sum(range(100))}\n"


@pytest.mark.torch
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("torch")
async def test_pytorch_ends_with_the_same_weights_bit_for_bit(edge: FakeEdge, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    line = command(str(PYTHON), "pytorch_training.py")
    undisturbed = job(line, generation=100, environment={**ENVIRONMENT, "STEPS": "300"})
    await edge.want(undisturbed)
    said = await preempted(edge, agent, line, {"STEPS": "300"}, "begins")
    alone = await agent.printed("run-100")
    assert "attempt 1 begins after step 0\n" in alone
    begins = [int(re.search(r"attempt \d begins after step (\d+)", text)[1]) for text in said]  # type: ignore[index]
    assert 0 == begins[0] < begins[1] < begins[2] < 300, begins
    assert said[-1].splitlines()[-1] == alone.splitlines()[-1]
    assert re.fullmatch(r"weights [0-9a-f]{64} loss \d+\.\d+", said[-1].splitlines()[-1])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("lightning_training.py", marks=pytest.mark.lightning),
        pytest.param("transformers_training.py", marks=pytest.mark.transformers),
    ],
)
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("torch")
async def test_trainers_leave_on_notice_and_go_on_where_they_were(
    edge: FakeEdge, make_agent: MakeAgent, name: str
) -> None:
    agent = await make_agent()
    first, last = await preempted(edge, agent, command(str(PYTHON), name), {"STEPS": "200"}, "begun", times=1)
    saved = int(re.search(r"saved after step (\d+)", first)[1])  # type: ignore[index]
    assert 0 < saved < 200
    assert last.splitlines()[-1] == "steps 200"
