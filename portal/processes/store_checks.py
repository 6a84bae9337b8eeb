"""Check that PostgreSQL and Valkey answer, for the readiness probe of each process."""

from __future__ import annotations

import time

import redis
from django.conf import settings
from django.db import Error, connection
from psycopg_pool import PoolTimeout

PROBE_TIMEOUT_SECONDS = 2


def store_states() -> dict[str, str]:
    """Return "ok" or the class of the error for PostgreSQL and for Valkey."""
    return {"postgres": _postgres(), "valkey": _valkey()}


def database_clock_offset() -> float:
    """Return the seconds between the clocks of this machine and of PostgreSQL. Takes one query."""
    before = time.time()
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        database = float(cursor.fetchone()[0])
    # The answer was made between both readings of this clock, so their middle is compared.
    return abs(database - (before + time.time()) / 2)


def _postgres() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (Error, PoolTimeout) as problem:
        return type(problem).__name__
    return "ok"


def _valkey() -> str:
    client = redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=PROBE_TIMEOUT_SECONDS, socket_connect_timeout=PROBE_TIMEOUT_SECONDS
    )
    try:
        client.ping()
    except (redis.RedisError, OSError) as problem:
        return type(problem).__name__
    finally:
        client.close()
    return "ok"
