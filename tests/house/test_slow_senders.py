"""Test slow clients against the real web server with short timeouts.

A client that sends a byte at a time is disconnected, blocks no other client, and gets an error message if
possible.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from config import asgi
from config.http.slow_header_guard import HEADER_TIMEOUT_SECONDS, HeaderTimeoutProtocol
from portal.edge.runtime.slow_body_guard import MAX_BODY_WAIT_SECONDS, MIN_BODY_BYTES_PER_SECOND
from tests.house.test_body_size import Server
from tests.waiting import DEADLINE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
HEAD = b"POST /api/v1/jobs/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CONNECTIONS = 150


@contextlib.contextmanager
def running(program: str, protocol: str) -> Iterator[Server]:
    """Run the web server within this context."""
    made = Server(ROOT, program, protocol)
    try:
        made.wait_ready()
        yield made
    finally:
        made.process.terminate()
        made.process.wait(30)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Run a server with short timeouts."""
    program, protocol = "application", "ShortHeaderTimeoutProtocol"
    with running(f"tests.house.short_timeouts:{program}", f"tests.house.short_timeouts:{protocol}") as server:
        yield server


@pytest.fixture
def patient_server() -> Iterator[Server]:
    """Run a server with the timeouts of production."""
    with running("config.asgi:application", "config.http.slow_header_guard:HeaderTimeoutProtocol") as server:
        yield server


def send_slowly(connection: socket.socket, every: float = 0.1) -> bytes:
    """Send a byte at intervals until the server answers or disconnects. Return the answer."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    connection.settimeout(every)
    while time.monotonic() < deadline:
        try:
            answer = connection.recv(65536)
            if answer.endswith(b"\r\n\r\n"):  # only the header so far
                connection.settimeout(10)
                answer += connection.recv(65536)
            return answer
        except TimeoutError:
            try:
                connection.sendall(b" ")
            except OSError:
                return b""
        except OSError:
            return b""
    raise AssertionError("the server still waits")


@pytest.mark.long
@pytest.mark.parametrize("length", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
def test_a_body_sent_a_byte_at_a_time_is_rejected(server: Server, length: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(HEAD + length + b"\r\n\r\n" + (b"fff\r\n" if b"chunked" in length else b""))
        answer = send_slowly(connection)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"too slowly" in answer


def test_a_header_sent_a_byte_at_a_time_is_disconnected(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert send_slowly(connection) == b""
    with socket.create_connection(
        ("127.0.0.1", server.port)
    ) as connection:  # the limit also applies to later requests of a connection
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert send_slowly(connection) == b""


def test_many_slow_clients_do_not_block_others(patient_server: Server) -> None:
    server = patient_server
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(CONNECTIONS)]
    try:
        for connection in connections:
            connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n[")
        assert server.ask("GET", "/healthz")[0] == 200
        answered, _, _ = select.select(connections, [], [], 0)
        assert not answered, "the server still waits for the slow clients"
    finally:
        for connection in connections:
            connection.close()


def pause_of_slow_network() -> None:
    """Sleep. The server measures the real time between the pieces of a body."""
    time.sleep(0.6)


def test_a_slow_network_is_not_rejected(server: Server) -> None:
    """Send pieces that arrive late but have many bytes each, as over a slow network."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(HEAD + b"Content-Length: 20000\r\n\r\n")
        for _ in range(5):
            pause_of_slow_network()
            connection.sendall(b" " * 4000)
        connection.settimeout(20)
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_production_has_the_same_timeouts() -> None:
    assert (
        asgi.limited_application.patience == MAX_BODY_WAIT_SECONDS <= 60 and MIN_BODY_BYTES_PER_SECOND >= 1024
    )
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
