"""Measure the time from the commit of a request to the engine's decision.

    ./run bench wake --gpus 1000 --requests 50

After the commit, a nudge is sent over Valkey, a Celery worker receives it, and the engine runs a cycle. Half
of the pool is in use, and ``--waiting`` jobs wait. Requests are committed one after another. After each
commit, the rows are polled until the engine has decided. Times are in seconds.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

SERVICES = ("postgres", "valkey")
MAX_WAIT_SECONDS = 30.0
POLL_INTERVAL_SECONDS = 0.002


def main(argv: list[str]) -> dict[str, Any]:
    """Commit ``--requests`` requests one after another and wait for each decision.

    Return ``{"gpus", "requests", "p50", "p95", "max"}``, with times in seconds.
    """
    from benchmarks.apply import _between

    parser = argparse.ArgumentParser(prog="./run bench wake", description=__doc__)
    parser.add_argument("--gpus", type=_between(8, 100_000), default=1_000)
    parser.add_argument("--waiting", type=_between(0, 100_000), default=200)
    parser.add_argument("--requests", type=_between(1, 10_000), default=50)
    options = parser.parse_args(argv)

    import django

    django.setup()
    return _measure(options.gpus, options.waiting, options.requests)


def _measure(gpus: int, waiting: int, requests: int) -> dict[str, Any]:
    from benchmarks.harness.pool_rows import make_pool_rows
    from benchmarks.harness.small_pool import SmallPool
    from scheduler.models import Workload

    fleet = make_pool_rows(gpus, waiting, datetime.now(UTC))
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        pool = SmallPool(Path(folder), {})
        try:
            pool.start_engine()
            for number in range(-3, requests):  # the first three requests are not measured
                workload = fleet.queue(datetime.now(UTC), number + 3, name=f"request {secrets.token_hex(4)}")
                began = time.perf_counter()
                undecided = Workload.objects.filter(pk=workload.pk, state="queued", reason_code="")
                while undecided.exists():
                    if time.perf_counter() - began > MAX_WAIT_SECONDS:
                        raise SystemExit(
                            f"gpupool: no decision in {MAX_WAIT_SECONDS:g} s:\n{pool.log('engine')[-2000:]}"
                        )
                    time.sleep(POLL_INTERVAL_SECONDS)
                if number >= 0:
                    seconds.append(time.perf_counter() - began)
                time.sleep(0.05)
        finally:
            pool.stop()
    seconds.sort()
    return {
        "gpus": gpus,
        "requests": requests,
        "p50": round(statistics.median(seconds), 4),
        "p95": round(seconds[min(len(seconds) - 1, int(len(seconds) * 0.95))], 4),
        "max": round(seconds[-1], 4),
    }
