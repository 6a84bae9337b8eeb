"""Test the calendar of budget periods."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.budgets.budget_periods import (
    MONTHS_PER_PERIOD,
    next_period,
    period_end,
    period_of,
    previous_period,
)

days = st.dates(dt.date(2000, 1, 1), dt.date(2100, 12, 31))
periods = st.sampled_from(sorted(MONTHS_PER_PERIOD))


@given(day=days, period=periods)
def test_each_day_is_in_exactly_one_period(day: dt.date, period: str) -> None:
    first = period_of(period, day)
    assert first <= day < next_period(period, first)
    assert period_of(period, first) == first
    assert previous_period(period, next_period(period, first)) == first


@pytest.mark.django_db
def test_a_quarter_begins_in_january_april_july_or_october() -> None:
    assert period_of("quarter", dt.date(2026, 12, 31)) == dt.date(2026, 10, 1)
    assert period_end("quarter", dt.date(2026, 10, 1)) == dt.datetime(2027, 1, 1, tzinfo=dt.UTC)
