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

from agent import keys
from agent.protocol import (
    FRAMES_DOWN,
    JOIN_PATH,
    RENEW_PATH,
    SYNC_PATH,
    VERSION,
    Desired,
    JoinAnswer,
    JoinRequest,
    OtherVersion,
    ProtocolError,
    Refused,
    RenewAnswer,
    RenewRequest,
    decode,
    encode,
    parse,
)
from agent.run import boottime
from agent.state import State, boot_id

if TYPE_CHECKING:
    from agent.daemon import Agent

log = logging.getLogger("agent.connection")

FIRST_RETRY_SECONDS = 0.25
LONGEST_RETRY_SECONDS = 8.0
LONGEST_RETRY_POLLS = 2.0  # a third of a lease: where leases are short, coming back must not take a whole one
REFUSED_RETRY_SECONDS = 30.0
HEARTBEAT_SECONDS = 15.0
CONNECT_SECONDS = 20.0
LARGEST_FRAME = 16 << 20
LARGEST_JOIN_ANSWER = 1 << 16
LOG_SECONDS = 0.4  # how often running workloads' logs are looked at
SHORTEST_GAP_SECONDS = 0.05  # between two Observed frames
UNANSWERED_POLLS = 2.0  # a report without news waits so long for the answer to the last one: well within the lease


class Unwelcome(Exception):
    """The server said no."""


async def join(session: aiohttp.ClientSession, edge: str, state: State, token: str, host: str) -> None:
    """Trade a single-use token for this host's credential. Raises Unwelcome, or aiohttp.ClientError while the edge is away."""
    public_key, signature = await _introduce(state, host, token)
    request = JoinRequest(VERSION, token, host, state.identity.instance, boot_id(), public_key, signature)
    try:
        joined = await _post(session, edge + JOIN_PATH, request, JoinAnswer)
    except _SaidNo as no:
        raise Unwelcome(f"--join-token: the server refused it ({no.status}): {no}") from None
    except ProtocolError as error:
        raise Unwelcome(f"--edge: {edge} is not a gpupool edge: {error}") from None
    state.remember(host=joined.host, credential=joined.credential, expires_at=joined.credential_expires_at)
    log.info("joined as %s", joined.host)


async def _introduce(state: State, host: str, token: str) -> tuple[str, str]:
    """The host's public key, and the proof that it holds the private one; both empty where there can be none."""
    try:
        return await keys.public_key(state.key), await keys.sign(state.key, keys.join_text(host, token))
    except keys.NoKey as problem:
        log.warning("this host joins without a key of its own: %s", problem)
        return "", ""


async def renew(session: aiohttp.ClientSession, edge: str, state: State) -> bool:
    """A new credential for one that has run out, by signing what the server asks. False when it does not agree to that.

    Raises aiohttp.ClientError while the edge is away.
    """
    if not state.key.exists():
        return False
    headers = {"Authorization": f"Bearer {state.identity.credential}"}
    try:
        asked = await _post(session, edge + RENEW_PATH, RenewRequest(VERSION), RenewAnswer, headers)
        proof = RenewRequest(VERSION, asked.challenge, await keys.sign(state.key, keys.renewal_text(asked.challenge)))
        given = await _post(session, edge + RENEW_PATH, proof, RenewAnswer, headers)
    except (_SaidNo, ProtocolError, keys.NoKey) as no:
        log.warning("the credential can't be renewed: %s", no)
        return False
    state.remember(host=state.identity.host, credential=given.credential, expires_at=given.credential_expires_at)
    log.info("the credential had run out: it is renewed")
    return True


