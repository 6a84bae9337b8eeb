"""The agent's line to the edge: joining, the sync WebSocket, and coming back when it breaks."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from agent.host.clock import boot_id, boottime
from agent.host.state import StateFolder
from agent.protocol import (
    FRAMES_DOWN,
    JOIN_PATH,
    RENEW_PATH,
    SYNC_PATH,
    VERSION,
    Desired,
    JoinAnswer,
    JoinRequest,
    ProtocolError,
    Refused,
    RenewAnswer,
    RenewRequest,
    UnsupportedVersionError,
    decode,
    encode,
    parse,
)
from agent.server import host_key

if TYPE_CHECKING:
    from agent.daemon import Agent

log = logging.getLogger("agent.server.connection")

FIRST_RETRY_SECONDS = 0.25
MAX_RETRY_SECONDS = 8.0
MAX_RETRY_POLLS = 2.0  # a third of a lease: where leases are short, coming back must not take a whole one
REJECTED_RETRY_SECONDS = 30.0
HEARTBEAT_SECONDS = 15.0
CONNECT_SECONDS = 20.0
MAX_FRAME_BYTES = 16 << 20
MAX_JOIN_ANSWER_BYTES = 1 << 16
LOG_SEND_INTERVAL_SECONDS = 0.4  # how often running workloads' logs are looked at
MIN_REPORT_INTERVAL_SECONDS = 0.05  # between two Observed frames
UNANSWERED_POLLS = (
    2.0  # a report without news waits so long for the answer to the last one: well within the lease
)


class ServerRejectedError(Exception):
    """The server said no."""


async def join_pool(
    session: aiohttp.ClientSession, edge: str, state: StateFolder, token: str, host: str
) -> None:
    """Trade a single-use token for this host's credential. Raises ServerRejectedError, or aiohttp.ClientError while the edge is away."""
    public_key, signature = await _proof_of_key(state, host, token)
    request = JoinRequest(VERSION, token, host, state.identity.instance, boot_id(), public_key, signature)
    try:
        joined = await _post_json(session, edge + JOIN_PATH, request, JoinAnswer)
    except _RequestRejectedError as no:
        raise ServerRejectedError(f"--join-token: the server refused it ({no.status}): {no}") from None
    except ProtocolError as error:
        raise ServerRejectedError(f"--edge: {edge} is not a gpupool edge: {error}") from None
    state.remember(host=joined.host, credential=joined.credential, expires_at=joined.credential_expires_at)
    log.info("joined as %s", joined.host)


async def _proof_of_key(state: StateFolder, host: str, token: str) -> tuple[str, str]:
    """The host's public key, and the proof that it holds the private one; both empty where there can be none."""
    try:
        return await host_key.public_key(state.key), await host_key.sign(
            state.key, host_key.join_message(host, token)
        )
    except host_key.HostKeyError as problem:
        log.warning("this host joins without a key of its own: %s", problem)
        return "", ""


async def renew_credential(session: aiohttp.ClientSession, edge: str, state: StateFolder) -> bool:
    """A new credential for one that has run out, by signing what the server asks. False when it does not agree to that.

    Raises aiohttp.ClientError while the edge is away.
    """
    if not state.key.exists():
        return False
    headers = {"Authorization": f"Bearer {state.identity.credential}"}
    try:
        asked = await _post_json(session, edge + RENEW_PATH, RenewRequest(VERSION), RenewAnswer, headers)
        proof = RenewRequest(
            VERSION,
            asked.challenge,
            await host_key.sign(state.key, host_key.renewal_message(asked.challenge)),
        )
        given = await _post_json(session, edge + RENEW_PATH, proof, RenewAnswer, headers)
    except (_RequestRejectedError, ProtocolError, host_key.HostKeyError) as no:
        log.warning("the credential can't be renewed: %s", no)
        return False
    state.remember(
        host=state.identity.host, credential=given.credential, expires_at=given.credential_expires_at
    )
    log.info("the credential had run out: it is renewed")
    return True


