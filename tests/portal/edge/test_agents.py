"""Test agents at the edge with real sockets and rows: connections, credentials, streams, malformed frames."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from typing import Any

import aiohttp
import pytest
import redis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.utils import timezone

from agent import protocol
from portal.edge.agents import connection, connections
from portal.edge.runtime import metrics
from scheduler import services
from scheduler.models import Host, Run
from scheduler.state.nudge import HOST_CHANNEL
from telemetry.ingest import redis_client
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from tests.portal.edge.conftest import (
    EdgeSite,
    SmallAgent,
    give_credential,
    observed,
    run_orm,
    running_notebook,
)
from tests.waiting import DEADLINE_SECONDS, until


def nudge(edge_site: EdgeSite, host: Host) -> None:
    from django.conf import settings

    with redis.Redis.from_url(settings.REDIS_URL) as hints:
        hints.publish(f"{HOST_CHANNEL}{host.pk}", "")


def revoke(host: Host) -> None:
    services.revoke_credential(Host.objects.get(pk=host.pk), now=timezone.now())


async def test_an_agent_that_reports_receives_its_desired_state(agent: SmallAgent) -> None:
    await agent.connect()
    await agent.send(observed(sequence=7))
    desired = await agent.receive()
    assert isinstance(desired, protocol.Desired)
    assert desired.host == "alpha"
    assert desired.answers == 7


async def test_a_nudge_sends_the_desired_state_at_once(edge_site: EdgeSite, agent: SmallAgent) -> None:
    await agent.connect()
    await agent.send(observed())
    await agent.receive()
    await asyncio.to_thread(nudge, edge_site, agent.host)
    assert isinstance(await agent.receive(seconds=2), protocol.Desired)


async def test_nothing_is_sent_before_the_first_report_is_accepted(
    edge_site: EdgeSite, agent: SmallAgent
) -> None:
    await agent.connect()
    await asyncio.to_thread(nudge, edge_site, agent.host)
    with pytest.raises(TimeoutError):
        await agent.receive(seconds=1)


async def test_a_connection_without_a_credential_is_refused_with_the_reason(edge_site: EdgeSite) -> None:
    for headers in ({}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer wrong"}):
        answer = await edge_site.session.get(
            edge_site.url + protocol.SYNC_PATH,
            headers={
                **headers,
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            },
        )
        assert answer.status == 401
        assert (await answer.json())["kind"] == "refused"


async def test_revoking_an_agent_closes_its_open_connection(edge_site: EdgeSite, agent: SmallAgent) -> None:
    await agent.connect()
    await agent.send(observed())
    await agent.receive()
    await run_orm(revoke, agent.host)
    refused = await agent.receive_refusal()
    assert "revoked" in refused.reason
    assert not refused.retry
    assert agent.socket is not None
    assert (await agent.socket.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_a_revocation_disconnects_the_agent_without_a_periodic_check(
    agent: SmallAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PING_INTERVAL_SECONDS", 600.0)
    for number in range(5):
        agent.credential = await run_orm(give_credential, agent.host)
        await agent.connect()
        await agent.send(observed(number + 1))
        await agent.receive()
        await run_orm(revoke, agent.host)
        assert "revoked" in (await agent.receive_refusal()).reason
        await agent.close()


async def test_a_host_with_a_key_renews_its_credential_on_the_open_connection(
    agent: SmallAgent,
) -> None:
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    soon = timezone.now() + services.host_credentials.CREDENTIAL_TTL / 10
    await run_orm(Host.objects.filter(pk=agent.host.pk).update, credential_expires_at=soon, public_key=public)
    await agent.connect()
    await agent.send(observed())
    challenge = await agent.receive()
    assert challenge.challenge and not challenge.credential
    signature = base64.b64encode(key.sign(f"gpupool renew {challenge.challenge}".encode())).decode()
    await agent.send(protocol.Proof(challenge.challenge, signature))
    renewed = await agent.receive()
    assert renewed.credential and renewed.credential_expires_at > soon.timestamp()
    await agent.close()
    later = SmallAgent(agent.edge_site, agent.host, renewed.credential)
    await later.connect()
    await later.send(observed(2))
    assert isinstance(await later.receive(), protocol.Desired)
    await later.send(protocol.Proof(challenge.challenge, signature))
    assert "not of this host's last credential" in (await later.receive_refusal()).reason
    await later.close()


async def test_a_host_whose_credential_expired_renews_it_over_http(
    edge_site: EdgeSite, agent: SmallAgent
) -> None:
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    await run_orm(
        Host.objects.filter(pk=agent.host.pk).update, credential_expires_at=timezone.now(), public_key=public
    )
    url, headers = edge_site.url + protocol.RENEW_PATH, {"Authorization": f"Bearer {agent.credential}"}
    assert (await edge_site.session.post(url, json={"version": 1})).status == 401
    assert (await edge_site.session.post(url, headers=headers, data="no JSON")).status == 400
    assert (
        await edge_site.session.post(url, headers={"Authorization": "Bearer x"}, json={"version": 1})
    ).status == 403
    body = await (await edge_site.session.post(url, headers=headers, json={"version": 1})).json()
    signature = base64.b64encode(key.sign(f"gpupool renew {body['challenge']}".encode())).decode()
    proof = {"version": 1, "challenge": body["challenge"], "signature": signature}
    wrong = await edge_site.session.post(url, headers=headers, json={**proof, "signature": "AAAA"})
    assert wrong.status == 403 and "not made with the key" in (await wrong.json())["reason"]
    renewed = await (await edge_site.session.post(url, headers=headers, json=proof)).json()
    again = SmallAgent(edge_site, agent.host, renewed["credential"])
    await again.connect()
    await again.send(observed())
    assert isinstance(await again.receive(), protocol.Desired)
    await again.close()


async def test_a_revoked_agent_is_disconnected_at_its_next_sync_if_the_nudge_is_lost(
    agent: SmallAgent,
) -> None:
    await agent.connect()
    await run_orm(Host.objects.filter(pk=agent.host.pk).update, credential_hash="")
    await agent.send(observed())
    assert "revoked" in (await agent.receive_refusal()).reason


async def test_an_open_connection_ends_with_its_credential(agent: SmallAgent) -> None:
    await agent.connect()
    await run_orm(Host.objects.filter(pk=agent.host.pk).update, credential_expires_at=timezone.now())
    await agent.send(observed())
    assert "expired" in (await agent.receive_refusal()).reason


async def test_a_renewed_credential_is_valid_once_the_agent_has_read_it(agent: SmallAgent) -> None:
    soon = timezone.now() + services.host_credentials.CREDENTIAL_TTL / 10
    await run_orm(Host.objects.filter(pk=agent.host.pk).update, credential_expires_at=soon)
    before = await run_orm(lambda: Host.objects.get(pk=agent.host.pk).credential_hash)
    await agent.connect()
    await agent.send(observed())
    desired = await agent.receive()
    assert desired.credential not in ("", agent.credential)
    listening = asyncio.create_task(
        agent.receive(seconds=30)
    )  # the edge sends a ping after the frame, and the agent answers it only while it reads
    async with asyncio.timeout(3):
        while await run_orm(lambda: Host.objects.get(pk=agent.host.pk).credential_hash) == before:
            await asyncio.sleep(0.02)
    await agent.send(observed(2))  # the connection continues with the renewed credential
    assert isinstance(await listening, protocol.Desired)
    stale = SmallAgent(agent.edge_site, agent.host, agent.credential)
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await stale.connect()


async def test_the_old_credential_stays_valid_if_the_renewed_one_was_not_read(agent: SmallAgent) -> None:
    soon = timezone.now() + services.host_credentials.CREDENTIAL_TTL / 10
    await run_orm(Host.objects.filter(pk=agent.host.pk).update, credential_expires_at=soon)
    await agent.connect(autoping=False)
    for number in range(3):
        await agent.send(observed(number))
        assert (await agent.receive()).credential
        assert agent.socket is not None
        if number == 0:
            assert (await agent.socket.receive()).type is aiohttp.WSMsgType.PING
    await agent.close()
    again = SmallAgent(agent.edge_site, agent.host, agent.credential)
    await again.connect()
    await again.send(observed(4))
    assert isinstance(await again.receive(), protocol.Desired)
    await again.close()


async def test_a_second_agent_of_a_host_is_refused_while_the_first_is_connected(
    edge_site: EdgeSite, agent: SmallAgent
) -> None:
    await agent.connect()
    await agent.send(observed())
    await agent.receive()
    listening = asyncio.create_task(agent.receive(seconds=30))  # while it reads, the agent answers pings
    second = SmallAgent(edge_site, agent.host, agent.credential)
    await second.connect()
    refusal = (await second.receive_refusal()).reason
    assert "another agent is connected as alpha" in refusal
    shown = (await run_orm(Host.objects.get, pk=agent.host.pk)).refused_agent
    assert shown is not None and shown["reason"] == refusal
    await second.close()
    await asyncio.to_thread(nudge, edge_site, agent.host)
    assert isinstance(await listening, protocol.Desired)


async def test_of_two_agents_of_one_host_only_the_first_stores_samples(
    edge_site: EdgeSite, agent: SmallAgent
) -> None:
    stream = redis_client.redis_client()
    await asyncio.to_thread(stream.delete, SAMPLE_STREAM_KEY)
    await agent.connect()
    await agent.send(observed())
    await agent.receive()
    await agent.send(protocol.SampleBatch(1, [protocol.SampleRow("GPU-alpha-0", 1.0, utilisation=10.0)]))
    await until(lambda: stream.xlen(SAMPLE_STREAM_KEY) == 1)
    listening = asyncio.create_task(agent.receive(seconds=30))  # while it reads, the agent answers pings
    second = SmallAgent(edge_site, agent.host, agent.credential)
    await second.connect()
    await second.receive_refusal()
    with contextlib.suppress(ConnectionError):
        await second.send(protocol.SampleBatch(1, [protocol.SampleRow("GPU-alpha-0", 1.0, utilisation=90.0)]))
    await second.close()
    await asyncio.to_thread(nudge, edge_site, agent.host)
    assert isinstance(await listening, protocol.Desired)
    assert await asyncio.to_thread(stream.xlen, SAMPLE_STREAM_KEY) == 1
    await asyncio.to_thread(stream.delete, SAMPLE_STREAM_KEY)


async def test_an_agent_is_accepted_if_the_earlier_connection_ends_during_the_check(
    edge_site: EdgeSite, agent: SmallAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.connect()
    await agent.send(observed())
    await agent.receive()

    async def answer_and_end(earlier: connections.AgentConnection) -> bool:
        await agent.close()
        await until(lambda: not edge_site.edge.agents.is_connected(agent.host.pk))
        return True

    monkeypatch.setattr(connections, "answers_ping", answer_and_end)
    second = SmallAgent(edge_site, agent.host, agent.credential)
    await second.connect()
    await second.send(observed(2))
    assert isinstance(await second.receive(), protocol.Desired)
    await second.close()


async def test_a_connection_without_a_report_does_not_block_the_hosts_agent(
    edge_site: EdgeSite, agent: SmallAgent
) -> None:
    silent = SmallAgent(edge_site, agent.host, agent.credential)
    await silent.connect()
    answers_pings = asyncio.create_task(silent.receive(seconds=30))
    await until(lambda: edge_site.edge.agents.is_connected(agent.host.pk))
    await agent.connect()
    await agent.send(observed(3))
    desired = await agent.receive()
    assert isinstance(desired, protocol.Desired) and desired.answers == 3
    with pytest.raises(AssertionError):
        await answers_pings
    assert (await run_orm(Host.objects.get, pk=agent.host.pk)).refused_agent is None


async def test_streams_opened_with_a_revoked_credential_are_closed(
    edge_site: EdgeSite, agent: SmallAgent
) -> None:
    """Open streams and revoke their credential. Then connect the host's agent with a new credential."""
    await agent.serve(streams=3)
    await run_orm(revoke, agent.host)
    joined = SmallAgent(edge_site, agent.host, await run_orm(give_credential, agent.host))
    await joined.serve()
    assert edge_site.edge.agents.streams.idle_of(agent.host.pk) == 0
    await joined.close()


