"""Provide the web process with shorter timeouts for slow clients."""

from __future__ import annotations

from config.asgi import limited_application
from config.http.body_limit import BodyLimitMiddleware
from config.http.slow_header_guard import HeaderTimeoutProtocol

TIMEOUT_SECONDS = 1.5

application = BodyLimitMiddleware(limited_application.app, limited_application.most, patience=TIMEOUT_SECONDS)


class ShortHeaderTimeoutProtocol(HeaderTimeoutProtocol):
    """A protocol with a shorter header timeout."""

    seconds = TIMEOUT_SECONDS
