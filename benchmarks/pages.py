"""Measure the server time of every page, for four users of a separate demo.

    ./run bench pages --rounds 20

The demo has a simulated past. Requests run in this process through Django's test client. The time
includes routing, permissions, queries and rendering. It does not include the network and the browser.
``queries`` is the number of SQL statements of one response.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

SERVICES = ("demo",)
# (name of the page, user who opens it, path); ids of the demo replace the names in braces.
PAGES = (
    ("home", "researcher", "/"),
    ("ask", "researcher", "/ask/"),
    ("calendar week", "researcher", "/calendar/"),
    ("calendar month", "researcher", "/calendar/?zoom=month"),
    ("notebooks", "researcher", "/notebooks/"),
    ("notebook launch", "researcher", "/notebooks/launch/"),
    ("jobs", "operator", "/jobs/"),
    ("job", "operator", "/jobs/{job}/"),
    ("queue", "operator", "/queue/"),
    ("why", "operator", "/workloads/{waiting}/why/"),
    ("fleet", "operator", "/fleet/"),
    ("host", "operator", "/hosts/h1/"),
    ("host drain", "operator", "/hosts/h1/drain/"),
    ("utilisation 7 days", "operator", "/utilisation/"),
    ("utilisation 30 days", "operator", "/utilisation/?period=30d"),
    ("approvals", "operator", "/approvals/"),
    ("chargeback", "finance", "/chargeback/"),
    ("chargeback by workload", "finance", "/chargeback/?by=user"),
    ("rate card", "finance", "/chargeback/rates/"),
    ("budgets", "finance", "/chargeback/budgets/"),
    ("teams", "operator", "/teams/"),
    ("team", "lead", "/teams/folding/"),
    ("audit", "operator", "/audit/"),
    ("settings", "operator", "/settings/"),
    ("data volumes", "operator", "/volumes/"),
    ("notices", "researcher", "/notifications/"),
)


def main(argv: list[str]) -> dict[str, Any]:
    """Time each page and return ``{"pages": {NAME: {"p50", "p95", "queries"}}}`` in seconds."""
    parser = argparse.ArgumentParser(prog="./run bench pages", description=__doc__)
    parser.add_argument("--rounds", type=_rounds, default=20)
    rounds = parser.parse_args(argv).rounds

    import django

    django.setup()
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    from portal.models import Organisation
    from scheduler.models import Workload

    setup_test_environment()
    # The demo started without a past. Its own work began after this time.
    first = Workload.objects.order_by("submitted_at").values_list("submitted_at", flat=True)[0]
    past_until = first.replace(minute=0, second=0, microsecond=0)
    Organisation.objects.update(simulated_history_until=past_until)
    call_command("demo_history")
    if not Workload.objects.filter(simulated=True).exists():
        raise SystemExit("the demo has no simulated past")
    clients = _clients()
    ids = _names()
    pages = {name: _measure(clients[username], path.format(**ids), rounds) for name, username, path in PAGES}
    for name, figures in pages.items():
        print(
            f"{name:24} p50 {figures['p50'] * 1000:7.1f} ms   p95 {figures['p95'] * 1000:7.1f} ms"
            f"   {figures['queries']:3} queries"
        )
    return {"pages": pages}


def _clients() -> dict[str, Any]:
    from django.test import Client

    from portal.models import User

    clients = {}
    for username in sorted({username for _, username, _ in PAGES}):
        clients[username] = Client()
        clients[username].force_login(
            User.objects.get(username=username), "allauth.account.auth_backends.AuthenticationBackend"
        )
    return clients


def _names() -> dict[str, str]:
    """Return the ids of a running job and of a waiting job, by their names in ``PAGES``."""
    from scheduler.models import Workload

    def first(state: str) -> str:
        return str(
            Workload.objects.filter(simulated=False, kind="job", state=state)
            .order_by("pk")
            .values_list("public_id", flat=True)[0]
        )

    return {"job": first("running"), "waiting": first("queued")}


def _measure(client: Any, path: str, rounds: int) -> dict[str, Any]:
    from django.db import connection

    statements: list[str] = []

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(count):
        response = client.get(path)
    if response.status_code != 200:
        raise SystemExit(f"{path}: status is {response.status_code}, not 200")
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        client.get(path)
        times.append(time.perf_counter() - begin)
    times.sort()
    p95 = times[min(len(times) - 1, round(0.95 * (len(times) - 1)))]
    return {"p50": round(statistics.median(times), 4), "p95": round(p95, 4), "queries": len(statements)}


def _rounds(text: str) -> int:
    if not text.isdigit() or not 2 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a whole number from 2 to 10,000")
    return int(text)
