"""The traffic of workspaces: entering one, and passing its HTTP and WebSockets to the run on its host.

Each workspace is an origin of its own. What goes on to the run is built anew from what the browser sent: no cookie of ours, no
header that only the edge may set, nothing that belongs to one connection. The run believes the edge by a secret header.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

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
from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from portal.edge import access, metrics, pages
from portal.edge.access import Denied, Entered, No, Pass
from portal.edge.activity import Activity
from portal.edge.doors import Doors
from portal.edge.streams import AgentConnector, StreamPool
from portal.edge.threads import Threads
from portal.pace import PATIENCE_SECONDS, Pace, TooSlow

log = structlog.get_logger(__name__)

COOKIE = "__Host-gpupool"
OUR_COOKIES = ("__host-gpupool", "gpupool")  # beginnings of names that a run never sees and never sets
SECRET_HEADER = "X-Gpupool-Secret"
OUR_HEADERS = "x-gpupool-"
ENTER_PATH = "/.gpupool/enter"
OUR_PATHS = "/.gpupool"
LONGEST_TARGET = 16_000
LARGEST_MESSAGE = 128 * 1024 * 1024  # one WebSocket message: an output cell with a large picture is one
CUT_SECONDS = 0.1
SIGNED_OUT = 4401  # WebSocket close code of our own

# Headers that speak of one connection, not of the message (RFC 9110, section 7.6.1), and those that only a proxy may say.
HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade")
)  # fmt: skip
NEVER_UP = HOP | frozenset(
    ("host", "cookie", "authorization", "expect", "forwarded", "via", "x-real-ip", "content-length", "origin", "referer")
)
NEVER_DOWN = HOP | frozenset(("set-cookie", "content-length", "server", "date", "strict-transport-security", "alt-svc"))


class BadTarget(ValueError):
    """An address that could mean something else to the run than to the edge."""


@dataclass(frozen=True)
class Visit:
    """One request to one workspace, with what the edge knows about it."""

    request: web.Request
    label: str
    origin: str
    target: str  # path and query as sent, checked

    @property
    def is_socket(self) -> bool:
        return self.request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"

    @property
    def token(self) -> str:
        return self.request.cookies.get(COOKIE, "")


class Workspaces:
    """Passes browsers through to runs."""

    def __init__(self, threads: Threads, doors: Doors, streams: StreamPool, activity: Activity) -> None:
        self._threads = threads
        self._doors = doors
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
        """Everything under a workspace's own name."""
        try:
            visit = Visit(request, label, origin_of(label), checked_target(request))
        except BadTarget as error:
            return pages.say(request, 400, "This address cannot be used", str(error))
        try:
            return await self._answer(visit)
        except (DatabaseError, TimeoutError) as error:
            log.warning("a workspace could not be decided about", error=str(error))
            return pages.say(request, 503, "One moment", "The portal's database is away for a moment. Nothing is lost; try again.")

    async def _answer(self, visit: Visit) -> web.StreamResponse:
        request = visit.request
        path = visit.target.partition("?")[0]
        if path == ENTER_PATH:
            return await self._enter(visit)
        if unquote_to_bytes(path).decode("utf-8", "replace").startswith(OUR_PATHS):
            return pages.say(request, 404, "Nothing is here", "This part of the address belongs to the portal.")
        if not came_from_itself(visit):
            metrics.REQUESTS.labels("foreign").inc()
            return pages.say(request, 403, "Refused", "Another site tried to reach into this notebook.")
        decision = await self._doors.decide(visit.token) if visit.token else Denied(No.ENTER)
        if isinstance(decision, Pass) and decision.label != visit.label:
            decision = Denied(No.ENTER)  # the cookie of another workspace opens nothing here
        if isinstance(decision, Denied):
            metrics.REQUESTS.labels(decision.why).inc()
            return pages.refusal(request, decision.why, decision.workload)
        metrics.REQUESTS.labels("passed").inc()
        self._activity.request(decision.run)
        if is_deed(visit):
            self._activity.input(decision.run)
        if visit.is_socket:
            return await self._pass_socket(visit, decision)
        return await self._pass_request(visit, decision)

    # -- entering ------------------------------------------------------------------------------------------------------

    async def _enter(self, visit: Visit) -> web.StreamResponse:
        request = visit.request
        if request.method != "GET":
            return pages.say(request, 405, "Refused", "A notebook is entered by its link: GET only.")
        if "prefetch" in (request.headers.get("Sec-Purpose", "") + request.headers.get("Purpose", "")):
            return pages.say(request, 503, "One moment", "This link works once, so it is not fetched ahead.")
        codes = request.query.getall("code", [])
        entered: Entered | Denied = Denied(No.CODE)
        if len(codes) == 1 and 0 < len(codes[0]) <= 200:
            entered = await self._threads.run(access.enter, visit.label, codes[0], timezone.now())
        if isinstance(entered, Entered):
            page = entered.first_page
        else:
            already = await self._doors.decide(visit.token) if visit.token else None
            if not (isinstance(already, Pass) and already.label == visit.label):
                return pages.refusal(request, entered.why)
            page = already.first_page
        response = web.Response(status=303, headers={**pages.HEADERS, "Location": page})
        if isinstance(entered, Entered):
            response.set_cookie(COOKIE, entered.token, path="/", secure=True, httponly=True, samesite="Lax")
        return response

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    async def _pass_request(self, visit: Visit, to: Pass) -> web.StreamResponse:
        request = visit.request
        headers = headers_up(visit, to)
        body: Any = None
        pace = Pace(PATIENCE_SECONDS)
        if request.body_exists:
            body = _paced(request, pace)
            if (length := request.headers.get(hdrs.CONTENT_LENGTH)) is not None:
                headers[hdrs.CONTENT_LENGTH] = length
        with self._doors.watched(visit.token, lambda: _abort(request)):
            response: web.StreamResponse | None = None
            try:
                asked = self._client.request(
                    request.method, address(visit, to), headers=headers, data=body, allow_redirects=False
                )
                async with asked as upstream:
                    response = answer_down(request, upstream)
                    await response.prepare(request)
                    async for piece in _pieces(request, upstream):
                        await response.write(piece)
                    await response.write_eof()
            except (ClientError, ConnectionError, TooSlow) as error:
                if pace.gave_up and response is None:
                    return _too_slow(request, to)
                return _broken(request, response, to, error)
        return response

    # -- WebSocket -----------------------------------------------------------------------------------------------------

    async def _pass_socket(self, visit: Visit, to: Pass) -> web.StreamResponse:
        request = visit.request
        protocols = [p.strip() for p in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",") if p.strip()]
        try:
            upstream = await self._client.ws_connect(
                address(visit, to),
                headers=headers_up(visit, to),
                protocols=protocols,
                max_msg_size=LARGEST_MESSAGE,
                timeout=ClientWSTimeout(ws_close=1.0),
                compress=0,
            )
        except WSServerHandshakeError as error:
            status = error.status if 400 <= error.status < 500 else 502
            return pages.say(request, status, "Refused", "The notebook refused this connection.")
        except (ClientError, ConnectionError) as error:
            return _broken(request, None, to, error)
        async with upstream:
            chosen = [upstream.protocol] if upstream.protocol else []
            socket = web.WebSocketResponse(
                protocols=chosen, max_msg_size=LARGEST_MESSAGE, heartbeat=30.0, compress=False, timeout=1.0
            )
            if not socket.can_prepare(request).ok:
                return pages.say(request, 400, "Refused", "This is not a WebSocket handshake.")
            await socket.prepare(request)
            with self._activity.socket(to.run):
                await self._carry(visit, to, socket, upstream)
        return socket

    async def _carry(
        self, visit: Visit, to: Pass, socket: web.WebSocketResponse, upstream: ClientWebSocketResponse
    ) -> None:
        cut = asyncio.Event()
        up = asyncio.create_task(self._pump_up(to, socket, upstream))
        down = asyncio.create_task(_pump_down(upstream, socket))
        over = asyncio.create_task(cut.wait())
        with self._doors.watched(visit.token, cut.set):
            try:
                # The answer may have changed while the run was being reached, before anybody watched this socket.
                if not isinstance(await self._doors.decide(visit.token), Pass):
                    cut.set()
                await asyncio.wait((up, down, over), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (up, down, over):
                    task.cancel()
                await asyncio.gather(up, down, over, return_exceptions=True)
        if cut.is_set():
            await _close_hard(visit.request, socket)
        else:
            await _close_both(socket, upstream)

    async def _pump_up(self, to: Pass, socket: web.WebSocketResponse, upstream: ClientWebSocketResponse) -> None:
        async for message in socket:
            self._activity.input(to.run)
            if message.type is WSMsgType.TEXT:
                await upstream.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await upstream.send_bytes(message.data)


async def _pump_down(upstream: ClientWebSocketResponse, socket: web.WebSocketResponse) -> None:
    async for message in upstream:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)


