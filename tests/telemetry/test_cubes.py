"""Test that totals over many GPUs are read from cubes, and are the totals of the rollups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from telemetry.reads.usage_filters import CUBE_DIMENSIONS, UsageFilters
from telemetry.reads.usage_over_time import usage_over_time
from telemetry.reads.usage_rows import UsageRows
from telemetry.rollups.cubes import cube_periods
from telemetry.rollups.roll_up import roll_up_due_buckets, roll_up_written_hours
from tests.seeds import first_cases
from tests.telemetry.rows import at, hold, store_rollup, workload
from tests.telemetry.test_rollups import write_samples
from tests.world import World, units_of, world_fixture

pytestmark = pytest.mark.django_db
END = at(9, day=5)
HOUR, DAY = 3600, 86_400
THIRD, LAST = at(0, day=3), at(0, day=5)


def write_three_days(world: World) -> None:
    """Write hours of use of two teams on two models from 2 to 5 March."""
    for number, host in enumerate(("alpha", "beta")):
        for unit, team in zip(units_of(world.hosts[host])[:2], (world.vision, world.language), strict=True):
            allocation = hold(workload(world, team), unit, at(9), END, end_code="finished")
            for hour in range(72):
                bucket = at(9) + timedelta(hours=hour)
                measures = {"covered_seconds": 3000 + hour, "energy_mj": 10**9 + number}
                measures |= {"empty_seconds": 10 * hour, "idle_seconds": 5}
                store_rollup(3600, bucket, unit, allocation, utilisation_seconds=100.5 * hour, **measures)
    roll_up_written_hours(at(9), END, END)


three_days = world_fixture(write_three_days)


def measures_of(sums: dict[Any, dict[str, Any]]) -> dict[Any, Any]:
    names = ("covered_seconds", "utilisation_seconds", "energy_mj")
    return {group: tuple(each[name] for name in names) for group, each in sums.items()}


def totals(filters: UsageFilters, dimension: str) -> dict[Any, Any]:
    return measures_of(UsageRows(filters).sums(dimension))


def expected(filters: UsageFilters, dimension: str) -> dict[Any, Any]:
    """Return the totals from rollups of each GPU, which are not read from cubes."""
    reads = UsageRows(filters)
    reads._cubes = lambda days=True: (None, filters.start)  # type: ignore[method-assign,assignment,misc]
    return measures_of(reads.sums(dimension))


@pytest.mark.parametrize("dimension", sorted(CUBE_DIMENSIONS))
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (at(9), END),
        pytest.param(at(0, day=3), at(0, day=5), marks=pytest.mark.long),
        pytest.param(at(11, 30), at(14), marks=pytest.mark.long),
    ],
)
def test_totals_of_cubes_are_the_totals_of_the_rollups(
    world: World, three_days: None, dimension: str, start: Any, end: Any
) -> None:
    filters = UsageFilters(start, end, teams=[world.vision.team.pk], users=[])
    for each in (filters, UsageFilters(start, end, pool=world.shared.pk)):
        found = totals(each, dimension)
        assert found and found == {
            key: pytest.approx(value) for key, value in expected(each, dimension).items()
        }


def test_totals_of_past_days_read_no_rows_of_single_gpus(world: World, three_days: None) -> None:
    reads = UsageRows(UsageFilters(at(9), END))
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert reads.sums("team") and reads.hours("team")
    text = " ".join(query["sql"] for query in queries)
    assert "telemetry_rollupcube" in text and "FROM telemetry_rollup " not in text


def test_steps_of_a_day_read_from_cubes_of_days_have_the_mean_busy_gpus_of_their_hours(
    world: World,
    three_days: None,
) -> None:
    filters = UsageFilters(at(0), at(0, day=6))
    (days,) = usage_over_time(filters, step=timedelta(days=1))
    (hours,) = usage_over_time(filters, step=timedelta(hours=1))
    for number, busy in enumerate(days.busy):
        known = [value or 0.0 for value in hours.busy[24 * number : 24 * number + 24]]
        assert (busy or 0.0) == pytest.approx(sum(known) / 24)


def test_a_late_sample_changes_the_cubes_of_its_hour_and_day(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(11), end_code="finished")
    write_samples(unit, at(9), 60)
    roll_up_due_buckets(at(1, day=3))
    filters = UsageFilters(at(0), at(0, day=3))
    before = totals(filters, "team")
    write_samples(unit, at(9, 30), 60)
    roll_up_due_buckets(at(1, day=3))
    after = totals(filters, "team")
    assert after == expected(filters, "team")
    assert after[world.vision.team.pk][0] > before[world.vision.team.pk][0]


def test_the_hour_in_progress_is_added_to_the_cubes(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    write_samples(unit, at(9), 6 * 70)
    roll_up_due_buckets(at(10, 11))
    filters = UsageFilters(at(9), at(11))
    ((covered, _, _),) = totals(filters, "team").values()
    assert covered == pytest.approx(840 * (70 * 60 - 10))
    assert totals(filters, "team") == expected(filters, "team")


@pytest.mark.parametrize(
    ("start", "end", "until", "parts"),
    first_cases(
        3,
        [
            (at(9), at(11), at(12), [(HOUR, at(9), at(11))]),
            (at(9), at(11), at(10), [(HOUR, at(9), at(10))]),
            (at(0), THIRD, THIRD, [(DAY, at(0), THIRD)]),
            (at(0), at(0, day=4), at(5, day=3), [(DAY, at(0), THIRD), (HOUR, THIRD, at(5, day=3))]),
            (at(9), END, END, [(HOUR, at(9), THIRD), (DAY, THIRD, LAST), (HOUR, LAST, END)]),
        ],
    ),
)
def test_whole_days_are_read_from_cubes_of_days(start: Any, end: Any, until: Any, parts: Any) -> None:
    assert cube_periods(start, end, until) == parts
