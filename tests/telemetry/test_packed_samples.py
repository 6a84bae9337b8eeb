"""Test that packed samples are the samples that were stored, for every reader, and that none is lost."""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import numpy as np
import pytest
from django.db import DatabaseError, connection, transaction

from scheduler.models import Allocation, Unit, Workload
from telemetry.exports import sample_files
from telemetry.exports.sample_files import SampleScope, sample_file
from telemetry.ingest.partitions import maintain_partitions
from telemetry.models import HostHour, Retention, Rollup, RollupDue, Sample
from telemetry.reads.utilisation import raw_series as raw_series_module
from telemetry.reads.utilisation.raw_series import raw_series
from telemetry.reports.minute_use import unit_minute_series
from telemetry.rollups.rebuild import rebuild_rollups
from telemetry.rollups.roll_up import roll_up_due_buckets
from telemetry.rollups.stored_readings import clear_impossible_values
from telemetry.samples.columns import COLUMN_KINDS, REAL
from telemetry.samples.packing import LONGEST_WAIT, PACK_AFTER, UNITS_PER_STEP, pack_samples
from telemetry.samples.stored import load_samples
from tests.telemetry.rows import at, hold, workload
from tests.telemetry.test_rollups import write_samples
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
NAMES = tuple(COLUMN_KINDS)
START, END = at(0, day=2), at(0, day=4)
PACKED_AT = END + PACK_AFTER + timedelta(minutes=1)


@pytest.fixture
def sampled(world: World) -> Allocation:
    """Return an allocation with random samples of two days, some of whose readings are unknown."""
    maintain_partitions(START)
    unit, other = units_of(world.hosts["alpha"])[:2]
    allocation = hold(workload(world, world.vision), unit, at(9))
    rng = np.random.default_rng(7)
    for each, of in ((unit, allocation.pk), (other, None)):
        for number in range(150):
            moment = at(9) + timedelta(minutes=number * 11, microseconds=int(rng.integers(0, 10**6)))
            insert(each, moment, allocation_id=of, **readings(rng))
    return allocation


def readings(rng: np.random.Generator) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in COLUMN_KINDS.items():
        if name != "allocation_id" and rng.random() < 0.7:
            percent = rng.choice([round(rng.uniform(0, 100), 1), rng.uniform(0, 100)])
            found[name] = float(percent) if kind == REAL else int(rng.integers(0, 10_000))
    return found


def insert(unit: Unit, moment: dt.datetime, **values: Any) -> None:
    names = ["unit_id", "ts", *values]
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO telemetry_sample ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})",
            [unit.pk, moment, *values.values()],
        )


def all_samples(world: World) -> dict[str, list[Any]]:
    ids = np.array([unit.pk for unit in units_of(world.hosts["alpha"])], np.int64)
    return {name: column.tolist() for name, column in load_samples(NAMES, ids, START, END).items()}


def packed_rows() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM telemetry_packedsamples")
        return int(cursor.fetchone()[0])


def partitions(parent: str) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", [parent]
        )
        return {name for (name,) in cursor.fetchall()}


def assert_equal(before: dict[str, list[Any]], after: dict[str, list[Any]]) -> None:
    for name, column in before.items():
        np.testing.assert_array_equal(np.array(after[name]), np.array(column), err_msg=name)


