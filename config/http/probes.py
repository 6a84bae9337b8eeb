"""Define the liveness and readiness probes of the web process."""

from __future__ import annotations

import redis
from django.conf import settings
from django.db import Error, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe
from psycopg_pool import PoolTimeout

from config.engine_health import engine_status

PROBE_TIMEOUT_SECONDS = 2


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 as long as the process runs."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Answer 200 if PostgreSQL and Valkey answer, otherwise 503.

    The body names the class of the error if one of them has failed. The body also has the status of the
    engine, which does not affect the status code: without the engine, pages still work and workloads wait.
    """
    stores = {"postgres": _postgres(), "valkey": _valkey()}
    ready = set(stores.values()) == {"ok"}
    return JsonResponse(
        {**stores, "engine": engine_status() if ready else "unknown"}, status=200 if ready else 503
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
