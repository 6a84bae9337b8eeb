"""Collect the temperature, the throttling and the memory errors of GPUs for alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Q

from scheduler.models import Gpu
from telemetry.alerts.alert_values import AlertEvaluation, KindValues, SubjectValue
from telemetry.core.alerts.judgement import AlertValue
from telemetry.core.alerts.kinds import AlertKind
from telemetry.models import HealthEvent, SlowReading, sample_bins
from telemetry.sql_values import array_text, time_array_text

CURRENT = timedelta(seconds=90)  # longest age of a present reading
MIN_MINUTES_SHARE = 0.8  # part of the minutes of a window that must have a reading
# Clock event reasons of NVML: hardware slowdown, thermal slowdown of the driver and of the hardware, and the
# power brake. A power cap is normal under load, so it is no throttling here.
THROTTLE_BITS = 0x08 | 0x20 | 0x40 | 0x80
# Counters of errors that the hardware could not correct, or for which it replaced memory.
ERROR_READINGS = (
    "ecc_uncorrected",
    "ecc_uncorrected_volatile",
    "remapped_rows_uncorrected",
    "retired_pages_uncorrected",
)
_CANDIDATES_SQL = f"""
SELECT DISTINCT gpu.id
FROM scheduler_unit AS unit
JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id
JOIN LATERAL (
    SELECT temperature_c, throttle_reasons FROM telemetry_sample AS x
    WHERE x.unit_id = unit.id AND x.ts > %(first)s AND x.ts <= %(now)s
        AND {sample_bins("x.ts", "%(first)s", "%(now)s")}
    ORDER BY x.ts DESC LIMIT 1) AS last ON true
WHERE unit.retired_at IS NULL AND gpu.retired_at IS NULL
    AND (last.temperature_c >= %(hot)s OR last.throttle_reasons & %(throttled)s <> 0)
"""
_WINDOWS_SQL = f"""
SELECT wanted.gpu_id,
    min(x.temperature_c) FILTER (WHERE x.ts >= hot_begin),
    count(DISTINCT x.minute) FILTER (WHERE x.ts >= hot_begin AND x.temperature_c IS NOT NULL),
    max(x.temperature_c) FILTER (WHERE x.ts >= hot_end),
    count(DISTINCT x.minute) FILTER (WHERE x.ts >= hot_end AND x.temperature_c IS NOT NULL),
    avg(x.throttled) FILTER (WHERE x.ts >= slow_begin),
    count(DISTINCT x.minute) FILTER (WHERE x.ts >= slow_begin AND x.throttled IS NOT NULL),
    avg(x.throttled) FILTER (WHERE x.ts >= slow_end),
    count(DISTINCT x.minute) FILTER (WHERE x.ts >= slow_end AND x.throttled IS NOT NULL)
FROM unnest(%(gpus)s::bigint[], %(hot_begin)s::timestamptz[], %(hot_end)s::timestamptz[],
        %(slow_begin)s::timestamptz[], %(slow_end)s::timestamptz[])
    AS wanted (gpu_id, hot_begin, hot_end, slow_begin, slow_end)
JOIN scheduler_unit AS unit ON unit.gpu_id = wanted.gpu_id AND unit.retired_at IS NULL
CROSS JOIN LATERAL (
    SELECT ts, temperature_c, date_trunc('minute', ts) AS minute,
        100.0 * (throttle_reasons & %(throttled)s <> 0)::int AS throttled
    FROM telemetry_sample WHERE unit_id = unit.id AND ts >= %(first)s AND ts <= %(now)s
        AND {sample_bins("ts", "%(first)s", "%(now)s")}) AS x
GROUP BY 1
"""
# The unique index of the readings finds the rows of each pair of GPU and reading.
_GROWTH_SQL = """
SELECT reading.gpu_id, reading.at, reading.reading, reading.value - before.value
FROM scheduler_gpu AS gpu
CROSS JOIN unnest(%s::text[]) AS wanted (reading)
CROSS JOIN unnest(%s::text[]) AS origin (source)
JOIN telemetry_slowreading AS reading ON reading.gpu_id = gpu.id AND reading.reading = wanted.reading
    AND reading.source = origin.source AND reading.at > %s AND reading.at <= %s
JOIN LATERAL (
    SELECT x.value FROM telemetry_slowreading AS x
    WHERE x.gpu_id = reading.gpu_id AND x.reading = reading.reading AND x.source = reading.source
        AND x.at < reading.at ORDER BY x.at DESC LIMIT 1) AS before ON before.value < reading.value
