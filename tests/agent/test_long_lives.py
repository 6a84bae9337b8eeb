"""An agent lives for months: what it takes with each start, each loud workload and each broken GPU, it gives back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

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
