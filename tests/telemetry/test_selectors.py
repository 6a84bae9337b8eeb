"""Test the figures of the dashboards: sums, coverage, and the filters of each viewer."""

from __future__ import annotations

import datetime as dt
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduler import services
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Allocation, Gpu, Run, Workload
from telemetry.budgets.budget_checks import check_budgets
from telemetry.models import Budget, Price, Sample
from telemetry.money.charges import charge_all_gpus
from telemetry.money.rate_card import load_rates
from telemetry.reads.budget_status import find_budget_status
from telemetry.reads.chargeback import charge_lines, charges_by
from telemetry.reads.live_readings import live_unit_readings
from telemetry.reads.pooling import owned_gpus, pooling_savings
from telemetry.reads.prices import load_current_prices
from telemetry.reads.usage_by_group import usage_by
from telemetry.reads.usage_filters import USAGE_DIMENSIONS, UsageFilters
from telemetry.reads.usage_over_time import usage_over_time
from telemetry.reads.utilisation.heatmap import utilisation_heatmap
from telemetry.reads.wait_times import wait_times
from telemetry.reads.waterfall import usage_waterfall
from tests.seeds import first_cases
from tests.telemetry.rows import at, hold, host_state, rates, reservation, store_rollup, workload
from tests.world import H100, World, units_of, world_fixture

pytestmark = pytest.mark.django_db
MARCH = dt.date(2026, 3, 1)
MORNING = UsageFilters(at(9), at(13))


def create_hour_of_use(
    allocation: Allocation, hour: int, *, held: float = 3600, **measures: float | None
) -> None:
    """Create the hourly rollup of an allocation.

    By default, samples cover the whole hour, and the GPU is busy half of it. ``measures`` override values.
    """
    values: dict[str, Any] = {
        "covered_seconds": held,
        "utilisation_seconds": held * 0.4,
        "busy_seconds": held * 0.5,
        "inefficient_seconds": held * 0.1,
        "sm_unmeasured_seconds": 0.0,
        "idle_seconds": held * 0.3,
        "empty_seconds": held * 0.2,
    }
    store_rollup(
        3600,
        at(hour),
        allocation.unit,
        allocation,
        held_seconds=held,
        samples=360,
        **(values | measures),
    )


def write_morning(rates: World) -> World:
    """Return a world with four hours of use.

    Vision held an H100 for 4 h, with readings. Language held an H100 for 3 h, without readings.
    Robotics did not use its reservation.
    """
    units = units_of(rates.hosts["alpha"])
    first = hold(workload(rates, rates.vision), units[0], at(9), at(13), end_code="finished")
    hold(workload(rates, rates.language), units[1], at(9), at(11), end_code="finished")
    hold(workload(rates, rates.language), units[1], at(11), at(12), end_code="killed_at_grace")
    reservation(rates, rates.robotics, [units[2]], at(9), at(12))
    host_state(rates.hosts["beta"], at(11), admin="maintenance")
    for hour in (9, 10, 11, 12):
        create_hour_of_use(first, hour)
    charge_all_gpus(at(13, 5))
    return rates


morning = world_fixture(write_morning, after=rates)


def test_the_waterfall_accounts_for_every_gpu_hour_and_every_cent(morning: World) -> None:
    fall = usage_waterfall(UsageFilters(at(9), at(13), pool=morning.shared.pk))
    steps = {step.key: round(step.gpu_hours, 6) for step in fall.steps}
    assert fall.gpu_hours == pytest.approx(24 * 4)
    assert sum(step.gpu_hours for step in fall.steps) == pytest.approx(fall.gpu_hours)
    assert (
        sum(step.cost for step in fall.steps) == fall.cost == Decimal("188.80")
    )  # 16 x 4 x 2.40 + 8 x 4 x 1.10
    assert steps["maintenance"] == 16
    assert steps["reserved_unused"] == 3
    assert steps["lost"] == 1
    # Four of the six used hours were measured; the other two stay unmeasured.
    assert (steps["empty"], steps["idle"], steps["inefficient"], steps["productive"]) == (0.8, 1.2, 0.4, 1.6)
    assert steps["unmeasured"] == 2
    assert fall.coverage == pytest.approx(4 / 7)


def test_the_empty_gpus_of_a_static_pool_are_a_step_of_their_own(morning: World) -> None:
    fall = usage_waterfall(MORNING)
    steps = {step.key: round(step.gpu_hours, 6) for step in fall.steps}
    assert (steps["reserved_unused"], steps["dedicated_unused"]) == (3, 16)
    assert sum(step.gpu_hours for step in fall.steps) == pytest.approx(fall.gpu_hours)
    assert sum(step.cost for step in fall.steps) == fall.cost == Decimal("206.40")  # and 4 x 4 x 1.10
    half = usage_waterfall(UsageFilters(at(9, 30), at(10)))  # the lines cross the edges of the period
    assert {step.key: step.gpu_hours for step in half.steps}["dedicated_unused"] == pytest.approx(2)


