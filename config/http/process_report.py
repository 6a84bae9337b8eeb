"""Report the web process to Redis while uvicorn runs it."""

from __future__ import annotations

import asyncio
import contextlib

from config.http.body_limit import AsgiApplication, AsgiMessage, AsgiReceive, AsgiSend
from portal.processes.reports import report_until_cancelled


class ProcessReportMiddleware:
    """Report the process between startup and shutdown of the ASGI lifespan protocol, and pass on requests."""

    def __init__(self, application: AsgiApplication) -> None:
        self._application = application

    async def __call__(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        """Serve one request, or the lifespan of the process."""
        if scope["type"] != "lifespan":
            await self._application(scope, receive, send)
            return
        await receive()
        reporting = asyncio.create_task(report_until_cancelled("web"))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting
        await send({"type": "lifespan.shutdown.complete"})
