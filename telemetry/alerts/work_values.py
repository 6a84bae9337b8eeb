"""Collect the use of the GPUs of running jobs, for alerts about held and unused GPUs.

The number of queries does not depend on the number of GPUs. Only jobs with a GPU that was not busy in the
last minute, and jobs with an open alert, are read over longer times. Notebooks are left out: their pool has
an idle limit of its own (docs/notebooks.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from scheduler.models import Allocation, WorkloadKind
from scheduler.state.states import WorkloadState
from telemetry.alerts.alert_values import AlertEvaluation, KindValues, SubjectValue
from telemetry.core.alerts.judgement import AlertValue
from telemetry.core.alerts.kinds import USE_KINDS, AlertKind
from telemetry.core.alerts.unit_use import (
    QuietSignal,
    UnitActivity,
    empty_percent,
    is_confirmed_unused,
    over_asked_percent,
    unused_percent,
)
from telemetry.core.rollup import BUSY_PERCENT
from telemetry.models import Rollup, sample_bins
from telemetry.rollups.storage import rollup_condition
from telemetry.sql_values import array_text, time_array_text

MINUTE = timedelta(minutes=1)
# A GPU that was busy for more than this share of the last minute is in use.
MAX_BUSY_SHARE_OF_MINUTE = 0.5
_CANDIDATES_SQL = """
SELECT DISTINCT held.workload_id
FROM (SELECT allocation_id FROM telemetry_rollup
      WHERE {minute} AND allocation_id IS NOT NULL AND busy_seconds <= covered_seconds * %s) AS used
JOIN scheduler_allocation AS held ON held.id = used.allocation_id
JOIN scheduler_workload AS work ON work.id = held.workload_id
WHERE work.kind = %s AND work.state = %s AND NOT work.simulated AND lower(held.period) <= %s
"""
_WINDOWS = tuple((kind, part) for kind in USE_KINDS for part in ("begin", "end"))
# The fields of UnitActivity in their order. The last one is the time whose utilisation or SM activity is
# known.
_PARTS = (
    *("used.busy_seconds", "used.idle_seconds", "used.empty_seconds"),
    "CASE WHEN coalesce(used.utilisation_seconds, used.sm_active_seconds) IS NOT NULL"
    " THEN used.covered_seconds END",
)
_SUMS = ", ".join(
    f"sum({part}) FILTER (WHERE used.bucket >= wanted.start_{number})"
    for number in range(len(_WINDOWS))
    for part in _PARTS
)
_STARTS = ", ".join(f"start_{number}" for number in range(len(_WINDOWS)))
_ACTIVITY_SQL = f"""
SELECT used.allocation_id, {_SUMS}
FROM (SELECT * FROM telemetry_rollup WHERE allocation_id = ANY(%s::bigint[]) AND {{minutes}}) AS used
JOIN unnest(%s::bigint[]{", %s::timestamptz[]" * len(_WINDOWS)}) AS wanted (allocation_id, {_STARTS})
    ON wanted.allocation_id = used.allocation_id
GROUP BY used.allocation_id
"""
_SIGNALS_SQL = f"""
SELECT wanted.unit_id, wanted.start, avg(x.power_w), stddev_pop(x.power_w),
    avg(x.pcie_rx_kib + x.pcie_tx_kib), avg(x.dram_active)
FROM unnest(%(units)s::bigint[], %(starts)s::timestamptz[]) AS wanted (unit_id, start)
JOIN telemetry_sample AS x ON x.unit_id = wanted.unit_id AND x.ts >= wanted.start
WHERE x.ts >= %(first)s AND x.ts < %(until)s AND {sample_bins("x.ts", "%(first)s", "%(until)s")}
GROUP BY 1, 2
"""
_USED_SINCE_SQL = f"""
SELECT EXISTS (
    SELECT 1 FROM scheduler_allocation AS held
    JOIN telemetry_sample AS x ON x.unit_id = held.unit_id AND x.ts >= %(since)s AND held.period @> x.ts
        AND {sample_bins("x.ts", "%(since)s", "'infinity'::timestamptz")}
    WHERE held.workload_id = %(workload)s AND upper_inf(held.period)
        AND (coalesce(x.utilisation, x.sm_active) >= %(busy)s OR (%(with_processes)s AND x.processes > 0)))
