"""Limit the size of request bodies and the time in which a client must send them.

Django reads the whole body before any view runs, and writes a long body to the disk. Django's own limit
covers only forms, not the API. So this middleware wraps the whole web application.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from portal.edge.runtime.slow_body_guard import MAX_BODY_WAIT_SECONDS, BodyTooSlow, SlowBodyGuard

AsgiMessage = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]
AsgiApplication = Callable[[Any, Any, Any], Awaitable[None]]

# The server reads and discards up to this multiple of the limit, so that the client can receive the answer.
DISCARD_LIMIT_FACTOR = 4
CONTENT_LENGTH_MAX_DIGITS = 19  # enough for every limit; Python rejects numbers with thousands of digits
DISCARD_SECONDS = 5.0


def too_large_message(max_bytes: int) -> str:
    """Return the text of an answer with status 413."""
    return f"The body is too large; allowed: up to {max_bytes // 1024:,} KiB."


TOO_SLOW_MESSAGE = "The body arrived too slowly. Send it again."


class _BodyTooLarge(Exception):
    """Raised when a request body exceeds the limit."""


class BodyLimitMiddleware:
    """A middleware that rejects request bodies that are too long or arrive too slowly.

    It answers 413 if a body is longer than ``most`` bytes, and 408 if a body is too slow. ``patience`` is the
    waiting time in seconds that a ``SlowBodyGuard`` permits. All other requests reach ``app``.
    """

    def __init__(self, app: AsgiApplication, most: int, patience: float = MAX_BODY_WAIT_SECONDS) -> None:
        self.app, self.most, self.patience = app, most, patience

    async def __call__(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = _content_length(scope)
        if length is not None and length > self.most:
            await self._refuse(scope, receive, send, 0, 413, too_large_message(self.most))
            return
        await self._serve(scope, receive, send)

    async def _serve(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        read, answered, ended = 0, False, False
        guard = SlowBodyGuard(self.patience)

        async def receive_counted() -> AsgiMessage:
            nonlocal read, ended
            if ended:
                return await receive()  # the body is complete, so only a disconnect can follow
            message = await guard.next(receive())
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                guard.add_received(len(message.get("body", b"")))
                if read > self.most:
                    raise _BodyTooLarge
            ended = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def send_noted(message: AsgiMessage) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.app(scope, receive_counted, send_noted)
        except _BodyTooLarge:
            if not answered:
                await self._refuse(scope, receive, send, read, 413, too_large_message(self.most))
        except BodyTooSlow:
            if not answered:
                await self._refuse(scope, receive, send, read, 408, TOO_SLOW_MESSAGE)

    async def _refuse(
        self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend, read: int, status: int, text: str
    ) -> None:
        """Send the answer, then read and discard a part of the remaining body.

        If the connection were closed at once, the client could get a TCP reset before it reads the answer.
        """
        is_api = str(scope.get("path", "")).startswith("/api/")
        body = json.dumps({"errors": [{"field": "", "value": None, "message": text}]}) if is_api else text
        kind = b"application/json" if is_api else b"text/plain; charset=utf-8"
        headers = [
            (b"content-type", kind),
            (b"content-length", str(len(body.encode())).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode(), "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                await self._discard(receive, read)
        await send({"type": "http.response.body", "body": b""})

    async def _discard(self, receive: AsgiReceive, read: int) -> None:
        while read <= DISCARD_LIMIT_FACTOR * self.most:
            message = await receive()
            read += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                return


def _content_length(scope: AsgiMessage) -> int | None:
    """Return the value of the Content-Length header, or None if there is no such header."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value.lstrip(b"0")[:CONTENT_LENGTH_MAX_DIGITS] or 0)
    return None
