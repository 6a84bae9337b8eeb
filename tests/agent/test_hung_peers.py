"""What hangs beside the agent (the edge, the driver, the homes' file system) holds up neither its loop nor itself for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from agent import connection, streams
from agent.meter import NoAnswer
from agent.nvml_meter import NvmlMeter
from agent.state import State
from agent.streams import Streams

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
    state = State(tmp_path / "state")
    state.key.write_text("there is one")
    state.identity.credential = "gpa.1.x"
    async with asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            await connection.renew(session, mute, state)
        with pytest.raises(TimeoutError):
            await connection.join(session, mute, state, "token", "h1")


async def test_a_dial_that_hangs_does_not_count_as_ready_for_ever(
    mute: str, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "DIAL_SECONDS", 0.3)
    dialled: list[str] = []

    def credential() -> str:
        dialled.append("again")
        return "gpa.1.x"

    kept = Streams(session, mute, credential, lambda run: None)
    kept.keep(2, "")
    async with asyncio.timeout(15):
        while len(dialled) < 6:
            await asyncio.sleep(0.05)
    await kept.close()


# the driver


async def meter_with(program: str) -> NvmlMeter:
    """A meter whose process is this program."""
    meter = NvmlMeter(0.5)
    meter._process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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
        with pytest.raises(NoAnswer):
            await meter._ask("sample", 0.5)
    assert time.monotonic() - began < 3
    assert meter._process is not None
    meter._process.kill()
    meter._process.wait()


async def test_an_answer_that_is_late_and_an_error_is_waited_for_no_longer() -> None:
    meter = await meter_with(
        "import json, time\n"
        "for late in (1.0, 0, 0):\n"
        "    asked = json.loads(input()); time.sleep(late)\n"
        "    answer = {'error': 'it fell off the bus'} if late else {'answer': [1]}\n"
        "    print(json.dumps({'id': asked['id'], **answer}), flush=True)\n"
    )
    with pytest.raises(NoAnswer, match=r"within 0\.5 s"):
        await meter._ask("sample", 0.5)
    await asyncio.sleep(1.0)
    with pytest.raises(NoAnswer, match="fell off the bus"):
        await meter._ask("sample", 0.5)
    assert await meter._ask("sample", 0.5) == [1]
    assert meter._process is not None
    meter._process.kill()
    meter._process.wait()