"""
Window = tuple[AlertKind, str]
Signals = Mapping[tuple[int, datetime], QuietSignal]


@dataclass(frozen=True)
class UnitOfJob:
    """A unit that a running job holds."""

    allocation: int
    unit: int
    workload: int
    pool: int
    model: str
    since: datetime


def work_values(evaluation: AlertEvaluation) -> KindValues:
    """Return the use of jobs whose GPUs may be unused, and of jobs with an open alert.

    Runs at most four queries.
    """
    workloads = _candidates(evaluation) | evaluation.open_subjects(*USE_KINDS)
    held = _held_units(workloads) if workloads else {}
    if not held:
        return {}
    activity = _activity(evaluation, [unit for units in held.values() for unit in units])
    values = _values_by_first_signal(evaluation, held, activity)
    return _confirmed(evaluation, held, activity, values)


def was_used_since(workload: int, since: datetime, *, with_processes: bool) -> bool:
    """Return True if a sample after ``since`` shows that the work uses a GPU.

    These samples are not in the rollups yet. With ``with_processes``, a process on the GPU is a use too.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            _USED_SINCE_SQL,
            {"since": since, "workload": workload, "busy": BUSY_PERCENT, "with_processes": with_processes},
        )
        return bool(cursor.fetchone()[0])


def _candidates(evaluation: AlertEvaluation) -> set[int]:
    """Return running jobs that held a GPU long enough, and did not use it in the last minute."""
    minute, parameters = rollup_condition(
        Rollup.Resolution.MINUTE, evaluation.until - MINUTE, evaluation.until
    )
    shortest = timedelta(minutes=evaluation.rules.shortest_begin_minutes(USE_KINDS))
    with connection.cursor() as cursor:
        cursor.execute(
            _CANDIDATES_SQL.format(minute=minute),
            [
                *parameters,
                MAX_BUSY_SHARE_OF_MINUTE,
                WorkloadKind.JOB,
                WorkloadState.RUNNING,
                evaluation.until - shortest,
            ],
        )
        return {workload for (workload,) in cursor.fetchall()}


def _held_units(workloads: Collection[int]) -> dict[int, list[UnitOfJob]]:
    """Return the units that running jobs hold, by workload."""
    found: dict[int, list[UnitOfJob]] = defaultdict(list)
    rows = Allocation.objects.filter(
        workload__in=workloads, period__upper_inf=True, workload__state=WorkloadState.RUNNING
    )
    columns = ("pk", "unit_id", "workload_id", "workload__pool_id", "unit__gpu__model", "period")
    for pk, unit, workload, pool, model, period in rows.order_by("pk").values_list(*columns):
        found[workload].append(UnitOfJob(pk, unit, workload, pool, model, period.lower))
    return found


def _activity(
    evaluation: AlertEvaluation, units: Sequence[UnitOfJob]
) -> dict[tuple[int, Window], UnitActivity]:
    """Return the activity of each allocation in each window, as the rollups have it."""
    starts = {unit.allocation: _window_starts(evaluation, unit.pool) for unit in units}
    first = min(start for of_unit in starts.values() for start in of_unit.values())
    minutes, parameters = rollup_condition(Rollup.Resolution.MINUTE, first, evaluation.until)
    ids = array_text(starts)
    columns = [time_array_text(of_unit[window] for of_unit in starts.values()) for window in _WINDOWS]
    with connection.cursor() as cursor:
        cursor.execute(_ACTIVITY_SQL.format(minutes=minutes), [ids, *parameters, ids, *columns])
        sums = {row[0]: row[1:] for row in cursor.fetchall()}
    found = {}
    for unit in units:
        row = sums.get(unit.allocation, (None,) * len(_WINDOWS) * len(_PARTS))
        for number, window in enumerate(_WINDOWS):
            seconds = (evaluation.until - starts[unit.allocation][window]).total_seconds()
            parts = row[number * len(_PARTS) : (number + 1) * len(_PARTS)]
            found[unit.allocation, window] = UnitActivity(unit.unit, seconds, *parts)
    return found


def _window_starts(evaluation: AlertEvaluation, pool: int) -> dict[Window, datetime]:
    starts: dict[Window, datetime] = {}
    for kind in USE_KINDS:
        begin, end = evaluation.window_starts(pool, kind, evaluation.until)
        starts |= {(kind, "begin"): begin, (kind, "end"): end}
    return starts


