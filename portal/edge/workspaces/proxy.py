"""Serve workspaces: redeem entry codes, and forward HTTP requests and WebSockets to the run on its host.

Every workspace has its own origin. A header with a secret proves to the run that a request comes from the
edge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote_to_bytes

import structlog
from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    ClientWSTimeout,
    DummyCookieJar,
    WSCloseCode,
    WSMsgType,
    WSServerHandshakeError,
    hdrs,
    web,
)
from django.db import DatabaseError
from django.utils import timezone

from portal.edge.agents.streams import AgentConnector, AgentStreamPool
from portal.edge.runtime import metrics
from portal.edge.runtime.database_threads import DatabaseThreads
from portal.edge.runtime.slow_body_guard import MAX_BODY_WAIT_SECONDS, BodyTooSlow, SlowBodyGuard
from portal.edge.workspaces import access, error_pages
from portal.edge.workspaces.access import AccessDenied, AccessRefusal, WorkspaceEntry, WorkspaceGrant
from portal.edge.workspaces.access_cache import WorkspaceAccessCache
from portal.edge.workspaces.activity import WorkspaceActivity
from portal.edge.workspaces.forwarding import (
    WORKSPACE_COOKIE,
    AmbiguousTarget,
    ProxiedRequest,
    checked_target,
    forwarded_request_headers,
    forwarded_response,
    is_same_origin,
    is_user_action,
    origin_of,
    stream_address,
)
from portal.wording.pages import workspace_pages

log = structlog.get_logger(__name__)

ENTER_PATH = "/.gpupool/enter"
RESERVED_PATH_PREFIX = "/.gpupool"
# The largest WebSocket message. An output cell with a picture can be large.
MAX_MESSAGE_BYTES = 128 * 1024 * 1024
CUT_TIMEOUT_SECONDS = 0.1
CLOSE_SIGNED_OUT = 4401  # WebSocket close code; applications define 4000 to 4999


class WorkspaceProxy:
    """A proxy that forwards the requests of browsers to runs."""

    def __init__(
        self,
        threads: DatabaseThreads,
        access_cache: WorkspaceAccessCache,
        streams: AgentStreamPool,
        activity: WorkspaceActivity,
    ) -> None:
        self._threads = threads
        self._access = access_cache
        self._activity = activity
        self._client = ClientSession(
            connector=AgentConnector(streams),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None),
            auto_decompress=False,
            requote_redirect_url=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def close(self) -> None:
        await self._client.close()

    async def handle(self, request: web.Request, label: str) -> web.StreamResponse:
        """Answer a request to the host name of a workspace."""
        try:
            visit = ProxiedRequest(request, label, origin_of(label), checked_target(request))
        except AmbiguousTarget as error:
            return error_pages.error_response(request, 400, workspace_pages.ADDRESS_TITLE, str(error))
        try:
            return await self._answer(visit)
        except (DatabaseError, TimeoutError) as error:
            log.warning("access to a workspace could not be checked", error=str(error))
            return error_pages.error_response(
                request,
                503,
                "Not available",
                workspace_pages.DATABASE_UNAVAILABLE,
            )

    async def _answer(self, visit: ProxiedRequest) -> web.StreamResponse:
        request = visit.request
        path = visit.target.partition("?")[0]
        if path == ENTER_PATH:
            return await self._enter(visit)
        if unquote_to_bytes(path).decode("utf-8", "replace").startswith(RESERVED_PATH_PREFIX):
            return error_pages.error_response(request, 404, "Not found", workspace_pages.PORTAL_ADDRESS)
        if not is_same_origin(visit):
            metrics.REQUESTS.labels("foreign").inc()
            return error_pages.error_response(request, 403, "Refused", workspace_pages.FOREIGN_SITE)
        decision = (
            await self._access.decide(visit.token) if visit.token else AccessDenied(AccessRefusal.ENTER)
        )
        if isinstance(decision, WorkspaceGrant) and decision.label != visit.label:
            decision = AccessDenied(AccessRefusal.ENTER)  # the cookie is for another workspace
        if isinstance(decision, AccessDenied):
            metrics.REQUESTS.labels(decision.why).inc()
            return error_pages.refusal_response(request, decision.why, decision.workload)
        metrics.REQUESTS.labels("passed").inc()
        self._activity.request(decision.run)
        if is_user_action(visit):
            self._activity.input(decision.run)
        if visit.is_socket:
            return await self._pass_socket(visit, decision)
        return await self._pass_request(visit, decision)

    async def _enter(self, visit: ProxiedRequest) -> web.StreamResponse:
        request = visit.request
        if request.method != "GET":
            return error_pages.error_response(request, 405, "Refused", workspace_pages.ENTRY_BY_GET)
        if "prefetch" in (request.headers.get("Sec-Purpose", "") + request.headers.get("Purpose", "")):
            return error_pages.error_response(request, 503, "Not available", workspace_pages.NO_PREFETCH)
        codes = request.query.getall("code", [])
        entered: WorkspaceEntry | AccessDenied = AccessDenied(AccessRefusal.CODE)
        if len(codes) == 1 and 0 < len(codes[0]) <= 200:
            entered = await self._threads.run(access.redeem_entry_code, visit.label, codes[0], timezone.now())
        if isinstance(entered, WorkspaceEntry):
            page = entered.first_page
        else:
            already = await self._access.decide(visit.token) if visit.token else None
            if not (isinstance(already, WorkspaceGrant) and already.label == visit.label):
                return error_pages.refusal_response(request, entered.why)
            page = already.first_page
        response = web.Response(status=303, headers={**error_pages.SECURITY_HEADERS, "Location": page})
        if isinstance(entered, WorkspaceEntry):
            response.set_cookie(
                WORKSPACE_COOKIE, entered.token, path="/", secure=True, httponly=True, samesite="Lax"
            )
        return response

    async def _pass_request(self, visit: ProxiedRequest, to: WorkspaceGrant) -> web.StreamResponse:
        request = visit.request
        headers = forwarded_request_headers(visit, to)
        body: Any = None
        guard = SlowBodyGuard(MAX_BODY_WAIT_SECONDS)
        if request.body_exists:
            body = _guarded_body(request, guard)
            if (length := request.headers.get(hdrs.CONTENT_LENGTH)) is not None:
                headers[hdrs.CONTENT_LENGTH] = length
        with self._access.watched(visit.token, lambda: _abort(request)):
            response: web.StreamResponse | None = None
            try:
                exchange = self._client.request(
                    request.method,
                    stream_address(visit, to),
                    headers=headers,
                    data=body,
                    allow_redirects=False,
                )
                async with exchange as upstream:
                    response = forwarded_response(request, upstream)
                    await response.prepare(request)
                    async for piece in _body_chunks(request, upstream):
                        await response.write(piece)
                    await response.write_eof()
            except (ClientError, ConnectionError, BodyTooSlow) as error:
                if guard.timed_out and response is None:
                    return _slow_body_response(request, to)
                return _upstream_failed(request, response, to, error)
        return response

    async def _pass_socket(self, visit: ProxiedRequest, to: WorkspaceGrant) -> web.StreamResponse:
        request = visit.request
        protocols = [
            p.strip() for p in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",") if p.strip()
        ]
        try:
            upstream = await self._client.ws_connect(
                stream_address(visit, to),
                headers=forwarded_request_headers(visit, to),
                protocols=protocols,
                max_msg_size=MAX_MESSAGE_BYTES,
                timeout=ClientWSTimeout(ws_close=1.0),
                compress=0,
            )
        except WSServerHandshakeError as error:
            status = error.status if 400 <= error.status < 500 else 502
            return error_pages.error_response(request, status, "Refused", workspace_pages.CONNECTION_REFUSED)
        except (ClientError, ConnectionError) as error:
            return _upstream_failed(request, None, to, error)
        async with upstream:
            chosen = [upstream.protocol] if upstream.protocol else []
            socket = web.WebSocketResponse(
                protocols=chosen, max_msg_size=MAX_MESSAGE_BYTES, heartbeat=30.0, compress=False, timeout=1.0
            )
            if not socket.can_prepare(request).ok:
                return error_pages.error_response(request, 400, "Refused", workspace_pages.NO_HANDSHAKE)
            await socket.prepare(request)
            with self._activity.socket(to.run):
                await self._forward_request(visit, to, socket, upstream)
        return socket

    async def _forward_request(
        self,
        visit: ProxiedRequest,
        to: WorkspaceGrant,
        socket: web.WebSocketResponse,
        upstream: ClientWebSocketResponse,
    ) -> None:
        cut = asyncio.Event()
        up = asyncio.create_task(self._forward_messages_to_run(to, socket, upstream))
        down = asyncio.create_task(_forward_messages_to_browser(upstream, socket))
        over = asyncio.create_task(cut.wait())
        with self._access.watched(visit.token, cut.set):
            try:
                # The access was not watched while the edge connected to the run. Check whether it has ended.
                if not isinstance(await self._access.decide(visit.token), WorkspaceGrant):
                    cut.set()
                await asyncio.wait((up, down, over), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (up, down, over):
                    task.cancel()
                await asyncio.gather(up, down, over, return_exceptions=True)
        if cut.is_set():
            await _close_or_abort(visit.request, socket)
        else:
            await _close_both(socket, upstream)

    async def _forward_messages_to_run(
        self, to: WorkspaceGrant, socket: web.WebSocketResponse, upstream: ClientWebSocketResponse
    ) -> None:
        async for message in socket:
            self._activity.input(to.run)
            if message.type is WSMsgType.TEXT:
                await upstream.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await upstream.send_bytes(message.data)


async def _forward_messages_to_browser(
    upstream: ClientWebSocketResponse, socket: web.WebSocketResponse
) -> None:
    async for message in upstream:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)


async def _close_both(socket: web.WebSocketResponse, upstream: ClientWebSocketResponse) -> None:
    """Close both connections. Each side gets the close code that the other side sent."""
    given_by_run, given_by_browser = upstream.close_code, socket.close_code
    with contextlib.suppress(ConnectionError):
        await upstream.close(code=_sendable_close_code(given_by_browser))
    with contextlib.suppress(ConnectionError):
        await socket.close(code=_sendable_close_code(given_by_run))


async def _close_or_abort(request: web.Request, socket: web.WebSocketResponse) -> None:
    """Send a close frame to the browser. Then abort the connection, even if the browser does not answer."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(CUT_TIMEOUT_SECONDS):
            await socket.close(code=CLOSE_SIGNED_OUT, message=b"the notebook or your session has ended")
    _abort(request)


