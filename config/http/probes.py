"""Define the liveness and readiness probes of the web process."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from config.engine_health import engine_status
from portal.processes.store_checks import store_states


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
    stores = store_states()
    ready = set(stores.values()) == {"ok"}
    return JsonResponse(
        {**stores, "engine": engine_status() if ready else "unknown"}, status=200 if ready else 503
    )
