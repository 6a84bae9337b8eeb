"""Test the identity of a host.

The tests cover its key pair, the renewal of its credential, and the detection of copied state folders.
"""

from __future__ import annotations

import base64
import dataclasses
import shutil
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from agent.host.durable_files import read_json
from agent.host.state import MAX_STARTS, AgentStarts
from agent.server import host_key
from tests.agent.conftest import AgentProcess, MakeAgent
from tests.agent.fake_edge import TOKEN, FakeEdge


def is_signed(public_key: str, signature: str, text: bytes) -> bool:
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key))
    key.verify(base64.b64decode(signature), text)  # raises InvalidSignature if the signature is wrong
    return True


async def test_a_host_generates_its_key_and_sends_only_the_public_half(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    (asked,) = edge.joins
    assert is_signed(asked.public_key, asked.signature, host_key.join_message("h1", TOKEN))
    file = agent.state / "host.key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() not in (asked.public_key, str(dataclasses.asdict(asked)))
    assert file.read_text() not in str(read_json(agent.state / "identity.json"))


async def test_a_credential_is_renewed_by_signing_a_challenge_once(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.challenge = "gpc.1.2.something"
    await edge.push()
    await edge.until(lambda: edge.proofs)
    reports = len(edge.observed)
    await edge.until(lambda: len(edge.observed) > reports + 3)
    (proof,) = edge.proofs
    assert proof.challenge == edge.challenge
    assert is_signed(edge.joins[0].public_key, proof.signature, host_key.renewal_message(edge.challenge))
    await edge.send(
        dataclasses.replace(edge.desired(), credential="next", credential_expires_at=time.time() + 9)
    )
    await edge.until(lambda: (read_json(agent.state / "identity.json") or {})["credential"] == "next")


async def test_a_host_with_an_expired_credential_renews_it_with_its_key(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.credentials.clear()
    reports = len(edge.observed)
    for socket in list(edge.sync_sockets):
        await socket.close()
    await edge.until(lambda: len(edge.observed) > reports)
    assert len(edge.joins) == 1
    last = edge.renewals[-1]
    assert is_signed(edge.joins[0].public_key, last.signature, host_key.renewal_message("sign me"))


async def test_a_key_that_others_can_read_is_not_used(edge: FakeEdge, agent: AgentProcess) -> None:
    (agent.state / "host.key").chmod(0o640)
    try:
        await host_key.sign(agent.state / "host.key", b"text")
    except host_key.HostKeyError as problem:
        assert "0600" in str(problem)
    else:
        raise AssertionError("the key was used")


async def test_each_start_reports_the_last_start_known_to_the_server(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = await make_agent()
    first = edge.observed[-1]
    assert first.starts_before == []
    await edge.until(lambda: edge.observed[-1].starts_before == [first.start])
    await agent.kill()
    shutil.copytree(agent.state, tmp_path / "copy")
    await agent.start()
    second = edge.observed[-1]
    assert second.start != first.start and second.starts_before == [first.start]
    await agent.kill()
    copied = await make_agent(state="copy")
    assert edge.observed[-1].starts_before == [first.start], "the copy does not know the second start"
    await copied.kill()


def test_unreported_starts_do_not_displace_the_last_reported_start(tmp_path: Path) -> None:
    known = AgentStarts(tmp_path / "starts")
    known.known()
    size = (tmp_path / "starts").stat().st_size
    last = [AgentStarts(tmp_path / "starts") for _ in range(3 * MAX_STARTS)][-1]
    assert last.before[0] == known.now and len(last.before) == MAX_STARTS
    assert (tmp_path / "starts").stat().st_size == size, (
        "the file is overwritten in place, which also works on a full disk"
    )
    last.known()
    assert AgentStarts(tmp_path / "starts").before == [last.now]


async def test_streams_are_dialled_with_the_newest_stream_key(edge: FakeEdge, agent: AgentProcess) -> None:
    assert edge.observed[-1].binds_streams
    edge.streams_wanted, edge.stream_key = 2, "first"
    await edge.push()
    await edge.until(lambda: edge.stream_keys == ["first", "first"])
    edge.stream_key = "second"
    for socket in list(edge.sync_sockets):
        await socket.close()  # reconnect, because an edge issues a new key only for a new connection
    reports = len(edge.observed)
    await edge.until(lambda: len(edge.observed) > reports + 1)
    for socket in list(edge.idle_streams):
        await socket.close()
    await edge.until(lambda: len(edge.stream_keys) >= 4)
    assert set(edge.stream_keys[2:]) == {"second"}