def test_busy_time_without_measured_sm_activity_is_a_step_of_its_own(morning: World) -> None:
    allocation = Allocation.objects.get(period__startswith=at(9), period__endswith=at(13))
    create_hour_of_use(allocation, 9, sm_unmeasured_seconds=900)
    create_hour_of_use(allocation, 10, sm_unmeasured_seconds=1800, inefficient_seconds=None)
    fall = usage_waterfall(UsageFilters(at(9), at(13), pool=morning.shared.pk))
    steps = {step.key: round(step.gpu_hours, 6) for step in fall.steps}
    # Each hour is busy for half an hour. 900 s of the first and all of the second are not measured.
    assert (steps["sm_unmeasured"], steps["inefficient"], steps["productive"]) == (0.75, 0.3, 0.95)
    assert sum(step.gpu_hours for step in fall.steps) == pytest.approx(fall.gpu_hours)
    assert sum(step.cost for step in fall.steps) == fall.cost


def test_a_teams_waterfall_begins_with_its_held_and_reserved_hours(morning: World) -> None:
    fall = usage_waterfall(UsageFilters(at(9), at(13), team=morning.robotics.team.pk))
    assert {step.key: step.gpu_hours for step in fall.steps if step.gpu_hours} == {
        "reserved_unused": pytest.approx(3)
    }
    assert fall.coverage is None


def test_a_line_counts_only_its_part_within_the_period(morning: World) -> None:
    fall = usage_waterfall(UsageFilters(at(9, 30), at(10), pool=morning.shared.pk))
    assert fall.gpu_hours == pytest.approx(12)


def test_use_by_team_shows_unmeasured_figures_as_unknown(morning: World) -> None:
    table = usage_by("team", UsageFilters(at(9), at(13), pool=morning.shared.pk))
    by_name = {group.name: group for group in table.groups}
    vision, language, robotics = by_name["Vision"], by_name["Language"], by_name["Robotics"]
    assert (vision.held, vision.mean_gpus, vision.used, vision.busy) == pytest.approx((4.0, 1.0, 1.6, 2.0))
    assert vision.utilisation == pytest.approx(0.4)
    assert language.held == pytest.approx(3.0)
    assert [language.used, language.coverage, language.utilisation] == [None] * 3
    assert language.lost == pytest.approx(1.0)
    assert (robotics.held, robotics.charged, robotics.guarantee) == (0, Decimal("7.20"), 4.0)
    assert (vision.charged, language.charged) == (Decimal("9.60"), Decimal("4.80"))


@pytest.mark.parametrize("dimension", first_cases(3, sorted(USAGE_DIMENSIONS)))
def test_held_hours_are_the_same_in_every_dimension(morning: World, dimension: str) -> None:
    table = usage_by(dimension, MORNING)
    assert sum(group.held for group in table.groups) == pytest.approx(7.0)


def test_an_unknown_dimension_is_rejected_by_name(world: World) -> None:
    with pytest.raises(ValueError, match="'colour' is not one of"):
        usage_by("colour", MORNING)
    with pytest.raises(ValueError, match="'colour' is not one of"):
        charges_by("colour", MARCH)
    with pytest.raises(ValueError, match="colour is not one of"):
        charge_lines(MARCH, colour="red")
    with pytest.raises(ValueError, match="not after start"):
        UsageFilters(at(10), at(10))


def test_a_viewers_filter_excludes_other_teams(morning: World) -> None:
    own_team = UsageFilters(at(9), at(13), teams=[morning.vision.team.pk], users=[])
    assert [group.name for group in usage_by("team", own_team).groups] == ["Vision"]
    # 4 GPU-hours in the shared pool, and 4 GPUs x 4 h in the team's static pool
    assert usage_waterfall(own_team).gpu_hours == pytest.approx(4 + 16)
    nobody = UsageFilters(at(9), at(13), teams=[], users=[])
    assert usage_by("team", nobody).groups == []


def test_use_over_time_is_the_mean_of_gpus_held_in_each_hour(morning: World) -> None:
    series = {each.name: each for each in usage_over_time(MORNING, dimension="team")}
    assert series["Vision"].held == pytest.approx([1, 1, 1, 1])
    assert series["Language"].held == pytest.approx([1, 1, 1, 0])
    assert series["Vision"].busy == pytest.approx([0.4] * 4)
    assert series["Language"].busy == [None] * 4
    together = usage_over_time(MORNING)
    assert len(together) == 1
    assert together[0].held == pytest.approx([2, 2, 2, 1])


