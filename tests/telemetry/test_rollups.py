"""Test that rollups never lose covered time, and that held time without samples is counted."""

from __future__ import annotations

import datetime as dt
import importlib
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from scheduler.models import Allocation, Unit
from telemetry.models import Charge, EvidenceDue, Retention, Rollup, RollupDue, Sample
from telemetry.money.charges import charge_all_gpus
from telemetry.rollups.due_marks import mark_hours_due, mark_minutes_due
from telemetry.rollups.roll_up import roll_up_due_buckets
from telemetry.rollups.storage import ROLLUP_MEASURES
from tests.telemetry.rows import at, end_hold, hold, pack_all, store_rollup, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
migration = importlib.import_module("telemetry.migrations.0029_packed_rollups")


def write_rollup(
    resolution: int, bucket: dt.datetime, unit: Unit, allocation: Allocation | None, covered: float
) -> None:
    samples = int(covered // 10)
    measures = {"covered_seconds": covered, "utilisation_seconds": covered / 2, "samples": samples}
    store_rollup(resolution, bucket, unit, allocation, **measures)


def write_samples(
    unit: Unit, start: dt.datetime, count: int, *, every: int = 10, utilisation: int = 50, processes: int = 1
) -> None:
    """Store samples, and mark their minutes as due, as the ingest does."""
    moments = [start + timedelta(seconds=number * every) for number in range(count)]
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO telemetry_sample (unit_id, ts, utilisation, processes) VALUES (%s, %s, %s, %s)",
            [(unit.pk, moment, utilisation, processes) for moment in moments],
        )
    seconds = [int(moment.timestamp()) for moment in moments]
    # A sample also covers time before it.
    minutes = {each // 60 * 60 for second in seconds for each in (second, second - 30)}
    mark_minutes_due({(unit.gpu.host_id, minute) for minute in minutes}, at(10))


def covered_by(resolution: int, **where: Any) -> float:
    rows = Rollup.objects.filter(resolution=resolution, **where)
    return sum(rows.values_list("covered_seconds", flat=True))


def test_one_late_sample_does_not_erase_an_hour_whose_minutes_were_deleted(world: World) -> None:
    """The samples of 8 GPUs cover 28,570 seconds of one hour. The minutes of this hour were deleted."""
    units = units_of(world.hosts["alpha"])
    holds = [hold(workload(world, world.vision), unit, at(9)) for unit in units]
    for number, (unit, allocation) in enumerate(zip(units, holds, strict=True)):
        write_rollup(3600, at(9), unit, allocation, 3600 if number else 28_570 - 7 * 3600)
    write_samples(units[0], at(9, 30, 15), 1)
    done = roll_up_due_buckets(at(10, 5))
    assert covered_by(60, unit=units[0]) > 0
    assert covered_by(3600) == 28_570
    assert done.kept >= 1


def test_one_late_sample_does_not_erase_a_day_whose_hours_were_deleted(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, at(0), at(23), end_code="finished")
    write_rollup(86_400, at(0), unit, allocation, 80_000)
    write_samples(unit, at(9, 30, 15), 1)
    roll_up_due_buckets(at(1, day=3))
    assert covered_by(3600, unit=unit) == 30
    assert covered_by(86_400) == 80_000


def test_one_late_sample_does_not_erase_a_minute_whose_samples_were_deleted(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, at(9))
    write_samples(unit, at(9, 30), 7)
    roll_up_due_buckets(at(9, 40))
    assert covered_by(60, bucket=at(9, 30)) == 60
    Sample.objects.filter(ts__lt=at(9, 31))._raw_delete(using="default")
    write_samples(unit, at(9, 30, 5), 1)
    roll_up_due_buckets(at(9, 45))
    assert covered_by(60, bucket=at(9, 30)) == 60
    assert covered_by(3600, allocation=allocation) == 90


def test_an_hour_that_lost_half_of_its_minutes_keeps_its_covered_time(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    write_samples(unit, at(9, 10), 60)
    roll_up_due_buckets(at(9, 40))
    before = covered_by(3600)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM telemetry_rollupopen WHERE resolution = 60 AND bucket < %s", [at(9, 15)])
    mark_hours_due([(unit.gpu.host_id, at(9))], at(9, 45))
    roll_up_due_buckets(at(9, 45))
    assert covered_by(3600) == before > covered_by(60)


def test_a_late_sample_still_adds_to_an_hour_whose_minutes_exist(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    write_samples(unit, at(9, 10), 6)
    roll_up_due_buckets(at(9, 40))
    before = covered_by(3600)
    write_samples(unit, at(9, 20), 6)
    roll_up_due_buckets(at(9, 45))
    assert covered_by(3600) > before


def test_an_hour_without_any_sample_counts_its_held_time_as_uncovered(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, at(9, 15), at(11, 30), end_code="finished")
    roll_up_due_buckets(at(0, 6, day=3))
    hours = Rollup.objects.filter(resolution=3600, allocation=allocation).order_by("bucket")
    assert list(hours.values_list("held_seconds", "covered_seconds", "utilisation_seconds")) == [
        (2700, 0, None),
        (3600, 0, None),
        (1800, 0, None),
    ]
    day = Rollup.objects.get(resolution=86_400, allocation=allocation)
    assert (day.held_seconds, day.covered_seconds) == (8100, 0)


def test_held_time_of_an_hour_includes_the_gap_between_its_samples(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, at(9))
    write_samples(unit, at(9, 1), 6)
    write_samples(unit, at(9, 50), 6)
    roll_up_due_buckets(at(10, 5))
    hour = Rollup.objects.get(resolution=3600, allocation=allocation, bucket=at(9))
    assert hour.held_seconds == 3600
    assert 100 <= hour.covered_seconds <= 160


def test_an_hour_in_progress_counts_held_time_up_to_now(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, at(9))
    write_samples(unit, at(9, 1), 6)
    roll_up_due_buckets(at(9, 5))
    assert Rollup.objects.get(resolution=3600, allocation=allocation).held_seconds == 300


def test_an_end_that_becomes_known_late_shortens_the_held_time_of_written_hours(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9))
    write_samples(unit, at(9), 31)
    roll_up_due_buckets(at(12, 1))
    assert Rollup.objects.filter(resolution=3600, allocation=allocation).count() == 3
    end_hold(allocation, at(9, 4), "host_lost")
    charge_all_gpus(at(12, 5))
    roll_up_due_buckets(at(12, 6))
    hour = Rollup.objects.get(resolution=3600, allocation=allocation)
    assert (hour.bucket, hour.held_seconds, hour.covered_seconds) == (at(9), 240, 240)
    assert not Rollup.objects.filter(resolution=60, allocation=allocation, bucket__gt=at(9, 4)).exists()
    assert covered_by(3600, bucket=at(9)) == 300  # the samples after the end count for nobody


def test_retention_settings_that_delete_minutes_before_their_samples_are_rejected(world: World) -> None:
    with pytest.raises(IntegrityError, match="minutes_are_kept_longer_than_samples"), transaction.atomic():
        Retention.objects.filter(pk=1).update(sample_days=30, minute_days=30)
    Retention.objects.filter(pk=1).update(sample_days=30, minute_days=31)


def test_a_written_hour_marks_the_evidence_of_its_host_as_due(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    write_samples(unit, at(9, 1), 6)
    roll_up_due_buckets(at(9, 5))
    assert list(EvidenceDue.objects.values_list("host", "hour")) == [(unit.gpu.host_id, at(9))]
    assert not RollupDue.objects.exists() and not Charge.objects.exists()


def written_tuples() -> int:
    """Return the rollup tuples that this transaction has inserted, updated and deleted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_xact_user_tables"
            " WHERE relname ~ '^telemetry_rollup' AND relname <> 'telemetry_rollupdue'"
        )
        return int(cursor.fetchone()[0])


def test_a_bucket_that_is_kept_costs_fewer_than_two_written_tuples(world: World) -> None:
    """Roll up twenty minutes one by one, across the end of an hour, then a late sample."""
    units = units_of(world.hosts["alpha"])
    for unit in units:
        hold(workload(world, world.vision), unit, at(9))
    roll_up_due_buckets(at(9, 49))
    before = written_tuples()
    for minute in range(20):
        for unit in units:
            write_samples(unit, at(9, 50) + timedelta(minutes=minute), 6)
        roll_up_due_buckets(at(9, 52) + timedelta(minutes=minute))
    write_samples(units[0], at(9, 30, 15), 1)
    roll_up_due_buckets(at(11, 10))
    kept = Rollup.objects.count()
    assert kept >= len(units) * 22
    assert 0 < written_tuples() - before <= 2 * kept


def test_packed_rollups_are_the_written_rollups(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(9, 20, 30), end_code="finished")
    hold(workload(world, world.vision), unit, at(9, 20, 30))
    write_samples(unit, at(9, 10), 200)
    fields = ("resolution", "bucket", "unit", "host", "allocation", *ROLLUP_MEASURES)
    roll_up_due_buckets(at(10, 2))
    before = list(Rollup.objects.filter(bucket__lt=at(10)).order_by(*fields).values_list(*fields))
    pack_all(at(10))
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM telemetry_rollupminutes")
        assert cursor.fetchone()[0] == 2  # one row per allocation
    assert list(Rollup.objects.filter(bucket__lt=at(10)).order_by(*fields).values_list(*fields)) == before


def test_a_late_sample_changes_its_packed_minute_only(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    write_samples(unit, at(9), 30)
    write_samples(unit, at(9, 40), 30)
    roll_up_due_buckets(at(10, 10))
    minutes = Rollup.objects.filter(resolution=60).order_by("bucket")
    before = dict(minutes.values_list("bucket", "covered_seconds"))
    write_samples(unit, at(9, 20), 1)
    roll_up_due_buckets(at(10, 15))
    changed = {at(9, 19): 30.0, at(9, 20): 0.0} | before
    assert dict(minutes.values_list("bucket", "covered_seconds")) == changed
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM telemetry_rollupopen WHERE resolution = 60")
        assert cursor.fetchone()[0] == 0


def test_an_hour_of_a_unit_needs_less_than_thirty_bytes_per_minute(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    use = {
        "covered_seconds": 60.0,
        "samples": 6,
        "busy_seconds": 60.0,
        "inefficient_seconds": 0.0,
        "sm_unmeasured_seconds": 0.0,
        "idle_seconds": 0.0,
        "empty_seconds": 0.0,
        "memory_used_max_mib": 71_234,
    }
    random = Random(1)
    for minute in range(60):
        share = random.random()
        store_rollup(
            60,
            at(9, minute),
            unit,
            utilisation_seconds=60 * share,
            utilisation_max=100 * share,
            sm_active_seconds=45 * share * random.random(),
            tensor_active_seconds=30 * share * random.random(),
            energy_mj=int(42_000_000 * random.random()),
            **use,
        )
    pack_all(at(11))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_column_size(stored) FROM telemetry_rollupminutes AS stored")
        (size,) = cursor.fetchone()
    assert size <= 30 * 60


def test_the_migration_packs_earlier_rollups_and_clears_their_impossible_values(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, at(9))
    columns = (
        "id, resolution, bucket, unit_id, allocation_id, simulated, held_seconds, covered_seconds, samples,"
        " busy_seconds, inefficient_seconds, utilisation_max"
    )
    unknown = ", ".join(f"NULL::float8 AS {name}" for name in ROLLUP_MEASURES)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE NONE")
        cursor.execute(
            f"CREATE TABLE telemetry_rollup_before AS SELECT 1::bigint AS id, 60 AS resolution, {unknown},"
            " now() AS bucket, 1::bigint AS unit_id, 1::bigint AS allocation_id, false AS simulated"
            " WHERE false"
        )
        for pk, resolution, bucket, use in (
            (1, 60, at(9), (60, 50, 6, 40.5, None, 100)),
            (2, 60, at(9, 1), (60, 60, 6, 30, 10, 99_999)),
            (3, 60, at(9, 2), (60, 60, 6, "NaN", 10, 0)),
            (4, 3600, at(9), (3600, 170, 18, None, None, None)),
        ):
            cursor.execute(
                f"INSERT INTO telemetry_rollup_before ({columns}) VALUES ({', '.join(['%s'] * 12)})",
                [pk, resolution, bucket, unit.pk, allocation.pk, True, *use],
            )
        cursor.execute(migration.CONVERT)
    rows = Rollup.objects.order_by("resolution", "bucket").values_list(
        "resolution", "bucket", "covered_seconds", "busy_seconds", "sm_unmeasured_seconds", "utilisation_max"
    )
    assert list(rows) == [
        (60, at(9), 50, 40.5, 40.5, 100),
        (60, at(9, 1), 60, 30, 0, None),
        (60, at(9, 2), 60, None, 0, 0),
        (3600, at(9), 170, None, None, None),
    ]
    assert all(row.simulated and row.allocation_id == allocation.pk for row in Rollup.objects.all())
