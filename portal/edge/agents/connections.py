"""Serve the connections of agents: join, renewal of credentials, sync of state, and streams for workspaces.

The credential alone identifies the host. Each sync connection has one reader and one sender. The reader
handles a frame before it reads the next one, so TCP slows an agent that sends too fast. The sender always
sends the newest desired state. So a slow agent gets fewer frames but no outdated frames, and it delays no
other agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import structlog
from aiohttp import WSCloseCode, WSMsgType, web
from django.db import DatabaseError, DataError
from django.utils import timezone
from redis.exceptions import RedisError

from agent.protocol import (
    FRAMES_UP,
    STREAM_KEY_HEADER,
    Desired,
    Health,
    JoinRequest,
    LogChunk,
    Observed,
    Proof,
    ProtocolError,
    RenewRequest,
    SampleBatch,
    UnsupportedVersionError,
    decode,
    encode,
    parse,
)
from portal.edge.agents import database_calls
from portal.edge.agents.connection import AgentConnection, answers_ping
from portal.edge.agents.database_calls import AuthenticatedHost, LogStoreError
from portal.edge.agents.database_contact import DatabaseContact, answer_seconds, boottime
from portal.edge.agents.http_requests import bearer_token, first_line, read_json_body, refusal_response
from portal.edge.agents.lease_memory import LeaseMemory
from portal.edge.agents.report_sync import MissedFramesError, ReportSync, end_sync
from portal.edge.agents.streams import AgentStreamPool
from portal.edge.runtime import metrics
from portal.edge.runtime.database_threads import DatabaseThreads, DatabaseTimeout
from portal.edge.runtime.redis_bus import RedisBus
from portal.redis_state import log_loss
from scheduler.state.nudge import HOSTS
from scheduler.sync.agent_rejections import AgentRejected

log = structlog.get_logger(__name__)

MAX_FRAME_BYTES = 8 * 1024 * 1024
PING_INTERVAL_SECONDS = 10.0
AUTHENTICATE_SECONDS = 15.0  # many agents may connect at once, so this is longer than for a report
MAX_SILENCE_SECONDS = 30.0  # a connection without a frame for this long is closed
LOG_LOSS_REPORT_INTERVAL_SECONDS = 60.0  # at most one report about lost logs in this time
SEND_TIMEOUT_SECONDS = 15.0  # an agent that does not take a frame for this long is disconnected

# Payload of the ping that follows a new credential. The pong proves that the agent has read the credential.
CREDENTIAL_PING = b"renewed"
DATABASE_UNAVAILABLE = "the server's database is unavailable; try again"
FRAMES_MISSED = "the server's database was away and missed frames; connect again and send them again"
CLOSE_BAD_FRAME = 4400
P = ParamSpec("P")
T = TypeVar("T")


class AgentConnections:
    """The connections of all agents that are connected to this process."""

    def __init__(
        self, threads: DatabaseThreads, bus: RedisBus, runs_changed: Callable[[], None], address: str
    ) -> None:
        self._threads = threads
        self.memory = LeaseMemory()
        self.contact = DatabaseContact(self.memory, address)
        self._reports = ReportSync(threads, self.memory, self.contact, self._is_current, self._on_answer)
        self._bus = bus
        self._runs_changed = runs_changed
        self._connections: dict[int, AgentConnection] = {}
        self._takeover_locks: dict[int, asyncio.Lock] = {}
        # For each host id, the instance id of the agent whose report was accepted last.
        self._instances: dict[int, str] = {}
        self._revocation_checks: set[asyncio.Task[None]] = set()
        self._log_loss_reported_at = -LOG_LOSS_REPORT_INTERVAL_SECONDS
        self.streams = AgentStreamPool(self._on_host_changed)
        bus.on_host(self._on_host_changed)
        bus.on_reconnect(self._on_reconnect)

    def routes(self) -> list[web.RouteDef]:
        """Return the HTTP routes that agents use."""
        return [
            web.post("/agent/v1/join", self.join),
            web.post("/agent/v1/renew", self.renew),
            web.get("/agent/v1/sync", self.sync),
            web.get("/agent/v1/stream", self.stream),
        ]

    def is_connected(self, host: int) -> bool:
        """Return True if the agent of this host is connected to this process."""
        return host in self._connections

    async def close(self) -> None:
        """Close every connection. The agents connect again."""
        await asyncio.gather(*(connection.end() for connection in self._connections.values()))

    async def join(self, request: web.Request) -> web.Response:
        """Exchange a single-use token for a credential."""
        try:
            body = parse(JoinRequest, await read_json_body(request))
            answer = await self._threads.run(database_calls.join, body, timezone.now())
        except (ValueError, RecursionError, DataError) as error:  # ValueError includes ProtocolError
            return refusal_response(400, f"join: {first_line(error)}")
        except AgentRejected as error:
            return refusal_response(403, error.reason, reason_code=error.code)
        except DatabaseError:
            return refusal_response(503, DATABASE_UNAVAILABLE, retry=True)
        return web.json_response(dataclasses.asdict(answer))

    async def renew(self, request: web.Request) -> web.Response:
        """Give a new credential to an agent whose credential has expired.

        The agent proves its identity by a signature.
        """
        credential = bearer_token(request)
        if credential is None:
            return refusal_response(
                401, "Authorization is missing; allowed: Bearer and the host's last credential"
            )
        try:
            body = parse(RenewRequest, await read_json_body(request))
            answer = await self._threads.run(database_calls.renew, credential, body, timezone.now())
        except (ValueError, RecursionError, DataError) as error:
            return refusal_response(400, f"renew: {first_line(error)}")
        except AgentRejected as error:
            return refusal_response(403, error.reason, reason_code=error.code)
        except DatabaseError:
            return refusal_response(503, DATABASE_UNAVAILABLE, retry=True)
        return web.json_response(dataclasses.asdict(answer))

    async def sync(self, request: web.Request) -> web.StreamResponse:
        """Serve a sync connection: the agent reports its state and receives the desired state."""
        return await self._authenticated_socket(request, MAX_FRAME_BYTES, False, self._run_connection)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Serve one stream, a connection that carries workspace traffic."""

        async def serve(connection: AgentConnection) -> None:
            if self._is_current_agent(connection.host.id, request.headers.get(STREAM_KEY_HEADER, "")):
                await self.streams.serve(connection.host.id, connection.socket, connection.transport)
            else:
                await self._refuse_stream(connection)

        return await self._authenticated_socket(request, 1024 * 1024, True, serve)

    def _is_current_agent(self, host: int, key: str) -> bool:
        """Return True if the stream belongs to the agent that has the current sync connection.

        Another process could have copied the host's credential. ``key`` is the stream key of the request.
        """
        agent = self._connections.get(host)
        if agent is None or not agent.reported:
            return False
        return not agent.binds_streams or hmac.compare_digest(key.encode(), agent.stream_key.encode())

    async def _refuse_stream(self, connection: AgentConnection) -> None:
        host, reason = connection.host, "only the connected agent may open connections for workspaces"
        agent = self._connections.get(host.id)
        if agent is not None and agent.reported:
            await self._record_second_agent(
                host, f"a process other than the agent of {host.name} opened a connection for workspaces"
            )
        await connection.refuse(reason, retry=True)

    async def _authenticated_socket(
        self,
        request: web.Request,
        max_frame_bytes: int,
        autoping: bool,
        serve: Callable[[AgentConnection], Awaitable[None]],
    ) -> web.StreamResponse:
        credential = bearer_token(request)
        if credential is None:
            return refusal_response(
                401, "Authorization is missing; allowed: Bearer and the host's credential"
            )
        socket = web.WebSocketResponse(
            max_msg_size=max_frame_bytes,
            autoping=autoping,
            heartbeat=20.0 if autoping else None,
            compress=False,
            timeout=2.0,
        )
        if not socket.can_prepare(request).ok:
            return refusal_response(400, "this address accepts WebSocket connections only")
        credentials = [credential]
        try:
            seconds = answer_seconds() if self.contact.away else AUTHENTICATE_SECONDS
            host = await self._threads.run_in_time(
                seconds, database_calls.authenticate, credential, timezone.now()
            )
        except AgentRejected as error:
            return refusal_response(401, error.reason, retry=error.retry, reason_code=error.code)
        except DatabaseError:
            key = request.headers.get(STREAM_KEY_HEADER, "") if serve == self._run_connection else ""
            resumed = self.memory.resumed(credential, key, boottime())
            if resumed is None:
                return refusal_response(503, DATABASE_UNAVAILABLE, retry=True)
            host, credentials = resumed.host, [text for text in resumed.credentials if text]
        await socket.prepare(request)
        await serve(AgentConnection(host, credentials, socket, request.transport))
        return socket

    async def _in_time(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a repeatable database call. Raises DatabaseTimeout if the database does not answer in time."""
        return await self._threads.run_in_time(answer_seconds(), call, *args, **kwargs)

    async def _run_connection(self, connection: AgentConnection) -> None:
        host = connection.host.id
        if not await self._become_current(connection):
            await self._reject_second_agent(connection)
            return
        metrics.AGENTS.inc()
        log.info("agent connected", host=connection.host.name)
        sender = asyncio.create_task(self._send(connection))
        reader = asyncio.create_task(self._read(connection))
        try:
            await asyncio.wait((sender, reader), return_when=asyncio.FIRST_COMPLETED)
        finally:
            metrics.AGENTS.dec()
            log.info("agent disconnected", host=connection.host.name)
            if self._connections.get(host) is connection:
                del self._connections[host]
            await _cancel_tasks(sender, reader)
            await end_sync(connection)
            await connection.end(WSCloseCode.OK)

    async def _reject_second_agent(self, connection: AgentConnection) -> None:
        """Record that another machine uses the host's credential, and refuse the connection."""
        reason = f"another agent is connected as {connection.host.name}"
        await self._record_second_agent(connection.host, reason)
        await connection.refuse(reason, retry=False)

    async def _record_second_agent(self, host: AuthenticatedHost, reason: str) -> None:
        try:
            await self._in_time(database_calls.record_rejected_agent, host, reason, timezone.now())
        except DatabaseError as error:
            log.warning("rejected agent not recorded", host=host.name, error=str(error))

    async def _become_current(self, connection: AgentConnection) -> bool:
        """Make this the current connection of the host, and return True.

        If an earlier connection has sent a report and still answers a ping, change nothing and return False.
        If the earlier connection ends while its answer is awaited, the new connection replaces it.
        """
        host = connection.host.id
        async with self._takeover_locks.setdefault(host, asyncio.Lock()):
            earlier = self._connections.get(host)
            if earlier is not None and earlier.reported and await answers_ping(earlier):
                if self._connections.get(host) is earlier:
                    return False
                earlier = None
            self._connections[host] = connection
        # The idle streams may belong to another process, which had a copy of a credential that is revoked
        # now.
        self.streams.drop_idle(host)
        if earlier is not None:
            log.info("dead connection replaced", host=connection.host.name)
            await earlier.end()
        return True

    async def _read(self, connection: AgentConnection) -> None:
        async for message in connection.socket:
            connection.last_received_at = time.monotonic()
            if message.type is WSMsgType.PING:
                await connection.socket.pong(message.data)
            elif message.type is WSMsgType.PONG and message.data == CREDENTIAL_PING:
                await self._credential_arrived(connection)
            elif message.type is WSMsgType.TEXT:
                await connection.throttle()
                if not await self._handle(connection, message.data):
                    return
            elif message.type is WSMsgType.BINARY:
                await connection.refuse(
                    "frames are JSON text, this one is binary", retry=False, code=CLOSE_BAD_FRAME
                )
                return
        if isinstance(error := connection.socket.exception(), Exception):
            log.info("agent's connection ended", host=connection.host.name, error=str(error))

    async def _credential_arrived(self, connection: AgentConnection) -> None:
        """Drop the earlier credential, because the agent has read the frame with the new credential.

        The authentication with the new credential makes the earlier one invalid.
        """
        connection.credentials = connection.credentials[-1:]
        # After an error, the next sync authenticates the agent again.
        with contextlib.suppress(AgentRejected, DatabaseError):
            await self._in_time(database_calls.authenticate, connection.credentials[0], timezone.now())

    async def _handle(self, connection: AgentConnection, text: str) -> bool:
        """Handle one frame; return False if the connection must end."""
        try:
            frame = decode(text, FRAMES_UP)
            metrics.FRAMES.labels(frame.kind).inc()
            await self._accept(connection, frame)
        except ProtocolError as error:
            # Reports of this protocol version cannot be decoded. Operators learn of the agent only from this
            # record.
            if isinstance(error, UnsupportedVersionError):
                with contextlib.suppress(DatabaseError):
                    await self._in_time(
                        database_calls.record_unreadable_agent, connection.host, str(error), timezone.now()
                    )
            await connection.refuse(str(error), retry=False, code=CLOSE_BAD_FRAME)
            return False
        except RecursionError:
            await connection.refuse("frame: nested too deeply", retry=False, code=CLOSE_BAD_FRAME)
            return False
        except (DataError, UnicodeError, OverflowError) as error:
            reason = f"{frame.kind}: a value cannot be stored: {first_line(error)}"
            await connection.refuse(reason, retry=False, code=CLOSE_BAD_FRAME)
            return False
        except AgentRejected as error:
            await self._reject_frame(connection, error)
            return False
        except RedisError as error:
            log.warning(
                "samples not queued; the agent sends them again",
                host=connection.host.name,
                error=str(error),
            )
        except MissedFramesError:
            await connection.refuse(FRAMES_MISSED, retry=True)
            return False
        except (DatabaseError, OSError) as error:
            if not isinstance(frame, Observed) and self.memory.may_renew(connection.host.id, boottime()):
                # This connection renews its leases. The agent sends lost samples again by itself, and other
                # frames on its next connection.
                connection.missed_frames |= not isinstance(frame, SampleBatch)
                return True
            # Nothing is lost: each report contains the agent's whole state, and the agent reports again.
            log.warning("database or disk unavailable", host=connection.host.name, error=str(error))
            await connection.refuse(DATABASE_UNAVAILABLE, retry=True)
            return False
        return True

    async def _reject_frame(self, connection: AgentConnection, error: AgentRejected) -> None:
        """Refuse the connection, because a frame was rejected.

        If the agent has reported before and may not connect again, also cut its streams.
        """
        if self._is_current(connection):
            self.memory.forget(connection.host.id)
        if connection.reported and not error.retry:
            self.streams.cut(connection.host.id)
        await connection.refuse(error.reason, retry=error.retry, reason_code=error.code)

    async def _accept(self, connection: AgentConnection, frame: Any) -> None:
        host, now = connection.host, timezone.now()
        if isinstance(frame, Observed):
            await self._reports.handle(connection, frame)
        elif not connection.reported:
            # A copied agent has the same credential. Only an accepted report identifies the host's agent.
            raise ProtocolError(f"kind: {frame.kind} comes before the first report; allowed: observed")
        elif self.contact.away:
            raise DatabaseTimeout(DATABASE_UNAVAILABLE)
        elif isinstance(frame, Proof):
            self._queue_desired(
                connection,
                await self._in_time(database_calls.accept_proof, host, connection.credentials, frame, now),
            )
        elif isinstance(frame, SampleBatch):
            await self._in_time(database_calls.accept_samples, host, frame, now)
        elif isinstance(frame, LogChunk):
            await self._store_log(host, frame)
        elif isinstance(frame, Health):
            await self._in_time(database_calls.accept_health, host, frame, now)
            await self._bus.publish_to_pages(HOSTS)

    def _is_current(self, connection: AgentConnection) -> bool:
        return self._connections.get(connection.host.id) is connection

    def _on_answer(self, connection: AgentConnection, report: Observed, desired: Desired) -> None:
        """Send the answer to a report, from the database or from memory."""
        host = connection.host.id
        if self._instances.setdefault(host, report.instance) != report.instance:
            self._instances[host] = report.instance
            self.streams.cut(host)  # the streams belong to the host's earlier agent
        connection.reported = True
        # The database may answer an old report after later reports were answered from memory.
        connection.handled_sequence = max(connection.handled_sequence, report.sequence)
        connection.binds_streams = report.binds_streams
        self._on_run_states(connection, report)
        self._queue_desired(connection, desired)

    async def _store_log(self, host: AuthenticatedHost, chunk: LogChunk) -> None:
        """Store a part of a run's log.

        If it cannot be stored, the log gets a gap, and the agent stays connected.
        """
        try:
            await self._in_time(database_calls.store_log, host, chunk)
        except LogStoreError as error:
            metrics.LOGS_NOT_KEPT.inc()
            if time.monotonic() - self._log_loss_reported_at >= LOG_LOSS_REPORT_INTERVAL_SECONDS:
                self._log_loss_reported_at = time.monotonic()
                log.error(
                    "logs are not kept: is the disk of GPUPOOL_STATE full?", host=host.name, error=str(error)
                )
                await self._bus.keep(log_loss.LOG_LOSS_KEY, "1", log_loss.LOG_LOSS_TTL_SECONDS)
                await self._bus.publish_to_pages(HOSTS)
            return
        await self._bus.publish_to_pages(f"log:{chunk.run}")

    def _on_run_states(self, connection: AgentConnection, seen: Observed) -> None:
        """Check open workspaces again if the state of a run differs from the agent's previous report."""
        states = {run.run: (run.state, run.ready) for run in seen.runs}
        if states != connection.run_states:
            connection.run_states = states
            self._runs_changed()

    def _queue_desired(self, connection: AgentConnection, desired: Desired) -> None:
        connection.desired = desired
        connection.wakeup.set()

    async def _send(self, connection: AgentConnection) -> None:
        try:
            while True:
                if await _wait_for_event(connection.wakeup, PING_INTERVAL_SECONDS):
                    connection.wakeup.clear()
                    await self._send_newest(connection)
                elif time.monotonic() - connection.last_received_at > MAX_SILENCE_SECONDS:
                    log.info("agent fell silent", host=connection.host.name)
                    return
                else:
                    async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                        await connection.socket.ping()
        except TimeoutError:
            log.warning("agent reads too slowly", host=connection.host.name)
        except ConnectionError as error:
            log.info("agent's connection broke", host=connection.host.name, error=str(error))
        except AgentRejected as error:
            await self._reject_frame(connection, error)

    async def _send_newest(self, connection: AgentConnection) -> None:
        desired, connection.desired = connection.desired, None
        # If no state is queued, a change of the host has woken the sender, not a report.
        if desired is None:
            if self.contact.away or connection.missed_frames:
                return  # the answer to the agent's next report contains the desired state
            try:
                desired = await self._in_time(
                    database_calls.desired_state, connection.host, connection.credentials
                )
            except (DatabaseError, OSError) as error:
                log.warning("desired state not read", host=connection.host.name, error=str(error))
                return  # the answer to the agent's next report contains the desired state
            # Before the first report, ``answers`` would be 0. The agent would take the frame for one of an
            # older server, and would renew its leases.
            if not connection.handled_sequence:
                return
            if self._is_current(connection):
                self.memory.update_desired(connection.host.id, desired)
            self._runs_changed()
        renewed = desired.credential not in ("", *connection.credentials)
        if renewed:
            connection.credentials = [connection.credentials[0], desired.credential]
        notebooks = sum(1 for run in desired.runs if run.kind == "notebook" and run.verb != "stop")
        streams = self.streams.desired_idle_count(connection.host.id, notebooks)
        desired = dataclasses.replace(
            desired,
            streams=streams,
            answers=connection.handled_sequence,
            stream_key=connection.stream_key,
            # The agent measures its clock with this time. It lies between the report and its answer.
            server_time=timezone.now().timestamp(),
        )
        frame = encode(desired)
        async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
            await connection.socket.send_str(frame)
        if renewed:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                await connection.socket.ping(CREDENTIAL_PING)

    def _on_host_changed(self, host: int) -> None:
        connection = self._connections.get(host)
        if connection is not None:
            connection.wakeup.set()
        elif host in self.streams.hosts():
            check = asyncio.create_task(self._cut_if_revoked(host))
            self._revocation_checks.add(check)
            check.add_done_callback(self._revocation_checks.discard)

    async def _cut_if_revoked(self, host: int) -> None:
        """Cut the streams of a host if its agent was revoked.

        The check is for hosts without a sync connection. On other hosts, the sync connection finds the
        revocation.
        """
        try:
            if not await self._in_time(database_calls.has_joined_agent, host):
                self.memory.forget(host)
                self.streams.cut(host)
        except DatabaseError as error:
            log.warning("revocation of the agent not checked", host=host, error=str(error))

    def _on_reconnect(self) -> None:
        for host in {*self._connections, *self.streams.hosts()}:
            self._on_host_changed(host)


async def _wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def _cancel_tasks(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.error("agent's connection failed", error=repr(outcome))
