"""The web process as it is run, but for its patience with who sends slowly."""

from __future__ import annotations

from config.asgi import application as as_it_is_run
from config.http.body_limit import BodyLimitMiddleware
from config.http.slow_header_guard import HeaderTimeoutProtocol

PATIENCE_SECONDS = 1.5

application = BodyLimitMiddleware(as_it_is_run.app, as_it_is_run.most, patience=PATIENCE_SECONDS)


class ImpatientHeads(HeaderTimeoutProtocol):
    """With less time for a head."""

    seconds = PATIENCE_SECONDS
