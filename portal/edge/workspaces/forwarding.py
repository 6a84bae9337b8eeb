"""Check the requests of browsers to workspaces, and build the requests and responses that the edge forwards.

The edge builds all forwarded headers anew. It drops the portal's cookies, headers that apply to one
connection only, and headers that only the edge may set.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes, urlsplit

from aiohttp import ClientResponse, hdrs, web
from django.conf import settings
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from portal.edge.workspaces.access import WorkspaceGrant
from portal.wording.pages import workspace_pages

WORKSPACE_COOKIE = "__Host-gpupool"
# Prefixes of cookie names. A run never receives these cookies and cannot set them.
RESERVED_COOKIES = ("__host-gpupool", "gpupool")
SECRET_HEADER = "X-Gpupool-Secret"
RESERVED_HEADER_PREFIX = "x-gpupool-"
MAX_TARGET_LENGTH = 16_000


# Headers that apply to one connection only (RFC 9110, section 7.6.1), and headers for proxies.
HOP_BY_HOP_HEADERS = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
DROPPED_REQUEST_HEADERS = HOP_BY_HOP_HEADERS | frozenset(
    (
        "host",
        "cookie",
        "authorization",
        "expect",
        "forwarded",
        "via",
        "x-real-ip",
        "content-length",
        "origin",
        "referer",
    )
)
DROPPED_RESPONSE_HEADERS = HOP_BY_HOP_HEADERS | frozenset(
    ("set-cookie", "content-length", "server", "date", "strict-transport-security", "alt-svc")
)


class AmbiguousTarget(ValueError):
    """The path of a request could mean one page to the edge and another page to the run."""


@dataclass(frozen=True)
class ProxiedRequest:
    """A browser's request to a workspace, with the label and the origin of the workspace."""

    request: web.Request
    label: str
    origin: str
    target: str  # path and query as the browser sent them, after the checks of checked_target

    @property
    def is_socket(self) -> bool:
        return self.request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"

    @property
    def token(self) -> str:
        return self.request.cookies.get(WORKSPACE_COOKIE, "")


def origin_of(label: str) -> str:
    """Return the workspace's origin in the form that browsers send."""
    return f"{urlsplit(settings.GPUPOOL_EDGE_URL).scheme}://{label}.{settings.GPUPOOL_NOTEBOOK_DOMAIN}"


def stream_address(visit: ProxiedRequest, to: WorkspaceGrant) -> URL:
    """Return the address under which ``AgentConnector`` finds the run."""
    return URL(f"http://{to.run}.{to.host}{visit.target}", encoded=True)


def checked_target(request: web.Request) -> str:
    """Return the path and the query of the request exactly as the browser sent them. Raises AmbiguousTarget.

    A path with a dot segment (``.`` or ``..``) is rejected. Browsers resolve dot segments before they send a
    request. So such a request may try to make the edge and the run interpret the path differently.
    """
    target = request.raw_path
    if not target.startswith("/") or target.startswith("//"):
        raise AmbiguousTarget(workspace_pages.ADDRESS_WITHOUT_SLASH)
    if len(target) > MAX_TARGET_LENGTH:
        raise AmbiguousTarget(workspace_pages.ADDRESS_TOO_LONG.format(most=MAX_TARGET_LENGTH))
    if any(not "!" <= character <= "~" for character in target) or "#" in target:
        raise AmbiguousTarget(workspace_pages.ADDRESS_NOT_ENCODED)
    path = unquote_to_bytes(target.partition("?")[0])
    if b"\\" in path or any(byte < 0x20 or byte == 0x7F for byte in path):
        raise AmbiguousTarget(workspace_pages.ADDRESS_WITH_CONTROL_CHARACTER)
    if any(segment in (b".", b"..") for segment in path.split(b"/")):
        raise AmbiguousTarget(workspace_pages.ADDRESS_WITH_DOTS)
    return target


def is_same_origin(visit: ProxiedRequest) -> bool:
    """Return True if a page of the workspace itself, or a person, caused this request.

    Cookies do not prove this, because browsers treat all workspaces as one site. A WebSocket request must
    name the workspace's origin. A request that changes something may not name another origin. Pages of other
    origins may link to the workspace, but may not embed it.
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


def is_user_action(visit: ProxiedRequest) -> bool:
    """Return True if a person caused the request. Such a request changes something or opens a page.

    Return False for the polling of an open page.
    """
    navigates = visit.request.headers.get("Sec-Fetch-Mode") == "navigate"
    return not visit.is_socket and (navigates or visit.request.method not in ("GET", "HEAD", "OPTIONS"))


def forwarded_request_headers(visit: ProxiedRequest, to: WorkspaceGrant) -> CIMultiDict[str]:
    """Return the headers of the request that the edge sends to the run."""
    sent = visit.request.headers
    dropped = DROPPED_REQUEST_HEADERS | _named_by_connection(sent)
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in sent.items():
        plain = name.lower().replace("_", "-")
        if plain in dropped or plain.startswith((RESERVED_HEADER_PREFIX, "x-forwarded-", "sec-websocket-")):
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
    if cookies := forwarded_cookies(sent):
        headers[hdrs.COOKIE] = cookies
    return headers


def forwarded_cookies(sent: CIMultiDictProxy[str]) -> str:
    """Return the browser's cookies for the run, without the portal's cookies."""
    pairs = [pair.strip() for line in sent.getall(hdrs.COOKIE, []) for pair in line.split(";")]
    return "; ".join(pair for pair in pairs if pair and not pair.lower().startswith(RESERVED_COOKIES))


def forwarded_response(request: web.Request, upstream: ClientResponse) -> web.StreamResponse:
    """Return the run's response to the browser, without headers that apply to one connection only."""
    dropped = DROPPED_RESPONSE_HEADERS | _named_by_connection(upstream.headers)
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in upstream.headers.items():
        plain = name.lower()
        if plain not in dropped and not plain.startswith(RESERVED_HEADER_PREFIX):
            headers.add(name, value)
    for cookie in upstream.headers.getall(hdrs.SET_COOKIE, []):
        if (kept := forwarded_set_cookie(cookie)) is not None:
            headers.add(hdrs.SET_COOKIE, kept)
    headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
    headers.setdefault("Referrer-Policy", "same-origin")
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
    length = upstream.headers.get(hdrs.CONTENT_LENGTH, "")
    if length.isdigit() and upstream.status not in (204, 304):
        response.content_length = int(length)
    return response


def forwarded_set_cookie(cookie: str) -> str | None:
    """Return the Set-Cookie header of a run without its ``Domain`` attribute.

    Without this attribute the cookie is valid for the workspace's own host only. Return None if the name of
    the cookie is reserved.
    """
    pair, *attributes = cookie.split(";")
    if pair.strip().lower().startswith(RESERVED_COOKIES):
        return None
    kept = [attribute for attribute in attributes if attribute.strip().partition("=")[0].lower() != "domain"]
    return ";".join([pair, *kept])


def _named_by_connection(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    named = ",".join(headers.getall(hdrs.CONNECTION, []))
    return frozenset(name.strip().lower() for name in named.split(",") if name.strip())
