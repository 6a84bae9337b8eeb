"""Call the HTTP API with JSON over urllib, and raise CliError when the portal refuses a request."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from cli import VERSION
from cli.credentials import Credentials
from cli.errors import EXIT_NOT_FOUND, EXIT_NOT_SIGNED_IN, EXIT_REFUSED, EXIT_UNREACHABLE, CliError
from cli.local_zone import local_zone_name

TIMEOUT_SECONDS = 30.0
DOWNLOAD_TIMEOUT_SECONDS = 600.0  # a workbook is complete before its first byte is sent
DOWNLOAD_PART_BYTES = 1 << 16
PORTAL_IS_OLDER = "is older than this command"
UNKNOWN_ADDRESS_MESSAGE = "There is no such address"  # the start of a portal's message for an unknown address
KEY_LIFETIME = "Idempotency-Key-Lifetime"  # a portal that sends it accepts Idempotency-Key
GATEWAY_STATUSES = (502, 504)
REPEAT_WAIT_SECONDS = (0.5, 2.0, 4.0)  # before each repetition of a request whose answer was lost
Json = Any


class ApiObject(dict[str, Any]):
    """A JSON object of an answer.

    A missing key raises CliError, because an older portal may not send all keys.
    """

    def __missing__(self, name: str) -> Any:
        raise CliError(
            f"The portal {PORTAL_IS_OLDER}: its answer lacks {name!r}. Update the portal, or use --json.",
            EXIT_UNREACHABLE,
        )


class NoRedirectHandler(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect, because a redirect could send the token to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Return None, so that urllib does not follow the redirect."""
        return


def read_json(answer: Any) -> Json:
    """Return the JSON of an answer."""
    return json.loads(answer.read(), object_hook=ApiObject)


class AnswerLost(CliError):
    """The portal may have carried out the request, but its answer did not arrive.

    ``in_progress`` is True if the portal says that it is still carrying out the first request with this key.
    """

    def __init__(self, message: str, method: str, *, in_progress: bool = False) -> None:
        super().__init__(message, EXIT_UNREACHABLE)
        self.method = method
        self.in_progress = in_progress


