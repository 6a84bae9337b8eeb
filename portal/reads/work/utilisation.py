"""Read the GPU utilisation of many workloads at once. An unknown value is None, never zero."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import F, Sum
from django.db.models.functions import Coalesce

from telemetry.models import RunReportUnit
from telemetry.reads.live_readings import LiveUnitReading, live_unit_readings, minutes_of_workloads

UTILISATION_WINDOW = timedelta(hours=2)
UTILISATION_STEP = timedelta(minutes=2)


@dataclass(frozen=True)
class WorkloadUtilisation:
    """The utilisation of one workload, from 0 to 1. None means unknown.

    ``values`` has one mean for every two minutes of the last two hours. Unknown values at the end may be left
    out. ``latest`` and ``sm_active`` are the last readings. ``mean`` is the mean of the measured time of an
    ended workload, from its report.
    """

    values: list[float | None] = field(default_factory=list)
    latest: float | None = None
    sm_active: float | None = None
    mean: float | None = None


def utilisation_of(
    workloads: Collection[int], hosts: Collection[int], now: datetime
) -> dict[int, WorkloadUtilisation]:
    """Return the utilisation of each workload in the last two hours.

    Takes two queries: minute rollups, and the last readings of ``hosts``.
    """
    if not workloads:
        return {}
    since = (now - UTILISATION_WINDOW).replace(second=0, microsecond=0)
    gathered: dict[int, list[tuple[datetime, float | None, float]]] = {}
    for workload, minute, used, covered in minutes_of_workloads(workloads, since, now):
        gathered.setdefault(workload, []).append((minute, used, covered))
    readings = latest_utilisation(workloads, hosts, now)
    return {
        pk: WorkloadUtilisation(_values(gathered.get(pk, []), since), *readings.get(pk, (None, None)))
        for pk in workloads
    }


def latest_utilisation(
    workloads: Collection[int], hosts: Collection[int], now: datetime
) -> dict[int, tuple[float | None, float | None]]:
    """Return (utilisation, SM activity) of each workload, by id.

    Both are means of the last readings of the workload's units, from 0 to 1. If a unit has no reading of its
    utilisation, its SM activity is used instead.
    """
    by_workload: dict[int, list[LiveUnitReading]] = {}
    for unit in live_unit_readings(now, hosts=hosts):
        if unit.workload in workloads and unit.workload is not None:
            by_workload.setdefault(unit.workload, []).append(unit)
    return {
        pk: (
            _mean(u.utilisation if u.utilisation is not None else u.sm_active for u in units),
            _mean(u.sm_active for u in units),
        )
        for pk, units in by_workload.items()
    }


def _mean(per_cent: Iterable[float | None]) -> float | None:
    known = [value for value in per_cent if value is not None]
    return min(1.0, sum(known) / len(known) / 100) if known else None


def _values(readings: Sequence[tuple[datetime, float | None, float]], since: datetime) -> list[float | None]:
    steps = int(UTILISATION_WINDOW / UTILISATION_STEP)
    used: list[float] = [0.0] * steps
    covered: list[float] = [0.0] * steps
    for minute, used_seconds, covered_seconds in readings:
        if used_seconds is not None and covered_seconds > 0:
            step = min(steps - 1, int((minute - since) / UTILISATION_STEP))
            used[step] += used_seconds
            covered[step] += covered_seconds
    values = [min(1.0, u / c) if c else None for u, c in zip(used, covered, strict=True)]
    # The newest readings are often not summed up yet. Drop up to two unknown values at the end, so that the
    # curve does not end in a false gap.
    while values and values[-1] is None and len(values) > steps - 2:
        values.pop()
    return values


def mean_use_of_ended(workloads: Collection[int]) -> dict[int, WorkloadUtilisation]:
    """Return the mean utilisation of ended workloads with a report. Takes one query.

    A workload whose utilisation was never measured is left out.
    """
    if not workloads:
        return {}
    known = Sum(F("covered_seconds") - Coalesce(F("utilisation_unknown_seconds"), 0.0))
    rows = RunReportUnit.objects.filter(report__in=workloads).order_by().values_list("report_id")
    return {
        workload: WorkloadUtilisation(mean=used / seconds / 100)
        for workload, used, seconds in rows.annotate(used=Sum("utilisation_seconds"), known=known)
        if used is not None and seconds > 0
    }
