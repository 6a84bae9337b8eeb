"""An agent lives for months: what it takes with each start, each loud workload and each broken GPU, it gives back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from agent import logs
from agent.launchers import Plain
from agent.meter import Hardware
from agent.runs import Runs, boottime
from agent.state import State
from tests.agent.conftest import job


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Of a host without GPUs."""
    (tmp_path / "homes").mkdir()
    state = State(tmp_path / "state")
    state.lay_out_tools()
    hardware = Hardware([], devices={})
    return Runs(state, Plain(), hardware, homes=tmp_path / "homes", locks_folder=tmp_path / "locks", exposed=[])


async def until_all_ended(runs: Runs) -> None:
    async with asyncio.timeout(30):
        while not all(run.ended for run in runs.runs.values()):
            await asyncio.sleep(0.05)
            runs.look()


async def test_starts_leave_no_file_open_in_the_agent(runs: Runs) -> None:
    assert await runs.start(job("true"), boottime() + 30)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(2, 5):
        assert await runs.start(job("true", generation=number), boottime() + 30)
    assert len(os.listdir("/proc/self/fd")) == before
    await until_all_ended(runs)
    assert {run.ended["outcome"] for run in runs.runs.values()} == {"finished"}


def test_a_log_that_is_rotated_while_it_is_read_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loud workload does that several times a minute; the line to the edge must not break for it."""
    for first, text in ((0, "aaa"), (3, "bbb"), (6, "ccc")):
        (tmp_path / f"{first:015d}").write_text(text)
    listed = Path.glob

    def then_rotated(folder: Path, pattern: str) -> list[Path]:
        found = list(listed(folder, pattern))
        found[0].parent.joinpath(f"{0:015d}").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "glob", then_rotated)
    assert logs.read(tmp_path, 0, ended=False) == (3, "bbb", 6)
    (tmp_path / f"{0:015d}").write_text("aaa")
    assert logs.end(tmp_path) == 9
    for last in (3, 6):
        (tmp_path / f"{last:015d}").unlink()
    (tmp_path / f"{0:015d}").write_text("aaa")
    assert logs.end(tmp_path) == 0, "the only one that was listed is gone"
