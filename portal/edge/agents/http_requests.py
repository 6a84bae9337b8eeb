"""Read and answer the HTTP requests of agents."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from aiohttp import web

from agent.protocol import Refused

BODY_TIMEOUT_SECONDS = 20.0  # the whole body of a join or renew request must arrive in this time


async def read_json_body(request: web.Request) -> Any:
    """Return the JSON body of a short request. Raises HTTPRequestTimeout (408) if the body is too slow."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            return await request.json()
    except TimeoutError:
        late = web.HTTPRequestTimeout(text="the body arrived too slowly")
        late.force_close()
        raise late from None


def bearer_token(request: web.Request) -> str | None:
    scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
    credential = credential.strip()
    return (
        credential
        if scheme.lower() == "bearer" and credential.isascii() and 0 < len(credential) <= 512
        else None
    )


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def refusal_response(status: int, reason: str, *, retry: bool = False, reason_code: str = "") -> web.Response:
    refused = Refused(reason=reason, retry=retry, code=reason_code)
    return web.json_response(dataclasses.asdict(refused), status=status)
