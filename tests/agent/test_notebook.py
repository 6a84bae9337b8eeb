"""Test JupyterLab with a real kernel. Requests reach it over streams that the agent opened to the edge."""

from __future__ import annotations

import asyncio
import json
import re
import uuid

import aiohttp
import pytest
from aiohttp import web

from agent.protocol import RunSeen
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

pytestmark = pytest.mark.timeout(180)
SECRET = "edge-secret-of-this-run"
HOST = "w1.localhost:8001"


class StreamForwarder:
    """A loopback port for HTTP clients. Each connection to the port is forwarded to a stream."""

    def __init__(self, edge: FakeEdge, run: str) -> None:
        self.edge, self.run = edge, run
        self.server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        assert self.server is not None
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = await self.edge.open_stream(self.run)
        down = asyncio.create_task(self._down(stream, writer))
        while piece := await reader.read(65536):
            await stream.send_bytes(piece)
        await stream.close()
        down.cancel()

    async def _down(self, stream: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
        async for message in stream:
            writer.write(message.data)
            await writer.drain()
        writer.close()


async def start_notebook(edge: FakeEdge, agent: AgentProcess) -> RunSeen:
    edge.streams_wanted = 3
    # JupyterLab may need long to end on a busy machine.
    await edge.want(job("", kind="notebook", secret=SECRET, units=[agent.units[0]], grace_seconds=60.0))
    await edge.until(
        lambda: (seen := edge.seen("run-1")) is not None and (seen.ready or seen.state == "ended"), 90
    )
    seen = edge.seen("run-1")
    assert seen is not None and seen.ready, (seen, edge.log("run-1"))
    return seen


async def execute(session: aiohttp.ClientSession, url: str, kernel: str, code: str) -> str:
    """Execute the code in the kernel and return its output."""
    name = uuid.uuid4().hex
    headers = {"Origin": f"http://{HOST}"}
    async with session.ws_connect(f"{url}/api/kernels/{kernel}/channels", headers=headers) as socket:
        header = {
            "msg_id": name,
            "msg_type": "execute_request",
            "username": "",
            "session": name,
            "version": "5.3",
            "date": "",
        }
        content = {
            "code": code,
            "silent": False,
            "store_history": False,
            "user_expressions": {},
            "allow_stdin": False,
        }
        message = {
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
            "buffers": [],
        }
        await socket.send_str(json.dumps(message))
        printed, received = "", set()  # the reply and the output arrive on two channels, in any order
        async for answer in socket:
            data = json.loads(answer.data)
            if data["parent_header"].get("msg_id") != name:
                continue
            if data["msg_type"] == "stream":
                printed += data["content"]["text"]
            if data["msg_type"] == "error":
                printed += "\n".join(data["content"]["traceback"])
            if data["msg_type"] == "execute_reply" or data["content"].get("execution_state") == "idle":
                received.add(data["msg_type"])
            if received == {"execute_reply", "status"}:
                return printed
    raise AssertionError("the kernel's connection ended")


@pytest.mark.parametrize("launcher", ["plain", pytest.param("bubblewrap", marks=pytest.mark.sandbox)])
async def test_a_notebook_starts_and_its_kernel_sees_its_gpu(
    edge: FakeEdge, make_agent: MakeAgent, launcher: str
) -> None:
    agent = await make_agent(launcher=launcher)
    await start_notebook(edge, agent)
    steps = [seen.step for frame in edge.observed for seen in frame.runs if seen.step]
    all_steps = ["being recorded", "starting sandbox", "starting JupyterLab", "ready"]
    assert list(dict.fromkeys(steps)) == [step for step in all_steps if step in steps], (
        "the steps appear in this order, without others"
    )
    assert {"starting JupyterLab", "ready"} <= set(steps), "earlier steps may end before a report"
    authenticated = {"X-Gpupool-Secret": SECRET, "Host": HOST}
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        StreamForwarder(edge, "run-1") as url,
        aiohttp.ClientSession(headers=authenticated, cookie_jar=jar) as session,
    ):
        await assert_strangers_are_rejected(url)
        async with session.get(f"{url}/lab") as page:
            assert page.status == 200 and "JupyterLab" in await page.text()
        async with session.post(f"{url}/api/kernels", json={}) as answer:
            assert answer.status == 403, "a request without the XSRF token is rejected"
        token = next(cookie.value for cookie in jar if cookie.key == "_xsrf")
        async with session.post(f"{url}/api/kernels", json={}, headers={"X-XSRFToken": token}) as answer:
            assert answer.status == 201, await answer.text()
            kernel = (await answer.json())["id"]
        assert (await execute(session, url, kernel, "print(6*7)")).strip() == "42"
        code = (
            "import os, gpupool_contract; print(os.environ['CUDA_VISIBLE_DEVICES']); print(dict(os.environ))"
        )
        printed = await execute(session, url, kernel, code)
        assert printed.splitlines()[0] == agent.units[0]
        assert SECRET not in printed
        if launcher == "bubblewrap":
            code = (
                "from ipykernel.connect import get_connection_info as about;"
                " print(about(unpack=True)['transport'])"
            )
            assert (await execute(session, url, kernel, code)).strip() == "ipc", (
                "a TCP port would expose the kernel's output"
            )
        await assert_other_origins_are_rejected(session, url, kernel)
        await assert_a_terminal_answers(session, url, token)
        await edge.until(lambda: (edge.seen("run-1").activity or {}).get("kernels") == 1)  # type: ignore[union-attr]
        assert not (agent.state / "runs" / "run-1" / "in" / "secret").exists()
        printed = await execute(
            session, url, kernel, "open(os.path.expanduser('~/kept.txt'), 'w').write('yes') and None"
        )
    await edge.change("run-1", verb="stop", code="idle")
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "idle" and not ended.ready
    assert (agent.state / "homes" / "ada" / "kept.txt").read_text() == "yes"


