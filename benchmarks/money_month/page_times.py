"""Measure the chargeback pages for finance: the overview, and the levels of the drill-down below it."""

from __future__ import annotations

import time
from datetime import date, datetime
from typing import Any
from unittest import mock

from django.db import connection

DRILL_DOWNS = 10  # cost centres in which the drill-down is measured


def time_pages(month: date, now: datetime, viewer: Any, rounds: int) -> dict[str, Any]:
    """Return the 95th percentiles of the overview and the drill-down, and the overview's number of queries.

    Requests run through Django's test client. The pages take ``now`` as the current time.
    """
    from django.test import Client

    client = Client()
    client.force_login(viewer, "allauth.account.auth_backends.AuthenticationBackend")
    overview = f"/chargeback/?month={month:%Y-%m}"
    paths = drill_down_paths(month, min(rounds, DRILL_DOWNS))
    with mock.patch("django.utils.timezone.now", return_value=now):
        queries = count_queries(client, overview)
        overviews = [_milliseconds(client, overview) for _ in range(rounds)]
        drills = {path: _milliseconds(client, overview + path) for path in paths}
    for path, spent in sorted(drills.items(), key=lambda pair: -pair[1])[:5]:
        print(f"{spent:7.1f} ms  {path}")
    return {
        "overview_p95_ms": p95(overviews),
        "drill_p95_ms": p95(list(drills.values())),
        "overview_queries": queries,
    }


def drill_down_paths(month: date, count: int) -> list[str]:
    """Return query strings for the address of the overview: three other groupings, and a drill-down.

    The drill-down begins with ``count`` cost centres. On each further level, it opens the row with the
    highest charge.
    """
    from telemetry.reads.chargeback import DRILL_DOWN, charges_by

    paths = ["&by=user", "&by=project", "&by=team"]
    for centre in charges_by(DRILL_DOWN[0], month).groups[:count]:
        where = {DRILL_DOWN[0]: centre.key}
        paths.append(f"&{DRILL_DOWN[0]}={centre.key}")
        for level in DRILL_DOWN[1:]:
            row = charges_by(level, month, **where).groups[0]
            where[level] = row.key
            paths.append(f"{paths[-1]}&{level}={'' if row.key is None else row.key}")
    return paths


def count_queries(client: Any, path: str) -> int:
    """Return the number of SQL statements of one answer. Raises SystemExit if the page fails."""
    statements: list[str] = []

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(count):
        response = client.get(path)
    if response.status_code != 200:
        raise SystemExit(f"gpupool: {path}: status is {response.status_code}, not 200")
    return len(statements)


def _milliseconds(client: Any, path: str) -> float:
    began = time.perf_counter()
    response = client.get(path)
    spent = (time.perf_counter() - began) * 1000
    if response.status_code != 200:
        raise SystemExit(f"gpupool: {path}: status is {response.status_code}, not 200")
    return spent


def p95(times: list[float]) -> float:
    """Return the 95th percentile."""
    ordered = sorted(times)
    return round(ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))], 1)