def test_pooling_saves_gpus_that_teams_need_at_different_times(rates: World) -> None:
    units = units_of(rates.hosts["alpha"])
    for unit in units[:4]:
        hold(workload(rates, rates.vision), unit, at(9), at(12), end_code="finished")
        hold(workload(rates, rates.language), unit, at(12), at(15), end_code="finished")
    charge_all_gpus(at(15, 5))
    saving = pooling_savings(UsageFilters(at(9), at(15), pool=rates.shared.pk))
    assert (saving.dedicated, saving.pooled, saving.gpus, saving.owned) == (8, 4, 4, 24)
    assert saving.per_month == Decimal("7008.00")  # 4 GPUs x 730 h x 2.40


def test_a_swapped_gpu_counts_once_and_a_new_one_from_its_first_day(rates: World) -> None:
    first = Gpu.objects.get(host=rates.hosts["alpha"], index=0)
    Gpu.objects.exclude(host=rates.hosts["alpha"]).update(retired_at=at(0))
    Gpu.objects.filter(host=rates.hosts["alpha"]).update(created_at=at(0))
    Gpu.objects.filter(pk=first.pk).update(retired_at=at(10))
    copy = {"host": first.host, "pool": first.pool, "model": first.model, "memory_mib": first.memory_mib}
    copy |= {"compute_capability": first.compute_capability, "index": 0}
    Gpu.objects.create(uuid="GPU-in-the-same-slot", created_at=at(10), **copy)
    Gpu.objects.create(uuid="GPU-that-was-added", created_at=at(12), **(copy | {"index": 8}))
    owned = owned_gpus(UsageFilters(at(8), at(14)))
    edges = [at(hour).timestamp() for hour in (8, 10, 12, 13, 14)]
    assert owned.per_step(edges) == [8.0, 8.0, 9.0, 9.0]
    assert owned.per_step([at(11, 30).timestamp(), at(12, 30).timestamp()]) == [8.5]
    assert (owned.most, owned_gpus(UsageFilters(at(8), at(11))).most) == (9.0, 8.0)
    assert owned_gpus(UsageFilters(at(8), at(14), model="none")).most == 0