async def _close_both(socket: web.WebSocketResponse, upstream: ClientWebSocketResponse) -> None:
    """Close each side with the code that the other gave."""
    given_by_run, given_by_browser = upstream.close_code, socket.close_code
    with contextlib.suppress(ConnectionError):
        await upstream.close(code=_sendable(given_by_browser))
    with contextlib.suppress(ConnectionError):
        await socket.close(code=_sendable(given_by_run))


async def _close_hard(request: web.Request, socket: web.WebSocketResponse) -> None:
    """A close frame for those who listen; whoever does not take it at once loses the connection."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(CUT_SECONDS):
            await socket.close(code=SIGNED_OUT, message=b"the notebook or your session has ended")
    _abort(request)


def _sendable(code: int | None) -> int:
    """A close code that may stand in a frame (RFC 6455, section 7.4)."""
    if code is None or code in (1004, 1005, 1006, 1015) or not 1000 <= code < 5000:
        return WSCloseCode.GOING_AWAY
    return code


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _broken(
    request: web.Request, response: web.StreamResponse | None, to: Pass, error: Exception
) -> web.StreamResponse:
    """The run, its host or the way to it broke off."""
    metrics.REQUESTS.labels("broken").inc()
    log.info("no way to a run", run=to.run, error=str(error))
    if response is not None and response.prepared:
        _abort(request)  # half an answer must not look like a whole one
        return response
    sentence = "Its host could not be reached just now. Your work goes on there; try again."
    return pages.say(request, 502, "The notebook does not answer", sentence, to.workload)


async def _paced(request: web.Request, pace: Pace) -> AsyncIterator[bytes]:
    """The request's body as it comes. Raises TooSlow when its sender takes too long."""
    while piece := await pace.next(request.content.readany()):
        pace.came(len(piece))
        yield piece


