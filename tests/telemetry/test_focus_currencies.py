"""Test FOCUS files of a month with two currencies, and of work whose price has a factor."""

from __future__ import annotations

from decimal import Decimal

import pytest

from telemetry.exports.export_model import ExportOptions
from telemetry.exports.focus.check import check_focus_month
from telemetry.exports.focus.columns import FocusDataset, FocusVersion
from telemetry.exports.focus.focus_month import reference_numbers
from telemetry.models import CostCentreStatement
from telemetry.money.charges import charge_all_gpus
from tests.telemetry.rows import at, begin_charges_at, hold, price_factor, reservation, split, workload
from tests.telemetry.test_currencies import changed_currency
from tests.telemetry.test_focus import (
    COST,
    DETAIL,
    MAY,
    VERSIONS,
    billed,
    close,
    everything,
    read,
)
from tests.telemetry.test_statements import AFTER, APRIL, MARCH
from tests.world import World, units_of, world_fixture

__all__ = ["changed_currency"]

pytestmark = [pytest.mark.django_db, pytest.mark.long]
JPY = ExportOptions(currency="JPY", issuer="Example")

FIGURES = (
    "PricingQuantity",
    "ListUnitPrice",
    "ListCost",
    "ContractedUnitPrice",
    "ContractedCost",
    "BilledCost",
)


def write_april(world: World) -> World:
    """Charge April in JPY, with a correction of March in EUR."""
    start = at(9, day=4).replace(month=4)
    unit = units_of(world.hosts["alpha"])[2]
    hold(workload(world, world.vision), unit, start, start.replace(hour=12), end_code="finished")
    charge_all_gpus(MAY)
    return world


def write_closed_april(world: World) -> World:
    close(world, APRIL, MAY)
    return world


april = world_fixture(write_april, after=changed_currency)
closed_april = world_fixture(write_closed_april, after=april)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_month_with_two_currencies_obeys_every_rule(april: World, version: FocusVersion) -> None:
    assert check_focus_month(APRIL, everything(), JPY, version).failures == ()
    close(april, APRIL, MAY)
    assert check_focus_month(APRIL, everything(), JPY, version).failures == ()


@pytest.mark.parametrize(
    ("dataset", "version"),
    [
        (COST, "1.4"),
        (COST, "1.2"),
        (DETAIL, "1.4"),
    ],
    ids=lambda each: str(each),
)
def test_each_invoice_has_one_currency_and_sums_to_its_statement(
    closed_april: World, dataset: FocusDataset, version: FocusVersion
) -> None:
    rows = read(dataset, APRIL, version=version)
    statements = CostCentreStatement.objects.filter(statement__month=APRIL)
    assert set(statements.values_list("currency", flat=True)) == {"EUR", "JPY"}
    for statement in statements:
        own = [row for row in rows if row["InvoiceId"] == statement.number]
        assert {row["BillingCurrency"] for row in own} == {statement.currency}
        assert billed(own) == statement.total
    assert {row["InvoiceId"] for row in rows} == set(statements.values_list("number", flat=True))
    assert {row["BillingCurrency"] for row in rows if row["x_CorrectedMonth"]} == {"EUR"}


def test_the_price_of_a_row_is_in_the_currency_of_the_row(april: World) -> None:
    rows = [row for row in read(month=APRIL, version="1.2") if row["x_Bucket"] == "used"]
    prices = {(row["BillingCurrency"], row["PricingCurrency"], row["ListUnitPrice"]) for row in rows}
    assert prices == {("EUR", "EUR", "2.999999"), ("JPY", "JPY", "400.500000")}


def test_a_correction_refers_to_the_statement_in_its_currency(closed_april: World) -> None:
    found = reference_numbers([APRIL])
    assert found[APRIL, "CC-100", "JPY"] == "2026-04/CC-100/1"
    assert found[APRIL, "CC-100", "EUR"] == "2026-04/CC-100/2"
    late = [row for row in read(DETAIL, APRIL) if row["x_CorrectedMonth"]]
    assert {row["ReferenceInvoiceId"] for row in late} == {"2026-03/CC-100/1"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_factor_changes_the_contracted_price_and_not_the_list_price(
    rates: World, version: FocusVersion
) -> None:
    begin_charges_at(rates, at(0, day=29))
    price_factor("0.8", since=at(0, day=1), priority=0)
    split(rates.vision, at(0, day=29), CC_100="70", CC_200="30")
    first, second = units_of(rates.hosts["alpha"])[:2]
    low = workload(rates, rates.vision, priority=0)
    hold(low, first, at(9, day=30), at(19, day=30), end_code="finished")
    booked = reservation(rates, rates.language, [second], at(9, day=31), at(11, day=31))
    inside = workload(rates, rates.language, priority=0)
    hold(inside, second, at(9, day=31), at(11, day=31), end_code="finished", reservation=booked)
    charge_all_gpus(AFTER)
    close(rates)
    assert check_focus_month(MARCH, everything(), JPY, version).failures == ()
    rows = [row for row in read(version=version) if row["x_WorkloadId"] == f"workload/{low.pk}"]
    figures = {row["BillingAccountId"]: [Decimal(row[name]) for name in FIGURES] for row in rows}
    assert figures == {
        "CC-100": [7, Decimal("2.40"), Decimal("16.80"), Decimal("1.92"), Decimal("13.44"), Decimal("13.44")],
        "CC-200": [3, Decimal("2.40"), Decimal("7.20"), Decimal("1.92"), Decimal("5.76"), Decimal("5.76")],
    }
    [paid] = [row for row in read(version=version) if row["x_WorkloadId"] == f"workload/{inside.pk}"]
    assert (paid["ListUnitPrice"], paid["ContractedUnitPrice"]) == ("2.400000", "2.400000")
