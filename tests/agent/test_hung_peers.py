"""Test hanging peers: the edge, the driver and the file system of the homes.

A hanging peer must not block the agent's event loop, and must not block a call forever.
"""

from __future__ import annotations

import asyncio
import os
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
from agent.isolation.team_users import TeamUsers, UidRange
from agent.runs import run_observer
from agent.runs.local_run import read_acknowledgement
from agent.runs.manager import RunManager
from agent.server import connection, workspace_streams
from agent.server.workspace_streams import WorkspaceStreams
from agent.storage.locked_record import RecordLocked
from tests.agent.conftest import job
from tests.waiting import until

# Edge


@pytest.fixture
async def silent_server() -> AsyncIterator[str]:
    """Run a server that accepts connections and never answers. Yield its address."""
    release = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    release.set()
    server.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session with the agent's timeouts, which do not limit the duration of a connection."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=20)) as session:
        yield session


async def test_unanswered_joins_and_renewals_time_out(
    silent_server: str, session: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.5)
    state = StateFolder(tmp_path / "state")
    state.key.write_text("there is one")
    state.identity.credential = "gpa.1.x"
    async with asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            await connection.renew_credential(session, silent_server, state)
        with pytest.raises(TimeoutError):
            await connection.join_pool(session, silent_server, state, "token", "h1")


async def test_a_hanging_stream_is_dialled_again(
    silent_server: str, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_streams, "DIAL_TIMEOUT_SECONDS", 0.3)
    dialled: list[str] = []

    def credential() -> str:
        dialled.append("again")
        return "gpa.1.x"

    streams = WorkspaceStreams(session, silent_server, credential, lambda run: None)
    streams.keep(2, "")
    async with asyncio.timeout(15):
        while len(dialled) < 6:
            await asyncio.sleep(0.05)
    assert len(dialled) >= 6, "two hanging streams are dialled again"
    await streams.close()


# Driver


async def make_reader(program: str) -> NvmlGpuReader:
    """Return a reader whose process runs this program."""
    reader = NvmlGpuReader(0.5)
    reader._process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    reader._has_answered = True
    reader._answers = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader._answers)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, reader._process.stdout)
    return reader


async def test_a_process_that_hangs_at_its_exit_does_not_block_the_agent() -> None:
    """Use a process that has closed its output but still has the GPUs open.

    At the exit of a process the kernel closes the files one after the other, and closing a GPU may hang.
    """
    reader = await make_reader("import os, time; input(); os.close(1); time.sleep(600)")
    async with asyncio.timeout(60):
        for _ in range(2):
            with pytest.raises(GpuReadError):
                await reader._ask("sample", 0.5)
    assert reader._process is not None
    reader._process.kill()
    reader._process.wait()


async def test_output_of_a_library_is_ignored_between_answers() -> None:
    reader = await make_reader(
        "import json\n"
        "asked = json.loads(input())\n"
        "for noise in ('WARNING: driver 1.2', '[1]', '{\"id\": \"1\"}', '', 'x' * 200_000, '[' * 50_000):\n"
        "    print(noise)\n"
        "print(json.dumps({'id': asked['id'], 'answer': [1]}), flush=True)\n"
    )
    assert await reader._ask("sample", 5.0) == [1]


async def test_a_late_error_is_not_used_as_the_next_answer(tmp_path: Path) -> None:
    reader = await make_reader(
        "import json, os, time\n"
        "for late in (True, False, False):\n"
        "    asked = json.loads(input())\n"
        f"    while late and not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\n"
        "    answer = {'error': 'it fell off the bus'} if late else {'answer': [1]}\n"
        "    print(json.dumps({'id': asked['id'], **answer}), flush=True)\n"
    )
    with pytest.raises(GpuReadError, match=r"within 0\.5 s"):
        await reader._ask("sample", 0.5)
    (tmp_path / "go").touch()
    await until(lambda: reader._answers._buffer)  # type: ignore[union-attr]
    with pytest.raises(GpuReadError, match="fell off the bus"):
        await reader._ask("sample", 60.0)
    assert await reader._ask("sample", 60.0) == [1]
    assert reader._process is not None
    reader._process.kill()
    reader._process.wait()


# Homes


@contextmanager
def hanging_homes(runs: RunManager) -> Iterator[None]:
    """Make calls on the file system of the homes hang within this context."""
    release = threading.Event()
    with pytest.raises(CallTimeout):
        runs.call_homes(release.wait, 0.05)
    try:
        yield
    finally:
        release.set()
        while True:
            with suppress(CallTimeout):
                runs.call_homes(lambda: None)
                break
            time.sleep(0.01)