def _too_slow(request: web.Request, to: Pass) -> web.Response:
    metrics.REQUESTS.labels("slow").inc()
    said = pages.say(request, 408, "This came too slowly", "What was being sent is no longer waited for. Try again.", to.workload)
    said.force_close()
    return said


async def _pieces(request: web.Request, upstream: ClientResponse) -> AsyncIterator[bytes]:
    if request.method == "HEAD" or upstream.status in (204, 304):
        return
    async for piece in upstream.content.iter_any():
        yield piece


# -- what is built anew ------------------------------------------------------------------------------------------------


def origin_of(label: str) -> str:
    """The workspace's origin as a browser writes it."""
    return f"{urlsplit(settings.GPUPOOL_EDGE_URL).scheme}://{label}.{settings.GPUPOOL_NOTEBOOK_DOMAIN}"


def address(visit: Visit, to: Pass) -> URL:
    """Where AgentConnector finds the run."""
    return URL(f"http://{to.run}.{to.host}{visit.target}", encoded=True)


def checked_target(request: web.Request) -> str:
    """The request's path and query exactly as sent, once it is sure that they have one meaning only.

    Browsers resolve dot segments themselves, so whoever sends one wants the edge and the run to disagree.
    """
    target = request.raw_path
    if not target.startswith("/") or target.startswith("//"):
        raise BadTarget("The address must begin with one slash.")
    if len(target) > LONGEST_TARGET:
        raise BadTarget(f"The address is longer than {LONGEST_TARGET} characters.")
    if any(not "!" <= character <= "~" for character in target) or "#" in target:
        raise BadTarget("The address contains a character that must be percent-encoded.")
    path = unquote_to_bytes(target.partition("?")[0])
    if b"\\" in path or any(byte < 0x20 or byte == 0x7F for byte in path):
        raise BadTarget("The address contains a backslash or a control character.")
    if any(segment in (b".", b"..") for segment in path.split(b"/")):
        raise BadTarget("The address contains a segment . or .. .")
    return target


