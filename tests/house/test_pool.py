"""Test the connection pool after the database was unavailable."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from config.postgres.pool import FastReconnectPool

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
        connection.connection = None  # as Celery does
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        os._exit(0 if connection.pool.belongs_to_this_process() else 1)  # type: ignore[attr-defined]
    assert os.waitpid(child, 0)[1] == 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def test_celery_keeps_its_pool_between_tasks() -> None:
    assert "pool" not in settings.DATABASES["default"]["OPTIONS"]


def test_broken_connections_are_replaced_without_a_pause(
    pool: FastReconnectPool,
) -> None:
    connections = [pool.getconn() for _ in range(8)]
    for conn in connections:
        with socket.socket(fileno=os.dup(conn.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
        pool.putconn(conn)  # idle from the pool's point of view
    began = time.monotonic()
    taken = [pool.getconn() for _ in range(8)]
    took = time.monotonic() - began
    assert all(conn.execute("SELECT 1").fetchone() == (1,) for conn in taken)
    for conn in taken:
        pool.putconn(conn)
    assert took < 2, "psycopg's own pool takes 3 s from the third broken connection on"


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
    connections[1].execute("SET ROLE NONE")  # the program's own role lacks the right
    connections[1].execute("SELECT pg_terminate_backend(%s, 2000)", (ended,))
    for conn in connections:
        pool.putconn(conn)  # idle from the pool's point of view
    taken = [pool.getconn() for _ in range(8)]
    assert all(conn.execute("SELECT 1").fetchone() == (1,) for conn in taken)
    assert ended not in {conn.info.backend_pid for conn in taken}
    assert asked == [ended]
    for conn in taken:
        pool.putconn(conn)


def test_a_returning_database_is_used_at_once(
    address: dict[str, Any],
) -> None:
    away = {**address, "host": "127.0.0.1", "port": 1}
    now: dict[str, Any] = dict(away)
    pool = FastReconnectPool(kwargs=lambda: dict(now), min_size=1, max_size=2, open=True, timeout=10)
    got: list[float] = []

    def ask() -> None:
        conn = pool.getconn()
        got.append(time.monotonic())
        pool.putconn(conn)

    waiting = threading.Thread(target=ask)
    waiting.start()
    time.sleep(1.3)  # psycopg's own pool retries after 1 s and after 3 s
    back = time.monotonic()
    now.update(host=address.get("host"), port=address.get("port"))
    waiting.join(8)
    pool.close()
    assert got and got[0] - back < 1.4


def test_an_unavailable_database_is_an_error_after_the_timeout(address: dict[str, Any]) -> None:
    pool = FastReconnectPool(
        kwargs={**address, "host": "127.0.0.1", "port": 1}, min_size=1, max_size=2, open=True
    )
    began = time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        pool.getconn(timeout=0.5)
    pool.close()
    assert 0.4 < time.monotonic() - began < 20, "the pool's own timeout is 30 s"