def _sendable_close_code(code: int | None) -> int:
    """Return ``code`` if a close frame may contain it, otherwise GOING_AWAY.

    RFC 6455, section 7.4, defines the codes that a close frame may contain.
    """
    if code is None or code in (1004, 1005, 1006, 1015) or not 1000 <= code < 5000:
        return WSCloseCode.GOING_AWAY
    return code


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _upstream_failed(
    request: web.Request, response: web.StreamResponse | None, to: WorkspaceGrant, error: Exception
) -> web.StreamResponse:
    """Return the error response for a failure of the run, its host or the stream.

    If a part of the run's response was sent before, abort the connection instead.
    """
    metrics.REQUESTS.labels("broken").inc()
    log.info("run not reachable", run=to.run, error=str(error))
    if response is not None and response.prepared:
        _abort(request)  # so the browser sees that the response is incomplete
        return response
    sentence = workspace_pages.HOST_UNREACHABLE
    return error_pages.error_response(request, 502, workspace_pages.UNREACHABLE_TITLE, sentence, to.workload)


async def _guarded_body(request: web.Request, guard: SlowBodyGuard) -> AsyncIterator[bytes]:
    """Yield the parts of the request body as they arrive. Raises BodyTooSlow if they arrive too slowly."""
    while piece := await guard.next(request.content.readany()):
        guard.add_received(len(piece))
        yield piece


def _slow_body_response(request: web.Request, to: WorkspaceGrant) -> web.Response:
    metrics.REQUESTS.labels("slow").inc()
    response = error_pages.error_response(
        request,
        408,
        workspace_pages.TOO_SLOW_TITLE,
        workspace_pages.UPLOAD_STOPPED,
        to.workload,
    )
    response.force_close()
    return response


async def _body_chunks(request: web.Request, upstream: ClientResponse) -> AsyncIterator[bytes]:
    if request.method == "HEAD" or upstream.status in (204, 304):
        return
    async for piece in upstream.content.iter_any():
        yield piece
