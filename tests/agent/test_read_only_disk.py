"""Test the agent while its disk is read-only: running work continues, and the host recovers by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.host.durable_files import write_problem
from agent.runs import local_run
from tests.agent.conftest import MakeAgent, job
from tests.agent.fake_edge import FakeEdge

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk read-only")

READ_ONLY = "Read-only file system"


async def _run(*command: str) -> None:
    assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0


@contextlib.asynccontextmanager
async def read_only(place: Path) -> AsyncIterator[None]:
    """Make all paths below ``place`` read-only for every process of this machine."""
    await _run("mount", "--bind", str(place), str(place))
    try:
        await _run("mount", "-o", "remount,ro,bind", str(place))
        yield
    finally:
        await _run("umount", "-l", str(place))


def disk_problem(edge: FakeEdge) -> str:
    return edge.observed[-1].inventory.disk_problem


async def test_a_folder_that_cannot_be_written_has_a_problem(tmp_path: Path) -> None:
    assert write_problem(tmp_path) == ""
    async with read_only(tmp_path):
        assert write_problem(tmp_path) == READ_ONLY
    assert write_problem(tmp_path / "missing") == "No such file or directory"


async def test_work_outlives_its_lease_on_a_read_only_disk_and_new_work_is_rejected(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path
) -> None:
    edge.lease_seconds = 2.0
    agent = await make_agent(state="disk/state")
    stop = tmp_path / "stop"
    await edge.want(job(f"echo begun; while [ ! -e {stop} ]; do sleep 0.05; done; exit 3"))
    await edge.until(lambda: "begun" in edge.log("run-1"))
    connections = set(edge.sync_sockets)
    async with read_only(tmp_path / "disk"):
        await edge.until(lambda: disk_problem(edge) == READ_ONLY)
        assert any(READ_ONLY in note for note in edge.observed[-1].inventory.notes)
        await agent.outlive_lease("run-1")
        await edge.want(job("exit 0", generation=2))
        refused = await edge.until_state("run-2", "ended")
        assert refused.host_full and READ_ONLY in refused.step, "it uses no retry"
        assert (await edge.until_state("run-1", "running")).outcome == ""
        assert edge.sync_sockets == connections, "the agent keeps its connection"
        stop.touch()
    await edge.until(lambda: disk_problem(edge) == "")
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("failed", 3), (
        "the end is recorded when the disk can be written"
    )
    await edge.want(job("exit 0", generation=3))
    assert (await edge.until_state("run-3", "ended")).outcome == "finished"
    assert await agent.end() == 0


@pytest.mark.long
async def test_a_lease_that_is_not_renewed_ends_the_work_on_a_read_only_disk(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path
) -> None:
    edge.lease_seconds = 2.0
    agent = await make_agent(state="disk/state")
    done = tmp_path / "stopped"
    await edge.want(job(f"trap 'touch {done}; exit' TERM; echo begun; while :; do sleep 0.05; done"))
    await edge.until(lambda: "begun" in edge.log("run-1"))
    async with read_only(tmp_path / "disk"):
        await edge.until(lambda: disk_problem(edge) == READ_ONLY)
        await agent.outlive_lease("run-1")
        edge.silent = True
        await edge.until(done.exists)
    edge.silent = False
    assert (await edge.until_state("run-1", "ended")).outcome == "lease_lost"


async def test_a_lease_in_memory_needs_a_living_shim(tmp_path: Path) -> None:
    run = local_run.LocalRun(tmp_path, {"run": "run-1", "kind": "job"})
    (tmp_path / "spec.json").write_text('{"lease_fd": 7}')
    (tmp_path / "lease").mkdir()  # it can't be written as a file
    with pytest.raises(OSError, match="the shim has ended"):
        local_run.renew_lease(run, 1.0)
