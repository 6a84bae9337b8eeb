"""Measure the pages over telemetry for 30 days and for a year: time, queries, and bytes of the answer.

The first request of each page fills the caches, and its queries are counted. The times are those of later
requests.
"""

from __future__ import annotations

import gzip
import time
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

from benchmarks.harness.processor_time import Timer
from benchmarks.money_month.page_times import count_queries, p95

ROUNDS = 10
KIB = 1024
PERIODS = {"30d": 30, "365d": 365}
# name of the page: its address without the period
PAGES = {
    "utilisation": "/utilisation/?{period}",
    "utilisation of a pool": "/utilisation/?pool=pool-0&{period}",
    "utilisation of a team": "/utilisation/?team=team-0&{period}",
}


def time_dashboards(now: datetime, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the figures of each page and period. The pages take ``now`` as the current time."""
    from django.test import Client

    from portal.models import User

    client = Client()
    viewer, _ = User.objects.get_or_create(username="bench-operator", defaults={"operator": True})
    client.force_login(viewer, "allauth.account.auth_backends.AuthenticationBackend")
    found = {}
    with mock.patch("django.utils.timezone.now", return_value=now):
        for name, address in PAGES.items():
            for period, days in PERIODS.items():
                start = now - timedelta(days=days)
                bounds = f"start={start:%Y-%m-%dT%H:%M}&end={now:%Y-%m-%dT%H:%M}"
                found[f"{name}:{period}"] = _page(client, address.format(period=bounds), rounds)
    return {"dashboards": found}


def _page(client: Any, path: str, rounds: int) -> dict[str, float]:
    from django.core.cache import cache

    cache.clear()
    queries = count_queries(client, path)
    times, body, timer = [], b"", Timer()
    with timer:
        for _ in range(rounds):
            began = time.perf_counter()
            body = client.get(path).content
            times.append((time.perf_counter() - began) * 1000)
    return {
        "p95_ms": p95(times),
        "cpu_ms": round(timer.cpu * 1000 / rounds, 1),
        "queries": queries,
        "kb_gz": round(len(gzip.compress(body)) / KIB, 1),
    }
