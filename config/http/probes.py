"""Probes: does the web process live, and can it reach what it needs?"""

from __future__ import annotations

import redis
from django.conf import settings
from django.db import Error, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe
from psycopg_pool import PoolTimeout

from config.engine_health import engine_status

PROBE_TIMEOUT_SECONDS = 2  # seconds; a probe that waits long is itself the trouble


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """200 while the process answers at all."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """200 when PostgreSQL and Valkey answer; 503 with the kind of trouble of each that does not.

    The engine is told of too. It is another process: without it pages work and what is asked for waits, so it decides nothing.
    """
    found = {"postgres": _postgres(), "valkey": _valkey()}
    ready = set(found.values()) == {"ok"}
    return JsonResponse(
        {**found, "engine": engine_status() if ready else "unknown"}, status=200 if ready else 503
    )


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
