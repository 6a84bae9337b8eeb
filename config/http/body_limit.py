"""No request's body is read further than it may be long, nor waited for longer than its sender needs.

Django reads a whole body, to the disk where it is long, before any of our code runs; its own limit holds for forms only, and
the API reads past it. So the limit stands in front of everything that the web process serves.
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

DISCARD_LIMIT_FACTOR = (
    4  # so many times the limit is read and thrown away, so that who sends a little too much hears the answer
)
CONTENT_LENGTH_MAX_DIGITS = 19  # of a length: so many say more than any limit
DISCARD_SECONDS = 5.0  # and no longer than this


def too_large_message(most: int) -> str:
    """The refusal, for people."""
    return f"The body is too large; allowed: up to {most // 1024:,} KiB."


TOO_SLOW_MESSAGE = "The body came too slowly, so it is no longer waited for. Send it again."


class _BodyTooLarge(Exception):
    """More came than was announced, or than may."""


class BodyLimitMiddleware:
    """Answers 413 to a request whose body is, or turns out to be, longer than ``most`` bytes, and 408 to one whose body comes too
    slowly (``patience``: seconds, portal.edge.runtime.slow_body_guard); all others reach ``app``."""

    def __init__(self, app: AsgiApplication, most: int, patience: float = MAX_BODY_WAIT_SECONDS) -> None:
        self.app, self.most, self.patience = app, most, patience

    async def __call__(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = _content_length(scope)
        if announced is not None and announced > self.most:
            await self._refuse(scope, receive, send, 0, 413, too_large_message(self.most))
            return
        await self._serve(scope, receive, send)

    async def _serve(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        read, answered, ended = 0, False, False
        pace = SlowBodyGuard(self.patience)

        async def counted() -> AsgiMessage:
            nonlocal read, ended
            if ended:
                return await receive()  # of who has sent all: only whether they are still there
            message = await pace.next(receive())
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                pace.add_received(len(message.get("body", b"")))
                if read > self.most:
                    raise _BodyTooLarge
            ended = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def noted(message: AsgiMessage) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except _BodyTooLarge:
            if not answered:
                await self._refuse(scope, receive, send, read, 413, too_large_message(self.most))
        except BodyTooSlow:
            if not answered:
                await self._refuse(scope, receive, send, read, 408, TOO_SLOW_MESSAGE)

    async def _refuse(
        self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend, read: int, status: int, said: str
    ) -> None:
        """The answer at once; then some of what is still being sent is thrown away, or a reset would overtake the answer."""
        is_api = str(scope.get("path", "")).startswith("/api/")
        body = json.dumps({"errors": [{"field": "", "value": None, "message": said}]}) if is_api else said
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
    """The length that the request names; None when it comes in pieces."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(
                value.lstrip(b"0")[:CONTENT_LENGTH_MAX_DIGITS] or 0
            )  # Python reads no number of thousands of digits
    return None