@pytest.fixture
def runs(tmp_path: Path) -> RunManager:
    """Return a RunManager of a host without GPUs."""
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


async def test_a_start_reports_its_step_from_the_beginning(runs: RunManager) -> None:
    release = runs.homes / "over"
    wanted = job(f"until [ -e {release} ]; do sleep 0.05; done")
    steps: list[str] = []
    start = asyncio.create_task(runs.start(wanted, boottime() + 30))
    while not start.done():
        await asyncio.sleep(0)
        steps += [seen.step for seen in runs.seen()]
    assert await start
    assert list(dict.fromkeys(steps)) == ["being recorded", "starting sandbox"]
    async with asyncio.timeout(20):
        while runs.seen()[0].step == "starting sandbox":
            await asyncio.sleep(0.02)
            runs.look()
        assert (runs.seen()[0].state, runs.seen()[0].step) == ("running", "running")
        release.touch()
        while not runs.runs[wanted.run].ended:
            await asyncio.sleep(0.02)
            runs.look()


async def test_a_failed_start_is_reported_during_its_cleanup(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the run stays in the reports. Otherwise the server would consider the run lost."""
    leaving, release = threading.Event(), threading.Event()

    def leave(mark: str) -> None:
        leaving.set()
        release.wait(20)

    monkeypatch.setattr(runs.network, "leave", leave)  # as if the removal of the network hangs
    (runs.state.runs / "run-1" / "spec.json").mkdir(parents=True)  # a directory here makes the write fail
    start = asyncio.create_task(runs.start(job("true"), boottime() + 30))
    async with asyncio.timeout(20):
        while not leaving.is_set():
            await asyncio.sleep(0.01)
        assert [seen.run for seen in runs.seen()] == ["run-1"]
        release.set()
        assert not await start
    assert [(seen.run, seen.outcome) for seen in runs.seen()] == [("run-1", "start_failed")]


async def test_a_checkpoint_that_is_written_just_before_the_end_is_reported(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = job("touch $GPUPOOL_CHECKPOINT_DIR/.done")
    assert await runs.start(wanted, boottime() + 30)
    run = runs.runs[wanted.run]
    async with asyncio.timeout(20):
        while not (run.folder / "exit.json").exists():
            await asyncio.sleep(0.02)
    reads: list[Path] = []

    def read(folder: Path) -> os.stat_result | None:
        reads.append(folder)  # the first read is just before the workload writes the file
        return None if len(reads) == 1 else read_acknowledgement(folder)

    monkeypatch.setattr(run_observer, "read_acknowledgement", read)
    runs.look()
    assert run.ended["outcome"] == "finished"
    assert run.checkpoint_at is not None


async def test_runs_are_polled_and_starts_wait_while_the_homes_hang(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = job("touch $GPUPOOL_CHECKPOINT_DIR/.done; sleep 2")
    assert await runs.start(wanted, boottime() + 30)
    run, acknowledgement = runs.runs[wanted.run], runs.homes / ".checkpoints" / wanted.workload / ".done"
    with hanging_homes(runs):
        async with asyncio.timeout(20):
            while not (acknowledgement.exists() and run.state == "running"):
                await asyncio.sleep(0.02)
                runs.look()
        with monkeypatch.context() as patch:  # a call that waits for the homes would not return
            run_call = runs._homes_call.run
            patch.setattr(runs._homes_call, "run", lambda call, seconds: run_call(call, 600.0))
            runs.look()
            assert not await runs.start(job("true", generation=2), boottime() + 30)
        assert "homes" in runs.waiting["run-2"].step
        assert run.checkpoint_at is None, "the checkpoint is unknown while the file system hangs"
    runs.look()
    assert run.checkpoint_at is not None
    assert await runs.start(job("true", generation=2), boottime() + 30)
    async with asyncio.timeout(20):
        while not all(item.ended for item in runs.runs.values()):
            await asyncio.sleep(0.05)
            runs.look()


def test_a_held_lock_of_the_team_record_does_not_block_another_host(tmp_path: Path) -> None:
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
    with pytest.raises(RecordLocked):  # the holder keeps the lock until it reads a line
        tenants.user("7.1", 70_007)
    holder.communicate(b"\n")
    assert tenants.user("7.1", 70_007) == 70_007