def open_stream(edge_site: EdgeSite, credential: str, key: str) -> Any:
    headers = {"Authorization": f"Bearer {credential}", protocol.STREAM_KEY_HEADER: key}
    return edge_site.session.ws_connect(edge_site.url + protocol.STREAM_PATH, headers=headers)


async def refusal_reason(stream: aiohttp.ClientWebSocketResponse) -> str:
    frame = protocol.decode((await stream.receive(timeout=DEADLINE_SECONDS)).data, protocol.FRAMES_DOWN)
    assert isinstance(frame, protocol.Refused)
    return frame.reason


async def test_a_copied_credential_cannot_offer_streams_while_the_agent_is_connected(
    edge_site: EdgeSite, agent: SmallAgent
) -> None:
    await agent.serve(streams=1)
    assert agent.stream_key
    for key in ("", "guessed", "é"):
        async with open_stream(edge_site, agent.credential, key) as stream:
            assert "only the connected agent" in await refusal_reason(stream)
    assert edge_site.edge.agents.streams.idle_of(agent.host.pk) == 1
    shown = (await run_orm(Host.objects.get, pk=agent.host.pk)).refused_agent
    assert shown["code"] == "agent_second" and "opened a connection for workspaces" in shown["reason"]


@pytest.mark.parametrize("reports", ["nothing", "as a copy"])
async def test_a_copied_credential_cannot_offer_streams_while_the_agent_is_disconnected(
    edge_site: EdgeSite, agent: SmallAgent, reports: str
) -> None:
    await run_orm(Host.objects.filter(pk=agent.host.pk).update, agent_start="the newest")
    if reports == "as a copy":
        await agent.connect()
        await agent.send(observed(start="mine", starts_before=["an older one"], binds_streams=True))
        assert "copy of the state folder" in (await agent.receive_refusal()).reason
    async with open_stream(edge_site, agent.credential, "") as stream:
        assert "only the connected agent" in await refusal_reason(stream)
    assert edge_site.edge.agents.streams.idle_of(agent.host.pk) == 0


