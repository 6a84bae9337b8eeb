"""Send, store, roll up and show the telemetry of a large organisation.

    ./run bench telemetry --gpus 10000 --json

Samples go through the real path: frames, the stream, the ingest and the rollups.
``docs/benchmarks.md`` describes each figure.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Collection
from typing import Any

from benchmarks.telemetry_month import sample_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

SERVICES = ("postgres", "valkey")
SEED = 42
FAULT_MINUTES = 30
STEPS = ("path", "live", "packed", "rebuild", "sql", "dashboards", "metrics", "fields", "planted", "forecast")
SAMPLE_STEPS = frozenset({"path", "live", "packed", "rebuild", "sql"})


def main(argv: list[str]) -> dict[str, Any]:
    """Return the figures of the chosen steps; of all steps without ``--only``."""
    parser = argparse.ArgumentParser(prog="./run bench telemetry", description=__doc__)
    parser.add_argument("--gpus", type=_between(64, 100_000), default=10_000)
    parser.add_argument("--hours", type=_between(1, 24), default=24, help="hours of samples at once")
    parser.add_argument("--live", type=_between(1, 600), default=20, help="minutes of samples as they come")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS, help="measure only these steps")
    options = parser.parse_args(argv)

    import django

    django.setup()
    from django.test.utils import setup_test_environment

    setup_test_environment()
    figures = measure(
        options.gpus, options.hours, options.live, options.only, sample_path.roll_up_in_own_process
    )
    return {"gpus": options.gpus, "hours": options.hours, **figures, "load": round(os.getloadavg()[1], 1)}


def measure(
    gpus: int, hours: int, live: int, steps: Collection[str], roll_up: sample_path.RollUp
) -> dict[str, Any]:
    """Measure the steps. ``roll_up`` rolls up the samples of a number of minutes."""
    from benchmarks import telemetry_forecast, telemetry_planted
    from benchmarks.telemetry_month import kept_year
    from telemetry.dcgm.fields import READ_FIELDS

    figures: dict[str, Any] = {}

    def step(name: str, run: Callable[[], dict[str, Any]]) -> None:
        began = time.perf_counter()
        found = run()
        figures.update(found)
        print(f"{name}: {time.perf_counter() - began:.1f} s {found}", flush=True)

    if SAMPLE_STEPS & set(steps):
        _measure_samples(sample_path.make_fleet(gpus), hours, live, set(steps), roll_up, step)
    if kept_year.PAGE_STEPS & set(steps):
        step("pages", lambda: kept_year.measure_pages(gpus, steps))
    if "fields" in steps:
        step("fields", lambda: {"dcgm_fields_read": len(READ_FIELDS)})
    if "planted" in steps:
        step("planted", telemetry_planted.measure)
    if "forecast" in steps:
        step("forecast", telemetry_forecast.measure)
    return figures


def _measure_samples(
    fleet: sample_path.SampleFleet,
    hours: int,
    live: int,
    steps: Collection[str],
    roll_up: sample_path.RollUp,
    step: Callable[[str, Callable[[], dict[str, Any]]], None],
) -> None:
    from benchmarks.telemetry_month import other_sums, packed_day

    if {"path", "rebuild"} & set(steps):
        step("ingest", lambda: sample_path.ingest_hours(fleet, hours * 60))
        step("rollups", lambda: roll_up(fleet.minutes))
    if "path" in steps:
        step("stored", sample_path.stored_rollups)
    if "live" in steps:
        step("live", lambda: sample_path.live_minutes(fleet, live))
    if "path" in steps:
        step("faults", lambda: sample_path.inject_faults(fleet, FAULT_MINUTES, random.Random(SEED)))
        fleet.minutes += FAULT_MINUTES
    if "packed" in steps:
        step("packed", lambda: packed_day.pack_day(fleet, random.Random(SEED)))
    if "rebuild" in steps:
        step("rebuild", lambda: sample_path.rebuild_differences(1))
    if "sql" in steps:
        step("sql", lambda: other_sums.sql_differences(fleet, random.Random(SEED)))


def _between(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text[:20]) <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {low} to {high}")
        return int(text)

    return read