class _SaidNo(Exception):
    """The server's refusal of a request, in its words."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


T = TypeVar("T")


async def _post(
    session: aiohttp.ClientSession, url: str, request: Any, kind: type[T], headers: dict[str, str] | None = None
) -> T:
    """Ask, and give the answer. Raises _SaidNo, ProtocolError, aiohttp.ClientError, and TimeoutError when there is none in time."""
    whole = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
    async with session.post(url, json=dataclasses.asdict(request), headers=headers, timeout=whole) as answer:
        body = (await answer.content.read(LARGEST_JOIN_ANSWER)).decode("utf-8", "replace")
        if answer.status >= 500:
            raise aiohttp.ClientError(f"the edge answered {answer.status} to {url.rpartition('/')[2]}")
        if answer.status != 200:
            reason = _reason(body)
            if answer.status == 404 or not reason:  # the portal, say: an edge has this path, and gives reasons
                raise ProtocolError(f"it answered {answer.status} to {urlsplit(url).path}")
            raise _SaidNo(answer.status, reason)
        try:
            return parse(kind, json.loads(body))
        except ProtocolError:
            raise
        except ValueError as error:
            raise ProtocolError(f"not JSON: {error}") from None


def _reason(body: str) -> str:
    """What a refusal says of itself; '' where it is none of an edge."""
    try:
        data = json.loads(body)
        return str(next(data[key] for key in ("reason", "detail", "error", "message") if key in data))[:200]
    except (ValueError, TypeError, StopIteration):
        return ""


class Connection:
    """Keeps one sync WebSocket for ever. What is to be said comes from the Agent; what is heard goes to it."""

    def __init__(
        self, agent: Agent, session: aiohttp.ClientSession, edge: str, rejoin: Callable[[], Awaitable[None]] | None
    ) -> None:
        self._agent = agent
        self._session = session
        self._edge = edge
        self._rejoin = rejoin
        self._sequence = 0
        self._answered = 0  # the last Observed that the server has handled
        self._sent_at: dict[int, float] = {}  # CLOCK_BOOTTIME at which each Observed of this connection went out
        self._is_up: bool | None = None  # as the log has it; None: it says nothing yet

    async def keep(self) -> None:
        """Connect, talk, and connect again with growing, jittered pauses."""
        pause = FIRST_RETRY_SECONDS
        while True:
            answered = self._answered
            try:
                await self._talk()
            except Unwelcome as error:
                self._is_up = False
                log.warning("%s", error)
                await asyncio.sleep(random.uniform(0.5, 1) * REFUSED_RETRY_SECONDS)
                continue
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                self._note_lost(str(error) or type(error).__name__)
            if self._answered > answered:  # it was there, and took a report in
                pause = FIRST_RETRY_SECONDS
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(LONGEST_RETRY_SECONDS, LONGEST_RETRY_POLLS * self._agent.poll_seconds, pause * 2)

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
                    self._edge + SYNC_PATH, headers=headers, heartbeat=HEARTBEAT_SECONDS, max_msg_size=LARGEST_FRAME
                )
        except aiohttp.WSServerHandshakeError as error:
            await self._refused_at_the_door(error.status)
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

    async def _refused_at_the_door(self, status: int) -> None:
        if status in (401, 403):
            if await renew(self._session, self._edge, self._agent.state):
                return
            if self._rejoin is not None:
                log.info("the credential is not accepted any more: joining again")
                rejoin, self._rejoin = self._rejoin, None  # a token counts once
                await rejoin()
                return
            raise Unwelcome("the server does not accept this host's credential: make a new join token for it")
        said = f"it answered {status} to {SYNC_PATH}"
        raise aiohttp.ClientError(f"this is not a gpupool edge: {said}" if status < 400 or status == 404 else said)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            try:
                frame = decode(message.data, FRAMES_DOWN)
            except OtherVersion as error:
                raise Unwelcome(f"the server speaks another protocol: {error}; install the agent that belongs to it") from None
            except ProtocolError as error:
                log.error("a frame of the edge is not of this protocol: %s", error)
                continue
            if isinstance(frame, Refused):
                if frame.retry:
                    raise aiohttp.ClientError(f"it asks to come back: {frame.reason}")
                raise Unwelcome(f"the server refused this agent: {frame.reason}")
            if isinstance(frame, Desired):
                if frame.version != VERSION:
                    said = f"version: {frame.version}; allowed: {VERSION}"
                    raise Unwelcome(f"the server speaks another protocol: {said}; install the agent that belongs to it")
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
                    pause = min(LOG_SECONDS, max(0.01, self._next_observed(said_at) - time.monotonic()))
                    async with asyncio.timeout(pause):
                        await news.due.wait()
                except TimeoutError:
                    continue
            await asyncio.sleep(SHORTEST_GAP_SECONDS)

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
