"""Connections to the database after it was away."""

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
    """Where the tests' database is."""
    connection.ensure_connection()
    return {**connection.get_connection_params(), "autocommit": True}


@pytest.fixture
def pool(address: dict[str, Any]) -> Iterator[FastReconnectPool]:
    """Of eight connections, all there."""
    made = FastReconnectPool(kwargs=address, min_size=8, max_size=8, open=True, timeout=10)
    made.wait()
    yield made
    made.close()


def test_the_program_uses_this_pool() -> None:
    connection.ensure_connection()
    assert isinstance(connection.pool, FastReconnectPool)  # type: ignore[attr-defined]


def test_a_forked_process_makes_a_pool_of_its_own_and_leaves_the_other_alone() -> None:
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


def test_celery_does_not_make_it_anew_for_each_task() -> None:
    assert "pool" not in settings.DATABASES["default"]["OPTIONS"]


def test_when_all_kept_connections_are_broken_the_next_one_asked_for_is_there_without_a_pause(
    pool: FastReconnectPool,
) -> None:
    held = [pool.getconn() for _ in range(8)]
    for one in held:
        with socket.socket(fileno=os.dup(one.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
        pool.putconn(one)  # idle, as far as it knows
    began = time.monotonic()
    taken = [pool.getconn() for _ in range(8)]
    took = time.monotonic() - began
    assert all(one.execute("SELECT 1").fetchone() == (1,) for one in taken)
    for one in taken:
        pool.putconn(one)
    assert took < 2, "psycopg's own takes 3 s, from the third broken connection on"


def test_one_that_the_server_ended_while_it_was_idle_is_not_given_and_one_that_is_well_is_not_asked(
    pool: FastReconnectPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    check = FastReconnectPool.check_connection

    def count(one: psycopg.Connection[Any]) -> None:
        asked.append(one.info.backend_pid)
        check(one)

    monkeypatch.setattr(FastReconnectPool, "check_connection", staticmethod(count))
    held = [pool.getconn() for _ in range(8)]
    ended = held[0].info.backend_pid
    held[1].execute("SET ROLE NONE")  # the program's own may not
    held[1].execute("SELECT pg_terminate_backend(%s, 2000)", (ended,))
    for one in held:
        pool.putconn(one)  # idle, as far as it knows
    taken = [pool.getconn() for _ in range(8)]
    assert all(one.execute("SELECT 1").fetchone() == (1,) for one in taken)
    assert ended not in {one.info.backend_pid for one in taken}
    assert asked == [ended]
    for one in taken:
        pool.putconn(one)


def test_a_database_that_comes_back_is_found_at_once_however_long_it_was_away(
    address: dict[str, Any],
) -> None:
    away = {**address, "host": "127.0.0.1", "port": 1}
    now: dict[str, Any] = dict(away)
    pool = FastReconnectPool(kwargs=lambda: dict(now), min_size=1, max_size=2, open=True, timeout=10)
    got: list[float] = []

    def ask() -> None:
        one = pool.getconn()
        got.append(time.monotonic())
        pool.putconn(one)

    waiting = threading.Thread(target=ask)
    waiting.start()
    time.sleep(1.3)  # psycopg's own tries after 1 and after 3 s
    back = time.monotonic()
    now.update(host=address.get("host"), port=address.get("port"))
    waiting.join(8)
    pool.close()
    assert got and got[0] - back < 1.4


def test_one_that_stays_away_is_an_error_after_the_time_that_was_given(address: dict[str, Any]) -> None:
    pool = FastReconnectPool(
        kwargs={**address, "host": "127.0.0.1", "port": 1}, min_size=1, max_size=2, open=True
    )
    began = time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        pool.getconn(timeout=0.5)
    pool.close()
    assert 0.4 < time.monotonic() - began < 3
