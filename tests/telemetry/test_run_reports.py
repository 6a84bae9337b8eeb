"""Test the stored reports of runs: they equal the rollups, are frozen once, and outlive the rollups."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from scheduler.models import Allocation, Run, Unit, Workload
from telemetry.core.run_report import BucketUse
from telemetry.models import HostHour, Rollup, RollupDue, RunReport, RunReportUnit, Sample
from telemetry.reports import build, stored
from telemetry.reports.build import WorkloadReport
from telemetry.reports.report_locks import try_lock_report
from telemetry.reports.unit_use import unit_use
from telemetry.rollups.host_hours import refresh_host_hours
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.telemetry.rows import at, workload
from tests.telemetry.test_rollups import write_samples
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


def held_workload(
    world: World, units: list[Unit], spans: list[tuple[dt.datetime, dt.datetime]], **fields: Any
) -> Workload:
    """Create an ended job that held all units in each span, one attempt for each span."""
    job = workload(
        world,
        world.vision,
        state="ended",
        outcome="finished",
        units=len(units),
        attempt=len(spans),
        submitted_at=spans[0][0] - timedelta(minutes=5),
        ended_at=spans[-1][1],
        **fields,
    )
    for number, (start, end) in enumerate(spans, start=1):
        last = number == len(spans)
        run = Run.objects.create(
            workload=job,
            attempt=number,
            host=units[0].gpu.host,
            generation=job.pk * 10 + number,
            placed_at=start,
            running_at=start,
            ended_at=end,
            outcome="finished" if last else "checkpointed",
            state="ended",
        )
        for unit in units:
            Allocation.objects.create(
                run=run,
                workload=job,
                project=job.project,
                unit=unit,
                slots=unit.slots,
                period=DateTimeTZRange(start, end),
                end_code="finished" if last else "evicted_for_guarantee",
            )
    return job


@pytest.fixture
def measured(world: World) -> Workload:
    """Return a job that held two GPUs from 9:00 to 9:30, of which the first was measured for ten minutes."""
    units = units_of(world.hosts["alpha"])[:2]
    job = held_workload(world, units, [(at(9), at(9, 30))])
    write_samples(units[0], at(9, 5), 60)
    roll_up_due_buckets(at(9, 40))
    return job


def complete_hours(job: Workload, now: dt.datetime) -> None:
    """Record the hours of the job's hosts as complete."""
    roll_up_due_buckets(now)
    HostHour.objects.filter(state=HostHour.State.WAITING).update(state=HostHour.State.COMPLETE)


def report_of(job: Workload, now: dt.datetime) -> WorkloadReport:
    found = stored.workload_report(job, now)
    assert found is not None
    return found


def test_a_report_is_stored_two_minutes_after_the_end_and_equals_the_rollups(measured: Workload) -> None:
    assert stored.refresh_reports(at(9, 31)) == 0
    computed = report_of(measured, at(9, 40))
    assert stored.refresh_reports(at(9, 40)) == 1
    kept = report_of(measured, at(9, 41))
    assert (kept.start, kept.until, kept.point_seconds) == (at(9), at(9, 30), 60)
    assert kept == computed
    first, second = kept.units
    assert (
        first.sums.covered_seconds
        == Rollup.objects.get(resolution=3600, unit=first.unit, allocation__isnull=False).covered_seconds
    )
    assert first.series["utilisation"][:5] == [None, None, None, None, 50.0]
    assert len(first.series["utilisation"]) == 30
    assert (second.utilisation, second.busy, second.was_busy, second.energy_kwh) == (None,) * 4


def test_a_second_run_of_the_task_writes_nothing(measured: Workload) -> None:
    stored.refresh_reports(at(9, 40))
    before = list(RunReport.objects.values()), list(RunReportUnit.objects.values())
    assert stored.refresh_reports(at(9, 41)) == 0
    assert (list(RunReport.objects.values()), list(RunReportUnit.objects.values())) == before


