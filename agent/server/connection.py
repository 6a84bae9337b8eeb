"""Connects the agent to the edge, the server process that agents connect to.

Joins the pool, renews the credential and keeps the sync WebSocket open. An Observed frame is a report of the
agent. A Desired frame is the server's answer, which also renews the leases of this host's runs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp

from agent.host.clock import boot_id, boottime
from agent.host.durable_files import log_disk_errors
from agent.host.state import StateFolder
from agent.protocol import (
    FRAMES_DOWN,
    JOIN_PATH,
    RENEW_PATH,
    STREAM_KEY_HEADER,
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
from agent.server.reporting import ServerReporter

log = logging.getLogger("agent.server.connection")

FIRST_RETRY_SECONDS = 0.25
MAX_RETRY_SECONDS = 8.0
# Longest pause between two connection attempts, as a multiple of the report interval (``poll_seconds``). It
# is a third of a lease, so that leases are renewed in time.
MAX_RETRY_POLLS = 2.0
REJECTED_RETRY_SECONDS = 30.0
HEARTBEAT_SECONDS = 15.0
CONNECT_SECONDS = 20.0
MAX_FRAME_BYTES = 16 << 20
MAX_JOIN_ANSWER_BYTES = 1 << 16
LOG_SEND_INTERVAL_SECONDS = 0.4  # time between two reads of the logs of running workloads
MIN_REPORT_INTERVAL_SECONDS = 0.05  # shortest time between two Observed frames
# If nothing changes, the next report is usually sent after one report interval. If the server has not
# answered the last report, the next one is sent after this many intervals. This is much shorter than a lease.
UNANSWERED_POLLS = 2.0


class ServerRejectedError(Exception):
    """The server rejected this agent or one of its requests.

    ``code``: the server's reason code; empty if the server sent none. ``status``: the HTTP status of a
    rejected request; 0 on the WebSocket.
    """

    def __init__(self, reason: str, *, code: str = "", status: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.status = status


async def join_pool(
    session: aiohttp.ClientSession, edge: str, state: StateFolder, token: str, host: str
) -> None:
    """Exchange a single-use join token for the credential of this host.

    Raises ServerRejectedError, or aiohttp.ClientError while the edge is unavailable.
    """
    public_key, signature = await _proof_of_key(state, host, token)
    request = JoinRequest(VERSION, token, host, state.identity.instance, boot_id(), public_key, signature)
    try:
        joined = await _post_json(session, edge + JOIN_PATH, request, JoinAnswer)
    except ServerRejectedError as rejection:
        message = f"--join-token: the server refused it ({rejection.status}): {rejection}"
        raise ServerRejectedError(message, code=rejection.code, status=rejection.status) from None
    except ProtocolError as error:
        raise ServerRejectedError(f"--edge: {edge} is not a gpupool edge: {error}") from None
    state.remember(host=joined.host, credential=joined.credential, expires_at=joined.credential_expires_at)
    log.info("joined as %s", joined.host)


async def _proof_of_key(state: StateFolder, host: str, token: str) -> tuple[str, str]:
    """Return the host's public key, and a signature that proves that the host has the private key.

    Returns ('', '') if the key can't be created or used.
    """
    try:
        return await host_key.sign(state.key, host_key.join_message(host, token))
    except host_key.HostKeyError as problem:
        log.warning("this host joins without a key of its own: %s", problem)
        return "", ""


async def renew_credential(session: aiohttp.ClientSession, edge: str, state: StateFolder) -> bool:
    """Renew an expired credential by signing the server's challenge. Return False if the server rejects it.

    Raises aiohttp.ClientError while the edge is unavailable.
    """
    if not state.key.exists():
        return False
    headers = {"Authorization": f"Bearer {state.identity.credential}"}
    try:
        challenge = await _post_json(session, edge + RENEW_PATH, RenewRequest(VERSION), RenewAnswer, headers)
        _, signature = await host_key.sign(state.key, host_key.renewal_message(challenge.challenge))
        proof = RenewRequest(VERSION, challenge.challenge, signature)
        renewed = await _post_json(session, edge + RENEW_PATH, proof, RenewAnswer, headers)
    except (ServerRejectedError, ProtocolError, host_key.HostKeyError) as error:
        log.warning("the credential can't be renewed: %s", error)
        return False
    state.remember(
        host=state.identity.host, credential=renewed.credential, expires_at=renewed.credential_expires_at
    )
    log.info("the credential had expired: it is renewed")
    return True


T = TypeVar("T")


async def _post_json(
    session: aiohttp.ClientSession,
    url: str,
    request: Any,
    kind: type[T],
    headers: dict[str, str] | None = None,
) -> T:
    """Post a request and return the parsed answer.

    Raises ServerRejectedError, ProtocolError, aiohttp.ClientError, and TimeoutError after CONNECT_SECONDS.
    """
    timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
    async with session.post(
        url, json=dataclasses.asdict(request), headers=headers, timeout=timeout
    ) as answer:
        body = (await answer.content.read(MAX_JOIN_ANSWER_BYTES)).decode("utf-8", "replace")
        if answer.status >= 500:
            raise aiohttp.ClientError(f"the edge answered {answer.status} to {url.rpartition('/')[2]}")
        if answer.status != 200:
            reason, code = _rejection_reason(body)
            # An edge has this path, and gives a reason for each rejection. Any other server, such as the
            # portal, does not.
            if answer.status == 404 or not reason:
                raise ProtocolError(f"it answered {answer.status} to {urlsplit(url).path}")
            raise ServerRejectedError(reason, code=code, status=answer.status)
        try:
            return parse(kind, json.loads(body))
        except ProtocolError:
            raise
        except ValueError as error:
            raise ProtocolError(f"not JSON: {error}") from None


def _rejection_reason(body: str) -> tuple[str, str]:
    """Return the reason and the reason code of a rejection; ('', '') if the body is not from an edge."""
    try:
        data = json.loads(body)
        reason = next(data[key] for key in ("reason", "detail", "error", "message") if key in data)
        return str(reason)[:200], str(data.get("code", ""))[:64]
    except (ValueError, TypeError, AttributeError, StopIteration):
        return "", ""


class SyncHandler(Protocol):
    """The parts of the agent that its sync connection uses."""

    state: StateFolder
    reporter: ServerReporter

    @property
    def poll_seconds(self) -> float:
        """Return the time between two reports to the server, in seconds. The server sets it."""

    def on_connect(self) -> None:
        """Handle a new connection, on which nothing has been sent yet."""

    def on_disconnect(self) -> None:
        """Handle the end of the connection."""

    async def on_desired(self, desired: Desired, leased_from: float) -> None:
        """Apply a desired state.

        ``leased_from``: the CLOCK_BOOTTIME, in seconds, at which the lease of this host begins.
        """


class SyncConnection:
    """Keeps one sync WebSocket open. Sends the agent's reports and passes the desired states to the agent."""

    def __init__(
        self,
        agent: SyncHandler,
        session: aiohttp.ClientSession,
        edge: str,
        rejoin: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._agent = agent
        self._session = session
        self._edge = edge
        self._rejoin = rejoin
        self._sequence = 0
        self._answered = 0  # sequence of the last Observed that the server has handled
        # The CLOCK_BOOTTIME at which each Observed of this connection was sent, by its sequence number.
        self._sent_at: dict[int, float] = {}
        self._stream_key = ""  # key of the connection on which the last Desired frame arrived
        self._is_up: bool | None = None  # the state that was logged last; None: no state was logged

    async def keep(self) -> None:
        """Connect and reconnect forever. The pauses between two attempts grow and are random."""
        pause = FIRST_RETRY_SECONDS
        while True:
            answered = self._answered
            try:
                await self._run_session()
            except ServerRejectedError as error:
                self._is_up = False
                log.warning("%s", error)
                await asyncio.sleep(random.uniform(0.5, 1) * REJECTED_RETRY_SECONDS)
                continue
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                self._note_lost(str(error) or type(error).__name__)
            if self._answered > answered:  # the server handled a report on this connection
                pause = FIRST_RETRY_SECONDS
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(MAX_RETRY_SECONDS, MAX_RETRY_POLLS * self._agent.poll_seconds, pause * 2)

    def _note_up(self) -> None:
        if not self._is_up:
            self._is_up = True
            log.info("connected to %s", self._edge)

    def _note_lost(self, why: str) -> None:
        """Log a lost connection once. Do not log each retry, because an edge may be unavailable for hours."""
        if self._is_up is not False:
            state = (
                "the connection to the edge is lost"
                if self._is_up
                else f"the edge {self._edge} is unavailable"
            )
            log.warning("%s: %s; retrying", state, why)
            self._is_up = False

    async def _run_session(self) -> None:
        headers = {"Authorization": f"Bearer {self._agent.state.identity.credential}"}
        if self._stream_key:
            # While its database does not answer, the edge accepts only agents that know the last key.
            headers[STREAM_KEY_HEADER] = self._stream_key
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
                log.info("the credential is no longer accepted: joining again")
                rejoin, self._rejoin = self._rejoin, None  # a join token is valid only once
                await rejoin()
                return
            raise ServerRejectedError(
                "the server does not accept this host's credential: make a new join token for it"
            )
        answer = f"it answered {status} to {SYNC_PATH}"
        raise aiohttp.ClientError(
            f"this is not a gpupool edge: {answer}" if status < 400 or status == 404 else answer
        )

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            try:
                frame = decode(message.data, FRAMES_DOWN)
            except UnsupportedVersionError as error:
                raise ServerRejectedError(
                    f"the server uses another protocol version ({error}); install the agent of its version"
                ) from None
            except ProtocolError as error:
                log.error("a frame of the edge is not of this protocol: %s", error)
                continue
            if isinstance(frame, Refused):
                if frame.retry:
                    raise aiohttp.ClientError(f"it asks for a new connection: {frame.reason}")
                raise ServerRejectedError(f"the server refused this agent: {frame.reason}", code=frame.code)
            if isinstance(frame, Desired):
                if frame.version != VERSION:
                    problem = f"version: {frame.version}; allowed: {VERSION}"
                    raise ServerRejectedError(
                        f"the server uses another protocol version ({problem}); "
                        "install the agent of its version"
                    )
                self._answered = frame.answers or self._sequence  # an older server always sends 0
                self._stream_key = frame.stream_key
                self._measure_server_clock(frame)
                self._note_up()
                # A disk that cannot be written must not end the connection, which renews the leases.
                with log_disk_errors("a desired state"):
                    await self._agent.on_desired(frame, self._leased_from(frame))

    def _measure_server_clock(self, desired: Desired) -> None:
        sent_at = self._sent_at.get(desired.answers)
        if sent_at is not None and desired.server_time is not None:
            self._agent.reporter.server_clock.note(sent_at, boottime(), desired.server_time)

    def _leased_from(self, desired: Desired) -> float:
        """Return the CLOCK_BOOTTIME, in seconds, at which the lease of this host begins.

        The lease begins when the agent sent the last Observed frame that the server has handled. An older
        server does not say which frame this was. Then the lease begins now.
        """
        if not desired.answers:
            return boottime()
        # 0.0 renews no lease. It is returned if the frame was sent on an earlier connection.
        return self._sent_at.get(desired.answers, 0.0)

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        reporter = self._agent.reporter
        reporter.note_change()
        sent_at = 0.0
        while True:
            now = time.monotonic()
            if reporter.take_change() or now >= self._next_observed(sent_at):
                await self._send_observed(socket)
                sent_at = now
            for proof in reporter.proofs_due():
                await socket.send_str(encode(proof))
            # A report renews the leases of all runs of this host. Other frames must not delay it.
            for frame in itertools.chain(
                reporter.health_due(), reporter.batches_due(), reporter.log_chunks()
            ):
                await socket.send_str(encode(frame))
                if time.monotonic() >= self._next_observed(sent_at):
                    break
            reporter.due.clear()
            if not reporter.has_changed:
                try:
                    # Use asyncio.timeout instead of asyncio.wait_for. Up to Python 3.11, wait_for can lose a
                    # cancellation, and the agent would never end.
                    pause = min(
                        LOG_SEND_INTERVAL_SECONDS, max(0.01, self._next_observed(sent_at) - time.monotonic())
                    )
                    async with asyncio.timeout(pause):
                        await reporter.due.wait()
                except TimeoutError:
                    continue
            await asyncio.sleep(MIN_REPORT_INTERVAL_SECONDS)

    def _next_observed(self, sent_at: float) -> float:
        """Return the time.monotonic at which the next report is due if nothing changes.

        ``sent_at``: the time.monotonic at which the last report was sent. While the server has not handled
        the last report, the next report is due later.
        """
        polls = 1.0 if self._answered >= self._sequence else UNANSWERED_POLLS
        return sent_at + polls * self._agent.poll_seconds

    async def _send_observed(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._sequence += 1
        observed = self._agent.reporter.observed(self._sequence)
        self._sent_at[self._sequence] = boottime()
        if len(self._sent_at) > 1000:
            del self._sent_at[next(iter(self._sent_at))]
        await socket.send_str(encode(observed))
        self._agent.reporter.on_observed_sent(observed)