class ApiClient:
    """A client of one portal with one person's token. ``on_headers`` gets the headers of each answer."""

    def __init__(
        self,
        login: Credentials,
        seconds: float = TIMEOUT_SECONDS,
        on_headers: Callable[[Mapping[str, str]], None] = lambda headers: None,
    ) -> None:
        self.login = login
        self._on_headers = on_headers
        self.seconds = seconds
        self._opener = urllib.request.build_opener(NoRedirectHandler)

    def get(self, path: str, **query: Any) -> Json:
        """Send a GET request and return the answer. Query values that are None are left out."""
        parameters = {name: _query_value(value) for name, value in query.items() if value is not None}
        return self._call("GET", f"{path}?{urllib.parse.urlencode(parameters)}" if parameters else path)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Json:
        """Send a POST request and return the answer."""
        return self._call("POST", path, body or {})

    def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        """Send a PATCH request and return the answer."""
        return self._call("PATCH", path, body)

    def put(self, path: str, body: Mapping[str, Any]) -> Json:
        """Send a PUT request and return the answer."""
        return self._call("PUT", path, body)

    def download(self, path: str, file: BinaryIO, **query: Any) -> str:
        """Write the file of an answer to ``file``. Return its media type."""
        parameters = urllib.parse.urlencode({k: _query_value(v) for k, v in query.items() if v is not None})

        def write(answer: Any) -> str:
            # An answer that is cut off raises IncompleteRead at its end.
            while part := answer.read(DOWNLOAD_PART_BYTES):
                file.write(part)
            return str(answer.headers.get_content_type())

        return str(self._call("GET", f"{path}?{parameters}", read=write, seconds=DOWNLOAD_TIMEOUT_SECONDS))

    def pages(self, path: str, most: int = 1000, **query: Any) -> Iterator[Json]:
        """Yield the rows of a list, page by page, up to ``most`` rows."""
        number = count = 0
        while count < most:
            number += 1
            answer = self.get(path, page=number, page_size=200, **query)
            yield from answer["results"]
            count += len(answer["results"])
            if count >= answer["count"] or not answer["results"]:
                return

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        read: Callable[[Any], Any] = read_json,
        seconds: float | None = None,
    ) -> Any:
        """Send a request, and return what ``read`` returns for its answer.

        If the answer of a POST request is lost, repeat the request with the same ``Idempotency-Key``: the
        portal carries it out only once. A portal without such keys could carry it out twice, so do not repeat
        the request there.
        """
        key = str(uuid.uuid4()) if method == "POST" else None
        for wait in REPEAT_WAIT_SECONDS:
            try:
                return self._send(method, path, body, key, read=read, seconds=seconds)
            except AnswerLost as problem:
                if not self._accepts_keys(problem):
                    raise
            time.sleep(wait)
        return self._send(method, path, body, key, read=read, seconds=seconds)

    def _accepts_keys(self, problem: AnswerLost) -> bool:
        """Return True if the portal answers and carries out a repeated POST request only once."""
        if problem.method != "POST":
            return False
        if problem.in_progress:
            return True
        try:
            accepted: bool = self._send("GET", "me/", read=lambda answer: KEY_LIFETIME in answer.headers)
        except CliError:
            return False
        return accepted

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        *,
        read: Callable[[Any], Any] = read_json,
        seconds: float | None = None,
    ) -> Any:
        request = urllib.request.Request(
            f"{self.login.url}/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.login.token}",
                "Accept": "application/json",
                "Content-Type": "application/json",
                "User-Agent": f"gpupool-cli/{VERSION}",
                "Time-Zone": local_zone_name(),  # the sentences of the answer have local times
                **({} if key is None else {"Idempotency-Key": key}),
            },
        )
        try:
            try:
                with self._opener.open(request, timeout=seconds or self.seconds) as answer:
                    self._on_headers(answer.headers)
                    return read(answer)
            except urllib.error.HTTPError as refusal:
                text = refusal.read()
                lost = _lost_answer(refusal.code, text, method)
                raise (lost or _error_of_response(refusal.code, text)) from None
        except (urllib.error.URLError, OSError, http.client.HTTPException) as problem:
            reason = getattr(problem, "reason", None) or problem
            message = f"{self.login.url} does not answer: {reason}"
            if isinstance(reason, ConnectionRefusedError | socket.gaierror | ssl.SSLError):
                raise CliError(message, EXIT_UNREACHABLE) from None  # the portal did not get the request
            raise AnswerLost(message, method) from None
        except ValueError as problem:
            # The token has characters that a header can't have, or the answer is not JSON.
            raise CliError(f"{self.login.url} can't be used: {problem}", EXIT_UNREACHABLE) from None


def _lost_answer(status: int, body: bytes, method: str) -> AnswerLost | None:
    """Return an error if the portal may have carried out the request without answering it."""
    if status == 409 and b'"request_in_progress"' in body:
        message = next(iter(_messages_and_windows(body)[0]), "The request is in progress.")
        return AnswerLost(message, method, in_progress=True)
    if status in GATEWAY_STATUSES:
        return AnswerLost(f"{status} without an answer of the portal.", method)
    return None


def _error_of_response(status: int, body: bytes) -> CliError:
    """Return the error of a refused call.

    The error contains the messages of the answer, and the windows of time in which the request would fit.
    """
    messages, windows = _messages_and_windows(body)
    if status == 401:
        return CliError(
            "The token is not accepted. Make a new one in the portal, then: gpupool login", EXIT_NOT_SIGNED_IN
        )
    if status == 405 or (status == 404 and not messages):
        return CliError(
            f"There is no such API call: the portal {PORTAL_IS_OLDER}, or the address is not a portal.",
            EXIT_UNREACHABLE,
        )
    if not messages or status >= 500:
        return CliError(
            f"The portal answered {status} without a reason.",
            EXIT_UNREACHABLE if status >= 500 else EXIT_REFUSED,
        )
    if status == 404 and messages[0].startswith(UNKNOWN_ADDRESS_MESSAGE):
        messages[0] += f" Or the portal {PORTAL_IS_OLDER}."
    fits = [f"It would fit from {window['start']} to {window['end']}." for window in windows]
    return CliError(messages[0], EXIT_NOT_FOUND if status == 404 else EXIT_REFUSED, [*messages[1:], *fits])


def _messages_and_windows(body: bytes) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the messages of an error answer, and the windows of time in which the request would fit.

    Both are empty if the answer has another form.
    """
    try:
        answer = json.loads(body)
        return [str(error["message"]) for error in answer["errors"]], answer.get("windows") or []
    except (ValueError, KeyError, TypeError):
        return [], []


def _query_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
