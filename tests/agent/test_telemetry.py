"""Test samples, hardware events, joins and credentials, with and without a connection."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from agent.host.durable_files import read_json
from tests.agent.conftest import COUNTED_PROGRAM, ROOT, AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge


async def test_samples_name_the_run_of_the_unit_and_follow_its_declared_load(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    unit = agent.units[0]
    await edge.want(job("echo 75 > $GPUPOOL_SIMULATED_LOAD; sleep 300", units=[unit]))

    def busy() -> bool:
        last = [
            row
            for batch in edge.batches[-3:]
            for row in batch.rows
            if row.unit == unit and row.run == "run-1"
        ]
        return bool(last) and last[-1].utilisation is not None and 70 < last[-1].utilisation < 80

    await edge.until(busy)
    idle = [row for row in edge.batches[-1].rows if row.unit != unit]
    assert idle and all(row.run is None and row.utilisation is None for row in idle), (
        "the utilisation of slices is unknown, not zero"
    )


@pytest.mark.parametrize("command", ["sleep 300", "export GPUPOOL_SIMULATED_UTILISATION=40; sleep 300; true"])
async def test_a_load_declared_in_the_environment_is_sampled(
    edge: FakeEdge, agent: AgentProcess, command: str
) -> None:
    unit = agent.units[0]
    asked = {"GPUPOOL_SIMULATED_UTILISATION": "40"} if command == "sleep 300" else {}
    await edge.want(job(command, units=[unit], environment=asked))

    def samples() -> list[float]:
        rows = [row for batch in edge.batches for row in batch.rows]
        return [row.utilisation or 0.0 for row in rows if row.unit == unit]

    await edge.until(lambda: samples() and 35 < samples()[-1] < 45)
    earlier = len(samples())
    await edge.until(lambda: len(samples()) >= earlier + 2)
    assert all(35 < utilisation < 45 for utilisation in samples()[earlier:])


async def test_uncommitted_samples_are_sent_again_and_kept_until_committed(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.commits = False
    await edge.until(lambda: len(edge.batches) >= 3)
    already = edge.committed
    await agent.kill()
    first_time = {batch.sequence: batch for batch in edge.batches}
    edge.batches.clear()
    await agent.start()
    await edge.until(lambda: len(edge.batches) >= len(first_time) - already + 1)
    again = [batch.sequence for batch in edge.batches]
    assert again == list(range(already + 1, already + 1 + len(again))), (
        "batches continue after the committed one, in order, without gaps"
    )
    assert all(
        batch.rows == first_time[batch.sequence].rows
        for batch in edge.batches
        if batch.sequence in first_time
    )
    edge.commits = True
    edge.committed = max(again)
    spool = agent.state / "spool"
    await edge.until(lambda: len(list(spool.glob("*.json"))) <= 3)


async def test_a_server_restored_from_a_backup_still_gets_pending_samples(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await edge.until(lambda: edge.batches)
    await agent.kill()
    spool = agent.state / "spool"
    newest = max(spool.glob("*.json"))
    pending = json.loads(newest.read_text())
    newest.rename(
        spool / "000000005000.json"
    )  # a high number, as after a long time in which earlier batches were committed and deleted
    edge.committed, edge.commits = 0, False
    edge.batches.clear()
    await agent.start()
    await edge.until(lambda: any(batch.sequence > 5000 for batch in edge.batches))
    assert pending["sequence"] in [batch.sequence for batch in edge.batches]


async def test_samples_taken_without_the_edge_are_sent_later(edge: FakeEdge, agent: AgentProcess) -> None:
    def sent() -> int:
        return len({row.ts for batch in edge.batches for row in batch.rows})

    await edge.until(lambda: edge.batches)
    port = int(edge.url.rsplit(":", 1)[1])
    await edge.stop()
    await agent.after_steps("sample", 12)
    taken = agent.count("sample")
    await edge.start(port)
    await edge.until(lambda: sent() >= taken)
    numbers = sorted({batch.sequence for batch in edge.batches})
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_planted_xid_is_reported_once_and_again_by_the_next_agent(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    command = [
        sys.executable,
        "-m",
        "agent",
        "plant-xid",
        "--state",
        str(agent.state),
        "--gpu",
        "1",
        "--code",
        "79",
    ]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True, cwd=ROOT
    )
    await edge.until(lambda: edge.health)
    event = edge.health[0]
    assert (event.code, event.source, event.event_id) == ("xid:79", "simulated", done.stdout.strip())
    assert event.gpu == edge.observed[-1].inventory.gpus[1].uuid
    await edge.after_reports(3)  # the answer to a later report confirms the event
    heard = len(edge.observed)
    for socket in list(edge.sync_sockets):
        await socket.close()
    await edge.until(lambda: len(edge.observed) > heard + 2)
    assert len(edge.health) == 1, "a new connection does not repeat confirmed events"
    await agent.kill()
    await agent.start()
    await edge.until(lambda: len(edge.health) >= 2)
    assert {health.event_id for health in edge.health} == {event.event_id}


async def test_joining_stores_a_private_credential_and_happens_once(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    path = agent.state / "identity.json"
    assert path.stat().st_mode & 0o777 == 0o600
    instance = read_json(path)["instance"]
    await agent.kill()
    await agent.start()
    assert len(edge.joins) == 1
    assert edge.joins[0].host == "h1" and edge.joins[0].instance == instance == edge.observed[-1].instance


async def test_a_renewed_credential_is_stored_and_used(edge: FakeEdge, agent: AgentProcess) -> None:
    edge.credentials.add("renewed")
    await edge.send(dataclasses.replace(edge.desired(), credential="renewed", credential_expires_at=2e9))
    await edge.until(lambda: read_json(agent.state / "identity.json")["credential"] == "renewed")
    edge.credentials = {"renewed"}
    await agent.kill()
    await agent.start()
    assert len(edge.joins) == 1


async def test_a_rejected_token_ends_the_agent_with_one_line(edge: FakeEdge, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent", "run", "--state", str(tmp_path / "state"), "--edge", edge.url),
        *("--join-token", "wrong", "--host", "h1", "--simulate", "1xH100-80GB", "--launcher", "plain"),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    _, error_output = await process.communicate()
    assert process.returncode == 1
    assert (
        error_output.decode().splitlines()[-1]
        == "agent: --join-token: the server refused it (403): this join token is not known"
    )


async def test_an_agent_restarts_without_the_edge_option(edge: FakeEdge, agent: AgentProcess) -> None:
    assert await agent.end() == 0
    heard = len(edge.observed)
    agent.process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent", "run", "--state", str(agent.state)),
        *("--simulate", "2xH100-80GB", "--simulate-mig", "1:2x3g.40gb", "--launcher", "plain"),
        cwd=ROOT,
    )
    await edge.until(lambda: len(edge.observed) > heard)
    assert len(edge.joins) == 1


async def test_a_host_joins_if_the_edges_address_cannot_be_stored(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path
) -> None:
    (tmp_path / "state" / "edge").mkdir(parents=True)  # a directory here makes the write fail
    await make_agent()
    assert len(edge.joins) == 1


@pytest.fixture
async def other_server() -> AsyncIterator[str]:
    """Run a server that is no edge and yield its address.

    The server answers every request like the portal's page for an unknown path.
    """

    async def unknown(request: web.Request) -> web.Response:
        return web.Response(
            status=404, text="<!doctype html> <html lang=en>There is nothing here", content_type="text/html"
        )

    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", unknown)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("verb", ["join", "run"])
async def test_an_address_that_is_no_edge_is_reported_in_one_line(
    other_server: str, tmp_path: Path, verb: str
) -> None:
    more = ["--simulate", "1xH100-80GB", "--launcher", "plain"] if verb == "run" else []
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent", verb, "--state", str(tmp_path / "state"), "--edge", other_server),
        *("--join-token", "t", "--host", "h1", *more),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    _, error_output = await process.communicate()
    assert process.returncode == 1
    last = error_output.decode().splitlines()[-1]
    assert last == f"agent: --edge: {other_server} is not a gpupool edge: it answered 404 to /agent/v1/join"
    assert not (tmp_path / "state" / "edge").exists()


@pytest.mark.long
async def test_a_joined_agent_reports_a_wrong_address_once_and_retries(
    other_server: str, agent: AgentProcess, tmp_path: Path
) -> None:
    assert await agent.end() == 0
    agent.more += ["--edge", other_server]  # the last --edge option takes effect
    lines = await start_with_log(agent, tmp_path / "log", joined=False)
    await lines.until("is not a gpupool edge: it answered 404 to /agent/v1/sync", 1)
    await agent.after_steps("session", 3)
    assert lines.count_lines("is not a gpupool edge") == 1
    assert agent.process is not None and agent.process.returncode is None


@dataclass(frozen=True)
class LogFile:
    """The log file of an agent."""

    path: Path

    def count_lines(self, text: str) -> int:
        """Return the number of lines that contain the text."""
        return sum(text in line for line in self.path.read_text().splitlines())

    async def until(self, text: str, count: int) -> None:
        """Wait until `count` lines contain the text."""
        ends = time.monotonic() + 40
        while self.count_lines(text) < count:
            assert time.monotonic() < ends, self.path.read_text()
            await asyncio.sleep(0.05)


async def start_with_log(agent: AgentProcess, path: Path, *, joined: bool = True) -> LogFile:
    """Start the agent and write its log to this file."""
    path.touch()
    agent.program = [
        "sh",
        "-c",
        f'exec "$0" "$@" 2>{shlex.quote(str(path))}',
        *COUNTED_PROGRAM,
        str(agent.counts),
        json.dumps(agent.constants),
    ]
    await agent.start(joined=joined)
    return LogFile(path)


@pytest.mark.long
async def test_the_log_reports_start_connection_and_loss_once(
    edge: FakeEdge, agent: AgentProcess, tmp_path: Path
) -> None:
    await edge.want(job("sleep 300", units=agent.units[:1]))
    await edge.until_state("run-1", "running")
    assert await agent.end() == 0
    lines = await start_with_log(agent, tmp_path / "log")
    await lines.until(f"INFO connected to {edge.url}", 1)
    up = "INFO up as h1: 2 x H100-80GB (simulated); launcher: plain; runs taken over: 1"
    assert lines.count_lines(up) == 1
    port = int(edge.url.rsplit(":", 1)[1])
    await edge.stop()
    await agent.after_steps("session", 4)
    assert lines.count_lines("the connection to the edge is lost") == 1
    assert lines.count_lines("agent.server.connection") == 2, lines.path.read_text()
    await edge.start(port)
    await lines.until(f"INFO connected to {edge.url}", 2)
    assert lines.count_lines("the connection to the edge is lost") == 1


@pytest.mark.long
async def test_an_unreachable_edge_is_logged_once_while_joining(edge: FakeEdge, tmp_path: Path) -> None:
    port = int(edge.url.rsplit(":", 1)[1])
    await edge.stop()
    agent = AgentProcess(edge, tmp_path / "state", "plain", constants={"agent.daemon.MAX_RETRY_SECONDS": 0.5})
    try:
        lines = await start_with_log(agent, tmp_path / "log", joined=False)
        await lines.until(f"the edge {edge.url} does not answer", 1)
        await agent.after_steps("join", 3)
        assert lines.count_lines("does not answer") == 1
        await edge.start(port)
        await lines.until(f"connected to {edge.url}", 1)
    finally:
        agent.clean_up()
        assert agent.process is not None
        await agent.process.wait()


async def test_an_agent_joins_again_if_the_server_forgot_the_host(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await agent.kill()
    edge.credentials.clear()
    edge.keys_count = False
    await agent.start()
    assert len(edge.joins) == 2


async def test_an_agent_survives_malformed_frames_and_a_temporary_refusal(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await edge.want(job("sleep 300"))
    await edge.until_state("run-1", "running")
    for garbage in (
        "not json",
        "[]",
        json.dumps({"kind": "dance"}),
        json.dumps({"kind": "desired", "runs": 5}),
    ):
        for socket in list(edge.sync_sockets):
            await socket.send_str(garbage)
    await edge.refuse("the database is away", retry=True)
    heard = len(edge.observed)
    await edge.until(lambda: len(edge.observed) > heard + 2)
    assert (await edge.until_state("run-1", "running")).outcome == ""


async def test_the_agent_uses_little_memory(edge: FakeEdge, agent: AgentProcess) -> None:
    assert agent.process is not None
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert resident < 60 * 1024