def test_waits_count_from_submission_to_the_first_gpu(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    for minute in (1, 2, 3):
        work = workload(rates, rates.vision, submitted_at=at(9), models_wanted=[H100])
        start = at(9, minute)
        hold(work, unit, start, start + timedelta(seconds=30), end_code="checkpointed")
    hold(work, unit, at(10), at(11), end_code="finished")
    workload(rates, rates.vision, submitted_at=at(9), state="queued", models_wanted=[H100])
    (row,) = wait_times(["team"], MORNING)["team"]
    assert (row.name, row.started, row.p50, row.longest) == ("Vision", 3, 120.0, 180.0)
    assert (row.still_waiting, row.preemptions) == (1, 3)
    for by in ("size", "model", "project", "type"):
        assert (
            sum(each.started for each in wait_times([by], UsageFilters(at(9), at(13), model=H100))[by]) == 3
        )


def test_live_readings_show_the_last_reading_and_none_if_it_is_stale(world: World) -> None:
    units = units_of(world.hosts["alpha"])
    allocation = hold(workload(world, world.vision), units[0], at(9))
    rows = [(units[0], at(9, 59, 40), 55.0), (units[0], at(9, 59, 50), 66.0), (units[1], at(9, 55), 77.0)]
    with connection.cursor() as cursor:
        for unit, moment, reading in rows:
            cursor.execute(
                "INSERT INTO telemetry_sample (unit_id, ts, utilisation) VALUES (%s, %s, %s)",
                [unit.pk, moment, reading],
            )
    seen = live_unit_readings(at(10), pool=world.shared.pk)
    by_unit = {each.unit: each for each in seen}
    assert len(seen) == 8 + 8 + 6 + 14
    assert (by_unit[units[0].pk].utilisation, by_unit[units[0].pk].workload) == (66.0, allocation.workload_id)
    assert (by_unit[units[1].pk].utilisation, by_unit[units[1].pk].at) == (None, None)
    assert Sample.objects.count() == 3


def test_charges_drill_down_from_cost_centre_to_lines_and_sum_at_each_step(morning: World) -> None:
    total = charges_by("cost_centre", MARCH).total.charged
    assert total == Decimal("39.20")  # 9.60 + 4.80 + 7.20 and the static pool's 4 x 4 x 1.10
    where: dict[str, Any] = {}
    for dimension in ("cost_centre", "team", "project", "type", "workload"):
        table = charges_by(dimension, MARCH, **where)
        assert sum(group.charged for group in table.groups) == table.total.charged
        top = next(group for group in table.groups if group.name not in ("", "CC-110"))
        assert top.charged == top.used + top.idle + top.unmeasured + top.reserved_unused
        where[dimension] = top.key
    lines = charge_lines(MARCH, **where)
    assert sum(line.charged for line in lines) == top.charged
    assert all(line.allocation_id for line in lines)


def test_charged_time_is_split_into_busy_idle_and_unmeasured(morning: World) -> None:
    by_name = {group.name: group for group in charges_by("team", MARCH, type="training").groups}
    assert (by_name["Vision"].used, by_name["Vision"].idle, by_name["Vision"].unmeasured) == tuple(
        map(Decimal, ("3.84", "5.76", "0.00"))
    )
    assert (by_name["Language"].used, by_name["Language"].unmeasured) == (Decimal("0.00"), Decimal("4.80"))
    assert by_name["Language"].coverage == 0


def test_a_budget_shows_the_remaining_amount_and_the_forecast(morning: World) -> None:
    team = morning.vision.team.pk
    assert find_budget_status(MARCH, at(14), team=team) is None
    Budget.objects.create(team_id=team, month=MARCH, amount="100.00")
    view = find_budget_status(MARCH, at(14), team=team)
    assert view is not None
    assert (view.spent, view.left, view.forecast) == (Decimal("27.20"), Decimal("72.80"), None)
    check_budgets(at(12, day=16))
    later = find_budget_status(MARCH, at(12, day=16), team=team)
    assert later is not None and later.range is not None and later.forecast is not None
    assert Decimal("27.20") <= later.range.low <= later.forecast <= later.range.high
    assert find_budget_status(MARCH, dt.datetime(2026, 4, 1, tzinfo=dt.UTC), team=team).forecast is None


def test_the_current_price_is_the_newest_one_already_in_force(rates: World) -> None:
    card = load_current_prices(at(9))
    assert card.of(rates.shared.pk, H100) == Decimal("2.40")
    assert card.of(rates.shared.pk, H100, SLOTS_PER_GPU // 4) == Decimal("0.60")
    assert card.of(rates.shared.pk, "B300") is None


def test_the_shown_price_is_the_charged_price(world: World) -> None:
    """Use a pool's own price, which takes precedence over later prices for all pools."""
    shared, static = world.shared, world.static
    for pool, hour, price in ((None, 8, 1), (shared, 10, 2), (None, 12, 3), (shared, 14, 4)):
        Price.objects.create(
            pool=pool,
            model=H100,
            cost_per_gpu_hour=1,
            price_per_gpu_hour=price,
            valid_from=at(hour),
            created_at=at(1),
        )
    shown = {
        hour: (
            load_current_prices(at(hour)).of(shared.pk, H100),
            load_current_prices(at(hour)).of(static.pk, H100),
        )
        for hour in (7, 8, 11, 13, 15)
    }
    assert shown == {7: (None, None), 8: (1, 1), 11: (2, 1), 13: (2, 3), 15: (4, 3)}
    charged = load_rates({(shared.pk, H100)})[shared.pk, H100]
    assert [(rate.since.hour, rate.price) for rate in charged] == [(8, 1), (10, 2), (14, 4)]


def test_the_heatmap_has_values_only_for_measured_hours(morning: World) -> None:
    cells = utilisation_heatmap(MORNING)
    assert cells[0][9] == pytest.approx(0.4)
    assert cells[0][8] is None
    assert len(cells) == 7


def test_the_number_of_queries_does_not_depend_on_the_number_of_rows(morning: World) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            usage_waterfall(MORNING)
            usage_by("workload", MORNING)
            usage_over_time(MORNING, dimension="team")
            charges_by("workload", MARCH)
        return len(queries)

    before = count()
    units = units_of(morning.hosts["alpha"])
    for unit in units[3:7]:
        hold(workload(morning, morning.language), unit, at(9), at(13), end_code="finished")
    assert count() == before
    assert Run.objects.count() == 7
    assert Workload.objects.count() == 7


def test_use_is_counted_in_the_pool_that_a_host_has_left(world: World) -> None:
    host = world.hosts["alpha"]
    allocation = hold(workload(world, world.vision), units_of(host)[0], at(9), at(11), end_code="finished")
    create_hour_of_use(allocation, 9)
    create_hour_of_use(allocation, 10)
    services.move_host(host, world.static, reason="", now=at(12))
    assert [(group.name, group.held) for group in usage_by("pool", MORNING).groups] == [("Shared", 2.0)]
    services.remove_host(host, reason="", now=at(12))
    assert [(group.name, group.held) for group in usage_by("pool", MORNING).groups] == [("Shared", 2.0)]
    assert [group.name for group in usage_by("host", MORNING).groups] == ["alpha"]
