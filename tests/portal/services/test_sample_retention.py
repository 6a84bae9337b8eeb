"""Test the command that sets how long samples and rollups are kept, and the bytes of each level."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from portal.models import AuditEvent
from telemetry.ingest.partitions import maintain_partitions
from telemetry.models import Retention, Rollup
from telemetry.rollups.stored_bytes import stored_levels
from tests.telemetry.rows import at, pack_all, store_rollup
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


def test_the_command_sets_the_retention_and_writes_an_audit_record(world: World) -> None:
    out = io.StringIO()
    call_command("set_retention", "--sample-days=20", "--minute-days=40", stdout=out)
    first, *sizes = out.getvalue().splitlines()
    assert (
        first == "Samples are kept for 20 days, minutes for 40 days, hours without limit, days without limit."
    )
    assert [line.partition(":")[0] for line in sizes] == [
        "samples",
        "minutes",
        "hours",
        "days",
        "cubes",
    ]
    retention = Retention.objects.get()
    assert (retention.sample_days, retention.minute_days) == (20, 40)
    record = AuditEvent.objects.get(verb="set_sample_retention")
    assert record.before == {"sample_days": 14, "minute_days": 30, "hour_days": None, "day_days": None}
    assert record.after == {"sample_days": 20, "minute_days": 40, "hour_days": None, "day_days": None}


@pytest.mark.parametrize(
    ("samples", "minutes", "message"),
    [
        (30, 30, "minute_days is 30; allowed: 31 or more, because samples are kept for 30 days."),
        (1, 30, "sample_days"),
        (14, 4000, "minute_days"),
    ],
)
def test_settings_with_which_an_hour_could_lose_its_minutes_are_rejected_by_name(
    world: World, samples: int, minutes: int, message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("set_retention", f"--sample-days={samples}", f"--minute-days={minutes}")
    assert Retention.objects.get().sample_days == 14
    assert not AuditEvent.objects.filter(verb="set_sample_retention").exists()


def test_hours_and_days_are_kept_without_limit_until_a_number_of_days_is_set(world: World) -> None:
    call_command("set_retention", "--hour-days=400", "--day-days=800", stdout=io.StringIO())
    assert (Retention.objects.get().hour_days, Retention.objects.get().day_days) == (400, 800)
    call_command("set_retention", "--day-days=unlimited", stdout=io.StringIO())
    assert (Retention.objects.get().hour_days, Retention.objects.get().day_days) == (400, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hour-days=99"], "hour_days.*99.*a whole number from 100"),
        (["--hour-days=400", "--day-days=399"], "day_days.*399.*a whole number from 400"),
        (
            ["--day-days=500"],
            "day_days is 500; allowed: unlimited, because hours are kept without limit.",
        ),
        (
            ["--hour-days=many"],
            "hour_days is 'many'; allowed: a whole number from 100 to 3,650 days, or unlimited.",
        ),
        (["--sample-days=many"], "sample_days is 'many'; allowed: a whole number from 2 to 3,649 days."),
    ],
)
def test_a_retention_of_hours_or_days_that_is_too_short_is_refused(
    world: World, arguments: list[str], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("set_retention", *arguments)
    assert Retention.objects.get().hour_days is None


def test_expired_hours_are_dropped_by_month_and_days_by_year(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    for resolution in (3600, 86_400):
        store_rollup(resolution, at(0), unit, covered_seconds=60)
    pack_all(at(1, day=3))
    Retention.objects.filter(pk=1).update(hour_days=100, day_days=100)
    maintain_partitions(at(0) + timedelta(days=120))
    assert Rollup.objects.count() == 2  # March and 2026 are not over for 100 days
    maintain_partitions(at(0) + timedelta(days=140))
    assert list(Rollup.objects.values_list("resolution", flat=True)) == [86_400]
    maintain_partitions(at(0) + timedelta(days=500))
    assert not Rollup.objects.exists()


def test_the_bytes_of_a_full_retention_are_estimated_from_the_stored_days(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    store_rollup(60, at(9), unit, covered_seconds=60)
    pack_all(at(1, day=3))
    minutes = {level.level: level for level in stored_levels(at(0, day=4))}["minutes"]
    assert minutes.stored > 0 and minutes.days == 30
    assert minutes.expected == round(minutes.stored / 2 * 30)


def test_cubes_are_listed_with_their_bytes_and_without_a_limit(world: World) -> None:
    cubes = {level.level: level for level in stored_levels(at(0, day=4))}["cubes"]
    assert (cubes.days, cubes.daily, cubes.expected) == (None, None, None)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_rollupcube (resolution, bucket, held_seconds) VALUES (3600, %s, 1)",
            [at(0)],
        )
    cubes = {level.level: level for level in stored_levels(at(0, day=4))}["cubes"]
    assert cubes.stored > 0 and cubes.daily == cubes.stored / 2
    assert cubes.expected is None and cubes.expected_of(10) == round(cubes.stored * 5)