def test_packed_samples_are_the_stored_samples(world: World, sampled: Allocation) -> None:
    before = all_samples(world)
    assert len(before["ts"]) == Sample.objects.filter(ts__gte=START, ts__lt=END).count() > 200
    done = pack_samples(PACKED_AT)
    assert (done.samples, done.days) == (len(before["ts"]), 3)  # the first day has no samples
    assert not Sample.objects.filter(ts__gte=START, ts__lt=END).exists()
    assert partitions("telemetry_sample").isdisjoint(
        {"telemetry_sample_20260302", "telemetry_sample_20260303"}
    )
    assert packed_rows() == len(
        set(zip(before["unit"], [ts // 3_600_000_000 for ts in before["ts"]], strict=True))
    )
    assert_equal(before, all_samples(world))
    assert pack_samples(PACKED_AT).samples == 0


def test_late_samples_of_a_packed_day_are_read_at_once_and_packed_later(
    world: World, sampled: Allocation
) -> None:
    pack_samples(PACKED_AT)
    rows = packed_rows()
    for second in range(3):
        insert(sampled.unit, at(9, 30, second), utilisation=50.5 + second, allocation_id=sampled.pk)
    before = all_samples(world)
    assert before["utilisation"].count(51.5) == 1
    assert pack_samples(PACKED_AT).samples == 3
    assert packed_rows() == rows
    assert not Sample.objects.filter(ts__gte=START, ts__lt=END).exists()
    assert_equal(before, all_samples(world))


def test_a_few_steps_at_a_time_pack_everything(world: World, sampled: Allocation) -> None:
    with mock.patch("telemetry.samples.packing._UNITS_SQL", one_unit_sql()):
        before = all_samples(world)
        done = [pack_samples(PACKED_AT, steps=1) for _ in range(5)]
    assert [bool(step.samples) for step in done] == [True, True, True, True, False]
    assert sum(step.days for step in done) == 3  # the first day has no samples
    assert_equal(before, all_samples(world))


def one_unit_sql() -> str:
    from telemetry.samples import packing

    return packing._UNITS_SQL.replace(f"LIMIT {UNITS_PER_STEP}", "LIMIT 1")


def test_a_day_is_packed_a_day_after_its_end_and_not_while_a_host_is_awaited(
    world: World, sampled: Allocation
) -> None:
    assert pack_samples(at(23, 59, day=3)).samples == 0
    awaited = HostHour.objects.create(host=world.hosts["alpha"], hour=at(12))
    assert pack_samples(at(0, 1, day=4)).samples == 0
    HostHour.objects.filter(pk=awaited.pk).update(state=HostHour.State.COMPLETE)
    assert pack_samples(at(0, 1, day=4)).samples > 0
    HostHour.objects.create(host=world.hosts["alpha"], hour=at(12, day=3))
    assert pack_samples(END + LONGEST_WAIT - timedelta(seconds=1)).samples == 0
    assert pack_samples(END + LONGEST_WAIT).samples > 0


def series_of_gpus(world: World, sampled: Allocation) -> object:
    return raw_series([sampled.unit_id], [sampled.pk], START, END)


def minutes_of_report(world: World, sampled: Allocation) -> object:
    points = [int(START.timestamp()) + 3_600 * number for number in range(48)]
    return unit_minute_series([sampled.unit_id], [sampled.pk], START, END, points, 3_600)


def csv_file(world: World, sampled: Allocation) -> object:
    return b"".join(sample_file("csv", SampleScope([world.hosts["alpha"].pk], START, END, PACKED_AT)))


@pytest.mark.parametrize("read", [series_of_gpus, minutes_of_report, csv_file])
def test_readers_find_packed_samples(
    world: World, sampled: Allocation, read: Callable[[World, Allocation], object]
) -> None:
    before = read(world, sampled)
    pack_samples(PACKED_AT)
    assert read(world, sampled) == before
    insert(sampled.unit, at(10, 0, 1), utilisation=1.0, dram_active=99.0, allocation_id=sampled.pk)
    assert read(world, sampled) != before


def test_a_file_of_the_present_day_has_the_rows_of_a_file_of_a_past_day(
    world: World, sampled: Allocation
) -> None:
    hosts, period = [world.hosts["alpha"].pk], (at(0), at(0, day=3))
    present = b"".join(sample_file("csv", SampleScope(hosts, *period, now=at(23))))
    assert present.count(b"\n") > 100
    assert b"".join(sample_file("csv", SampleScope(hosts, *period, now=END))) == present


def spied_reads(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[tuple[list[int], dt.datetime]]:
    """Return a list to which each read of samples by a module adds its units and its first day."""
    reads: list[tuple[list[int], dt.datetime]] = []

    def load(names: Any, units: Any, start: dt.datetime, end: dt.datetime) -> Any:
        assert end - start <= timedelta(days=1)
        reads.append((list(units), start))
        return load_samples(names, units, start, end)

    monkeypatch.setattr(module, "load_samples", load)
    return reads


def test_a_file_of_the_work_of_a_team_unpacks_only_the_units_and_days_that_its_work_held(
    world: World, sampled: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    Allocation.objects.filter(pk=sampled.pk).update(period=(at(9), at(11)))
    Sample.objects.filter(ts__gte=at(11)).update(allocation_id=None)
    hosts = [host.pk for host in world.hosts.values()]
    work = Workload.objects.filter(project=world.vision.project)
    scope = SampleScope(hosts, START, END, PACKED_AT, workloads=work)
    before = b"".join(sample_file("csv", scope))
    assert before.count(str(sampled.workload.public_id).encode()) == before.count(b"\n") - 2 > 5
    pack_samples(PACKED_AT)
    reads = spied_reads(monkeypatch, sample_files)
    assert b"".join(sample_file("csv", scope)) == before
    assert reads == [([sampled.unit_id], START)]


def test_a_file_of_no_work_reads_no_samples(
    world: World, sampled: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_samples(PACKED_AT)
    reads = spied_reads(monkeypatch, sample_files)
    scope = SampleScope([world.hosts["alpha"].pk], START, END, PACKED_AT, workloads=Workload.objects.none())
    assert b"".join(sample_file("csv", scope)).count(b"\n") == 2
    assert reads == []


def test_the_series_of_a_long_run_is_read_day_by_day(
    world: World, sampled: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = spied_reads(monkeypatch, raw_series_module)
    found = raw_series([sampled.unit_id], [sampled.pk], at(9), END)
    assert [start for _, start in reads] == [at(9), at(0, day=3)]
    assert len(found["power_w"]) > 50


def test_rollups_are_built_again_from_packed_samples(world: World) -> None:
    maintain_partitions(START)
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(9, 40, 30), end_code="finished")
    write_samples(unit, at(9), 300)
    roll_up_due_buckets(at(12))
    pack_samples(at(0, day=3) + LONGEST_WAIT)  # no batch has arrived, so the host is awaited
    assert not Sample.objects.exists()
    (done,) = (result for _, result in rebuild_rollups(at(9), at(11), at(12)))
    assert (done.differences, done.rollups) == (
        0,
        Rollup.objects.filter(bucket__gte=at(9), bucket__lt=at(11)).count(),
    )
    write_samples(unit, at(9, 55), 1)  # a late sample is summed together with the packed ones
    roll_up_due_buckets(at(12))
    assert Rollup.objects.within(3_600, at(9), at(10)).filter(allocation=None).get().samples == 58


def test_retention_drops_packed_samples(world: World, sampled: Allocation) -> None:
    pack_samples(PACKED_AT)
    RollupDue.objects.all().delete()
    Retention.objects.filter(pk=1).update(sample_days=2)
    maintain_partitions(at(9, day=5))
    assert partitions("telemetry_packedsamples") == {"telemetry_packedsamples_20260303"}


def test_impossible_values_of_packed_samples_are_cleared(world: World, sampled: Allocation) -> None:
    insert(sampled.unit, at(9, 30), power_w=99_999.0, utilisation=40.0)
    pack_samples(PACKED_AT)
    before = all_samples(world)
    done = dict(clear_impossible_values(PACKED_AT))
    assert done[START].samples >= 1
    after = all_samples(world)
    assert 99_999.0 in before["power_w"]
    assert 99_999.0 not in after["power_w"]
    assert before["ts"] == after["ts"]
    assert RollupDue.objects.filter(resolution=60, bucket=at(9, 30)).exists()
    assert dict(clear_impossible_values(PACKED_AT))[START].samples == 0


def reverse_migration() -> None:
    """Run the SQL that takes the migration of packed samples back. The transaction of the test undoes it."""
    migration = importlib.import_module("telemetry.migrations.0043_packed_samples")
    (operation,) = migration.Migration.operations
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE NONE")  # the owner of the tables
        cursor.execute(operation.reverse_sql)


def test_the_migration_is_taken_back_only_without_packed_samples(world: World, sampled: Allocation) -> None:
    pack_samples(PACKED_AT)
    rows = packed_rows()
    message = f"telemetry_packedsamples has {rows} rows; allowed: none. Packed samples cannot be unpacked."
    with pytest.raises(DatabaseError, match=message):
        reverse_migration()
    assert packed_rows() == rows
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM telemetry_packedsamples")
    reverse_migration()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT to_regclass('telemetry_packedsamples'),"
            " (SELECT count(*) FROM pg_proc WHERE proname LIKE 'telemetry%packed%')"
        )
        assert cursor.fetchone() == (None, 0)
