"""What hangs beside the agent (the edge, the driver, the homes' file system) holds up neither its loop nor itself for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from agent.gpu.nvml_reader import NvmlGpuReader
from agent.gpu.reader import GpuInventory, GpuReadError
from agent.host.blocking_call import CallTimeout
from agent.host.clock import boottime
from agent.host.state import StateFolder
from agent.isolation.launchers import PlainLauncher
from agent.isolation.team_users import OwnershipChangeInProgress, TeamUsers, UidRange
from agent.runs.manager import RunManager
from agent.server import connection, workspace_streams
from agent.server.workspace_streams import WorkspaceStreams
from tests.agent.conftest import job

# the edge


@pytest.fixture
async def mute() -> AsyncIterator[str]:
    """A server that lets everybody in and says nothing."""
    over = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    over.set()
    server.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """As the agent has it: connections that live for ever are its usual ones."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=20)) as session:
        yield session


async def test_a_renewal_and_a_joining_that_are_never_answered_come_to_an_end(
    mute: str, session: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.5)
    state = StateFolder(tmp_path / "state")
    state.key.write_text("there is one")
    state.identity.credential = "gpa.1.x"
    async with asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            await connection.renew_credential(session, mute, state)
        with pytest.raises(TimeoutError):
            await connection.join_pool(session, mute, state, "token", "h1")


async def test_a_dial_that_hangs_does_not_count_as_ready_for_ever(
    mute: str, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_streams, "DIAL_TIMEOUT_SECONDS", 0.3)
    dialled: list[str] = []

    def credential() -> str:
        dialled.append("again")
        return "gpa.1.x"

    kept = WorkspaceStreams(session, mute, credential, lambda run: None)
    kept.keep(2, "")
    async with asyncio.timeout(15):
        while len(dialled) < 6:
            await asyncio.sleep(0.05)
    assert len(dialled) >= 6, "two that hang are dialled again and again"
    await kept.close()


# the driver


async def meter_with(program: str) -> NvmlGpuReader:
    """A meter whose process is this program."""
    meter = NvmlGpuReader(0.5)
    meter._process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    meter._has_answered = True
    meter._answers = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(meter._answers)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, meter._process.stdout)
    return meter


async def test_a_process_that_hangs_in_the_driver_as_it_ends_does_not_hold_up_the_agent() -> None:
    """It has closed its output and not the GPUs: the kernel does that in order, and the second may take for ever."""
    meter = await meter_with("import os, time; input(); os.close(1); time.sleep(6)")
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(GpuReadError):
            await meter._ask("sample", 0.5)
    assert time.monotonic() - began < 3
    assert meter._process is not None
    meter._process.kill()
    meter._process.wait()


async def test_what_a_library_prints_is_no_answer_and_keeps_none_back() -> None:
    meter = await meter_with(
        "import json\n"
        "asked = json.loads(input())\n"
        "for noise in ('WARNING: driver 1.2', '[1]', '{\"id\": \"1\"}', '', 'x' * 200_000, '[' * 50_000):\n"
        "    print(noise)\n"
        "print(json.dumps({'id': asked['id'], 'answer': [1]}), flush=True)\n"
    )
    assert await meter._ask("sample", 5.0) == [1]


async def test_an_answer_that_is_late_and_an_error_is_waited_for_no_longer() -> None:
    meter = await meter_with(
        "import json, time\n"
        "for late in (1.0, 0, 0):\n"
        "    asked = json.loads(input()); time.sleep(late)\n"
        "    answer = {'error': 'it fell off the bus'} if late else {'answer': [1]}\n"
        "    print(json.dumps({'id': asked['id'], **answer}), flush=True)\n"
    )
    with pytest.raises(GpuReadError, match=r"within 0\.5 s"):
        await meter._ask("sample", 0.5)
    await asyncio.sleep(1.0)
    with pytest.raises(GpuReadError, match="fell off the bus"):
        await meter._ask("sample", 0.5)
    assert await meter._ask("sample", 0.5) == [1]
    assert meter._process is not None
    meter._process.kill()
    meter._process.wait()


# the homes


