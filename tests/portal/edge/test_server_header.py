"""Test that the edge names no version of its programs."""

from __future__ import annotations

import asyncio

from tests.portal.edge.conftest import EdgeSite


async def test_answers_to_valid_and_malformed_requests_name_no_version(edge_site: EdgeSite) -> None:
    for request in (
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % edge_site.port,
        b"nonsense\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", edge_site.port)
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        writer.close()
        assert "server: gpupool\r\n" in head
        assert "aiohttp" not in head and "python" not in head
