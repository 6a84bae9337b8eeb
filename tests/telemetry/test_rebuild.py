"""Test the command that computes rollups of a past period again."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from telemetry.models import Rollup, RollupDue, Sample
from telemetry.rollups.rebuild import rebuild_rollups
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.telemetry.rows import at, hold, store_rollup, workload
from tests.telemetry.test_rollups import write_samples
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
NOW = at(1, day=3)


@pytest.fixture
def day(world: World) -> World:
    """Return a world in which two units were held and have samples, rolled up after the end of the day."""
    for unit in units_of(world.hosts["alpha"])[:2]:
        hold(workload(world, world.vision), unit, at(9), at(10, 30, 7), end_code="finished")
        write_samples(unit, at(9, 50), 200, every=7)
    roll_up_due_buckets(NOW)
    return world


def test_a_rebuild_gives_the_same_rows_again(day: World) -> None:
    before = sorted(Rollup.objects.values_list(), key=str)
    (done,) = [result for _, result in rebuild_rollups(at(0), at(0, day=3), NOW)]
    assert (done.rollups, done.differences) == (len(before), 0)
    assert sorted(Rollup.objects.values_list(), key=str) == before
    assert not RollupDue.objects.exists()


def test_a_rebuild_repairs_and_counts_rollups_that_do_not_follow_from_the_samples(day: World) -> None:
    before = sorted(Rollup.objects.values_list(), key=str)
    unit = units_of(day.hosts["alpha"])[0]
    wrong = Rollup.objects.get(resolution=60, unit=unit, bucket=at(9, 52))
    store_rollup(60, at(9, 52), unit, wrong.allocation, covered_seconds=30, utilisation_seconds=99)
    roll_up_due_buckets(NOW)  # packs the wrong minute
    (done,) = [result for _, result in rebuild_rollups(at(9), at(10), NOW)]
    assert done.differences == 1
    assert sorted(Rollup.objects.values_list(), key=str) == before


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (
            at(9),
            at(2, day=3),
            r"to is 2026-03-03T02:00:00\+00:00; allowed: 2026-03-03T01:00:00\+00:00 or earlier",
        ),
        (at(9), at(9), r"to is 2026-03-02T09:00:00\+00:00; allowed: after from"),
        (at(9, 30), at(10), r"from is 2026-03-02T09:30:00\+00:00; allowed: the start of an hour"),
        (at(9) - timedelta(days=20), at(9), "allowed: 2026-02-17T00:00:00.*older samples are deleted"),
    ],
)
def test_a_rebuild_of_the_future_or_of_deleted_samples_is_refused(
    world: World, start: object, end: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        list(rebuild_rollups(start, end, NOW))  # type: ignore[arg-type]


def test_a_day_that_was_deleted_before_the_retention_was_raised_is_refused(day: World) -> None:
    Sample.objects.filter(ts__lt=at(0, day=3)).delete()
    before = sorted(Rollup.objects.values_list(), key=str)
    message = r"from is 2026-03-02T09.*allowed: 2026-03-03T00:00:00\+00:00 or later.*2026-03-02 are deleted"
    with pytest.raises(ValueError, match=message):
        list(rebuild_rollups(at(9), at(10), NOW))
    assert sorted(Rollup.objects.values_list(), key=str) == before


def test_the_command_names_a_time_that_it_cannot_read(world: World) -> None:
    with pytest.raises(CommandError, match="from is 'yesterday'; allowed: a date"):
        call_command("telemetry_rebuild", "--from=yesterday", "--to=2026-03-02")
    out = StringIO()
    today = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    call_command(
        "telemetry_rebuild",
        f"--from={today - timedelta(days=1):%Y-%m-%d}",
        f"--to={today:%Y-%m-%d}",
        stdout=out,
    )
    assert out.getvalue().splitlines()[-1] == "rebuilt: 0 rollups, 0 differences"
