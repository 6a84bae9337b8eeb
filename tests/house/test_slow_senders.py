"""Test slow clients against the real web server with short timeouts.

A client that sends a byte at a time is disconnected, blocks no other client, and gets an error message if
possible.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from config import asgi
from config.http.slow_header_guard import HEADER_TIMEOUT_SECONDS, HeaderTimeoutProtocol
from portal.edge.runtime.slow_body_guard import MAX_BODY_WAIT_SECONDS, MIN_BODY_BYTES_PER_SECOND
from tests.house import short_timeouts
from tests.house.test_body_size import Server

ROOT = Path(__file__).resolve().parents[2]
HEAD = b"POST /api/v1/jobs/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CONNECTIONS = 150


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(
        ROOT,
        "tests.house.short_timeouts:application",
        "tests.house.short_timeouts:ShortHeaderTimeoutProtocol",
    )
    try:
        made.wait_ready()
        yield made
    finally:
        made.process.terminate()
        made.process.wait(30)


def send_slowly(connection: socket.socket, every: float = 0.1, longest: float = 20.0) -> tuple[float, bytes]:
    """Send a byte at intervals until the server answers or disconnects.

    Return the seconds that passed and the answer.
    """
    began = time.monotonic()
    connection.settimeout(every)
    while time.monotonic() - began < longest:
        try:
            answer = connection.recv(65536)
            took = time.monotonic() - began
            if answer.endswith(b"\r\n\r\n"):  # only the header so far
                connection.settimeout(10)
                answer += connection.recv(65536)
            return took, answer
        except TimeoutError:
            try:
                connection.sendall(b" ")
            except OSError:
                return time.monotonic() - began, b""
        except OSError:
            return time.monotonic() - began, b""
    raise AssertionError("the server still waits")


@pytest.mark.parametrize("length", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
def test_a_body_sent_a_byte_at_a_time_is_rejected(server: Server, length: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(HEAD + length + b"\r\n\r\n" + (b"fff\r\n" if b"chunked" in length else b""))
        took, answer = send_slowly(connection)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"too slowly" in answer
    assert took < short_timeouts.TIMEOUT_SECONDS + 5


def test_a_header_sent_a_byte_at_a_time_is_disconnected(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        took, answer = send_slowly(connection)
    assert answer == b"" and took < short_timeouts.TIMEOUT_SECONDS + 5
    with socket.create_connection(
        ("127.0.0.1", server.port)
    ) as connection:  # the limit also applies to later requests of a connection
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert send_slowly(connection)[0] < short_timeouts.TIMEOUT_SECONDS + 5


def test_many_slow_clients_do_not_block_others(server: Server) -> None:
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(CONNECTIONS)]
    try:
        for connection in connections:
            connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n[")
        began = time.monotonic()
        assert server.ask("GET", "/healthz")[0] == 200
        assert time.monotonic() - began < 5
    finally:
        for connection in connections:
            connection.close()


def test_a_slow_network_is_not_rejected(server: Server) -> None:
    """Send pieces that arrive late but have many bytes each, as over a slow network."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(HEAD + b"Content-Length: 20000\r\n\r\n")
        for _ in range(5):
            time.sleep(0.6)
            connection.sendall(b" " * 4000)
        connection.settimeout(20)
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_production_has_the_same_timeouts() -> None:
    assert asgi.application.patience == MAX_BODY_WAIT_SECONDS <= 60 and MIN_BODY_BYTES_PER_SECOND >= 1024
    assert HeaderTimeoutProtocol.seconds == HEADER_TIMEOUT_SECONDS <= 60
    started = [
        ROOT / "tools" / "site" / "site.py",
        ROOT / "deploy" / "compose.yaml",
        ROOT / "deploy" / "systemd" / "gpupool-web.service",
    ]
    for path in started:
        words = re.split(r'[\s",]+', path.read_text())
        assert words[words.index("config.asgi:application") + 1 :][:2] == [
            "--http",
            "config.http.slow_header_guard:HeaderTimeoutProtocol",
        ], path