def test_the_reports_of_an_outage_of_days_are_made_later_and_the_oldest_first(
    measured: Workload, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = held_workload(world, units_of(world.hosts["beta"])[:1], [(at(10, day=3), at(11, day=3))])
    monkeypatch.setattr(stored, "REPORTS_PER_RUN", 1)
    assert stored.refresh_reports(at(9, day=6)) == 1
    assert list(RunReport.objects.values_list("workload", flat=True)) == [measured.pk]
    assert stored.refresh_reports(at(9, 1, day=6)) == 1
    assert set(RunReport.objects.values_list("workload", flat=True)) == {measured.pk, later.pk}


def test_work_that_ended_before_the_retention_of_samples_gets_no_report(measured: Workload) -> None:
    assert stored.refresh_reports(at(9, 31, day=16)) == 0  # samples are kept for 14 days


def test_a_late_sample_changes_a_report_until_it_is_frozen(measured: Workload) -> None:
    stored.refresh_reports(at(9, 40))
    unit = units_of(measured.runs.get().host)[0]
    covered = report_of(measured, at(9, 41)).units[0].sums.covered_seconds
    write_samples(unit, at(9, 20), 6)
    roll_up_due_buckets(at(9, 50))
    assert report_of(measured, at(9, 50)).units[0].sums.covered_seconds == covered
    assert stored.refresh_reports(at(9, 51)) == 1
    changed = report_of(measured, at(9, 52)).units[0].sums.covered_seconds
    assert changed > covered
    complete_hours(measured, at(10, 5))
    assert stored.refresh_reports(at(10, 6)) == 1
    assert report_of(measured, at(10, 6)).frozen_at == at(10, 6)
    write_samples(unit, at(9, 25), 6)
    roll_up_due_buckets(at(10, 30))
    assert stored.refresh_reports(at(23)) == 0
    assert report_of(measured, at(23)).units[0].sums.covered_seconds == changed


def test_a_report_is_not_frozen_while_samples_or_rollups_are_awaited(measured: Workload) -> None:
    host = measured.runs.get().host
    roll_up_due_buckets(at(10, 5))
    assert HostHour.objects.get(host=host).state == HostHour.State.WAITING
    stored.refresh_reports(at(10, 6))
    assert report_of(measured, at(10, 6)).frozen_at is None
    HostHour.objects.update(state=HostHour.State.COMPLETE)
    mark = RollupDue.objects.create(resolution=60, bucket=at(9, 10), host=host, marked_at=at(10, 6))
    stored.refresh_reports(at(11))
    assert report_of(measured, at(11)).frozen_at is None
    mark.delete()
    stored.refresh_reports(at(13))
    assert report_of(measured, at(13)).frozen_at == at(13)


def test_a_report_is_frozen_when_late_samples_are_no_longer_accepted(measured: Workload) -> None:
    roll_up_due_buckets(at(10, 5))
    stored.refresh_reports(at(10, 6))
    refresh_host_hours([measured.runs.get().host_id])
    stored.refresh_reports(at(10, day=18))
    assert report_of(measured, at(10, day=18)).frozen_at == at(10, day=18)


def forget_rollups(monkeypatch: pytest.MonkeyPatch, *resolutions: int) -> None:
    """Let the reports read no rollups of these resolutions, as after their retention."""

    def kept(
        allocations: Collection[int], resolution: int, start: dt.datetime, end: dt.datetime
    ) -> dict[int, list[BucketUse]]:
        return {} if resolution in resolutions else unit_use(allocations, resolution, start, end)

    monkeypatch.setattr(build, "unit_use", kept)


def test_the_report_is_kept_after_samples_and_rollups_are_deleted(
    measured: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete_hours(measured, at(10, 5))
    stored.refresh_reports(at(10, 6))
    before = report_of(measured, at(10, 7))
    Sample.objects.all()._raw_delete(using="default")
    forget_rollups(monkeypatch, 60, 3600)
    assert report_of(measured, at(10, 7)) == before
    assert any(value is not None for value in before.units[0].series["utilisation"])


def test_the_database_refuses_to_change_a_frozen_report(measured: Workload) -> None:
    complete_hours(measured, at(10, 5))
    stored.refresh_reports(at(10, 6))
    with pytest.raises(IntegrityError), transaction.atomic():
        RunReport.objects.update(point_seconds=1)
    assert RunReport.objects.get().point_seconds == 60


def test_a_report_is_either_frozen_or_checked_again(measured: Workload) -> None:
    stored.refresh_reports(at(9, 40))
    assert RunReport.objects.get().refresh_at is not None
    with pytest.raises(IntegrityError), transaction.atomic():
        RunReport.objects.update(refresh_at=None)


def test_time_between_two_attempts_is_a_gap_in_every_series(world: World) -> None:
    [unit] = units_of(world.hosts["alpha"])[:1]
    job = held_workload(world, [unit], [(at(9), at(9, 10)), (at(9, 20), at(9, 30))])
    write_samples(unit, at(9), 180)
    roll_up_due_buckets(at(9, 40))
    [use] = report_of(job, at(9, 40)).units
    for name in ("busy", "utilisation"):
        assert [value is None for value in use.series[name]] == [False] * 10 + [True] * 10 + [False] * 10
    assert use.sums.held_seconds == 1200


def test_the_report_of_a_running_workload_has_the_figures_until_now(measured: Workload) -> None:
    Workload.objects.filter(pk=measured.pk).update(state="running", ended_at=None)
    measured.refresh_from_db()
    assert stored.refresh_reports(at(9, 40)) == 0
    report = report_of(measured, at(9, 40))
    assert (report.frozen_at, report.advice) == (None, [])
    assert report.units[0].utilisation == 0.5


def test_without_minutes_the_chart_has_hours(measured: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    roll_up_due_buckets(at(10, 5))
    forget_rollups(monkeypatch, 60)
    report = report_of(measured, at(10, 5))
    assert (report.point_seconds, report.units[0].series["utilisation"]) == (3600, [50.0])


def test_a_workload_that_held_nothing_has_no_report(world: World) -> None:
    job = workload(world, world.vision, state="ended", attempt=1, ended_at=at(9, 30))
    assert stored.workload_report(job, at(10)) is None
    assert stored.refresh_reports(at(10)) == 0


def test_the_cpu_and_the_memory_of_all_runs_must_be_measured(world: World) -> None:
    units = units_of(world.hosts["alpha"])[:1]
    spans = [(at(9), at(9, 15)), (at(9, 20), at(9, 35))]
    job = held_workload(world, units, spans, cpu_milli=4000, memory_mib=65_536)
    write_samples(units[0], at(9), 210)
    roll_up_due_buckets(at(9, 45))
    Run.objects.filter(workload=job, attempt=1).update(cpu_seconds=100, memory_peak_mib=500)
    assert not {"less_memory", "waits_for_data"} & {each.code for each in report_of(job, at(10)).advice}
    Run.objects.filter(workload=job, attempt=2).update(cpu_seconds=200, memory_peak_mib=900)
    advice = {each.code: each.numbers for each in report_of(job, at(10)).advice}
    assert advice["less_memory"]["peak_memory_mib"] == 900


@pytest.mark.django_db(transaction=True)
def test_a_report_that_another_process_is_writing_is_skipped(world: World) -> None:
    import threading

    from django.db import connection

    locked, done, found = threading.Event(), threading.Event(), []

    def other() -> None:
        with transaction.atomic():
            found.append(try_lock_report(7))
            locked.set()
            done.wait(60)
        connection.close()

    thread = threading.Thread(target=other)
    thread.start()
    assert locked.wait(60)
    with transaction.atomic():
        found.append(try_lock_report(7))
    done.set()
    thread.join()
    assert found == [True, False]
