"""Compute the rollups of a day from its samples with other SQL, and count the differences.

The day has the irregularities of real samples: gaps, unknown readings, holds that begin and end within a
minute, and samples that are not on a whole second. Its samples arrive late, after those of later days.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from benchmarks.telemetry_month.sample_path import START, SampleFleet, send

DAY = START - timedelta(days=2)
HOSTS = 1
BATCH_MINUTES = 10
_MEASURES = ("covered", "utilisation", "busy", "idle", "empty")
_OTHER_SQL = """
WITH reading AS (
    SELECT unit_id, ts, utilisation, coalesce(utilisation, sm_active) AS activity, processes,
        greatest(lag(ts) OVER (PARTITION BY unit_id ORDER BY ts), ts - interval '30 seconds') AS since
    FROM telemetry_sample WHERE unit_id = ANY(%(units)s) AND ts >= %(start)s AND ts < %(end)s
        AND date_bin('5 minutes', ts, 'epoch') BETWEEN %(start)s AND %(end)s
), piece AS (
    SELECT reading.*, held.id AS allocation, minute,
        extract(epoch FROM least(ts, minute + interval '1 minute', upper(held.period))
            - greatest(since, minute, lower(held.period)))::float8 AS seconds
    FROM reading
    CROSS JOIN LATERAL generate_series(date_trunc('minute', since, 'UTC'),
        ts - interval '1 microsecond', interval '1 minute') AS minute
    JOIN scheduler_allocation AS held ON held.unit_id = reading.unit_id
        AND held.period && tstzrange(greatest(since, minute), least(ts, minute + interval '1 minute'))
    WHERE since < ts
), other AS (
    SELECT to_timestamp(extract(epoch FROM minute)::bigint / %(resolution)s * %(resolution)s) AS bucket,
        unit_id, allocation, sum(seconds) AS covered, sum(utilisation / 100 * seconds) AS utilisation,
        sum(seconds) FILTER (WHERE activity >= 5) AS busy,
        sum(seconds) FILTER (WHERE activity < 5 AND processes IS DISTINCT FROM 0) AS idle,
        sum(seconds) FILTER (WHERE processes = 0 AND activity IS DISTINCT FROM greatest(activity, 5)) AS empty
    FROM piece GROUP BY 1, 2, 3
), stored AS (
    SELECT bucket, unit_id, allocation_id AS allocation, covered_seconds AS covered,
        utilisation_seconds AS utilisation, busy_seconds AS busy, idle_seconds AS idle,
        empty_seconds AS empty
    FROM telemetry_rollup WHERE resolution = %(resolution)s AND bucket >= %(start)s AND bucket < %(end)s
        AND container >= %(start)s AND container < %(end)s AND unit_id = ANY(%(units)s)
        AND allocation_id IS NOT NULL AND covered_seconds > 0
)
SELECT count(*), count(*) FILTER (WHERE {differs})
FROM other FULL JOIN stored USING (bucket, unit_id, allocation)
"""
_DIFFERS = " OR ".join(f"abs(coalesce(other.{m}, 0) - coalesce(stored.{m}, 0)) > 0.001" for m in _MEASURES)


def sql_differences(fleet: SampleFleet, rng: random.Random) -> dict[str, Any]:
    """Send a day of samples of some hosts, roll it up, and compare minutes, hours and the day."""
    from django.db import connection

    from telemetry.rollups.roll_up import roll_up_due_buckets

    hosts = fleet.hosts[-HOSTS:]
    units = _units([host for host, _ in hosts])
    _hold(units, rng)
    send(list(_batches(fleet, hosts, rng)), fleet.now)
    roll_up_due_buckets(fleet.now, max_buckets=None)
    compared = differences = 0
    with connection.cursor() as cursor:
        for resolution in (60, 3_600, 86_400):
            period = {"start": DAY, "end": DAY + timedelta(days=1)}
            values: dict[str, Any] = {"units": units, "resolution": resolution, **period}
            cursor.execute(_OTHER_SQL.format(differs=_DIFFERS), values)
            rows, different = cursor.fetchone()
            compared, differences = compared + rows, differences + different
    return {"sql_differences_24h": differences, "sql_compared": compared}


def _units(hosts: list[int]) -> list[int]:
    from scheduler.models import Unit

    return list(Unit.objects.filter(gpu__host__in=hosts).order_by("pk").values_list("pk", flat=True))


def _hold(units: list[int], rng: random.Random) -> None:
    """Write holds of random lengths during the day. They begin and end at any microsecond."""
    from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

    from scheduler.models import Allocation, Unit

    like = Allocation.objects.select_related("run", "workload", "project").order_by("pk")[0]
    rows = []
    for unit in Unit.objects.filter(pk__in=units):
        edges = sorted(rng.sample(range(86_400_000_000), 40))
        for low, high in zip(edges[::2], edges[1::2], strict=True):
            period = DateTimeTZRange(*(DAY + timedelta(microseconds=edge) for edge in (low, high)))
            rows.append(
                Allocation(
                    run=like.run,
                    workload=like.workload,
                    project=like.project,
                    unit=unit,
                    slots=unit.slots,
                    period=period,
                    end_code="finished",
                )
            )
    Allocation.objects.bulk_create(rows)


def _batches(
    fleet: SampleFleet, hosts: list[tuple[int, list[str]]], rng: random.Random
) -> Iterator[tuple[int, Any]]:
    from agent.protocol import SampleBatch, SampleRow

    for host, uuids in hosts:
        for number in range(24 * 60 // BATCH_MINUTES):
            first = DAY + timedelta(minutes=number * BATCH_MINUTES)
            rows = [
                SampleRow(
                    unit=uuid,
                    ts=_sample_time(first, tick, rng),
                    utilisation=_maybe(rng, rng.choice([0.0, 3.0, float(rng.randint(5, 100))])),
                    sm_active=_maybe(rng, rng.uniform(0, 100)),
                    memory_used_mib=rng.randint(0, 80_000),
                    processes=_maybe(rng, rng.choice([0, 1])),
                )
                for tick in range(BATCH_MINUTES * 6)
                if rng.random() > 0.1  # lost samples make gaps
                for uuid in uuids
            ]
            yield host, SampleBatch(sequence=fleet.minutes + number + 1, rows=rows)


def _sample_time(first: datetime, tick: int, rng: random.Random) -> float:
    return (first + timedelta(seconds=tick * 10, microseconds=rng.randint(0, 4_000_000))).timestamp()


def _maybe(rng: random.Random, value: Any) -> Any:
    return None if rng.random() < 0.1 else value
