"""Test billing months and days in time zones: they tile time without a gap or an overlap."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.core.billing_calendar import (
    UTC_CALENDAR,
    BillingCalendar,
    ZoneStart,
    next_month,
    previous_month,
)

# The zones cover these cases:
#
# - offsets from the far west (Niue) to the far east of UTC (Kiritimati);
# - offsets with quarter hours (Kathmandu, Chatham);
# - daylight saving of half an hour (Lord Howe);
# - clocks that change at midnight, forward and back (Havana, Santiago);
# - a skipped day (Apia).
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Havana",
    "America/Santiago",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Asia/Beirut",
    "Atlantic/Azores",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "Pacific/Niue",
)


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc, arg-type]


months = st.dates(dt.date(2009, 1, 1), dt.date(2030, 12, 1)).map(lambda day: day.replace(day=1))
moments = st.integers(0, 22 * 365 * 86_400).map(lambda second: utc(2009, 1, 1) + dt.timedelta(seconds=second))
calendars = st.lists(
    st.builds(ZoneStart, months, st.sampled_from(ZONES)), max_size=3, unique_by=lambda zone: zone.first_month
).map(BillingCalendar)


def berlin(since: dt.date = dt.date(2026, 3, 1)) -> BillingCalendar:
    return BillingCalendar([ZoneStart(since, "Europe/Berlin")])


@given(calendars, months)
def test_each_month_begins_where_the_month_before_ended(calendar: BillingCalendar, month: dt.date) -> None:
    start, end = calendar.month_bounds(month)
    assert start < end
    assert calendar.month_bounds(next_month(month))[0] == end
    assert calendar.month_bounds(previous_month(month))[1] == start


@given(calendars, months)
def test_the_days_of_a_month_follow_each_other_and_fill_it(calendar: BillingCalendar, month: dt.date) -> None:
    start, end = calendar.month_bounds(month)
    day, reached = month, start
    while day < next_month(month):
        low, high = calendar.day_bounds(day)
        assert (low, low <= high) == (reached, True)
        day, reached = day + dt.timedelta(days=1), high
    assert reached == end


@given(calendars, moments)
def test_each_time_is_in_exactly_one_day_and_in_the_month_of_that_day(
    calendar: BillingCalendar, moment: dt.datetime
) -> None:
    day = calendar.day_of(moment)
    low, high = calendar.day_bounds(day)
    assert low <= moment < high
    start, end = calendar.month_bounds(calendar.month_of(moment))
    assert start <= low < high <= end
    assert calendar.next_midnight(moment) == high
    assert calendar.start_of_day(moment) == low


@given(moments)
def test_without_a_zone_days_and_months_are_those_of_utc(moment: dt.datetime) -> None:
    assert UTC_CALENDAR.day_of(moment) == moment.date()
    assert UTC_CALENDAR.month_of(moment) == moment.date().replace(day=1)


def test_the_first_local_month_starts_where_the_last_month_in_utc_ended() -> None:
    calendar = berlin()
    assert calendar.month_bounds(dt.date(2026, 2, 1)) == (utc(2026, 2, 1), utc(2026, 3, 1))
    assert calendar.month_bounds(dt.date(2026, 3, 1)) == (utc(2026, 3, 1), utc(2026, 3, 31, 22))
    assert calendar.month_bounds(dt.date(2026, 4, 1)) == (utc(2026, 3, 31, 22), utc(2026, 4, 30, 22))


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", dt.date(2026, 3, 29), 23),
        ("Europe/Berlin", dt.date(2026, 10, 25), 25),
        ("Europe/Berlin", dt.date(2026, 10, 26), 24),
        ("Australia/Lord_Howe", dt.date(2026, 4, 5), 24.5),
        ("Australia/Lord_Howe", dt.date(2026, 10, 4), 23.5),
        ("America/Havana", dt.date(2026, 11, 1), 25),
        ("America/Havana", dt.date(2026, 3, 8), 23),
        ("Pacific/Apia", dt.date(2011, 12, 29), 24),
        ("Pacific/Apia", dt.date(2011, 12, 30), 0),
        ("Pacific/Apia", dt.date(2011, 12, 31), 24),
    ],
)
def test_a_day_on_which_clocks_change_has_its_real_length(zone: str, day: dt.date, hours: float) -> None:
    low, high = BillingCalendar([ZoneStart(dt.date(2001, 1, 1), zone)]).day_bounds(day)
    assert (high - low) == dt.timedelta(hours=hours)


def test_the_example_of_the_documentation_is_computed() -> None:
    calendar, march = berlin(), dt.date(2026, 3, 1)
    days = {
        f"{day.day} March": calendar.day_bounds(day) for day in (march.replace(day=n) for n in (1, 2, 29))
    }
    spans = {
        "February 2026": calendar.month_bounds(dt.date(2026, 2, 1)),
        "March 2026": calendar.month_bounds(march),
        **days,
        "April 2026": calendar.month_bounds(dt.date(2026, 4, 1)),
    }
    rows = [
        f"| {name} | {low:%-d %b %H:%M} | {high:%-d %b %H:%M} | {(high - low) // dt.timedelta(hours=1)} |"
        for name, (low, high) in spans.items()
    ]
    text = (Path(__file__).resolve().parents[2] / "docs" / "money.md").read_text()
    assert text.partition("<!-- zones:")[2].partition("<!-- /zones")[0].splitlines()[3:] == rows
