"""Test that whole days are read from rollups of days, with the sums of their hours."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.core.cache import cache

from portal.reads.fleet.demand_forecast import past_demand
from portal.reads.utilisation import fleet_map
from portal.reads.utilisation.period import zone_of_organisation
from portal.tasks import warm_utilisation
from scheduler.models import Allocation
from telemetry.models import Rollup
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_rows import USAGE_SUMS, UsageRows
from telemetry.reads.utilisation.waste import TREND_POINTS, waste_trends
from telemetry.reads.waterfall import WorkKey
from telemetry.rollups.roll_up import roll_up_due_buckets
from telemetry.rollups.whole_days import RollupState, rollup_state, use_rows
from tests.telemetry.rows import at, hold, workload
from tests.telemetry.test_cubes import END, LAST, three_days
from tests.telemetry.test_long_periods import tables_of
from tests.telemetry.test_rollups import write_samples
from tests.world import World, units_of

__all__ = ["three_days"]
pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)
NO_DAYS = RollupState(None, frozenset(at(0) + number * DAY for number in range(-1, 9)))


def use_by_workload(filters: UsageFilters, state: RollupState | None = None) -> dict[Any, Any]:
    return {group: sums for _, group, sums in UsageRows(filters, state).rollups("workload")}


def periods_read(start: datetime, end: datetime, open_days: list[datetime]) -> list[datetime]:
    """Return the times in the parameters of the subquery: days, open days, and hours."""
    _, values = use_rows(start, end, open_days, USAGE_SUMS)
    return [value for value in values if isinstance(value, datetime)]


@pytest.mark.parametrize(("start", "end"), [(at(9), END), (at(0), at(0, day=6)), (at(11), at(14))])
def test_the_use_of_whole_days_is_that_of_their_hours(
    world: World, three_days: None, start: Any, end: Any
) -> None:
    for filters in (UsageFilters(start, end), UsageFilters(start, end, team=world.vision.team.pk)):
        found, expected = use_by_workload(filters), use_by_workload(filters, NO_DAYS)
        assert found and found.keys() == expected.keys()
        for group, sums in found.items():
            for measure in USAGE_SUMS:
                assert sums[measure] == pytest.approx(expected[group][measure])


def test_a_period_of_whole_days_reads_no_hours(world: World, three_days: None) -> None:
    assert rollup_state(at(0), END).open_days == {LAST}  # nine hours of the last day are over
    reads = UsageRows(UsageFilters(at(0), LAST))
    text = tables_of(lambda: reads.rollups("workload"))
    assert "telemetry_rollupdays" in text and "FROM telemetry_rollup " not in text


def test_edges_and_open_days_are_read_from_hours() -> None:
    third, fourth, fifth = at(0, day=3), at(0, day=4), at(0, day=5)
    edges = periods_read(at(9), at(9, day=5), [])
    assert edges[:2] == [third, fifth] and set(edges[2:]) == {at(0), at(9), third, fifth, at(9, day=5)}
    with_open = periods_read(at(9), at(9, day=5), [fourth])
    assert set(with_open[2:]) == {at(0), at(9), third, fourth, at(9, day=5)}
    within = periods_read(at(9), at(11), [])
    assert set(within) == {at(0), at(9), at(11)}


def test_a_late_sample_opens_its_day_and_changes_its_use(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    job = workload(world, world.vision)
    hold(job, unit, at(9), at(11), end_code="finished")
    write_samples(unit, at(9), 60)
    roll_up_due_buckets(at(1, day=3))
    filters = UsageFilters(at(0), at(0, day=3))
    before, state = use_by_workload(filters), rollup_state(at(0), at(0, day=3))
    assert state.open_days == frozenset()
    write_samples(unit, at(9, 30), 60)
    # The minutes and hours are rolled up, and the day is due.
    roll_up_due_buckets(at(1, day=3), resolutions=(Rollup.Resolution.MINUTE, Rollup.Resolution.HOUR))
    assert rollup_state(at(0), at(0, day=3)).open_days == {at(0)}
    between = use_by_workload(filters)
    roll_up_due_buckets(at(1, day=3))
    after = rollup_state(at(0), at(0, day=3))
    assert after.open_days == frozenset() and after.versions[at(0)] > state.versions[at(0)]
    assert use_by_workload(filters)[job.pk] == pytest.approx(between[job.pk])
    assert between[job.pk]["covered_seconds"] > before[job.pk]["covered_seconds"]
    hours = UsageRows(filters).hours("team")
    assert hours.known.sum() == pytest.approx(between[job.pk]["covered_seconds"])


def test_a_late_sample_changes_the_map_of_its_day_and_no_other(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(11, day=3), end_code="finished")
    write_samples(unit, at(9), 60)
    write_samples(unit, at(9, day=3), 60)
    roll_up_due_buckets(at(1, day=4))
    days, now = [at(0), at(0, day=3)], at(1, day=5)
    stored: dict[str, Any] = {}

    def read() -> list[Any]:
        with (
            mock.patch.object(
                fleet_map, "cache_get_many", lambda keys: {k: stored[k] for k in keys if k in stored}
            ),
            mock.patch.object(fleet_map, "cache_set_many", lambda values, seconds: stored.update(values)),
        ):
            return fleet_map.cached_host_days(days, rollup_state(at(0), at(0, day=4)).versions, now)

    first, second = read()
    assert read() == [first, second] and first.weight[0, 9] == 10
    write_samples(unit, at(9, 30), 120)
    roll_up_due_buckets(at(2, day=4))
    changed, same = read()
    assert changed.weight[0, 9] == 30 and same is second


def test_the_task_reads_past_days_before_a_request_needs_them(
    world: World, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(11), end_code="finished")
    write_samples(unit, at(9), 60)
    roll_up_due_buckets(at(1, day=3))
    cache.clear()
    monkeypatch.setattr("django.utils.timezone.now", lambda: at(1, day=5))
    warm_utilisation()
    versions = rollup_state(at(0, day=1), at(0, day=5)).versions
    days = [at(0) + (number - 1) * DAY for number in range(4)]
    with django_assert_num_queries(0):
        (_, second, *_) = fleet_map.cached_host_days(days, versions, at(1, day=5))
        past_demand(at(0, day=5).date(), zone_of_organisation(""))
    assert second.weight[0, 9] == 10


def test_the_tail_after_the_cubes_is_added_to_the_group_of_the_cubes(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    write_samples(unit, at(9), 6 * 70)
    roll_up_due_buckets(at(10, 11))
    filters = UsageFilters(at(9), at(11))
    ((_, _, sums),) = UsageRows(filters).rollups("project_user")
    assert sums["covered_seconds"] == pytest.approx(840 * (70 * 60 - 10))


@pytest.mark.parametrize("dimension", ["team", "project"])
def test_the_hours_of_teams_are_those_of_the_cubes_and_rollups(
    world: World, three_days: None, dimension: str
) -> None:
    filters = UsageFilters(at(9), END, pool=world.shared.pk)
    reads = UsageRows(filters)
    text = tables_of(lambda: reads.hours(dimension))
    assert ("telemetry_rollupteamcube" in text) is (dimension == "team")
    hours, expected = reads.hours(dimension), UsageRows(filters, NO_DAYS).hours(dimension)
    assert sorted(rows_of(hours)) == pytest.approx(sorted(rows_of(expected))) and len(hours.starts) > 100


@pytest.mark.parametrize("ranking", ["project", "user"])
def test_the_trend_of_a_long_period_divides_a_day_between_two_parts(three_days: World, ranking: str) -> None:
    noon, length = at(12, day=3), 10 * DAY
    filters = UsageFilters(noon - (TREND_POINTS - 1) * length, noon + length)
    column = {"project": "workload__project", "user": "workload__owner"}[ranking]
    works = {WorkKey(**{ranking: pk}) for pk in Allocation.objects.values_list(column, flat=True)}
    reads = UsageRows(filters)
    assert "c.resolution" in tables_of(lambda: waste_trends(ranking, reads, works))
    trends = waste_trends(ranking, reads, works)
    found = [sum(points[part] or 0.0 for points in trends.values()) for part in range(TREND_POINTS)]
    # Four units for 72 hours from 9:00: 10 n empty and 5 idle seconds in hour n.
    wasted = [4 * (10 * hour + 5) / 3600 for hour in range(72)]
    first, second, later = sum(wasted[:15]), sum(wasted[15:39]), sum(wasted[39:])
    assert found[-2:] == pytest.approx([first + second / 2, second / 2 + later])
    assert not any(found[:-2])


def rows_of(hours: Any) -> list[tuple[Any, ...]]:
    keys = zip((hours.groups[code] for code in hours.codes), hours.starts.tolist(), strict=True)
    values = zip(hours.used.tolist(), hours.known.tolist(), hours.held.tolist(), strict=True)
    return [value for key, some in zip(keys, values, strict=True) for value in ((*key, *some),)]


@pytest.mark.parametrize("ranking", ["workload", "project", "user"])
def test_a_trend_has_the_wasted_time_of_each_part_of_the_period(
    world: World, three_days: None, ranking: str
) -> None:
    filters = UsageFilters(at(9), END)
    works = {
        WorkKey(**{ranking: getattr(each, f"{column}_id") if column else each.pk})
        for each in (allocation.workload for allocation in Allocation.objects.select_related("workload"))
        for column in [{"workload": "", "project": "project", "user": "owner"}[ranking]]
    }
    trends = waste_trends(ranking, UsageRows(filters), works)
    # Four units for 72 hours: 10 n empty and 5 idle seconds in hour n.
    total = sum(point or 0.0 for points in trends.values() for point in points)
    assert total == pytest.approx(4 * sum(10 * n + 5 for n in range(72)) / 3600)
    assert {len(points) for points in trends.values()} == {TREND_POINTS}
    assert waste_trends(ranking, UsageRows(filters, NO_DAYS), works) == pytest.approx(trends)
    month = dataclasses.replace(filters, start=END - 32 * DAY)
    wasted = sum(
        point or 0.0 for points in waste_trends(ranking, UsageRows(month), works).values() for point in points
    )
    assert wasted == pytest.approx(total)
