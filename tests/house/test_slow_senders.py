"""Who sends a request a byte at a time is hung up on, holds up nobody, and is told so where an answer still makes sense: with real
slow clients of the web process's real server, which is only less patient here."""

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
from tests.house import impatient
from tests.house.test_body_size import Server

ROOT = Path(__file__).resolve().parents[2]
HEAD = b"POST /api/v1/jobs/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MANY = 150


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(ROOT, "tests.house.impatient:application", "tests.house.impatient:ImpatientHeads")
    try:
        made.wait_ready()
        yield made
    finally:
        made.process.terminate()
        made.process.wait(30)


def dribble(line: socket.socket, every: float = 0.1, longest: float = 20.0) -> tuple[float, bytes]:
    """Send a byte now and then until the other side answers or hangs up: after how long that was, and what it said."""
    began = time.monotonic()
    line.settimeout(every)
    while time.monotonic() - began < longest:
        try:
            said = line.recv(65536)
            took = time.monotonic() - began
            if said.endswith(b"\r\n\r\n"):  # only the head yet
                line.settimeout(10)
                said += line.recv(65536)
            return took, said
        except TimeoutError:
            try:
                line.sendall(b" ")
            except OSError:
                return time.monotonic() - began, b""
        except OSError:
            return time.monotonic() - began, b""
    raise AssertionError("it is still waited for")


@pytest.mark.parametrize("length", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
def test_a_body_that_comes_a_byte_at_a_time_is_waited_for_no_longer(server: Server, length: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(HEAD + length + b"\r\n\r\n" + (b"fff\r\n" if b"chunked" in length else b""))
        took, said = dribble(line)
    assert said.startswith(b"HTTP/1.1 408 ") and b"too slowly" in said
    assert took < impatient.PATIENCE_SECONDS + 5


def test_a_head_that_comes_a_byte_at_a_time_is_waited_for_no_longer(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        took, said = dribble(line)
    assert said == b"" and took < impatient.PATIENCE_SECONDS + 5
    with socket.create_connection(
        ("127.0.0.1", server.port)
    ) as line:  # nor is the second one on a connection
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 200 ")
        line.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert dribble(line)[0] < impatient.PATIENCE_SECONDS + 5


def test_many_slow_senders_hold_up_nobody(server: Server) -> None:
    lines = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MANY)]
    try:
        for line in lines:
            line.sendall(HEAD + b"Content-Length: 100000\r\n\r\n[")
        began = time.monotonic()
        assert server.ask("GET", "/healthz")[0] == 200
        assert time.monotonic() - began < 5
    finally:
        for line in lines:
            line.close()


def test_a_slow_network_is_no_slow_sender(server: Server) -> None:
    """Long ways are: pieces come late, but they are pieces."""
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(HEAD + b"Content-Length: 20000\r\n\r\n")
        for _ in range(5):
            time.sleep(0.6)
            line.sendall(b" " * 4000)
        line.settimeout(20)
        assert line.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_the_process_as_it_is_run_has_the_same_limits() -> None:
    assert asgi.application.patience == MAX_BODY_WAIT_SECONDS <= 60 and MIN_BODY_BYTES_PER_SECOND >= 1024
    assert HeaderTimeoutProtocol.seconds == HEADER_TIMEOUT_SECONDS <= 60
    started = [
        ROOT / "tools" / "site.py",
        ROOT / "deploy" / "compose.yaml",
        ROOT / "deploy" / "systemd" / "gpupool-web.service",
    ]
    for path in started:
        words = re.split(r'[\s",]+', path.read_text())
        assert words[words.index("config.asgi:application") + 1 :][:2] == [
            "--http",
            "config.http.slow_header_guard:HeaderTimeoutProtocol",
        ], path