async def test_an_agent_without_a_stream_key_can_still_offer_streams(
    edge_site: EdgeSite, agent: SmallAgent
) -> None:
    await agent.connect()
    await agent.send(observed())
    assert isinstance(await agent.receive(), protocol.Desired)
    agent.offer_streams(2)
    await until(lambda: edge_site.edge.agents.streams.idle_of(agent.host.pk) == 2)


@pytest.mark.parametrize(
    "frame",
    [
        protocol.SampleBatch(1, []),
        protocol.Health("1", "GPU-1", "xid", "xid:79", 1.0),
        protocol.LogChunk("00000000-0000-0000-0000-000000000000", 0, "text"),
        protocol.Proof("challenge", "signature"),
    ],
    ids=lambda frame: frame.kind,
)
async def test_frames_before_the_first_report_are_refused(agent: SmallAgent, frame: Any) -> None:
    await agent.connect()
    await agent.send(frame)
    assert "before the first report" in (await agent.receive_refusal()).reason


async def test_a_reconnecting_agent_replaces_its_dead_connection(
    edge_site: EdgeSite, agent: SmallAgent, monkeypatch
) -> None:
    monkeypatch.setattr(connection, "PROBE_TIMEOUT_SECONDS", 0.3)
    await agent.connect(autoping=False)  # answers no ping, so the edge regards it as dead
    await agent.send(observed())
    await until(lambda: edge_site.edge.agents.is_connected(agent.host.pk))
    second = SmallAgent(edge_site, agent.host, agent.credential)
    await second.connect()
    await second.send(observed())
    assert isinstance(await second.receive(), protocol.Desired)
    await second.close()


