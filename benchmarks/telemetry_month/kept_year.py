"""Keep the generated year between runs, and measure the pages over it in a process of their own.

The year is in a PostgreSQL of its own below ``.gpupool/bench``. The name of the folder has the parameters of
the year. A year that was not completed is written again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.harness.metrics_time import metrics_milliseconds
from benchmarks.telemetry_month import sample_path
from tools.console import run_quietly
from tools.kept_postgres import kept_postgres
from tools.paths import PYTHON, ROOT, STATE

# Increase the version if ``year_rows`` or the rows that it uses change.
VERSION = 1
SEED = 42
PREFIX, COMPLETE = "telemetry-year", "complete.json"
PAGE_STEPS = frozenset({"dashboards", "metrics"})


def kept_folder(gpus: int, place: Path = STATE / "bench") -> Path:
    """Return the folder of the year of ``gpus`` GPUs."""
    from benchmarks.telemetry_month import year_rows

    return place / f"{PREFIX}-{gpus}-gpus-{year_rows.DAYS}-days-seed-{SEED}-version-{VERSION}"


def measure_pages(gpus: int, steps: Collection[str], place: Path = STATE / "bench") -> dict[str, Any]:
    """Return the figures of the steps of PAGE_STEPS. The year is written only if it is not kept."""
    folder = kept_folder(gpus, place)
    remove_unusable(folder)
    with kept_postgres(folder) as address:
        env = {**os.environ, "DATABASE_URL": address}
        run_quietly([str(PYTHON), "manage.py", "migrate", "-v", "0", "--skip-checks"], cwd=ROOT, env=env)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found: dict[str, Any] = pool.apply(_process, (address, folder, gpus, sorted(steps)))
    return found


def remove_unusable(folder: Path) -> None:
    """Remove the folder if its year is not complete, and years of the same GPUs with other parameters."""
    gpus, _, _ = folder.name.partition("-gpus-")
    for other in folder.parent.glob(f"{gpus}-gpus-*"):
        if other != folder or not (other / COMPLETE).exists():
            shutil.rmtree(other)


def _process(address: str, folder: Path, gpus: int, steps: Collection[str]) -> dict[str, Any]:
    os.environ["DATABASE_URL"] = address
    os.environ["GPUPOOL_LINE_LENGTH"] = "day"  # the default in production
    import django

    django.setup()
    from django.test.utils import setup_test_environment

    from benchmarks.telemetry_month import page_times

    setup_test_environment()
    figures = _year(folder, gpus, sample_path.START)
    if "dashboards" in steps:
        figures |= page_times.time_dashboards(sample_path.START)
    if "metrics" in steps:
        figures |= {"metrics_ms": round(metrics_milliseconds(), 1)}
    return figures


def _year(folder: Path, gpus: int, end: datetime) -> dict[str, Any]:
    """Write the year unless it is complete. Return its figures."""
    place = folder / COMPLETE
    if place.exists():
        return {**json.loads(place.read_text()), "year_kept": True}
    from benchmarks.money_month.bulk_load import as_owner
    from benchmarks.telemetry_month import year_rows

    began = time.perf_counter()
    figures = year_rows.write_year(gpus, end, random.Random(SEED))
    figures |= year_rows.charge_year(end)
    with as_owner() as cursor:
        cursor.execute("VACUUM ANALYZE")
    figures["year_write_s"] = round(time.perf_counter() - began, 1)
    place.write_text(json.dumps(figures))
    return {**figures, "year_kept": False}