class _RequestRejectedError(Exception):
    """The server's refusal of a request, in its words."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


T = TypeVar("T")


async def _post_json(
    session: aiohttp.ClientSession,
    url: str,
    request: Any,
    kind: type[T],
    headers: dict[str, str] | None = None,
) -> T:
    """Ask, and give the answer. Raises _SaidNo, ProtocolError, aiohttp.ClientError, and TimeoutError when there is none in time."""
    whole = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
    async with session.post(url, json=dataclasses.asdict(request), headers=headers, timeout=whole) as answer:
        body = (await answer.content.read(MAX_JOIN_ANSWER_BYTES)).decode("utf-8", "replace")
        if answer.status >= 500:
            raise aiohttp.ClientError(f"the edge answered {answer.status} to {url.rpartition('/')[2]}")
        if answer.status != 200:
            reason = _rejection_reason(body)
            if (
                answer.status == 404 or not reason
            ):  # the portal, say: an edge has this path, and gives reasons
                raise ProtocolError(f"it answered {answer.status} to {urlsplit(url).path}")
            raise _RequestRejectedError(answer.status, reason)
        try:
            return parse(kind, json.loads(body))
        except ProtocolError:
            raise
        except ValueError as error:
            raise ProtocolError(f"not JSON: {error}") from None


def _rejection_reason(body: str) -> str:
    """What a refusal says of itself; '' where it is none of an edge."""
    try:
        data = json.loads(body)
        return str(next(data[key] for key in ("reason", "detail", "error", "message") if key in data))[:200]
    except (ValueError, TypeError, StopIteration):
        return ""


class SyncConnection:
    """Keeps one sync WebSocket for ever. What is to be said comes from the Agent; what is heard goes to it."""

    def __init__(
        self,
        agent: Agent,
        session: aiohttp.ClientSession,
        edge: str,
        rejoin: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._agent = agent
        self._session = session
        self._edge = edge
        self._rejoin = rejoin
        self._sequence = 0
        self._answered = 0  # the last Observed that the server has handled
        self._sent_at: dict[
            int, float
        ] = {}  # CLOCK_BOOTTIME at which each Observed of this connection went out
        self._is_up: bool | None = None  # as the log has it; None: it says nothing yet

    async def keep(self) -> None:
        """Connect, talk, and connect again with growing, jittered pauses."""
        pause = FIRST_RETRY_SECONDS
        while True:
            answered = self._answered
            try:
                await self._talk()
            except ServerRejectedError as error:
                self._is_up = False
                log.warning("%s", error)
                await asyncio.sleep(random.uniform(0.5, 1) * REJECTED_RETRY_SECONDS)
                continue
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                self._note_lost(str(error) or type(error).__name__)
            if self._answered > answered:  # it was there, and took a report in
                pause = FIRST_RETRY_SECONDS
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(MAX_RETRY_SECONDS, MAX_RETRY_POLLS * self._agent.poll_seconds, pause * 2)

    def _note_up(self) -> None:
        if not self._is_up:
            self._is_up = True
            log.info("connected to %s", self._edge)

    def _note_lost(self, why: str) -> None:
        """Said once, not for each try: an edge may be away for hours."""
        if self._is_up is not False:
            was = "the line to the edge is lost" if self._is_up else f"the edge {self._edge} is away"
            log.warning("%s: %s; tried again until it answers", was, why)
            self._is_up = False

    async def _talk(self) -> None:
        headers = {"Authorization": f"Bearer {self._agent.state.identity.credential}"}
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await self._session.ws_connect(
                    self._edge + SYNC_PATH,
                    headers=headers,
                    heartbeat=HEARTBEAT_SECONDS,
                    max_msg_size=MAX_FRAME_BYTES,
                )
        except aiohttp.WSServerHandshakeError as error:
            await self._handshake_rejection(error.status)
            return
        async with socket:
            self._sent_at.clear()
            self._agent.on_connect()
            sender = asyncio.create_task(self._send(socket))
            reader = asyncio.create_task(self._read(socket))
            try:
                done, _ = await asyncio.wait((sender, reader), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._agent.on_disconnect()
                for task in (sender, reader):
                    task.cancel()
                await asyncio.gather(sender, reader, return_exceptions=True)
            for task in done:
                task.result()
            self._note_lost("it was closed")

    async def _handshake_rejection(self, status: int) -> None:
        if status in (401, 403):
            if await renew_credential(self._session, self._edge, self._agent.state):
                return
            if self._rejoin is not None:
                log.info("the credential is not accepted any more: joining again")
                rejoin, self._rejoin = self._rejoin, None  # a token counts once
                await rejoin()
                return
            raise ServerRejectedError(
                "the server does not accept this host's credential: make a new join token for it"
            )
        said = f"it answered {status} to {SYNC_PATH}"
        raise aiohttp.ClientError(
            f"this is not a gpupool edge: {said}" if status < 400 or status == 404 else said
        )

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            try:
                frame = decode(message.data, FRAMES_DOWN)
            except UnsupportedVersionError as error:
                raise ServerRejectedError(
                    f"the server speaks another protocol: {error}; install the agent that belongs to it"
                ) from None
            except ProtocolError as error:
                log.error("a frame of the edge is not of this protocol: %s", error)
                continue
            if isinstance(frame, Refused):
                if frame.retry:
                    raise aiohttp.ClientError(f"it asks to come back: {frame.reason}")
                raise ServerRejectedError(f"the server refused this agent: {frame.reason}")
            if isinstance(frame, Desired):
                if frame.version != VERSION:
                    said = f"version: {frame.version}; allowed: {VERSION}"
                    raise ServerRejectedError(
                        f"the server speaks another protocol: {said}; install the agent that belongs to it"
                    )
                self._answered = frame.answers or self._sequence  # 0: a server that does not tell
                self._note_up()
                await self._agent.on_desired(frame, self._spoke_at(frame))

    def _spoke_at(self, desired: Desired) -> float:
        """Since when (CLOCK_BOOTTIME) the server counts this host's lease: when the Observed that it last handled went out."""
        if not desired.answers:
            return boottime()
        return self._sent_at.get(desired.answers, 0.0)  # a frame of an earlier connection renews nothing

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        news = self._agent.news
        news.note_change()
        said_at = 0.0
        while True:
            now = time.monotonic()
            if news.take_change() or now >= self._next_observed(said_at):
                await self._send_observed(socket)
                said_at = now
            for proof in news.proofs_due():
                await socket.send_str(encode(proof))
            # A report asks for the leases of everything here: however much there is to say, it is not kept waiting for that.
            for frame in itertools.chain(news.health_due(), news.batches_due(), news.log_chunks()):
                await socket.send_str(encode(frame))
                if time.monotonic() >= self._next_observed(said_at):
                    break
            news.due.clear()
            if not news.has_changed:
                try:
                    # Not wait_for: up to Python 3.11 it loses a cancellation that comes with the news, and the agent never ends.
                    pause = min(
                        LOG_SEND_INTERVAL_SECONDS, max(0.01, self._next_observed(said_at) - time.monotonic())
                    )
                    async with asyncio.timeout(pause):
                        await news.due.wait()
                except TimeoutError:
                    continue
            await asyncio.sleep(MIN_REPORT_INTERVAL_SECONDS)

    def _next_observed(self, said_at: float) -> float:
        """When a report without news is due after the one of ``said_at``. A server that is behind is not given more to read."""
        polls = 1.0 if self._answered >= self._sequence else UNANSWERED_POLLS
        return said_at + polls * self._agent.poll_seconds

    async def _send_observed(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._sequence += 1
        observed = self._agent.news.observed(self._sequence)
        self._sent_at[self._sequence] = boottime()
        if len(self._sent_at) > 1000:
            del self._sent_at[next(iter(self._sent_at))]
        await socket.send_str(encode(observed))
        self._agent.news.on_observed_sent(observed)
