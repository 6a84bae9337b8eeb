"""Generate a year of work with its rollups of hours and days, their cubes, and its charges.

Jobs hold their units for whole days, so that each unit has one allocation per day. The values of a day are
one of ``PATTERNS`` patterns. They are written in the packed form. The product computes the cubes and the
charges.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from benchmarks.money_month.organisation_rows import GeneratedOrganisation, make_organisation
from benchmarks.money_month.work_rows import TYPE_WEIGHTS, TYPES, Job, Lane, lanes_of, write_jobs
from telemetry.rollups.cubes import write_cubes
from telemetry.rollups.storage import ROLLUP_MEASURES

DAYS = 365
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
PATTERNS = 64
LONGEST_JOB_DAYS, PAUSE_SHARE, LONGEST_PAUSE_DAYS = 28, 0.5, 4
FIRST_ID = 1_000_000  # workloads, runs and allocations of the year have ids from here on
GPUS_PER_PROJECT = 20
HOUR_MICROS = 3_600_000_000
_NAMES = ", ".join(ROLLUP_MEASURES)
_HOURS_SQL = f"""
INSERT INTO {{table}} (container, unit_id, allocation_id, simulated, {_NAMES})
SELECT day, held.unit_id, held.id, false, {", ".join(f"pattern.{name}" for name in ROLLUP_MEASURES)}
FROM scheduler_allocation AS held JOIN bench_pattern AS pattern ON pattern.number = held.id %% %s
    AND pattern.hours = %s
CROSS JOIN LATERAL generate_series(greatest(lower(held.period), %s),
    least(upper(held.period), %s) - interval '1 day', interval '1 day') AS day
WHERE held.id >= %s AND held.period && tstzrange(%s, %s)
"""


def write_year(gpus: int, end: datetime, rng: random.Random) -> dict[str, Any]:
    """Write the year that ends at ``end``. Return the number of its jobs."""
    start = end - DAYS * DAY
    organisation = make_organisation(gpus, max(10, gpus // GPUS_PER_PROJECT), start, end, rng)
    jobs = [job for lane in lanes_of(organisation.hosts) for job in _jobs(organisation, lane, rng)]
    numbered = [
        Job(FIRST_ID + n, j.lane, j.start, j.end, j.project, j.kind, j.type, j.end_code, None)
        for n, j in enumerate(jobs)
    ]
    write_jobs(organisation, numbered, rng, FIRST_ID)
    _write_patterns(rng)
    for month, next_month in _months(start, end):
        with transaction.atomic():
            _write_month(month, next_month)
    day = start
    while day < end:
        with transaction.atomic():
            write_cubes([day + hour * HOUR for hour in range(24)], end)
        day += DAY
    return {"year_jobs": len(numbered)}


def charge_year(end: datetime) -> dict[str, Any]:
    """Charge the year that ends at ``end``, month by month. Return the number of its charge lines."""
    from benchmarks.money_month.ledger_times import charge_month

    lines = 0
    for month, next_month in _months(end - DAYS * DAY, end):
        lines = charge_month(month, next_month)["lines"]
    return {"year_charge_lines": lines}


def _jobs(organisation: GeneratedOrganisation, lane: Lane, rng: random.Random) -> list[Job]:
    found, day = [], rng.randint(0, LONGEST_PAUSE_DAYS)
    while day < DAYS:
        last = min(DAYS, day + rng.randint(1, LONGEST_JOB_DAYS))
        kind, work_type = rng.choices(TYPES, TYPE_WEIGHTS)[0]
        project = lane.host.project or rng.choice(organisation.projects)
        begin, end = ((organisation.start + at * DAY).timestamp() for at in (day, last))
        found.append(Job(0, lane, begin, end, project, kind, work_type, "finished", None))
        day = last + (rng.randint(1, LONGEST_PAUSE_DAYS) if rng.random() < PAUSE_SHARE else 0)
    return found


def _months(start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    edges, at = [start], start
    while at < end:
        at = min((at.replace(day=1) + 32 * DAY).replace(day=1), end)
        edges.append(at)
    return list(zip(edges, edges[1:], strict=False))


def _write_patterns(rng: random.Random) -> None:
    columns = ", ".join(f"{name} bigint[]" for name in ROLLUP_MEASURES)
    marks = ", ".join(["%s"] * (2 + len(ROLLUP_MEASURES)))
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE bench_pattern (number integer, hours integer, {columns})")
        for number in range(PATTERNS):
            hours = [_hour(rng) for _ in range(24)]
            arrays = {name: [hour[name] for hour in hours] for name in ROLLUP_MEASURES}
            maxima = ("utilisation_max", "memory_used_max_mib")
            of_day = {name: [max(v) if name in maxima else sum(v)] for name, v in arrays.items()}
            for length, values in ((24, arrays), (1, of_day)):
                row: list[Any] = [number, length, *(values[name] for name in ROLLUP_MEASURES)]
                cursor.execute(f"INSERT INTO bench_pattern VALUES ({marks})", row)


def _hour(rng: random.Random) -> dict[str, int]:
    busy = rng.randint(0, HOUR_MICROS)
    idle = rng.randint(0, HOUR_MICROS - busy)
    return {
        "held_seconds": HOUR_MICROS,
        "covered_seconds": HOUR_MICROS,
        "utilisation_seconds": busy * 4 // 5,
        "utilisation_max": rng.randint(50, 100) * 1_000_000,
        "busy_seconds": busy,
        "inefficient_seconds": busy // 5,
        "sm_unmeasured_seconds": 0,
        "idle_seconds": idle,
        "empty_seconds": HOUR_MICROS - busy - idle,
        "sm_active_seconds": busy // 2,
        "tensor_active_seconds": busy // 4,
        "samples": 360,
        "memory_used_max_mib": rng.randint(1_000, 80_000),
        "energy_mj": rng.randint(300_000_000, 2_400_000_000),
        "energy_faults": 0,
        "utilisation_unknown_seconds": 0,
        "sm_unknown_seconds": 0,
    }


def _write_month(start: datetime, end: datetime) -> None:
    with connection.cursor() as cursor:
        for resolution, table, hours in (
            (3_600, "telemetry_rolluphours", 24),
            (86_400, "telemetry_rollupdays", 1),
        ):
            cursor.execute("SELECT telemetry_make_rollup_partition(%s, %s)", [resolution, start])
            period = [start, end]
            values: list[Any] = [PATTERNS, hours, *period, FIRST_ID, *period]
            cursor.execute(_HOURS_SQL.format(table=table), values)
