"""The example of docs/workload-contract.md, run as a job: interrupted twice, it ends as if nothing had been."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.agent.conftest import MakeAgent, job
from tests.agent.fake_edge import FakeEdge

DOCUMENT = Path(__file__).parents[2] / "docs" / "workload-contract.md"


@pytest.mark.parametrize("launcher", ["plain", pytest.param("bubblewrap", marks=pytest.mark.sandbox)])
async def test_the_documented_example_is_preempted_twice_and_ends_with_the_same_sum(
    edge: FakeEdge, make_agent: MakeAgent, launcher: str
) -> None:
    found = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert found is not None
    agent = await make_agent(launcher=launcher)
    command = f"echo begun; python -c {shlex.quote(found[1])}"
    for attempt in (1, 2):
        await edge.want(job(command, generation=attempt, workload="sum", attempt=attempt, units=[agent.units[0]]))
        await edge.until(lambda run=f"run-{attempt}": "begun" in edge.log(run))  # type: ignore[misc]
        await edge.change(f"run-{attempt}", verb="notice", code="evicted_for_guarantee")
        assert (await edge.until_state(f"run-{attempt}", "ended")).outcome == "checkpointed"
    await edge.want(job(command, generation=3, workload="sum", attempt=3, units=[agent.units[0]]))
    assert (await edge.until_state("run-3", "ended")).outcome == "finished"
    await edge.until(lambda: "sum" in edge.log("run-3"))
    assert edge.log("run-3") == f"begun\nsum {sum(range(100))}\n"
