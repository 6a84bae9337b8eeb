"""Test that periods over 62 days are read from cubes, with the sums of the rows of single GPUs."""

from __future__ import annotations

import dataclasses
import datetime as dt
from datetime import timedelta
from decimal import Decimal
from typing import Any
from unittest import mock

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from telemetry.core.amounts import ZERO
from telemetry.models import StatementLine
from telemetry.money.charges import charge_all_gpus
from telemetry.money.shared_idle import assign_due_cents
from telemetry.reads import usage_filters
from telemetry.reads.pooling import pooling_savings
from telemetry.reads.usage.charge_sums import LONG_DIMENSIONS, charge_sums
from telemetry.reads.usage.kept_charges import kept_period, months_with_new_sums
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
    assert "telemetry_chargecell" in text
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


@pytest.fixture
def two_months(used: World) -> World:
    """Return the used world with a second month, whose sums have cents, and a price for all its time."""
    unit = units_of(used.hosts["alpha"])[0]
    hold(workload(used, used.language), unit, at(9, day=29), at(15) + timedelta(days=40), end_code="finished")
    charge_all_gpus(at(0) + timedelta(days=70))
    assign_due_cents()
    return used


def sums_by_key(filters: UsageFilters) -> dict[Any, tuple[float, Any, Any]]:
    found: dict[Any, tuple[float, Any, Any]] = {}
    for part in charge_sums([filters], LONG_DIMENSIONS)[0]:
        key = (part.bucket, part.is_reserved, *part.keys.values())
        seconds, cost, charged = found.get(key, (0.0, ZERO, ZERO))
        found[key] = (seconds + part.seconds, cost + part.cost, charged + part.charged)
    return found


def test_a_long_period_reads_the_sums_of_months_and_days_and_only_the_edges_from_charge_lines(
    two_months: World,
) -> None:
    start, end = at(10, 20), at(10, 40) + timedelta(days=66)
    filters = UsageFilters(start, end)
    kept = kept_period(start, end, months_with_new_sums())
    assert [month.month for month in kept.months] == [4]
    assert [(first.day, last.day) for first, last in kept.days] == [(3, 1), (1, 7)]
    assert kept.edges == [(start, at(0, day=3)), (at(0) + timedelta(days=66), end)]
    with mock.patch.object(usage_filters, "LONGEST_BY_GPU", timedelta(days=400)):
        lines = sums_by_key(dataclasses.replace(filters))
    assert {key[0] for key in lines} >= {"used", "reserved_unused", "unallocated"}
    found = sums_by_key(filters)
    assert found.keys() == lines.keys()
    for key, (seconds, cost, charged) in lines.items():
        assert found[key][0] == pytest.approx(seconds, abs=1)
        # A month has whole cents.
        assert found[key][1:] == pytest.approx((cost, charged), abs=Decimal("0.02"))


def test_a_month_whose_sums_are_not_final_is_read_by_day(two_months: World) -> None:
    StatementLine.objects.filter(statement__month=dt.date(2026, 4, 1)).update(due=True)
    kept = kept_period(LONG.start, LONG.end, months_with_new_sums())
    assert kept.months == []
    assert [(first.month, last.month) for first, last in kept.days] == [(3, 4), (4, 5), (5, 5)]


@pytest.mark.parametrize("chosen", ["team", "user", "model"])
def test_the_sums_of_a_long_period_obey_the_filters(two_months: World, chosen: str) -> None:
    all_parts = charge_sums([LONG], LONG_DIMENSIONS)[0]
    used_by_language = (
        part
        for part in all_parts
        if part.bucket == "used" and part.keys["team"] == two_months.language.team.pk
    )
    value = next(used_by_language).keys[chosen]
    whole = [part for part in all_parts if part.keys[chosen] == value]
    assert charge_sums([dataclasses.replace(LONG, **{chosen: value})], LONG_DIMENSIONS)[0] == whole
    if chosen == "team":
        seen = dataclasses.replace(LONG, teams=[value], users=[])
        assert charge_sums([seen], LONG_DIMENSIONS)[0] == whole
