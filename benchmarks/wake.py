"""From the commit of a request to the decision about it, through the real engine: a nudge over Valkey, a Celery worker, a cycle.

    ./run bench wake --gpus 1000 --requests 50

A pool of which half is in use and ``--waiting`` jobs wait; then one request after the other is committed, and the rows are read
until the engine has decided. Seconds.
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
LOOK_EVERY = 0.002


def main(argv: list[str]) -> dict[str, Any]:
    """Commit ``--requests`` requests and wait for each decision: ``{"gpus", "requests", "p50", "p95", "max"}``."""
    from benchmarks.apply import _between

    options = argparse.ArgumentParser(prog="./run bench wake", description=__doc__)
    options.add_argument("--gpus", type=_between(8, 100_000), default=1_000)
    options.add_argument("--waiting", type=_between(0, 100_000), default=200)
    options.add_argument("--requests", type=_between(1, 10_000), default=50)
    given = options.parse_args(argv)

    import django

    django.setup()
    return _measure(given.gpus, given.waiting, given.requests)


def _measure(gpus: int, waiting: int, requests: int) -> dict[str, Any]:
    from benchmarks.harness.pool_rows import make_pool_rows
    from benchmarks.harness.small_pool import SmallPool
    from scheduler.models import Workload

    fleet = make_pool_rows(gpus, waiting, datetime.now(UTC))
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        pool = SmallPool(Path(folder), {})
        try:
            pool.start_engine()
            for number in range(-3, requests):  # the first few warm it up
                workload = fleet.queue(datetime.now(UTC), number + 3, name=f"request {secrets.token_hex(4)}")
                began = time.perf_counter()
                waits = Workload.objects.filter(pk=workload.pk, state="queued", reason_code="")
                while waits.exists():
                    if time.perf_counter() - began > MAX_WAIT_SECONDS:
                        raise SystemExit(
                            f"gpupool: no decision in {MAX_WAIT_SECONDS:g} s:\n{pool.log('engine')[-2000:]}"
                        )
                    time.sleep(LOOK_EVERY)
                if number >= 0:
                    took.append(time.perf_counter() - began)
                time.sleep(0.05)
        finally:
            pool.stop()
    took.sort()
    return {
        "gpus": gpus,
        "requests": requests,
        "p50": round(statistics.median(took), 4),
        "p95": round(took[min(len(took) - 1, int(len(took) * 0.95))], 4),
        "max": round(took[-1], 4),
    }