def came_from_itself(visit: Visit) -> bool:
    """Whether the workspace's own pages, or a person, sent this: neighbours share its site, so cookies do not tell.

    A WebSocket must name its origin; what changes things may not name another; and a page elsewhere may link here, not embed.
    """
    headers = visit.request.headers
    origins = headers.getall(hdrs.ORIGIN, [])
    if visit.is_socket:
        return origins == [visit.origin]
    if origins and origins != [visit.origin]:
        return False
    site = headers.get("Sec-Fetch-Site", "none")
    navigates = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return site in ("same-origin", "none") or (navigates and visit.request.method in ("GET", "HEAD"))


def is_deed(visit: Visit) -> bool:
    """Does this request tell of a person: it changes something or opens a page? What open pages ask by themselves does not."""
    navigates = visit.request.headers.get("Sec-Fetch-Mode") == "navigate"
    return not visit.is_socket and (navigates or visit.request.method not in ("GET", "HEAD", "OPTIONS"))


def headers_up(visit: Visit, to: Pass) -> CIMultiDict[str]:
    """The headers that the run gets."""
    sent = visit.request.headers
    dropped = NEVER_UP | _named_by_connection(sent)
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in sent.items():
        plain = name.lower().replace("_", "-")
        if plain in dropped or plain.startswith((OUR_HEADERS, "x-forwarded-", "sec-websocket-")):
            continue
        headers.add(name, value)
    own = urlsplit(visit.origin)
    headers[hdrs.HOST] = own.netloc
    headers["X-Forwarded-Proto"] = own.scheme
    headers[SECRET_HEADER] = to.secret
    if hdrs.ORIGIN in sent:
        headers[hdrs.ORIGIN] = visit.origin
    if sent.get(hdrs.REFERER, "").startswith(visit.origin + "/"):
        headers[hdrs.REFERER] = sent[hdrs.REFERER]
    if cookies := cookies_up(sent):
        headers[hdrs.COOKIE] = cookies
    return headers


def cookies_up(sent: CIMultiDictProxy[str]) -> str:
    """The run's own cookies, as the browser sent them; none of ours."""
    pairs = [pair.strip() for line in sent.getall(hdrs.COOKIE, []) for pair in line.split(";")]
    return "; ".join(pair for pair in pairs if pair and not pair.lower().startswith(OUR_COOKIES))


def answer_down(request: web.Request, upstream: ClientResponse) -> web.StreamResponse:
    """The run's answer without what belongs to its connection."""
    dropped = NEVER_DOWN | _named_by_connection(upstream.headers)
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in upstream.headers.items():
        plain = name.lower()
        if plain not in dropped and not plain.startswith(OUR_HEADERS):
            headers.add(name, value)
    for cookie in upstream.headers.getall(hdrs.SET_COOKIE, []):
        if (kept := cookie_down(cookie)) is not None:
            headers.add(hdrs.SET_COOKIE, kept)
    headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
    headers.setdefault("Referrer-Policy", "same-origin")
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
    length = upstream.headers.get(hdrs.CONTENT_LENGTH, "")
    if length.isdigit() and upstream.status not in (204, 304):
        response.content_length = int(length)
    return response


def cookie_down(cookie: str) -> str | None:
    """A run's cookie for its own host alone, or None when it takes a name of ours."""
    pair, *attributes = cookie.split(";")
    if pair.strip().lower().startswith(OUR_COOKIES):
        return None
    kept = [attribute for attribute in attributes if attribute.strip().partition("=")[0].lower() != "domain"]
    return ";".join([pair, *kept])


def _named_by_connection(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    named = ",".join(headers.getall(hdrs.CONNECTION, []))
    return frozenset(name.strip().lower() for name in named.split(",") if name.strip())
