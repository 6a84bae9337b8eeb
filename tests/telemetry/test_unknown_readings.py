"""Test that a mean counts only the time in which its reading is known, from samples to charts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler.models import Allocation
from telemetry.core.rollup import UnitHold, UsageReading, UsageSums, merge_usage, roll_up_readings
from telemetry.core.run_report import UnitReport, mean_of, use_series
from telemetry.models import Sample
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.usage_by_group import GroupUsage, usage_by
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_rows import UsageRows
from telemetry.reads.utilisation.heatmap import utilisation_heatmap
from telemetry.reads.utilisation.waste import waste_by, waste_trends
from telemetry.reads.waterfall import usage_waterfall
from telemetry.rollups.roll_up import roll_up_due_buckets, roll_up_written_hours
from tests.portal.web.test_utilisation_page import charts_of
from tests.telemetry.rows import at, hold, rates, store_rollup, workload
from tests.telemetry.test_rollups import write_samples
from tests.world import World, units_of

__all__ = ["rates"]
MORNING = UsageFilters(at(9), at(11))


def readings(*values: tuple[float | None, float | None]) -> list[UsageReading]:
    return [
        UsageReading(10.0 * (number + 1), utilisation, sm_active)
        for number, (utilisation, sm_active) in enumerate(values)
    ]


def report_of(sums: UsageSums) -> UnitReport:
    return UnitReport(1, "h1", 0, "A100-40GB", "", 40_960, False, sums)


def test_the_time_of_an_unknown_reading_is_not_part_of_its_mean() -> None:
    held = [UnitHold(1, 0.0, 60.0)]
    use = roll_up_readings(readings((90, 80), (90, None), (None, None), (90, 80)), held, 0, 60)[1]
    assert (use.covered_seconds, use.utilisation_unknown_seconds, use.sm_unknown_seconds) == (40, 10, 20)
    report = report_of(use)
    assert (report.utilisation, report.sm_active) == (pytest.approx(0.9), pytest.approx(0.8))
    assert mean_of([report, report], "sm_active_seconds") == pytest.approx(0.8)
    series = use_series([(0, use)], [0], 60)
    assert (series["utilisation"], series["sm_active"]) == ([90.0], [80.0])


def test_known_readings_take_no_space_and_sums_add_up() -> None:
    held = [UnitHold(1, 0.0, 60.0)]
    known = roll_up_readings(readings((90, 80), (90, 80)), held, 0, 60)[1]
    unknown = roll_up_readings(readings((None, None), (None, None)), held, 0, 60)[1]
    assert (known.utilisation_unknown_seconds, known.sm_unknown_seconds) == (None, None)
    both = merge_usage([known, unknown])
    assert (both.utilisation_known_seconds, both.sm_known_seconds) == (20, 20)


def measured(allocation: Allocation, hour: int, **sums: float | None) -> None:
    """Store an hour of use with a utilisation of 40 % and an SM activity of 80 %."""
    values: dict[str, Any] = {
        "covered_seconds": 3600.0,
        "utilisation_seconds": 1440.0,
        "busy_seconds": 1800.0,
        "inefficient_seconds": 0.0,
        "idle_seconds": 1800.0,
        "empty_seconds": 0.0,
        "sm_active_seconds": 2880.0,
    }
    store_rollup(3600, at(hour), allocation.unit, allocation, **(values | sums))


@pytest.fixture
def mixed(rates: World) -> World:
    """Return a world in which vision held a measured GPU and one without utilisation, for two hours each.

    The SM activity of the first one is unknown in half of the time.
    """
    work = workload(rates, rates.vision, units=2)
    allocations = [
        hold(work, unit, at(9), at(11), end_code="finished") for unit in units_of(rates.hosts["alpha"])[:2]
    ]
    unknown = {
        **dict.fromkeys(("utilisation_seconds", "sm_active_seconds", "busy_seconds", "idle_seconds")),
        **dict.fromkeys(("utilisation_unknown_seconds", "sm_unknown_seconds"), 3600.0),
        "empty_seconds": None,
    }
    for hour in (9, 10):
        measured(allocations[0], hour, sm_active_seconds=1440.0, sm_unknown_seconds=1800.0)
        measured(allocations[1], hour, **unknown)
    charge_all_gpus(at(12))
    return rates


@pytest.fixture(params=["rollups", "cubes"])
def stored(mixed: World, request: pytest.FixtureRequest) -> World:
    """Return the world whose use is read from rollups, and from cubes."""
    if request.param == "cubes":
        roll_up_written_hours(at(9), at(11), at(12))
        assert UsageRows(MORNING)._cubes()[0] is not None
    return mixed


def group_of(dimension: str) -> GroupUsage:
    (group,) = (group for group in usage_by(dimension, MORNING).groups if group.held)
    return group


@pytest.mark.django_db
def test_the_mean_utilisation_of_a_group_leaves_out_gpus_without_one(stored: World) -> None:
    for dimension in ("team", "workload"):
        group = group_of(dimension)
        assert (group.held, group.known, group.coverage) == (4.0, 2.0, 1.0)
        assert group.utilisation == pytest.approx(0.4)


@pytest.mark.django_db
def test_the_heatmap_leaves_out_gpus_without_a_utilisation(stored: World) -> None:
    assert utilisation_heatmap(MORNING)[0][9] == pytest.approx(0.4)


@pytest.mark.django_db
def test_the_list_of_waste_has_means_of_the_known_time(mixed: World) -> None:
    reads = UsageRows(MORNING)
    fall = usage_waterfall(MORNING, reads)
    (row,) = waste_by("workload", MORNING, fall.parts, reads)
    assert (row.busy, row.sm_active) == (pytest.approx(0.4), pytest.approx(0.8))


@pytest.mark.django_db
def test_use_by_draws_unknown_time_as_a_bar_of_its_own(mixed: World) -> None:
    chart = charts_of(mixed.operator, start="2026-03-02T09:00", end="2026-03-02T11:00")["use-by"]
    place = chart.figure["data"][0]["y"].index("Vision")
    bars = {trace["name"]: trace["x"][place] for trace in chart.figure["data"][:3]}
    assert bars == {"used": 0.4, "held, not used": 0.6, "held, not measured": 1.0}


@pytest.mark.django_db
def test_the_unknown_time_of_samples_reaches_hours_days_and_cubes(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(10), end_code="finished")
    write_samples(unit, at(9), 360, utilisation=90)
    Sample.objects.filter(ts__lt=at(9, 30)).update(sm_active=80)
    roll_up_due_buckets(at(1, day=3))
    for filters in (MORNING, UsageFilters(at(0), at(0, day=3))):
        (sums,) = UsageRows(filters).sums("team").values()
        known = sums["covered_seconds"] - sums["sm_unknown_seconds"]
        assert sums["sm_active_seconds"] / known == pytest.approx(0.8)
        assert sums["utilisation_unknown_seconds"] is None


@pytest.mark.django_db
def test_the_trend_has_the_wasted_hours_and_no_point_where_no_activity_is_known(mixed: World) -> None:
    filters = UsageFilters(at(9), at(9) + timedelta(hours=8))
    reads = UsageRows(filters)
    (row,) = waste_by("workload", filters, usage_waterfall(filters, reads).parts, reads)
    (trend,) = waste_trends("workload", reads, [row.work]).values()
    assert trend == [pytest.approx(0.5), pytest.approx(0.5), *[None] * 6]