async def assert_strangers_are_rejected(url: str) -> None:
    async with aiohttp.ClientSession(headers={"Host": HOST}) as stranger:
        for headers in ({}, {"X-Gpupool-Secret": "guess"}, {"Authorization": f"token {SECRET}"}):
            async with stranger.get(f"{url}/api/status", headers=headers) as answer:
                assert answer.status == 403
        async with stranger.get(f"{url}/api/status?token={SECRET}") as answer:
            assert answer.status == 403


async def assert_other_origins_are_rejected(session: aiohttp.ClientSession, url: str, kernel: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await session.ws_connect(
            f"{url}/api/kernels/{kernel}/channels", headers={"Origin": "http://w2.localhost:8001"}
        )
    assert refused.value.status == 403


async def assert_a_terminal_answers(session: aiohttp.ClientSession, url: str, token: str) -> None:
    async with session.post(f"{url}/api/terminals", headers={"X-XSRFToken": token}) as answer:
        assert answer.status == 200, await answer.text()
        name = (await answer.json())["name"]
    async with session.ws_connect(
        f"{url}/terminals/websocket/{name}", headers={"Origin": f"http://{HOST}"}
    ) as socket:
        await socket.send_str(json.dumps(["stdin", "echo $((6*7))-$CUDA_VISIBLE_DEVICES\r"]))
        shown = ""
        async for message in socket:
            data = json.loads(message.data)
            shown += data[1] if data[0] == "stdout" else ""
            if re.search(r"42-GPU-", shown):
                return


WAIT_FOR_FILE = """
import pathlib, time
while not pathlib.Path("~/go").expanduser().exists():
    time.sleep(0.05)
"""


QUICK_PROBES = {"agent.monitoring.PROBE_READY_SECONDS": 0.5}


@pytest.mark.long
async def test_activity_distinguishes_busy_and_idle_kernels(edge: FakeEdge, make_agent: MakeAgent) -> None:
    agent = await make_agent(constants=QUICK_PROBES)
    seen = await start_notebook(edge, agent)
    assert seen.activity["kernels"] == 0 and seen.activity["busy"] == 0
    began = seen.activity["last_activity"]
    authenticated = {"X-Gpupool-Secret": SECRET, "Host": HOST}
    jar = aiohttp.CookieJar(unsafe=True)
    await agent.after_steps("notebook_probe", 3)
    assert edge.seen("run-1").activity["last_activity"] == began  # type: ignore[union-attr]
    async with (
        StreamForwarder(edge, "run-1") as url,
        aiohttp.ClientSession(headers=authenticated, cookie_jar=jar) as session,
    ):
        async with session.get(f"{url}/lab"):
            token = next(cookie.value for cookie in jar if cookie.key == "_xsrf")
        async with session.post(f"{url}/api/kernels", json={}, headers={"X-XSRFToken": token}) as answer:
            kernel = (await answer.json())["id"]
        work = asyncio.create_task(execute(session, url, kernel, WAIT_FOR_FILE))
        await edge.until(lambda: edge.seen("run-1").activity["busy"] == 1)  # type: ignore[union-attr]
        await edge.until(lambda: edge.seen("run-1").activity["connections"] == 1)  # type: ignore[union-attr]
        (agent.state / "homes" / "ada" / "go").touch()
        await work
        await edge.until(lambda: edge.seen("run-1").activity["busy"] == 0)  # type: ignore[union-attr]
        assert edge.seen("run-1").activity["last_activity"] > began  # type: ignore[union-attr]


@pytest.mark.long
async def test_an_open_page_sends_no_message_and_a_background_process_is_activity(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    agent = await make_agent(constants=QUICK_PROBES)

    def activity_value(what: str) -> float | None:
        seen = edge.seen("run-1")
        assert seen is not None
        value: float | None = seen.activity[what]
        return value

    async def until_quiet() -> None:
        """Wait until the processes that the kernel starts at its own start no longer count as activity."""
        before = None
        while before is None or before != activity_value("last_background"):
            before = activity_value("last_background")
            await agent.after_steps("sample", 5)
            await agent.after_steps("notebook_probe", 2)

    await start_notebook(edge, agent)
    authenticated = {"X-Gpupool-Secret": SECRET, "Host": HOST}
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        StreamForwarder(edge, "run-1") as url,
        aiohttp.ClientSession(headers=authenticated, cookie_jar=jar) as session,
    ):
        async with session.get(f"{url}/lab"):
            token = next(cookie.value for cookie in jar if cookie.key == "_xsrf")
        async with session.post(f"{url}/api/kernels", json={}, headers={"X-XSRFToken": token}) as answer:
            kernel = (await answer.json())["id"]
        await execute(session, url, kernel, "print(6 * 7)")
        await edge.until(lambda: activity_value("last_message") is not None)
        await until_quiet()
        message, background, asked = (
            activity_value("last_message"),
            activity_value("last_background"),
            activity_value("last_activity"),
        )
        for _ in range(3):  # an open page sends such a request every few seconds
            async with session.get(f"{url}/api/kernels"):
                await agent.after_steps("notebook_probe", 1)
        await edge.until(lambda: activity_value("last_activity") != asked)
        assert (activity_value("last_message"), activity_value("last_background")) == (message, background)
        await execute(session, url, kernel, "import subprocess; left = subprocess.Popen(['sleep', '60'])")
        await edge.until(lambda: (activity_value("last_message") or 0) > (message or 0))
        quiet = activity_value("last_message") or 0
        await edge.until(lambda: (activity_value("last_background") or 0) > quiet + 1)
        assert activity_value("last_message") == quiet, "the kernel itself is idle in the meantime"


async def test_a_notebook_survives_its_agent_and_answers_the_next_agent(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await start_notebook(edge, agent)
    await agent.kill()
    edge.idle_streams.clear()
    await agent.start()
    await edge.until(lambda: (seen := edge.seen("run-1")) is not None and seen.ready)
    async with (
        StreamForwarder(edge, "run-1") as url,
        aiohttp.ClientSession(headers={"X-Gpupool-Secret": SECRET}) as session,
    ):
        answer = await session.get(f"{url}/api/status")
        assert answer.status == 200


async def test_a_stream_to_a_job_without_a_socket_is_closed_with_a_reason(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.streams_wanted = 2
    await edge.want(job("sleep 300"))
    await edge.until_state("run-1", "running")
    stream = await edge.open_stream("run-1")
    message = await stream.receive()
    assert message.type is aiohttp.WSMsgType.CLOSE
    assert message.data == 4404 and "door.sock: No such file" in str(message.extra)
    await edge.until(lambda: len(edge.idle_streams) >= 2)  # a used stream is replaced


async def test_a_revoked_agent_stops_dialling_streams(edge: FakeEdge, make_agent: MakeAgent) -> None:
    agent = await make_agent(constants={"agent.server.workspace_streams.RETRY_SECONDS": 0.2})
    edge.streams_wanted = 3
    await edge.push()
    await edge.until(lambda: len(edge.idle_streams) == 3)
    edge.credentials.clear()
    for socket in [*edge.idle_streams, *edge.sync_sockets]:
        await socket.close()
    await edge.until(lambda: edge.rejected_sync_connections)
    await agent.after_steps("shim_poll", 5)  # 1 s or more, so that requests already sent have arrived
    attempts = edge.rejected_streams
    await agent.after_steps("shim_poll", 5)
    assert edge.rejected_streams == attempts
