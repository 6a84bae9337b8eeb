"""Charge, audit, close and show a month of a large organisation, and score the forecast.

    ./run bench money --json

The month has 10,000 GPUs, 1,000,000 allocations and 500 projects (``benchmarks/money_month``). It is charged
at once, as after an outage. ``docs/benchmarks.md`` describes each figure.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from benchmarks.harness.focus_validator import run_focus_validator
from benchmarks.money_month import export_times, forecast_score, ledger_times

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

SERVICES = ("postgres", "valkey")
SEED = 42
MONTH = date(2026, 10, 1)


def main(argv: list[str]) -> dict[str, Any]:
    """Return the figures of the month and of the forecast."""
    parser = argparse.ArgumentParser(prog="./run bench money", description=__doc__)
    parser.add_argument("--gpus", type=_between(64, 100_000), default=10_000)
    parser.add_argument("--allocations", type=_between(1_000, 10_000_000), default=1_000_000)
    parser.add_argument("--projects", type=_between(2, 10_000), default=500)
    parser.add_argument("--only", choices=("forecast",), help="measure only the forecast")
    options = parser.parse_args(argv)
    forecast = forecast_score.score_forecasts(forecast_score.UNSEEN_SEEDS)
    if options.only:
        return forecast

    os.environ["GPUPOOL_LINE_LENGTH"] = "day"  # the default in production
    import django

    django.setup()
    from django.test.utils import setup_test_environment

    setup_test_environment()
    names = ("forecast_mape", "forecast_below_linear")
    figures = measure_month(
        options.gpus, options.allocations, options.projects, ledger_times.charge_in_own_process
    )
    return {**figures, **{name: forecast[name] for name in names}}


def measure_month(
    gpus: int,
    allocations: int,
    projects: int,
    charge: Callable[[datetime, datetime], dict[str, Any]],
    page_rounds: int = 20,
    validate: export_times.Validate = run_focus_validator,
) -> dict[str, Any]:
    """Write the facts of a month, and measure it.

    ``charge`` charges the time between two moments. ``validate`` runs focus-validator on a file.
    """
    from benchmarks.money_month import page_times, planted_faults

    start, end = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
    now = end + timedelta(days=3)
    _step("rows", lambda: _write_rows(gpus, allocations, projects, start, end))
    viewer = _finance()
    figures = _step("charging", lambda: charge(start, end))
    figures |= _step("pages", lambda: page_times.time_pages(MONTH, now, viewer, page_rounds))
    figures |= _step("close", lambda: ledger_times.close_and_audit(MONTH, now, viewer))
    figures |= _step("amounts", lambda: ledger_times.amount_differences(MONTH))
    figures |= _step("exports", lambda: export_times.time_exports(MONTH, validate))
    figures |= _step("faults", lambda: planted_faults.plant_and_find(MONTH, now))
    return figures


def _write_rows(gpus: int, allocations: int, projects: int, start: datetime, end: datetime) -> dict[str, int]:
    from django.db import connection

    from benchmarks.money_month.bulk_load import as_owner
    from benchmarks.money_month.organisation_rows import make_organisation
    from benchmarks.money_month.work_rows import write_work

    rng = random.Random(SEED)
    workloads = write_work(make_organisation(gpus, projects, start, end, rng), allocations, rng)
    with as_owner() as cursor:
        cursor.execute("ANALYZE" if connection.in_atomic_block else "VACUUM ANALYZE")
    return {"workloads": workloads}


def _finance() -> Any:
    from portal.models import User

    return User.objects.create_user("controller", finance=True)


def _step(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a step and print its time and its figures."""
    began = time.perf_counter()
    figures = measure()
    print(f"{name}: {time.perf_counter() - began:.1f} s {figures}", flush=True)
    return figures


def _between(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text[:20]) <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {low} to {high}")
        return int(text)

    return read
