"""Test money: amounts are rounded in one module, and parts always sum to the whole."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.core.amounts import CENT, MICRO, round_amount, round_parts, split_amount, value_between
from telemetry.core.currencies import smallest_unit

micros = st.decimals(min_value=-(10**9), max_value=10**9, places=6, allow_nan=False)
cents = st.decimals(min_value=-(10**9), max_value=10**9, places=2, allow_nan=False)
rates = st.decimals(min_value=0, max_value=1000, places=6, allow_nan=False)
SINCE = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("amount", "expected"), [("1.005", "1.00"), ("1.015", "1.02"), ("-1.005", "-1.00"), ("2.675", "2.68")]
)
def test_halves_are_rounded_to_the_even_cent(amount: str, expected: str) -> None:
    assert round_amount(Decimal(amount)) == Decimal(expected)


@given(cents, st.lists(st.integers(0, 10**12), min_size=1, max_size=40))
def test_parts_always_sum_to_the_whole(total: Decimal, weights: list[int]) -> None:
    parts = split_amount(total, weights)
    assert sum(parts) == total
    assert all(part % CENT == 0 for part in parts)


@given(cents.filter(lambda total: total >= 0), st.lists(st.integers(1, 10**6), min_size=2, max_size=20))
def test_each_part_differs_from_its_exact_share_by_less_than_a_cent(
    total: Decimal, weights: list[int]
) -> None:
    for part, weight in zip(split_amount(total, weights), weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < CENT


def test_a_remaining_cent_goes_to_the_largest_remainder_and_on_a_tie_to_the_first() -> None:
    assert split_amount(Decimal("1.00"), [1, 1, 1]) == [Decimal("0.34"), Decimal("0.33"), Decimal("0.33")]
    assert split_amount(Decimal("0.10"), [1, 5, 4]) == [Decimal("0.01"), Decimal("0.05"), Decimal("0.04")]


@pytest.mark.parametrize("weights", [[], [1, -1]])
def test_invalid_weights_are_rejected(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="weights"):
        split_amount(Decimal("1.00"), weights)


def test_a_total_that_is_not_a_multiple_of_the_step_is_rejected() -> None:
    with pytest.raises(ValueError, match="no multiple"):
        split_amount(Decimal("1.001"), [1])


@given(st.lists(micros, max_size=60))
def test_rounded_parts_sum_to_the_rounded_total_and_stay_within_a_cent(amounts: list[Decimal]) -> None:
    parts = round_parts(amounts)
    assert sum(parts, Decimal(0)) == round_amount(sum(amounts, Decimal(0)))
    assert all(abs(part - amount) < CENT for part, amount in zip(parts, amounts, strict=True))


@given(st.lists(micros, min_size=1, max_size=30), st.sampled_from(["JPY", "EUR", "KWD"]))
def test_parts_in_the_smallest_unit_of_any_currency_sum_to_the_rounded_total(
    amounts: list[Decimal], currency: str
) -> None:
    unit = smallest_unit(currency)
    parts = round_parts(amounts, unit)
    assert sum(parts) == round_amount(sum(amounts, Decimal(0)), unit)
    assert all(
        part % unit == 0 and abs(part - each) < unit for part, each in zip(parts, amounts, strict=True)
    )


@given(st.lists(st.lists(micros, max_size=12), max_size=12))
def test_subparts_sum_to_their_part(groups: list[list[Decimal]]) -> None:
    above = round_parts([sum(group, Decimal(0)) for group in groups])
    for total, group in zip(above, groups, strict=True):
        parts = round_parts(group, total=total)
        assert sum(parts, Decimal(0)) == (total if group else Decimal(0))
        assert all(abs(part - amount) < CENT for part, amount in zip(parts, group, strict=True))


@given(rates, st.lists(st.integers(0, 10**8), min_size=2, max_size=10).map(sorted))
def test_the_value_of_pieces_of_time_sums_to_the_value_of_the_whole(
    rate: Decimal, seconds: list[int]
) -> None:
    moments = [SINCE + dt.timedelta(seconds=second) for second in seconds]
    parts = [value_between(a, b, rate, SINCE) for a, b in zip(moments, moments[1:], strict=False)]
    assert sum(parts, Decimal(0)) == value_between(moments[0], moments[-1], rate, SINCE)
    assert all(part % MICRO == 0 for part in parts)


def test_an_hour_costs_its_hourly_price() -> None:
    assert value_between(SINCE, SINCE + dt.timedelta(hours=1), Decimal("2.345678"), SINCE) == Decimal(
        "2.345678"
    )


def test_money_is_rounded_in_one_module(root: Path) -> None:
    packages = ("agent", "cli", "config", "portal", "scheduler", "telemetry")
    files = [path for package in packages for path in (root / package).rglob("*.py")]
    rounds = re.compile(r"\.quantize\(|\bROUND_(?:HALF|UP|DOWN|FLOOR|CEILING|05UP)")
    rounding = {str(path.relative_to(root)) for path in files if rounds.search(path.read_text())}
    assert rounding == {"telemetry/core/amounts.py"}
