"""Test the connection pool after the database was unavailable."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from psycopg_pool import ConnectionPool

from config.postgres.pool import RECONNECT_SECONDS, FastReconnectPool
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def address() -> dict[str, Any]:
    """Return the connection parameters of the tests' database."""
    connection.ensure_connection()
    return {**connection.get_connection_params(), "autocommit": True}


@pytest.fixture
def pool(address: dict[str, Any]) -> Iterator[FastReconnectPool]:
    """Return a pool of eight open connections."""
    made = FastReconnectPool(kwargs=address, min_size=8, max_size=8, open=True, timeout=10)
    made.wait()
    yield made
    made.close()


def test_the_program_uses_this_pool() -> None:
    connection.ensure_connection()
    assert isinstance(connection.pool, FastReconnectPool)  # type: ignore[attr-defined]


def test_a_forked_process_makes_its_own_pool() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    child = os.fork()
    if child == 0:
        connection.connection = None  # as Celery does in its child processes
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        os._exit(0 if connection.pool.belongs_to_this_process() else 1)  # type: ignore[attr-defined]
    assert os.waitpid(child, 0)[1] == 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def test_celery_keeps_its_pool_between_tasks() -> None:
    assert "pool" not in settings.DATABASES["default"]["OPTIONS"]


def test_broken_connections_are_replaced_without_a_pause(
    pool: FastReconnectPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = [pool.getconn() for _ in range(8)]
    for conn in connections:
        with socket.socket(fileno=os.dup(conn.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
        pool.putconn(conn)  # idle from the pool's point of view
    delays: list[float] = []
    schedule_task = ConnectionPool.schedule_task

    def record_delay(of: ConnectionPool[Any], task: Any, delay: float) -> None:
        delays.append(delay)
        schedule_task(of, task, delay)

    monkeypatch.setattr(ConnectionPool, "schedule_task", record_delay)
    taken = [pool.getconn() for _ in range(8)]
    assert all(conn.execute("SELECT 1").fetchone() == (1,) for conn in taken)
    for conn in taken:
        pool.putconn(conn)
    assert all(delay <= RECONNECT_SECONDS for delay in delays), "psycopg's own pool waits 1, 2, 4 ... s"


def test_only_closed_idle_connections_are_checked_and_replaced(
    pool: FastReconnectPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    check = FastReconnectPool.check_connection

    def count(conn: psycopg.Connection[Any]) -> None:
        asked.append(conn.info.backend_pid)
        check(conn)

    monkeypatch.setattr(FastReconnectPool, "check_connection", staticmethod(count))
    connections = [pool.getconn() for _ in range(8)]
    ended = connections[0].info.backend_pid
    connections[1].execute("SET ROLE NONE")  # the application's role may not terminate a backend
    connections[1].execute("SELECT pg_terminate_backend(%s, 2000)", (ended,))
    for conn in connections:
        pool.putconn(conn)  # idle from the pool's point of view
    taken = [pool.getconn() for _ in range(8)]
    assert all(conn.execute("SELECT 1").fetchone() == (1,) for conn in taken)
    assert ended not in {conn.info.backend_pid for conn in taken}
    assert asked == [ended]
    for conn in taken:
        pool.putconn(conn)


def test_attempts_to_connect_have_constant_pauses(
    address: dict[str, Any],
) -> None:
    """Wait for 12 attempts. psycopg's own pauses grow: its twelfth attempt would begin after half an hour."""
    away = {**address, "host": "127.0.0.1", "port": 1}
    now: dict[str, Any] = dict(away)
    attempts: list[dict[str, Any]] = []

    def next_address() -> dict[str, Any]:
        attempts.append(dict(now))
        return attempts[-1]

    pool = FastReconnectPool(kwargs=next_address, min_size=1, max_size=2, open=True, timeout=60)
    try:
        wait_until(lambda: len(attempts) >= 12)
        now.update(host=address.get("host"), port=address.get("port"))
        with pool.connection() as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
    finally:
        pool.close()


def test_an_unavailable_database_is_an_error_after_the_timeout(address: dict[str, Any]) -> None:
    pool = FastReconnectPool(
        kwargs={**address, "host": "127.0.0.1", "port": 1}, min_size=1, max_size=2, open=True, timeout=600
    )
    began = time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        pool.getconn(timeout=0.5)
    pool.close()
    assert time.monotonic() - began > 0.4
