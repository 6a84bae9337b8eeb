"""Build the report of a workload from its allocations and rollups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE
from scheduler.models import Allocation, Run, Unit, Workload
from scheduler.state.states import WorkloadState
from telemetry.core import request_advice
from telemetry.core.request_advice import Advice, RunRequest, SliceOffer
from telemetry.core.run_report import (
    BucketUse,
    UnitReport,
    memory_peak_time,
    point_length,
    point_starts,
    total_use,
    use_series,
)
from telemetry.reports.minute_use import HostUseOfRun, host_use_of_runs, unit_minute_series
from telemetry.reports.unit_use import HOUR, MINUTE, unit_use

# Rollups by minute are used if they have at least this part of the measured time. Of the simulated past, and
# after their retention, only hours exist.
MIN_MINUTE_COVERAGE = 0.9


@dataclass(frozen=True)
class WorkloadReport:
    """The use of a workload over all its attempts.

    ``points`` are the starts of the points of all series, in seconds since the epoch. ``until`` is the end of
    the last hold, or the present while the workload holds units. ``frozen_at`` is None if the report may
    still change.
    """

    start: datetime
    until: datetime
    point_seconds: int
    points: list[int]
    units: list[UnitReport]
    advice: list[Advice] = field(default_factory=list)
    host_use: HostUseOfRun = field(default_factory=HostUseOfRun)
    frozen_at: datetime | None = None


def built_report(workload: Workload, now: datetime) -> WorkloadReport | None:
    """Return the report of a workload from its rollups. Return None if the workload has held no unit."""
    holds = list(
        Allocation.objects.filter(workload=workload)
        .select_related("unit__gpu__host")
        .order_by("unit__gpu__host__name", "unit__gpu__index", "slots", "period")
    )
    if not holds:
        return None
    start = min(hold.period.lower for hold in holds)
    until = max(start, *(min(now, hold.period.upper or now) for hold in holds))
    ids = [hold.pk for hold in holds]
    minutes = unit_use(ids, MINUTE, start, until)
    hours = unit_use(ids, HOUR, start, until)
    length = point_length((until - start).total_seconds())
    if length < HOUR and _covered(minutes.values()) < _covered(hours.values()) * MIN_MINUTE_COVERAGE:
        length = HOUR
    buckets = minutes if length < HOUR else hours
    points = point_starts(start.timestamp(), until.timestamp(), length)
    held = _held_seconds(holds, now)
    units = {
        hold.unit_id: _unit_report(
            hold.unit,
            max(0.0, held[hold.unit_id]),
            hours.get(hold.unit_id, []),
            minutes.get(hold.unit_id, []),
            buckets.get(hold.unit_id, []),
            points,
            length,
        )
        for hold in holds
    }
    report = WorkloadReport(start, until, length, points, list(units.values()))
    report = _with_minutes(report, holds)
    if workload.state == WorkloadState.ENDED:
        report.advice.extend(request_advice.advise(_run_request(workload, holds), report.units))
    return report


def _held_seconds(holds: Sequence[Allocation], now: datetime) -> dict[int, float]:
    """Return the seconds in which each unit was held until now, by unit id."""
    held: dict[int, float] = defaultdict(float)
    for hold in holds:
        held[hold.unit_id] += (min(now, hold.period.upper or now) - hold.period.lower).total_seconds()
    return held


def _with_minutes(report: WorkloadReport, holds: Sequence[Allocation]) -> WorkloadReport:
    """Return the report with the readings that are read once a minute."""
    time = (report.start, report.until, report.points, report.point_seconds)
    units = {unit.unit: unit for unit in report.units}
    for unit, series in unit_minute_series(units, [hold.pk for hold in holds], *time).items():
        units[unit].series.update(series)
    return replace(report, host_use=host_use_of_runs({hold.run_id for hold in holds}, *time))


def _unit_report(
    unit: Unit,
    held_seconds: float,
    hours: Sequence[BucketUse],
    minutes: Sequence[BucketUse],
    buckets: Sequence[BucketUse],
    points: Sequence[int],
    length: int,
) -> UnitReport:
    return UnitReport(
        **unit_facts(unit),
        # Rollups do not have the held time of the last minutes.
        sums=replace(total_use(hours, minutes), held_seconds=held_seconds),
        memory_peak_at=memory_peak_time(buckets),
        series=use_series(buckets, points, length),
    )


def unit_facts(unit: Unit) -> dict[str, Any]:
    """Return the fields of a UnitReport that describe the unit. The caller has loaded its GPU and host."""
    return {
        "unit": unit.pk,
        "host": unit.gpu.host.name,
        "gpu": unit.gpu.index,
        "model": unit.gpu.model,
        "profile": unit.profile,
        "memory_mib": unit.memory_mib,
        "simulated": unit.gpu.host.simulated,
    }


def _covered(buckets_of_units: Iterable[Sequence[BucketUse]]) -> float:
    return sum(use.covered_seconds for buckets in buckets_of_units for _, use in buckets)


def _run_request(workload: Workload, holds: Sequence[Allocation]) -> RunRequest:
    """Return what the workload had asked for, with the measurements of its runs."""
    runs = list(Run.objects.filter(workload=workload))
    spans = _held_spans(holds)
    measured = [run for run in runs if run.pk in spans]
    cpu = [run.cpu_seconds for run in measured]
    memory = [run.memory_peak_mib for run in measured]
    attempts: dict[int, float] = {}
    for run in measured:
        attempts[run.attempt] = max(attempts.get(run.attempt, 0.0), spans[run.pk])
    return RunRequest(
        gpus=workload.units * workload.hosts,
        profile=workload.profile,
        cpu_milli=workload.cpu_milli,
        memory_mib=workload.memory_mib,
        max_runtime_seconds=workload.max_runtime_seconds,
        outcome=workload.outcome,
        attempt_seconds=max(attempts.values()),
        host_seconds=sum(spans.values()),
        cpu_seconds=None if None in cpu else sum(value for value in cpu if value is not None),
        memory_peak_mib=None if None in memory else max(value for value in memory if value is not None),
        slices=_slice_offers(workload, {hold.unit.gpu.model for hold in holds}),
    )


def _held_spans(holds: Sequence[Allocation]) -> dict[int, float]:
    """Return the seconds in which each run held units, by run id. The holds of one run begin together."""
    spans: dict[int, float] = {}
    for hold in holds:
        if hold.period.upper is not None:
            seconds = (hold.period.upper - hold.period.lower).total_seconds()
            spans[hold.run_id] = max(spans.get(hold.run_id, 0.0), seconds)
    return spans


def _slice_offers(workload: Workload, models: Collection[str]) -> tuple[SliceOffer, ...]:
    """Return the profiles of slices that the pool has now for these models of GPUs."""
    if len(models) != 1 or workload.profile != WHOLE_GPU_PROFILE:
        return ()
    slices = Unit.objects.filter(
        gpu__pool=workload.pool_id, gpu__model__in=models, gpu__retired_at=None, retired_at=None
    ).exclude(profile=WHOLE_GPU_PROFILE)
    rows = {
        (unit.profile, unit.memory_mib, (unit.slots.upper - unit.slots.lower) / SLOTS_PER_GPU)
        for unit in slices
    }
    return tuple(SliceOffer(*row) for row in sorted(rows))