WHERE gpu.retired_at IS NULL
"""


@dataclass(frozen=True)
class _GpuPlace:
    pool: int
    host: int


def gpu_values(evaluation: AlertEvaluation) -> KindValues:
    """Return the values of GPUs that may be hot, throttled or faulty, and of GPUs with an open alert.

    Runs at most five queries.
    """
    kinds = (AlertKind.HOT, AlertKind.THROTTLED, AlertKind.ECC_GROWTH)
    candidates = _candidates(evaluation)
    errors = _errors(evaluation)
    places = _places(candidates | set(errors) | evaluation.open_subjects(*kinds))
    values: KindValues = {kind: {} for kind in kinds}
    wanted = {gpu: places[gpu] for gpu in candidates | evaluation.open_subjects(*kinds[:2]) if gpu in places}
    for gpu, (hot, throttled) in _windows(evaluation, wanted).items():
        links = {"gpu_id": gpu, "host_id": places[gpu].host}
        values[AlertKind.HOT][gpu] = SubjectValue(places[gpu].pool, hot, links)
        values[AlertKind.THROTTLED][gpu] = SubjectValue(places[gpu].pool, throttled, links)
    for gpu in (set(errors) | evaluation.open_subjects(AlertKind.ECC_GROWTH)) & places.keys():
        value = _error_value(evaluation, places[gpu].pool, errors.get(gpu, []))
        links = {"gpu_id": gpu, "host_id": places[gpu].host}
        values[AlertKind.ECC_GROWTH][gpu] = SubjectValue(places[gpu].pool, value, links)
    return values


def _candidates(evaluation: AlertEvaluation) -> set[int]:
    """Return the GPUs that are hot or throttled by their last reading."""
    with connection.cursor() as cursor:
        cursor.execute(
            _CANDIDATES_SQL,
            {
                "first": evaluation.now - CURRENT,
                "now": evaluation.now,
                "hot": evaluation.rules.lowest_begin(AlertKind.HOT),
                "throttled": THROTTLE_BITS,
            },
        )
        return {gpu for (gpu,) in cursor.fetchall()}


def _places(gpus: set[int]) -> dict[int, _GpuPlace]:
    rows = Gpu.objects.filter(pk__in=gpus, retired_at=None, host__removed_at=None)
    return {
        pk: _GpuPlace(pool, host) for pk, pool, host in rows.values_list("pk", "host__pool_id", "host_id")
    }


def _windows(
    evaluation: AlertEvaluation, places: Mapping[int, _GpuPlace]
) -> dict[int, tuple[AlertValue, AlertValue]]:
    """Return the temperature and the throttling of each GPU; unknown without readings."""
    if not places:
        return {}
    now = evaluation.now
    starts = {
        gpu: (
            *evaluation.window_starts(place.pool, AlertKind.HOT, now),
            *evaluation.window_starts(place.pool, AlertKind.THROTTLED, now),
        )
        for gpu, place in places.items()
    }
    columns = {
        name: time_array_text(of_gpu[number] for of_gpu in starts.values())
        for number, name in enumerate(("hot_begin", "hot_end", "slow_begin", "slow_end"))
    }
    parameters: dict[str, Any] = {
        "gpus": array_text(starts),
        **columns,
        "throttled": THROTTLE_BITS,
        "first": min(start for of_gpu in starts.values() for start in of_gpu),
        "now": now,
    }
    with connection.cursor() as cursor:
        cursor.execute(_WINDOWS_SQL, parameters)
        rows = {row[0]: row[1:] for row in cursor.fetchall()}
    found = {}
    for gpu, of_gpu in starts.items():
        row = rows.get(gpu, (None, 0) * 4)
        parts = [
            _if_measured(row[2 * number], row[2 * number + 1], now - of_gpu[number]) for number in range(4)
        ]
        hot_rule = evaluation.rules.of(places[gpu].pool, AlertKind.HOT)
        slow_rule = evaluation.rules.of(places[gpu].pool, AlertKind.THROTTLED)
        found[gpu] = (
            AlertValue(parts[0], parts[1], {"minutes": hot_rule.begin_minutes}),
            AlertValue(parts[2], parts[3], {"minutes": slow_rule.begin_minutes}),
        )
    return found


def _if_measured(value: Any, minutes: int, window: timedelta) -> float | None:
    """Return the value if enough minutes of the window have a reading."""
    if value is None or minutes < window / timedelta(minutes=1) * MIN_MINUTES_SHARE:
        return None
    return round(float(value), 1)


Errors = list[tuple[datetime, int]]


def _errors(evaluation: AlertEvaluation) -> dict[int, Errors]:
    """Return the times and the numbers of uncorrected memory errors in the longest window, by GPU.

    One error can be counted by several counters and by an event. The one with the most errors counts.
    """
    since = evaluation.now - timedelta(minutes=evaluation.rules.longest_minutes(AlertKind.ECC_GROWTH))
    kinds = Q(code__startswith="ecc:") | Q(code__startswith="remap:")
    reported = HealthEvent.objects.filter(kinds, gpu__isnull=False, at__gt=since, at__lte=evaluation.now)
    events: dict[int, Errors] = {}
    for gpu, at in reported.values_list("gpu_id", "at"):
        events.setdefault(gpu, []).append((at, 1))
    counters: dict[int, dict[str, Errors]] = {}
    with connection.cursor() as cursor:
        sources = list(SlowReading.Source.values)
        cursor.execute(_GROWTH_SQL, [list(ERROR_READINGS), sources, since, evaluation.now])
        for gpu, at, reading, growth in cursor.fetchall():
            counters.setdefault(gpu, {}).setdefault(reading, []).append((at, growth))
    found = dict(events)
    for gpu, by_reading in counters.items():
        found[gpu] = max([found.get(gpu, []), *by_reading.values()], key=_total)
    return found


def _total(errors: Errors) -> int:
    return sum(count for _, count in errors)


def _error_value(evaluation: AlertEvaluation, pool: int, errors: Errors) -> AlertValue:
    begin, end = evaluation.window_starts(pool, AlertKind.ECC_GROWTH, evaluation.now)
    in_begin = _total([each for each in errors if each[0] > begin])
    in_end = _total([each for each in errors if each[0] > end])
    minutes = evaluation.rules.of(pool, AlertKind.ECC_GROWTH).begin_minutes
    return AlertValue(in_begin, in_end, {"minutes": minutes})
