"""Limit the time in which a client must send the head of a request.

Without a limit, a client that sends one byte a second could hold a connection forever. uvicorn uses this
protocol if it is started with ``--http config.http.slow_header_guard:HeaderTimeoutProtocol``.
``config.http.body_limit`` limits the bodies.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_TIMEOUT_SECONDS = 20.0


class HeaderTimeoutProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """An HTTP protocol that limits the time for the head of a request to ``seconds``.

    A connection is closed if the head of its request is not complete by then.
    """

    seconds = HEADER_TIMEOUT_SECONDS
    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.deadline is None:
            self._begin()

    def on_headers_complete(self) -> None:
        self._end()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self.deadline = self.loop.call_later(self.seconds, self.transport.abort)

    def _end(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
