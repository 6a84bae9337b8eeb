"""Open thousands of connections to the edge, and measure its answers to others."""

from __future__ import annotations

import resource
import socket
import time

from benchmarks.harness.conditions import ConditionTimeout
from benchmarks.trust_parts.attacks.browser import Browser

PROBES = 50
SPARE_FILES = 500


def open_connections(edge_port: int, count: int) -> tuple[int, float]:
    """Open ``count`` connections that send nothing, and ask for /healthz meanwhile.

    Return the number of connections that are still open after the last answer, and the 95th percentile of
    the answers in milliseconds. Each request has a new connection.
    """
    _allow_files(count + SPARE_FILES)
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            opened.append(socket.create_connection(("127.0.0.1", edge_port), timeout=30))
        times = sorted(_healthz_seconds(edge_port) for _ in range(PROBES))
        still_open = sum(_is_open(connection) for connection in opened)
    finally:
        for connection in opened:
            connection.close()
    return still_open, round(times[int(0.95 * PROBES) - 1] * 1000, 1)


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
    if hard < count:
        raise ConditionTimeout(f"the benchmark may open {count} files: the limit is {hard}")


def _healthz_seconds(port: int) -> float:
    began = time.monotonic()
    answer = Browser(port).get("/healthz")
    if answer.status != 200:
        raise ConditionTimeout(f"/healthz answers 200 beside other connections: {answer.status}")
    return time.monotonic() - began


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