async def test_malformed_frames_are_refused_with_the_field_and_what_is_allowed(agent: SmallAgent) -> None:
    cases = {
        "nonsense": "not JSON",
        "[]": "kind: 'list'",
        '{"kind": "desired"}': "kind: 'desired' is not one of",
        '{"kind": []}': "kind: [] is not one of",
        '{"kind": {"a": 1}}': "kind: {'a': 1} is not one of",
        '{"kind": "log", "run": "%s", "offset": 0, "text": ""}'
        % ("x" * 10_001): "run: 10001 characters; allowed: at most 10000",
        '{"kind": "samples", "sequence": "1", "rows": []}': "sequence: '1' is not int",
        '{"kind": "log", "run": "x\\u0000", "offset": 0, "text": ""}': "run: holds a NUL character",
        (
            '{"kind": "log", "run": "00000000-0000-0000-0000-000000000000", "offset": 0, "text": ""}'
        ): "a run of this host",
        "[" * 100_000: "nested too deeply",
        protocol.encode(observed()).replace('"version":1', '"version":99'): "version: 99; allowed: 1",
    }
    for text, reason in cases.items():
        await agent.connect()
        await agent.send(observed())
        await agent.send(text)
        refused = await agent.receive_refusal()
        assert reason in refused.reason, text[:50]
        await agent.close()