def _values_by_first_signal(
    evaluation: AlertEvaluation,
    held: Mapping[int, list[UnitOfJob]],
    activity: Mapping[tuple[int, Window], UnitActivity],
) -> KindValues:
    values: KindValues = {kind: {} for kind in USE_KINDS}
    for workload, units in held.items():
        pool = units[0].pool
        for kind in USE_KINDS:
            start, _ = evaluation.window_starts(pool, kind, evaluation.until)
            is_long_enough = all(unit.since <= start for unit in units)
            windows = [
                _percent(evaluation, pool, kind, [activity[unit.allocation, (kind, part)] for unit in units])
                for part in ("begin", "end")
            ]
            value = AlertValue(windows[0] if is_long_enough else None, windows[1])
            values[kind][workload] = SubjectValue(pool, value, {"workload_id": workload})
    return values


def _percent(
    evaluation: AlertEvaluation, pool: int, kind: AlertKind, units: Sequence[UnitActivity]
) -> float | None:
    """Return the value of a kind. Work without any process is empty, and not idle."""
    if kind == AlertKind.OVER_ASKED:
        return over_asked_percent(units)
    empty = empty_percent(units)
    if kind == AlertKind.HELD_EMPTY or empty is None:
        return empty
    return 0.0 if empty >= evaluation.rules.of(pool, AlertKind.HELD_EMPTY).begin else unused_percent(units)


def _confirmed(
    evaluation: AlertEvaluation,
    held: Mapping[int, list[UnitOfJob]],
    activity: Mapping[tuple[int, Window], UnitActivity],
    values: KindValues,
) -> KindValues:
    """Return the values with their evidence. A value is unknown if no second signal confirms it.

    The second signal is read only where an alert would begin or unused work is due to be stopped.
    """
    unused: dict[tuple[AlertKind, int], list[UnitActivity]] = {}
    for kind, found in values.items():
        for workload, each in found.items():
            rule, percent = evaluation.rules.of(each.pool, kind), each.value.to_begin
            if percent is None or percent < rule.begin or not _is_judged(evaluation, kind, workload):
                continue
            units = [activity[unit.allocation, (kind, "begin")] for unit in held[workload]]
            unused[kind, workload] = [unit for unit in units if not unit.was_used]
    signals = _signals(evaluation, values, unused)
    for (kind, workload), units in unused.items():
        each = values[kind][workload]
        start, _ = evaluation.window_starts(each.pool, kind, evaluation.until)
        is_sure = all(is_confirmed_unused(unit, signals.get((unit.unit, start))) for unit in units)
        evidence = _evidence(
            evaluation, kind, each, held[workload], units, [signals.get((u.unit, start)) for u in units]
        )
        value = replace(each.value, to_begin=each.value.to_begin if is_sure else None, evidence=evidence)
        values[kind][workload] = replace(each, value=value)
    return values


def _is_judged(evaluation: AlertEvaluation, kind: AlertKind, workload: int) -> bool:
    alert = evaluation.open_alerts.get(kind, {}).get(workload)
    return alert is None or (alert.stop_at is not None and alert.stop_at <= evaluation.now)


def _signals(
    evaluation: AlertEvaluation,
    values: KindValues,
    unused: Mapping[tuple[AlertKind, int], Sequence[UnitActivity]],
) -> Signals:
    wanted = {
        (unit.unit, evaluation.window_starts(values[kind][workload].pool, kind, evaluation.until)[0])
        for (kind, workload), units in unused.items()
        for unit in units
    }
    return quiet_signals(wanted, evaluation.until)


def quiet_signals(wanted: Collection[tuple[int, datetime]], until: datetime) -> Signals:
    """Return the signals of each (unit id, start of its window) with samples. Runs at most one query."""
    if not wanted:
        return {}
    units, starts = zip(*sorted(wanted), strict=True)
    with connection.cursor() as cursor:
        cursor.execute(
            _SIGNALS_SQL,
            {
                "units": array_text(units),
                "starts": time_array_text(starts),
                "first": min(starts),
                "until": until,
            },
        )
        return {
            (unit, start): QuietSignal(*(None if part is None else float(part) for part in parts))
            for unit, start, *parts in cursor.fetchall()
        }


def _evidence(
    evaluation: AlertEvaluation,
    kind: AlertKind,
    value: SubjectValue,
    held: Sequence[UnitOfJob],
    unused: Sequence[UnitActivity],
    signals: Sequence[QuietSignal | None],
) -> dict[str, Any]:
    powers = [each.power_mean_w for each in signals if each is not None and each.power_mean_w is not None]
    return {
        "gpus": len(held),
        "unused": len(unused),
        "model": held[0].model,
        "minutes": evaluation.rules.of(value.pool, kind).begin_minutes,
        "power_w": round(sum(powers) / len(powers)) if powers else None,
    }
