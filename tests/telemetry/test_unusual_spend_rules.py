"""Test the rules for unusual spend, with the example of docs/money.md."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from telemetry.core.spending.unusual_spend import (
    HighDays,
    SpendSubject,
    high_days,
    is_not_taken,
    narrowest,
    price_effect,
    usual_charge,
)
from tests.documents import table_rows

MONDAY = date(2026, 3, 2)
PROJECT = SpendSubject(1)
PERSON = SpendSubject(1, 2)
WORK = SpendSubject(1, 2, "fit")


def mondays(*amounts: str) -> dict[date, Decimal]:
    """Return charges of the Mondays before MONDAY, the latest first."""
    return {MONDAY - timedelta(weeks=1 + index): Decimal(amount) for index, amount in enumerate(amounts)}


def found_with(charged: str, *before: str, currency: str = "EUR") -> list[HighDays]:
    days = {**mondays(*before), MONDAY: Decimal(charged)}
    return high_days(PROJECT, days, MONDAY, MONDAY + timedelta(days=30), currency)


def test_a_day_above_three_times_the_median_of_its_weekday_is_high() -> None:
    [found] = found_with("210.01", "70", "60", "70", "900")
    assert (found.first, found.amount, found.usual) == (MONDAY, Decimal("210.01"), Decimal("70.00"))
    assert not found_with("210.00", "70", "60", "70", "900")


def test_other_weekdays_and_older_weeks_do_not_count() -> None:
    days = {**mondays("70", "70", "70"), MONDAY: Decimal(900)}
    for other in (MONDAY - timedelta(days=1), MONDAY - timedelta(weeks=9)):
        assert not high_days(PROJECT, {**days, other: Decimal(70)}, MONDAY, MONDAY, "EUR")
    assert high_days(PROJECT, {**days, MONDAY - timedelta(weeks=8): Decimal(70)}, MONDAY, MONDAY, "EUR")


def test_fewer_than_four_charged_weekdays_give_no_usual_charge() -> None:
    assert usual_charge(mondays("70", "70", "70", "0"), MONDAY, "EUR") is None
    assert usual_charge(mondays("70", "70", "70", "80"), MONDAY, "EUR") == Decimal("70.00")


@pytest.mark.parametrize(("currency", "charged"), [("EUR", "51"), ("JPY", "5001"), ("KWD", "6")])
def test_small_amounts_are_never_unusual(currency: str, charged: str) -> None:
    assert found_with(charged, "1", "1", "1", "1", currency=currency)
    less = str(Decimal(charged) - Decimal(2))
    assert not found_with(less, "1", "1", "1", "1", currency=currency)


def test_consecutive_high_days_are_one_finding() -> None:
    days = {MONDAY + timedelta(days=number - 56): Decimal(70) for number in range(56)}
    days |= {MONDAY + timedelta(days=number): Decimal(300) for number in (0, 1, 3)}
    both, alone = high_days(PROJECT, days, MONDAY, MONDAY + timedelta(days=9), "EUR")
    assert (both.first, both.last, both.amount, both.usual) == (
        MONDAY,
        MONDAY + timedelta(days=1),
        Decimal(600),
        Decimal("140.00"),
    )
    assert alone.first == alone.last == MONDAY + timedelta(days=3)


def at(subject: SpendSubject, amount: int) -> HighDays:
    return HighDays(subject, MONDAY, MONDAY, Decimal(amount), Decimal(0))


def test_the_narrowest_subject_is_named() -> None:
    found = [at(PROJECT, 300), at(PERSON, 290), at(WORK, 280)]
    assert narrowest(found) == [at(WORK, 280)]


def test_a_project_is_named_too_if_its_people_explain_less_than_half() -> None:
    found = [at(PROJECT, 300), at(PERSON, 140), at(WORK, 140)]
    assert narrowest(found) == [at(PROJECT, 300), at(WORK, 140)]


def test_findings_on_other_days_or_in_other_projects_explain_nothing() -> None:
    later = HighDays(WORK, MONDAY + timedelta(days=2), MONDAY + timedelta(days=2), Decimal(300), Decimal(0))
    other = at(SpendSubject(2, 2, "fit"), 300)
    found = [at(PROJECT, 300), later, other]
    assert narrowest(found) == found


def test_reserved_time_is_reported_if_more_than_a_quarter_of_it_is_unused() -> None:
    assert is_not_taken(1000, 251, Decimal(50), "EUR")
    assert not is_not_taken(1000, 250, Decimal(50), "EUR")
    assert not is_not_taken(1000, 900, Decimal("49.99"), "EUR")
    assert not is_not_taken(0, 0, Decimal(50), "EUR")


def test_the_effect_of_a_price_is_the_charge_less_the_same_time_at_the_old_price() -> None:
    assert price_effect(Decimal("240.00"), Decimal("2.35"), Decimal("2.40"), "EUR") == Decimal("5.00")
    assert price_effect(Decimal("235.00"), Decimal("2.40"), Decimal("2.35"), "EUR") == Decimal("-5.00")
    assert price_effect(Decimal(0), Decimal(1), Decimal(0), "EUR") == 0


def test_the_documented_reserved_time_is_reported_by_the_rule() -> None:
    rows = table_rows("not-taken")
    assert len(rows) == 3
    for reserved, unused, charged, reported in rows:
        found = is_not_taken(float(reserved), float(unused), Decimal(charged), "EUR")
        assert found == (reported == "yes"), (reserved, unused, charged)


def test_the_documented_effects_of_a_price_are_those_of_the_rule() -> None:
    rows = table_rows("new-price")
    assert len(rows) == 2
    for old, new, charged, effect in rows:
        assert price_effect(Decimal(charged), Decimal(old), Decimal(new), "EUR") == Decimal(effect)


def test_the_example_of_the_documentation_is_what_the_rules_find(root: Path) -> None:
    rows = []
    for charged, before in (
        ("412.80", ("71", "70", "68", "75")),
        ("412.80", ("71", "70", "300", "300")),
        ("412.80", ("71", "70", "68")),
        ("60.00", ("15", "15", "15", "15")),
    ):
        found = found_with(charged, *before)
        usual = usual_charge(mondays(*before), MONDAY, "EUR")
        rows.append(
            f"| {', '.join(before)} | {usual if usual is not None else 'unknown'} | {charged} "
            f"| {'yes' if found else 'no'} |"
        )
    text = (root / "docs" / "money.md").read_text()
    table = text.split("<!-- unusual:")[1].split("<!-- /unusual -->")[0]
    assert table.strip().splitlines()[-len(rows) :] == rows
