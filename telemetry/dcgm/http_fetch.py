"""Fetch the answers of dcgm-exporters by HTTP, with limits of time and size."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import ResolveResult
from aiohttp.resolver import ThreadedResolver

from telemetry.models import DcgmTarget

TIMEOUT_SECONDS = 5.0  # for the whole answer, with the connection
MAX_ANSWER_BYTES = 8 << 20
MAX_CONNECTIONS = 50
_CHUNK_BYTES = 1 << 16
_Problem = DcgmTarget.Problem


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of an answer, or the problem that prevented it."""

    text: str = ""
    problem: str = ""


class AddressNotAllowed(OSError):
    """A name resolves only to addresses that are never scraped."""


def is_forbidden_address(address: str) -> bool:
    """Return True for addresses at which no host of a pool can be: link-local, multicast and unspecified.

    The metadata services of clouds have link-local addresses. A text that is not an address is not forbidden.
    """
    try:
        found = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    found = mapped or found
    return found.is_link_local or found.is_multicast or found.is_unspecified


class _Resolver(ThreadedResolver):
    """Resolve names, without the addresses that are never scraped."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        allowed = [each for each in found if not is_forbidden_address(each["host"])]
        if not allowed:
            raise AddressNotAllowed(f"{host} has only addresses that are not scraped")
        return allowed


async def fetch_all(
    urls: Sequence[str], handle: Callable[[int, Answer], None], *, timeout: float = TIMEOUT_SECONDS
) -> None:
    """Fetch each URL and call ``handle`` with its position and its answer, in threads.

    At most MAX_CONNECTIONS answers are fetched at a time, so that their sizes together stay bounded.
    """
    free = asyncio.Semaphore(MAX_CONNECTIONS)
    connector = aiohttp.TCPConnector(resolver=_Resolver(), limit=MAX_CONNECTIONS, force_close=True)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout),
        headers={"Accept": "text/plain", "Accept-Encoding": "identity", "User-Agent": "gpupool"},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as session:

        async def fetch_one(place: int, url: str) -> None:
            async with free:
                answer = await _fetch(session, url)
                # In a thread, so that a large answer does not use up the time of the others.
                await asyncio.to_thread(handle, place, answer)

        await asyncio.gather(*(fetch_one(place, url) for place, url in enumerate(urls)))


async def _fetch(session: aiohttp.ClientSession, url: str) -> Answer:
    if is_forbidden_address(urlsplit(url).hostname or ""):  # a literal address is not resolved
        return Answer(problem=_Problem.UNREACHABLE)
    try:
        async with session.get(url, allow_redirects=False) as response:
            return await _read(response)
    except TimeoutError:
        return Answer(problem=_Problem.TIMEOUT)
    except (aiohttp.ClientError, OSError, ValueError):
        return Answer(problem=_Problem.UNREACHABLE)


async def _read(response: aiohttp.ClientResponse) -> Answer:
    if 300 <= response.status < 400:
        return Answer(problem=_Problem.REDIRECT)
    if response.status != 200:
        return Answer(problem=_Problem.STATUS)
    if response.headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
        return Answer(problem=_Problem.ENCODED)
    if (response.content_length or 0) > MAX_ANSWER_BYTES:
        return Answer(problem=_Problem.TOO_LARGE)
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            return Answer(problem=_Problem.TOO_LARGE)
    try:
        return Answer(body.decode())
    except UnicodeDecodeError:
        return Answer(problem=_Problem.NOT_TEXT)
