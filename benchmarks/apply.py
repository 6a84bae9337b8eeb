"""Measure the database cost of a planning cycle on a large pool.

    ./run bench apply --gpus 10000 --placements 100

A cycle reads a snapshot of the pool, plans, and writes ("applies") the plan. The figures are:

- ``seconds``: time of the whole snapshot and the apply, in the fastest of ``--rounds`` cycles.
- ``queries``: number of SQL queries of the snapshot and the apply. It does not depend on the size of the pool
  or of the plan.
- ``cpu_seconds``: CPU time of this process and of its database connection. Unlike ``seconds``, it is not
  increased by other load on the machine.
- ``warm_seconds``: time to update the snapshot that the engine caches between cycles. Before each update,
  ``--placements`` jobs were placed and the same number of new jobs was queued.
- ``quiet_seconds``: time of a whole cycle in which nothing has changed.
- ``recording_seconds``: time to prepare the recording of the cycle, before any row is locked. The time to
  write the recording is part of the apply.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.harness.processor_time import processor_seconds

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

SERVICES = ("postgres", "valkey")


def main(argv: list[str]) -> dict[str, Any]:
    """Measure ``--rounds`` cycles. Before each cycle, ``--placements`` new jobs are queued."""
    parser = argparse.ArgumentParser(prog="./run bench apply", description=__doc__)
    parser.add_argument("--gpus", type=_between(8, 100_000), default=10_000)
    parser.add_argument("--placements", type=_between(1, 1_000), default=100)
    parser.add_argument("--waiting", type=_between(0, 100_000), default=1_000)
    parser.add_argument("--rounds", type=_between(1, 50), default=5)
    options = parser.parse_args(argv)

    import django

    django.setup()
    return _measure(options.gpus, options.placements, options.waiting, options.rounds)


def _measure(gpus: int, placements: int, waiting: int, rounds: int) -> dict[str, Any]:
    from django.db import connection

    from benchmarks.harness.pool_rows import make_pool_rows, queue_jobs
    from scheduler.cycle import engine
    from scheduler.cycle.snapshot_cache import SnapshotCache

    now = datetime.now(UTC).replace(microsecond=0)
    fleet = make_pool_rows(gpus, waiting, now)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    warm = SnapshotCache()
    # The first cycle acquires the leadership. It also writes for each waiting job why the job cannot start.
    engine.run_cycle("bench", now, cache=warm)
    cycles, warm_times, quiet_times = [], [], []
    for number in range(rounds):
        now += timedelta(seconds=2)
        queue_jobs(fleet, placements, now, first=number * placements)
        cycles.append(_cycle(now, placements))
        queue_jobs(fleet, placements, now, first=number * placements)
        warm_times.append(_seconds(lambda: warm.refresh(_epoch(), now)))  # noqa: B023 (called at once)
        engine.run_cycle("bench", now, cache=warm)
        engine.run_cycle("bench", now, cache=warm)
        quiet_times.append(_seconds(lambda: engine.run_cycle("bench", now, cache=warm)))  # noqa: B023
    best = min(cycles, key=lambda cycle: float(cycle["seconds"]))
    return {
        **best,
        "queries": max(int(cycle["queries"]) for cycle in cycles),
        "warm_seconds": min(warm_times),
        "quiet_seconds": min(quiet_times),
        "gpus": gpus,
        "waiting": waiting,
    }


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return round(time.perf_counter() - began, 4)


def _epoch() -> int:
    from scheduler.models import Leader

    return Leader.objects.get(pk=1).epoch


def _cycle(now: datetime, placements: int) -> dict[str, Any]:
    """Measure the parts of one cycle, and count the SQL queries of its snapshot and its apply."""
    from django.db import connection

    from scheduler.core.model.snapshot_delta import sort_rows
    from scheduler.core.planner import plan
    from scheduler.cycle import core_values, snapshot
    from scheduler.cycle.apply import apply_plan
    from scheduler.cycle.recording import CycleRecorder

    query_counter = _QueryCounter()
    started, cpu_before = time.perf_counter(), processor_seconds()
    with connection.execute_wrapper(query_counter):
        state = snapshot.take_snapshot(None, now)
    snapshot_seconds, cpu = time.perf_counter() - started, processor_seconds() - cpu_before
    started = time.perf_counter()
    decisions = plan(state, core_values.epoch_seconds(now))
    plan_seconds = time.perf_counter() - started
    recorder, ordered = CycleRecorder(), sort_rows(state)
    # The first recording includes all hardware and is larger than later ones. Write it before the
    # measurement.
    _keep(
        recorder,
        dataclasses.replace(ordered, queued=ordered.queued[1:]),
        decisions,
        core_values.epoch_seconds(now),
        now,
    )
    started = time.perf_counter()
    prepared = recorder.prepare(ordered, decisions, core_values.epoch_seconds(now), now)
    preparing_seconds = time.perf_counter() - started
    started, cpu_before = time.perf_counter(), processor_seconds()
    with connection.execute_wrapper(query_counter):
        applied = apply_plan(decisions, state, now, write_recording=lambda: recorder.write(prepared, now))
    apply_seconds, cpu = time.perf_counter() - started, cpu + processor_seconds() - cpu_before
    if len(applied.accepted) != placements:
        raise SystemExit(
            f"gpupool: {len(applied.accepted)} of {placements} jobs were placed;"
            f" rejected: {applied.rejected[:3]}"
        )
    return {
        "queries": query_counter.count,
        "seconds": round(snapshot_seconds + apply_seconds, 4),
        "cpu_seconds": round(cpu, 4),
        "snapshot_seconds": round(snapshot_seconds, 4),
        "apply_seconds": round(apply_seconds, 4),
        "plan_seconds": round(plan_seconds, 4),
        "recording_seconds": round(preparing_seconds, 4),
        "placed": len(applied.accepted),
        "reasons_written": applied.reasons_written,
    }


def _keep(recorder: Any, state: Any, decisions: Any, planned_at: int, now: datetime) -> None:
    """Prepare, write and commit one recording of a cycle."""
    prepared = recorder.prepare(state, decisions, planned_at, now)
    recorder.write(prepared, now)
    recorder.committed(prepared, now)


class _QueryCounter:
    """A counter of SQL queries. It is an execute wrapper of the Django connection."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        self.count += 1
        return execute(sql, params, many, context)


def _between(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text[:20]) <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {low} to {high}")
        return int(text)

    return read
