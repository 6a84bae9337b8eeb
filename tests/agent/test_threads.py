"""Test that an agent continues on a host that cannot create another process or thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host.blocking_call import BlockingCall, CallTimeout
from tests.agent.conftest import MakeAgent, job
from tests.agent.fake_edge import FakeEdge

GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
PARENT = next((group for group in GROUPS if (group / "cgroup.procs").exists()), None)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """Create a cgroup that can limit the number of processes and threads."""
    if os.geteuid() != 0 or PARENT is None:
        pytest.skip("only root can make cgroups, if the host has them")
    made = PARENT / f"gpupool-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError:
        pytest.skip("cgroups cannot be made here")
    if not (made / "pids.max").exists():
        made.rmdir()
        pytest.skip("cgroups here cannot limit processes")
    yield made
    for pid in (made / "cgroup.procs").read_text().split():
        (PARENT / "cgroup.procs").write_text(pid)
    made.rmdir()


@pytest.mark.long
async def test_an_agent_continues_without_new_threads(
    edge: FakeEdge, make_agent: MakeAgent, group: Path
) -> None:
    edge.lease_seconds = 4.0
    agent = await make_agent()
    await edge.want(job("echo begun; sleep 300", run="first"))
    await edge.until_state("first", "running")
    assert agent.process is not None
    (group / "cgroup.procs").write_text(str(agent.process.pid))
    (group / "pids.max").write_text((group / "pids.current").read_text())
    for generation in range(2, 6):
        await edge.want(job("exit 0", generation=generation))
    await agent.outlive_lease("first")
    assert agent.process.returncode is None
    assert (await edge.until_state("first", "running")).outcome == "", "its lease was renewed"
    (group / "pids.max").write_text("max")
    await edge.want(job("exit 0", generation=6))
    assert (await edge.until_state("run-6", "ended")).outcome == "finished"
    assert await agent.end() == 0


def test_a_blocking_call_without_a_thread_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    homes = BlockingCall("homes")
    with monkeypatch.context() as host:
        host.setattr("threading.Thread.start", fail_to_start)
        with pytest.raises(CallTimeout):
            homes.run(lambda: 1, 1.0)
    assert homes.run(lambda: 1, 1.0) == 1