@contextmanager
def hanging(runs: RunManager) -> Iterator[None]:
    """Within it, the file system of the homes has something to answer that it does not answer."""
    over = threading.Event()
    with pytest.raises(CallTimeout):
        runs.call_homes(over.wait, 0.05)
    try:
        yield
    finally:
        over.set()
        while True:
            with suppress(CallTimeout):
                runs.call_homes(lambda: None)
                break
            time.sleep(0.01)


@pytest.fixture
def runs(tmp_path: Path) -> RunManager:
    """Of a host without GPUs."""
    (tmp_path / "homes").mkdir()
    state = StateFolder(tmp_path / "state")
    state.install_tools()
    hardware = GpuInventory([], devices={})
    return RunManager(
        state,
        PlainLauncher(),
        hardware,
        homes=tmp_path / "homes",
        locks_folder=tmp_path / "locks",
        exposed=[],
    )


async def test_a_start_says_its_step_from_the_moment_it_is_taken_on(runs: RunManager) -> None:
    over = runs.homes / "over"
    wanted = job(f"until [ -e {over} ]; do sleep 0.05; done")
    said: list[str] = []
    start = asyncio.create_task(runs.start(wanted, boottime() + 30))
    while not start.done():
        await asyncio.sleep(0)
        said += [seen.step for seen in runs.seen()]
    assert await start
    assert list(dict.fromkeys(said)) == ["being written down", "starting sandbox"]
    async with asyncio.timeout(20):
        while runs.seen()[0].step == "starting sandbox":
            await asyncio.sleep(0.02)
            runs.look()
        assert (runs.seen()[0].state, runs.seen()[0].step) == ("running", "running")
        over.touch()
        while not runs.runs[wanted.run].ended:
            await asyncio.sleep(0.02)
            runs.look()


async def test_a_start_that_failed_is_told_of_while_what_it_made_is_still_being_removed(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is told of no such run any more would take it for lost."""
    leaving, over = threading.Event(), threading.Event()

    def leave(mark: str) -> None:
        leaving.set()
        over.wait(20)

    monkeypatch.setattr(runs.network, "leave", leave)  # the program that removes it hangs
    (runs.state.runs / "run-1" / "spec.json").mkdir(parents=True)  # which can't be written then
    start = asyncio.create_task(runs.start(job("true"), boottime() + 30))
    async with asyncio.timeout(20):
        while not leaving.is_set():
            await asyncio.sleep(0.01)
        assert [seen.run for seen in runs.seen()] == ["run-1"]
        over.set()
        assert not await start
    assert [(seen.run, seen.outcome) for seen in runs.seen()] == [("run-1", "start_failed")]


async def test_while_the_homes_hang_runs_are_looked_at_and_starts_wait(runs: RunManager) -> None:
    wanted = job("touch $GPUPOOL_CHECKPOINT_DIR/.done; sleep 2")
    assert await runs.start(wanted, boottime() + 30)
    run, word = runs.runs[wanted.run], runs.homes / ".checkpoints" / wanted.workload / ".done"
    with hanging(runs):
        async with asyncio.timeout(20):
            while not (word.exists() and run.state == "running"):
                await asyncio.sleep(0.02)
                runs.look()
        began = time.monotonic()
        for _ in range(20):
            runs.look()
        assert not await runs.start(job("true", generation=2), boottime() + 30)
        assert time.monotonic() - began < 3.9, "each look that waited would take 0.2 s, a start 2 s"
        assert "homes" in runs.waiting["run-2"].step
        assert run.checkpoint_at is None, "it is not known"
    runs.look()
    assert run.checkpoint_at is not None
    assert await runs.start(job("true", generation=2), boottime() + 30)
    async with asyncio.timeout(20):
        while not all(each.ended for each in runs.runs.values()):
            await asyncio.sleep(0.05)
            runs.look()


def test_a_host_that_holds_the_record_of_teams_holds_up_no_other(tmp_path: Path) -> None:
    tenants = TeamUsers(tmp_path, UidRange())
    assert tenants.user("7.1", 70_007) == 70_007
    lock = tmp_path / ".volumes" / "teams.json.lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl; f = open({str(lock)!r}); fcntl.flock(f, 2); print(flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    began = time.monotonic()
    with pytest.raises(OwnershipChangeInProgress):
        tenants.user("7.1", 70_007)
    assert time.monotonic() - began < 1
    holder.communicate(b"\n")
    assert tenants.user("7.1", 70_007) == 70_007
