"""Test the forecast of the demand of pools: its shape, its trend, its gaps and its backtest."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from zoneinfo import ZoneInfo

import pytest

from benchmarks.telemetry_forecast.daily_demand import score_forecasts
from scheduler.models import Workload
from telemetry.core.capacity.demand_forecast import (
    HORIZON_DAYS,
    MIN_KNOWN_DAYS,
    forecast_demand,
    weekday_factors,
)
from telemetry.reads.capacity.daily_demand import daily_demand
from telemetry.reads.demand import hourly_demand
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_rows import UsageRows
from tests.telemetry.rows import at, hold, workload
from tests.world import A100, H100, World, units_of

FIRST = dt.date(2026, 3, 2)  # a Monday
DAY = dt.timedelta(days=1)
WEEK = (100.0, 110.0, 105.0, 100.0, 95.0, 40.0, 30.0)


def weeks_of(count: int, growth: float = 0.0) -> dict[dt.date, float]:
    """Return demand with the shape of WEEK, which grows by ``growth`` of its first level each week."""
    return {
        FIRST - n * DAY: WEEK[(FIRST - n * DAY).weekday()] * (1 + growth * (count - n / 7))
        for n in range(1, count * 7 + 1)
    }


def test_a_steady_demand_goes_on_with_its_weekdays() -> None:
    forecast = forecast_demand(weeks_of(20), FIRST)
    assert len(forecast.days) == HORIZON_DAYS
    for each in forecast.days:
        assert each.expected == pytest.approx(WEEK[each.day.weekday()], rel=0.02)
        assert each.low <= each.expected <= each.high


def test_a_growing_demand_is_expected_to_grow_and_beats_last_week() -> None:
    forecast = forecast_demand(weeks_of(20, growth=0.05), FIRST)
    first_week = sum(each.expected for each in forecast.days[:7])
    assert sum(each.expected for each in forecast.days[-7:]) > first_week > sum(WEEK) * 1.95
    assert forecast.backtest.mase is not None and forecast.backtest.mase < 0.7


def test_unknown_days_count_neither_as_zero_nor_in_the_errors() -> None:
    known = weeks_of(20)
    gaps = {day: value for day, value in known.items() if day.weekday() != 6 and day.day % 9 != 0}
    forecast = forecast_demand(gaps, FIRST)
    mondays = [each.expected for each in forecast.days if each.day.weekday() == 0]
    assert mondays == pytest.approx([100.0] * 4, rel=0.05)
    assert forecast.known_days == len(gaps)
    full = forecast_demand(known, FIRST).backtest
    assert 0 < forecast.backtest.days < full.days
    assert forecast.backtest.error_share is not None and forecast.backtest.error_share < 0.05


def test_an_unknown_sunday_does_not_raise_the_factors_of_the_other_days() -> None:
    known = sorted(weeks_of(8).items(), reverse=True)
    without_sundays = [(day, value) for day, value in known if day.weekday() != 6]
    whole, part = weekday_factors(known), weekday_factors(without_sundays)
    assert part[0] / part[5] == pytest.approx(whole[0] / whole[5], rel=0.05)


def test_a_new_level_replaces_the_old_one() -> None:
    known = {day: value * (3 if day >= FIRST - 15 * DAY else 1) for day, value in weeks_of(20).items()}
    forecast = forecast_demand(known, FIRST)
    assert forecast.days[0].expected == pytest.approx(300, rel=0.1)


def test_too_few_known_days_give_no_forecast_and_no_error() -> None:
    known = dict(sorted(weeks_of(20).items())[-(MIN_KNOWN_DAYS - 1) :])
    forecast = forecast_demand(known, FIRST)
    assert forecast.days == () and forecast.backtest.mase is None
    assert forecast_demand({}, FIRST).days == ()


def test_an_unused_pool_is_forecast_to_stay_unused() -> None:
    forecast = forecast_demand(dict.fromkeys(weeks_of(20), 0.0), FIRST)
    assert {each.expected for each in forecast.days} == {0.0}
    assert forecast.backtest.mase is None


def test_the_forecast_depends_only_on_the_days_before() -> None:
    known = weeks_of(20, growth=0.01)
    later = {FIRST + n * DAY: 9_999.0 for n in range(40)}
    assert forecast_demand(known, FIRST) == forecast_demand({**known, **later}, FIRST)


def test_the_forecast_beats_last_week_on_demand_of_seeds_that_it_has_not_seen() -> None:
    assert score_forecasts(range(201, 204)) <= 0.9


@pytest.mark.django_db
def test_the_demand_of_a_day_is_that_of_its_hours(world: World) -> None:
    h100, a100 = units_of(world.hosts["alpha"])[:2], units_of(world.hosts["gamma"])[0]
    first = workload(world, world.vision, submitted_at=at(7, day=3), models_wanted=[H100])
    for unit in h100:
        hold(first, unit, at(9, day=3), at(3, day=5), end_code="finished")
    hold(workload(world, world.language, submitted_at=at(9, day=4)), a100, at(9, day=4), at(10, day=4))
    Workload.objects.filter(pk=first.pk).update(units=2)
    zone = ZoneInfo("Europe/Berlin")
    found = daily_demand(dt.date(2026, 3, 7), 10, zone)
    by_model = {model: days for (_, model), days in found.items()}
    hours = hourly_demand(
        filters := UsageFilters(start=at(0, day=1), end=at(23, day=6), model=H100),
        UsageRows(filters),
        zone,
        at(23, day=6),
    )
    wanted_on: dict[dt.date, float] = defaultdict(float)
    for start, gpus in zip(hours.starts.tolist(), hours.wanted.tolist(), strict=True):
        wanted_on[dt.datetime.fromtimestamp(start, zone).date()] += gpus
    for day, gpu_hours in by_model[H100].items():
        wanted = wanted_on[day]
        assert gpu_hours == pytest.approx(wanted), day
    assert by_model[A100][dt.date(2026, 3, 4)] == pytest.approx(1.0)
    # The site recorded nothing on the sixth, so it is unknown; the A100s had no demand before the fourth.
    assert min(by_model[A100]) == dt.date(2026, 3, 4) and dt.date(2026, 3, 6) not in by_model[H100]
