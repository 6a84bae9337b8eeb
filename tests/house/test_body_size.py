"""Test with a real server that the web process rejects a body that is too long without reading all of it."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 1024 * 1024


class Server:
    """A production `uvicorn config.asgi:application` on a loopback port."""

    def __init__(
        self,
        root: Path,
        program: str = "config.asgi:application",
        heads: str = "config.http.slow_header_guard:HeaderTimeoutProtocol",
    ) -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen(16)
            self.port = listening.getsockname()[1]
            command = [sys.executable, "-m", "uvicorn", program, "--http", heads, "--no-access-log"]
            self.process = subprocess.Popen(
                [*command, "--fd", str(listening.fileno())],
                cwd=root,
                pass_fds=[listening.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def wait_ready(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if self.ask("GET", "/healthz")[0] == 200:
                    return
            except OSError:
                time.sleep(0.2)
        raise AssertionError("the server did not start")

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        kind: str = "application/json",
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": kind, "Host": "localhost"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    @property
    def memory(self) -> int:
        """Return the peak memory in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(Path(__file__).resolve().parents[2])
    try:
        made.wait_ready()
        yield made
    finally:
        made.process.terminate()
        made.process.wait(30)


def chunks(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b" " * (64 * 1024)


@pytest.mark.parametrize("body", [b'"' + b"x" * 3 * MIB + b'"', b"[" * 3 * MIB], ids=["text", "brackets"])
def test_too_long_json_is_rejected_with_the_usual_error_format(server: Server, body: bytes) -> None:
    status, answer = server.ask("POST", "/api/v1/jobs/", body)
    assert status == 413
    message = "The body is too large; allowed: up to 2,048 KiB."
    assert json.loads(answer) == {"errors": [{"field": "", "value": None, "message": message}]}


def test_a_too_long_form_is_rejected_with_a_message(server: Server) -> None:
    status, answer = server.ask(
        "POST", "/accounts/login/", b"a=" + b"x" * 3 * MIB, "application/x-www-form-urlencoded"
    )
    assert (status, answer) == (413, b"The body is too large; allowed: up to 2,048 KiB.")


def test_a_body_of_the_maximum_length_is_accepted(server: Server) -> None:
    assert server.ask("POST", "/api/v1/jobs/", b" " * 2 * MIB)[0] == 401


def test_a_chunked_body_is_counted_while_it_is_read(server: Server) -> None:
    """Send the body in chunks, without its total length."""
    assert server.ask("POST", "/api/v1/jobs/", chunks(16))[0] == 401
    assert server.ask("POST", "/api/v1/jobs/", chunks(64))[0] == 413


def test_the_answer_does_not_wait_for_the_body(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=3) as connection:
        connection.sendall(
            b"POST /api/v1/jobs/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000000\r\n\r\n["
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_length_of_thousands_of_digits_is_parsed(server: Server) -> None:
    for digits, answer in (
        (b"0" * 5000 + b"2", b"HTTP/1.1 401 "),
        (b"0" * 5000 + b"9" * 15, b"HTTP/1.1 413 "),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(
                b"POST /api/v1/jobs/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + digits + b"\r\n\r\n{}"
            )
            assert connection.recv(65536).startswith(answer)


def test_a_huge_body_uses_little_memory(server: Server) -> None:
    before = server.memory
    for length in (b"Content-Length: 268435456", b"Transfer-Encoding: chunked"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(b"POST /api/v1/jobs/ HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n\r\n")
            piece = b" " * MIB
            if b"chunked" in length:
                piece = b"100000\r\n" + piece + b"\r\n"
            sent = 0
            try:
                for _ in range(256):
                    connection.sendall(piece)
                    sent += 1
            except OSError:  # the server closed the connection
                assert sent < 128
            else:
                raise AssertionError("the whole body was accepted")
    assert server.memory - before < 24 * MIB
    assert server.ask("GET", "/healthz")[0] == 200
