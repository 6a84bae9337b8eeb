"""Store the reports of ended workloads, and freeze each when nothing can change it any more.

A report is final when no sample of its time is awaited: each hour of each of its hosts is complete or lost,
and no rollup is due. Until then it is written again at growing intervals.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef

from scheduler.models import Allocation, Workload
from scheduler.state.states import WorkloadState
from telemetry.core.request_advice import Advice
from telemetry.core.rollup import UsageSums
from telemetry.core.run_report import HOST_SERIES, SERIES, UnitReport, point_starts
from telemetry.models import HostHour, HostHoursRecorded, Retention, RollupDue, RunReport, RunReportUnit
from telemetry.reports.build import WorkloadReport, built_report, unit_facts
from telemetry.reports.minute_use import TOTALS, HostUseOfRun
from telemetry.reports.report_locks import try_lock_report

# A report is made this long after the end: its last minute is rolled up by then, if its samples have arrived.
FIRST_REPORT_DELAY = timedelta(minutes=2)
MIN_REFRESH = timedelta(minutes=10)
REFRESH_AGE_SHARE = 4  # the next look is after a quarter of the age
REPORTS_PER_RUN = 200
SUM_FIELDS = tuple(entry.name for entry in fields(UsageSums))


def workload_report(workload: Workload, now: datetime) -> WorkloadReport | None:
    """Return the stored report of a workload, otherwise the one that its rollups give now.

    Return None if the workload has held no unit.
    """
    row = RunReport.objects.filter(workload=workload).first()
    return built_report(workload, now) if row is None else _report_of_row(row)


def refresh_reports(now: datetime) -> int:
    """Write the reports of workloads that have ended, and those that may have changed. Return their number.

    Each report has its own transaction. Concurrent runs skip the workloads of each other.
    """
    wanted = [*_workloads_without_report(now), *_reports_to_refresh(now)][:REPORTS_PER_RUN]
    return sum(_refresh(workload, now) for workload in wanted)


def _workloads_without_report(now: datetime) -> list[int]:
    """Return the workloads without a report, oldest first, that ended while samples were kept.

    So an outage shorter than the retention loses no report. Pages build the reports of earlier workloads from
    the rollups that exist.
    """
    ended = Workload.objects.filter(
        state=WorkloadState.ENDED,
        ended_at__gt=now - _sample_retention(),
        ended_at__lte=now - FIRST_REPORT_DELAY,
        attempt__gt=0,
        simulated=False,
        report=None,
    ).filter(Exists(Allocation.objects.filter(workload=OuterRef("pk"))))
    return list(ended.order_by("ended_at", "pk").values_list("pk", flat=True)[:REPORTS_PER_RUN])


def _reports_to_refresh(now: datetime) -> list[int]:
    due = RunReport.objects.filter(frozen_at=None, refresh_at__lte=now).order_by("refresh_at", "pk")
    return list(due.values_list("pk", flat=True)[:REPORTS_PER_RUN])


def _refresh(workload_id: int, now: datetime) -> bool:
    """Write the report of one workload. Return False if a concurrent run has it, or if it is frozen."""
    with transaction.atomic():
        is_ours = try_lock_report(workload_id)
        if not is_ours or RunReport.objects.filter(pk=workload_id, frozen_at__isnull=False).exists():
            return False
        workload = Workload.objects.get(pk=workload_id)
        report = built_report(workload, now)
        if report is None:
            return False
        _write(workload, report, now)
    return True


def _write(workload: Workload, report: WorkloadReport, now: datetime) -> None:
    final = _is_final(workload, report, now)
    RunReportUnit.objects.filter(report=workload.pk).delete()
    values = {
        "start": report.start,
        "end": report.until,
        "point_seconds": report.point_seconds,
        "advice": [asdict(advice) for advice in report.advice],
        "host_use": asdict(report.host_use),
        "made_at": now,
        "frozen_at": now if final else None,
        "refresh_at": None if final else now + max(MIN_REFRESH, (now - report.until) / REFRESH_AGE_SHARE),
    }
    row, _ = RunReport.objects.update_or_create(workload=workload, defaults=values)
    RunReportUnit.objects.bulk_create(_unit_row(row, unit) for unit in report.units)


def _is_final(workload: Workload, report: WorkloadReport, now: datetime) -> bool:
    """Return True if no sample or rollup of the report's time is awaited.

    After the retention of samples, late samples are rejected.
    """
    if now - report.until > _sample_retention():
        return True
    recorded = HostHoursRecorded.objects.filter(pk=1).values_list("until", flat=True).first()
    if recorded is None or recorded < report.until:
        return False
    first = report.start.replace(minute=0, second=0, microsecond=0)
    hosts = Allocation.objects.filter(workload=workload).values("unit__gpu__host")
    awaited = HostHour.objects.filter(
        host__in=hosts, hour__gte=first, hour__lt=report.until, state=HostHour.State.WAITING
    )
    due = RollupDue.objects.filter(
        host__in=hosts, resolution__lte=3600, bucket__gte=first, bucket__lt=report.until
    )
    return not awaited.exists() and not due.exists()


def _sample_retention() -> timedelta:
    retention = Retention.objects.filter(pk=1).first() or Retention()
    return timedelta(days=retention.sample_days)


def _unit_row(report: RunReport, unit: UnitReport) -> RunReportUnit:
    peak = unit.memory_peak_at
    return RunReportUnit(
        report=report,
        unit_id=unit.unit,
        memory_peak_at=None if peak is None else datetime.fromtimestamp(peak, UTC),
        **{name: getattr(unit.sums, name) for name in SUM_FIELDS},
        **{name: unit.series[name] for name in SERIES},
    )


def _report_of_row(row: RunReport) -> WorkloadReport:
    units = row.units.select_related("unit__gpu__host").order_by(
        "unit__gpu__host__name", "unit__gpu__index", "unit__slots", "pk"
    )
    points = point_starts(row.start.timestamp(), row.end.timestamp(), row.point_seconds)
    return WorkloadReport(
        row.start,
        row.end,
        row.point_seconds,
        points,
        [_unit_of_row(each, len(points)) for each in units],
        [Advice(**each) for each in row.advice],
        _host_use_of_row(row, len(points)),
        row.frozen_at,
    )


def _host_use_of_row(row: RunReport, points: int) -> HostUseOfRun:
    """Return the stored use of the hosts. Reports of earlier versions have none."""
    series, totals = row.host_use.get("series", {}), row.host_use.get("totals", {})
    return HostUseOfRun(
        {name: series.get(name) or [None] * points for name in HOST_SERIES},
        {name: totals.get(name) for name in TOTALS},
    )


def _unit_of_row(row: RunReportUnit, points: int) -> UnitReport:
    facts: dict[str, Any] = unit_facts(row.unit)
    return UnitReport(
        **facts,
        sums=UsageSums(**{name: getattr(row, name) for name in SUM_FIELDS}),
        memory_peak_at=None if row.memory_peak_at is None else int(row.memory_peak_at.timestamp()),
        # Reports of earlier versions lack the series of minutes.
        series={name: getattr(row, name) or [None] * points for name in SERIES},
    )