async def test_an_agent_of_another_version_is_refused_with_a_reason_shown_on_the_host_page(
    agent: SmallAgent,
) -> None:
    await agent.connect()
    await agent.send('{"kind": "observed", "version": 2, "everything": "else is new"}')
    assert (await agent.receive_refusal()).reason == "version: 2; allowed: 1"
    host = await run_orm(Host.objects.get, pk=agent.host.pk)
    assert host.refused_agent["reason"] == "version: 2; allowed: 1" and host.refused_agent["code"] == ""


async def test_values_that_cannot_be_stored_are_refused_by_name_and_nothing_is_written(
    agent: SmallAgent,
) -> None:
    run = await run_orm(
        running_notebook, agent.edge_site.world, agent.edge_site.world.vision.member, agent.host
    )
    before = await run_orm(Run.objects.values().get, pk=run.pk)
    seen = {"run": str(run.public_id), "generation": run.generation, "state": "running"}
    for change in (
        {"step": "\ud800"},
        {"exit_code": 2**62, "state": "ended", "outcome": "failed"},
        {"activity": {"busy": float("nan")}},
        {"activity": {"x": "\x00"}},
        {"outcome": "x" * 9000, "state": "ended"},
        {"started_at": 1e17},
        {"state": "no such"},
    ):
        await agent.connect()
        frame = json.loads(protocol.encode(observed()))
        frame["runs"] = [{**seen, **change}]
        await agent.send(json.dumps(frame))
        answer = await agent.receive()
        if isinstance(answer, protocol.Refused):
            assert "away" not in answer.reason, change
        await agent.close()
        after = await run_orm(Run.objects.values().get, pk=run.pk)
        if isinstance(answer, protocol.Refused):
            assert after == before, change


