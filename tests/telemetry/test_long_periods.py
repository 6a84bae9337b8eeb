"""Test that periods over 62 days are read from cubes, with the sums of the rows of single GPUs."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from telemetry.money.charges import charge_all_gpus
from telemetry.reads.pooling import pooling_savings
from telemetry.reads.usage_by_group import usage_by
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_over_time import usage_over_time
from telemetry.reads.usage_rows import UsageRows
from telemetry.reads.utilisation.waste import waste_by
from telemetry.reads.waterfall import usage_waterfall
from telemetry.rollups.roll_up import roll_up_written_hours
from tests.telemetry.rows import at, hold, rates, workload
from tests.telemetry.test_selectors import create_hour_of_use
from tests.world import World, units_of

__all__ = ["rates"]
pytestmark = pytest.mark.django_db
SHORT = UsageFilters(at(0), at(0, day=3))
LONG = dataclasses.replace(SHORT, end=at(0) + timedelta(days=63))


@pytest.fixture
def used(rates: World) -> World:
    """Return a world in which two teams held GPUs for some hours, and nothing was held later."""
    units = units_of(rates.hosts["alpha"])
    for unit, team, until in ((units[0], rates.vision, 12), (units[1], rates.language, 11)):
        allocation = hold(workload(rates, team), unit, at(9), at(until), end_code="finished")
        for hour in range(9, until):
            create_hour_of_use(allocation, hour)
    charge_all_gpus(at(0, day=3))
    roll_up_written_hours(at(9), at(0, day=3), at(0, day=4))
    return rates


def tables_of(run: Any) -> str:
    with CaptureQueriesContext(connection) as queries:
        run()
    return " ".join(query["sql"] for query in queries)


def test_a_long_period_reads_no_rows_of_single_gpus(used: World) -> None:
    def read_all() -> None:
        reads = UsageRows(LONG)
        fall = usage_waterfall(LONG, reads)
        waste_by("user", LONG, fall.parts, reads)
        usage_by("team", LONG, reads)
        usage_over_time(LONG, dimension="team", reads=reads)
        pooling_savings(LONG, reads)

    text = tables_of(read_all)
    assert "telemetry_rollupcube" in text
    assert "FROM scheduler_allocation a" not in text
    # The hours after the last cube are read from rollups, and no other time.
    assert UsageRows(LONG)._cubes()[1] > at(11)


def test_the_waterfall_of_a_long_period_has_the_hours_of_the_short_one(used: World) -> None:
    short, long = usage_waterfall(SHORT), usage_waterfall(LONG)
    hours = {step.key: step.gpu_hours for step in short.steps}
    assert {step.key: step.gpu_hours for step in long.steps} == pytest.approx(hours)
    assert long.cost == short.cost
    assert {part.work.workload for part in long.parts} == {0}


@pytest.mark.parametrize("ranking", ["user", "project"])
def test_the_waste_of_a_long_period_has_the_rows_of_the_short_one(used: World, ranking: str) -> None:
    def rows(filters: UsageFilters) -> list[Any]:
        reads = UsageRows(filters)
        found = waste_by(ranking, filters, usage_waterfall(filters, reads).parts, reads)
        return [(row.work, row.wasted_hours, row.cost, row.busy) for row in found]

    for short, long in zip(rows(SHORT), rows(LONG), strict=True):
        assert long == (short[0], pytest.approx(short[1]), short[2], pytest.approx(short[3]))


def test_held_gpus_of_a_long_period_are_those_of_the_short_one(used: World) -> None:
    short = {group.name: group for group in usage_by("team", SHORT).groups}
    long = {group.name: group for group in usage_by("team", LONG).groups}
    for name, group in long.items():
        assert group.held == pytest.approx(short[name].held) and group.borrowed is None
    hour = timedelta(hours=1)
    for one, other in zip(
        usage_over_time(SHORT, step=hour, dimension="team"),
        usage_over_time(LONG, step=hour, dimension="team"),
        strict=True,
    ):
        assert (other.name, other.held[:24]) == (one.name, pytest.approx(one.held))


def test_a_long_period_refuses_groups_that_cubes_do_not_have(used: World) -> None:
    with pytest.raises(ValueError, match="'gpu' is not one of"):
        usage_by("gpu", LONG)
    with pytest.raises(ValueError, match="'workload' is not one of"):
        waste_by("workload", LONG, [], UsageRows(LONG))
