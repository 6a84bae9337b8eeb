"""Measure how long the portal takes to answer Prometheus."""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime

REQUESTS = 20


def metrics_milliseconds(requests: int = REQUESTS, *, include_gpus: bool = False) -> float:
    """Return the median time of a request for the metrics, with the check of its token and all middleware.

    The caller has set up Django and filled the database. An auditor ``bench-metrics`` is created.
    """
    from django.contrib.auth import get_user_model
    from django.test import Client

    from portal.services.people import api_tokens

    now = datetime.now(UTC)
    viewer, _ = get_user_model().objects.get_or_create(username="bench-metrics", defaults={"auditor": True})
    _, token = api_tokens.create_token(actor=viewer, name="bench", now=now)
    client = Client(headers={"Authorization": f"Bearer {token}"})
    address = "/metrics?include=gpus" if include_gpus else "/metrics"
    times = []
    for _ in range(requests + 1):
        began = time.perf_counter()
        answer = client.get(address, secure=True)
        times.append((time.perf_counter() - began) * 1000)
        if answer.status_code != 200:
            raise RuntimeError(f"{address} answers {answer.status_code}: {answer.content[:300]!r}")
    return statistics.median(times[1:])  # the first request loads modules and opens the connection