async def test_a_malformed_join_request_is_refused_with_the_reason(edge_site: EdgeSite) -> None:
    good = {"version": 1, "token": "x", "host": "alpha", "instance": "i", "boot_id": "b"}
    cases: list[tuple[str, int]] = [
        ("nonsense", 400),
        ("[]", 400),
        ("{}", 400),
        ("[" * 50_000, 400),
        (json.dumps({**good, "version": 9}), 403),
        (json.dumps({**good, "token": "\x00"}), 400),
        (json.dumps({**good, "token": "\ud800"}), 400),
        (json.dumps(good), 403),
        (json.dumps({**good, "host": 7}), 400),
        ("x" * 70_000, 413),
    ]
    for body, status in cases:
        answer = await edge_site.session.post(edge_site.url + protocol.JOIN_PATH, data=body)
        assert answer.status == status, (body[:80], await answer.text())


async def test_a_binary_or_oversized_frame_ends_the_connection(agent: SmallAgent, monkeypatch) -> None:
    monkeypatch.setattr(connections, "MAX_FRAME_BYTES", 1000)
    socket = await agent.connect()
    await socket.send_bytes(b"\x00")
    assert "JSON text" in (await agent.receive_refusal()).reason
    socket = await agent.connect()
    await socket.send_str("x" * 1001)
    message = await socket.receive()
    assert message.type is aiohttp.WSMsgType.CLOSE
    assert message.data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG


async def test_an_agent_that_floods_is_throttled_and_others_are_not(
    edge_site: EdgeSite, agent: SmallAgent, monkeypatch
) -> None:
    monkeypatch.setattr(connection, "FRAME_BURST", 5.0)
    other = SmallAgent(
        edge_site,
        edge_site.world.hosts["beta"],
        await run_orm(give_credential, edge_site.world.hosts["beta"]),
    )
    await agent.connect()
    await agent.send(observed())  # samples are accepted only after the first report
    await agent.receive()
    await other.connect()
    text = protocol.encode(protocol.SampleBatch(sequence=1, rows=[]))

    async def flood() -> None:
        for _ in range(3000):
            await agent.send(text)

    taken_in = metrics.FRAMES.labels("samples")._value.get
    before, began = taken_in(), time.monotonic()
    flooding = asyncio.create_task(flood())
    await until(lambda: taken_in() - before > 20)
    taken = taken_in() - before
    allowed = 5 + connection.FRAMES_PER_SECOND * (time.monotonic() - began) + 1
    assert taken <= allowed
    await other.send(observed(host="beta"))
    assert isinstance(await other.receive(), protocol.Desired)
    flooding.cancel()
    await other.close()


async def test_an_agent_that_does_not_read_blocks_nobody(
    edge_site: EdgeSite, agent: SmallAgent, monkeypatch
) -> None:
    monkeypatch.setattr(connections, "SEND_TIMEOUT_SECONDS", 0.5)
    big = protocol.Desired(
        version=1,
        host="alpha",
        lease_seconds=1,
        runs=[
            protocol.RunWanted(run=str(n), workload="w", generation=1, verb="start", command="x" * 9000)
            for n in range(300)
        ],
    )
    monkeypatch.setattr(
        connections.database_calls,
        "sync",
        lambda host, *_: big if host.name == "alpha" else protocol.Desired(1, "beta", 1, []),
    )
    other = SmallAgent(
        edge_site,
        edge_site.world.hosts["beta"],
        await run_orm(give_credential, edge_site.world.hosts["beta"]),
    )
    await agent.connect()
    for number in range(20):  # the agent never reads: 50 MB fill every buffer on the way
        await agent.send(observed(number))
    await other.connect()
    await other.send(observed())
    assert (await other.receive()).host == "beta"
    await until(lambda: not edge_site.edge.agents.is_connected(agent.host.pk))
    await other.close()


async def test_the_edge_serves_agents_only_under_its_own_host_names(edge_site: EdgeSite) -> None:
    for name in ("evil.example", f"localhost:{edge_site.port + 1}", "", "127.0.0.1"):
        answer = await edge_site.session.get(edge_site.url + "/healthz", headers={"Host": name})
        assert answer.status in (400, 421), name
    assert (await edge_site.session.get(edge_site.url + "/healthz")).status == 200
