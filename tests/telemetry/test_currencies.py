"""Test currencies: a month has one, and amounts have its decimals. Totals of two currencies never mix."""

from __future__ import annotations

import csv
import datetime as dt
import io
import random
import zipfile
from collections.abc import Callable
from decimal import Decimal

import pytest
from django.db import DatabaseError, transaction

from portal.reads.money.cost_centres import paid_months
from telemetry.audit.ledger_audit import audit_ledger
from telemetry.core.cost_shares import CostShare
from telemetry.core.currencies import DECIMALS_BY_CURRENCY, decimals_of, smallest_unit
from telemetry.cost_centres.splits import Payer
from telemetry.exports.export_model import ExportOptions, ExportScope
from telemetry.exports.workbook import workbook_file
from telemetry.models import BillingCurrency, Charge, ChargeCell, Price, Statement, StatementLine
from telemetry.money import statement_export, statements
from telemetry.money.charges import charge_all_gpus
from telemetry.money.close_checks import close_checks
from telemetry.money.pricing.billing_currencies import currency_of_month
from telemetry.money.rate_card import load_rate_card
from telemetry.money.signing.statement_verification import verify_statement
from telemetry.money.transfers import moved_amounts
from telemetry.reads.chargeback import CHARGE_DIMENSIONS, charges_by
from telemetry.reads.corrections import correction_blocks
from telemetry.reads.statement_document import statement_document
from tests.portal.reads.test_workbook_exports import sheets_of
from tests.telemetry.rows import (
    at,
    begin_charges_at,
    billing_currency,
    change_in_place,
    cost_centre,
    end_hold,
    hold,
    pool_cost_centre,
    price,
    workload,
)
from tests.telemetry.test_cents import assert_one_figure, assert_tables_agree, random_month
from tests.world import A100, H100, World, units_of, world_fixture

pytestmark = pytest.mark.long

MARCH, APRIL, MAY = dt.date(2026, 3, 1), dt.date(2026, 4, 1), dt.date(2026, 5, 1)
AFTER = dt.datetime(2026, 4, 1, 2, 0, tzinfo=dt.UTC)
SCALES = {"JPY": 150, "KWD": 1, "EUR": 1}  # factors of prices by currency
IN_APRIL = dt.datetime(2026, 4, 3, tzinfo=dt.UTC)
db = pytest.mark.django_db


def test_a_currency_has_zero_two_or_three_decimals() -> None:
    assert [smallest_unit(code) for code in ("JPY", "EUR", "KWD")] == [1, Decimal("0.01"), Decimal("0.001")]
    assert set(DECIMALS_BY_CURRENCY.values()) == {0, 2, 3}
    assert all(len(code) == 3 and code.isalpha() and code.isupper() for code in DECIMALS_BY_CURRENCY)
    assert decimals_of("XXX") == 2


def priced_world(world: World, currency: str, scale: int = 1) -> None:
    """Give the world prices in a currency, and cost centres."""
    billing_currency(currency, MARCH)
    for model, cost, asked in ((H100, "2.345677", "2.999999"), (A100, "1.1", "1.1")):
        price(
            model,
            str(Decimal(cost) * scale),
            str(Decimal(asked) * scale),
            since=at(0, day=1),
            currency=currency,
        )
    for each, code in ((world.vision, "CC-100"), (world.language, "CC-200"), (world.robotics, "CC-300")):
        cost_centre(each, code, at(0, day=1))
    pool_cost_centre(world.static, "CC-110", at(0, day=1))


@db
@pytest.mark.parametrize(
    ("currency", "scale", "assert_views_agree"),
    [
        ("KWD", 1, assert_tables_agree),
        *((*each, assert_one_figure) for each in SCALES.items()),
    ],
)
def test_all_figures_of_a_month_are_multiples_of_the_smallest_unit_and_agree(
    world: World, currency: str, scale: int, assert_views_agree: Callable[[World, dt.date], None]
) -> None:
    priced_world(world, currency, scale)
    random_month(world, random.Random(7), currency)
    charge_all_gpus(at(10, day=9))
    charge_all_gpus(AFTER)
    statements.set_idle_payer(MARCH, "use")
    for state in ("open", "closed"):
        assert_views_agree(world, MARCH)
        for rows in (StatementLine.objects.all(), ChargeCell.objects.all()):
            for name in ("charged_cents", "cost_cents", "used_cents", "idle_cents"):
                exponents = {row.as_tuple().exponent for row in rows.values_list(name, flat=True)}
                assert exponents == {-decimals_of(currency)}, (state, name)
        assert {table.currency for table in (charges_by(name, MARCH) for name in CHARGE_DIMENSIONS)} == {
            currency
        }
        if state == "open":
            statements.close_month(month=MARCH, closed_by=world.finance, now=AFTER)
    statement = Statement.objects.get(month=MARCH)
    assert statement.currency == currency_of_month(MARCH) == currency
    assert verify_statement(statement).problems == ()


def change_of_currency(world: World) -> None:
    """Charge March in EUR and April in JPY. A late fact about March follows in April."""
    begin_charges_at(world, at(0, day=30))
    priced_world(world, "EUR")
    for model, cost in ((H100, "400.5"), (A100, "150")):
        price(model, cost, since=at(0, day=1).replace(month=4), currency="JPY")
    billing_currency("JPY", APRIL)
    unit, other = units_of(world.hosts["alpha"])[:2]
    late = hold(workload(world, world.vision), unit, at(9, day=30))
    hold(workload(world, world.language), other, at(12, day=31), IN_APRIL, end_code="finished")
    charge_all_gpus(AFTER)
    statements.close_month(month=MARCH, closed_by=world.finance, now=AFTER)
    end_hold(late, at(21, day=30), "finished")
    charge_all_gpus(IN_APRIL)


def write_changed_currency(world: World) -> World:
    """Return a world whose March is closed in EUR and whose April is in JPY, with a correction of March."""
    change_of_currency(world)
    return world


changed_currency = world_fixture(write_changed_currency)


@db
def test_a_month_has_one_currency_and_corrections_keep_that_of_their_month(changed_currency: World) -> None:
    assert (currency_of_month(MARCH), currency_of_month(APRIL)) == ("EUR", "JPY")
    for dimension in CHARGE_DIMENSIONS:
        table = charges_by(dimension, APRIL)
        assert table.currency == "JPY" and table.corrected == 0
        assert table.charged == table.total.charged
        assert {group.currency for group in table.groups} == {"JPY"}
        assert {group.currency for group in table.corrections} == {"EUR"}
        [[currency, corrected]] = table.charged_in_other_currencies.items()
        assert (currency, corrected) == ("EUR", Decimal("-81.00"))  # 27 hours less at 2.999999
    [block] = correction_blocks(APRIL)
    assert (block.currency, block.charged) == ("EUR", Decimal("-81.00"))
    totals = statements.statement_totals(APRIL)
    assert totals["other_currencies"]["EUR"]["charged"] == "-81.00"
    assert Decimal(totals["charged"]) == charges_by("team", APRIL).total.charged
    assert {(row["currency"], row["pool"]) for row in totals["pools"]} >= {
        ("EUR", "Shared"),
        ("JPY", "Shared"),
    }
    assert all(row["holds"] for row in totals["exact"])
    rows = list(csv.DictReader(io.StringIO(statement_export.statement_csv(APRIL))))
    assert {(row["currency"], row["corrected_month"]) for row in rows} == {("JPY", ""), ("EUR", "2026-03")}
    for month in (MARCH, APRIL):
        assert list(audit_ledger(month, IN_APRIL)) == []


@db
def test_a_split_moves_the_amounts_of_each_currency_in_its_smallest_unit(world: World) -> None:
    change_of_currency(world)
    split = (CostShare("CC-1", Decimal("33.33")), CostShare("CC-2", Decimal("66.67")))
    payer = Payer(project=world.language.project.pk)
    moved = moved_amounts(payer, split, at(0, day=1))
    assert {row.currency for row in moved} == {"EUR", "JPY"}
    for currency, total in (("EUR", Decimal("36.00")), ("JPY", Decimal(18824))):
        rows = {row.code: row for row in moved if row.currency == currency}
        assert rows.keys() == {"CC-1", "CC-2", "CC-200"}
        assert rows["CC-200"].before == total == rows["CC-1"].after + rows["CC-2"].after
        assert all(row.after % smallest_unit(currency) == 0 for row in rows.values())
        assert sum(row.moved for row in rows.values()) == 0


@db
def test_a_price_applies_only_in_months_of_its_currency(world: World) -> None:
    begin_charges_at(world, at(0, day=31))
    priced_world(world, "EUR")
    first_of_april = at(0, day=1).replace(month=4)
    ignored = price(H100, "400", since=first_of_april, currency="JPY")
    pool = world.shared.pk
    assert [rate.id for rate in load_rate_card().rates(pool, H100)] == [
        Price.objects.get(model=H100, currency="EUR").pk
    ]
    billing_currency("JPY", APRIL)
    assert load_rate_card().rates(pool, H100)[-1].id == ignored.pk
    card = load_rate_card()
    # The A100 has no price in JPY, so its time in April has no price at all.
    assert card.at(pool, A100, first_of_april) is None
    assert card.at(pool, A100, first_of_april - dt.timedelta(seconds=1)) is not None
    charge_all_gpus(IN_APRIL)
    unpriced = Charge.objects.filter(model=A100, month=APRIL)
    assert unpriced.exists() and not unpriced.exclude(price=None, cost=0, charged=0).exists()
    checks = {check["check"]: check["ok"] for check in close_checks(APRIL)}
    assert not checks["every line has a price"]
    assert list(audit_ledger(APRIL, IN_APRIL)) == []


@db
def test_the_audit_finds_a_line_that_is_priced_in_another_currency(changed_currency: World) -> None:
    line = Charge.objects.filter(month=APRIL, model=A100, corrects=None).order_by("pk")[0]
    change_in_place(line, price=Price.objects.get(model=A100, currency="EUR"))
    assert {(each.line, each.field) for each in audit_ledger(APRIL, IN_APRIL)} >= {(line.pk, "price")}


@db
def test_the_database_refuses_another_currency_for_a_charged_month(world: World) -> None:
    priced_world(world, "EUR")
    charge_all_gpus(at(12))
    refused = [
        lambda: billing_currency("JPY", dt.date(2026, 2, 1)),
        lambda: BillingCurrency.objects.update(currency="JPY"),
        lambda: BillingCurrency.objects.all().delete(),
    ]
    for number, change in enumerate(refused):
        with pytest.raises(DatabaseError), transaction.atomic():
            change()
            pytest.fail(f"change {number} was accepted")
    billing_currency("JPY", APRIL)


@db
def test_a_cost_centre_gets_a_statement_and_a_total_for_each_currency(changed_currency: World) -> None:
    start = dt.datetime(2026, 4, 4, 9, tzinfo=dt.UTC)
    unit = units_of(changed_currency.hosts["alpha"])[2]
    hold(
        workload(changed_currency, changed_currency.vision),
        unit,
        start,
        start + dt.timedelta(hours=3),
        end_code="finished",
    )
    now = dt.datetime(2026, 5, 1, 2, tzinfo=dt.UTC)
    charge_all_gpus(now)
    statement = statements.close_month(month=APRIL, closed_by=changed_currency.finance, now=now)
    made = statement.documents.filter(cost_centre="CC-100").order_by("sequence")
    assert [(row.number, row.currency, str(row.total)) for row in made] == [
        ("2026-04/CC-100/1", "JPY", "1202"),
        ("2026-04/CC-100/2", "EUR", "-81.00"),
    ]
    for row in statement.documents.all():
        document = statement_document(row)
        assert document.charged + document.corrected == row.total
    paid = [(row.month, row.currency, row.charged) for row in paid_months("CC-100")]
    assert paid[:2] == [(APRIL, "EUR", Decimal("-81.00")), (APRIL, "JPY", Decimal(1202))]
    sums = {"JPY": Decimal(statement.totals["charged"])}
    sums |= {code: Decimal(each["charged"]) for code, each in statement.totals["other_currencies"].items()}
    for currency, total in sums.items():
        assert total == sum(row.total for row in statement.documents.filter(currency=currency))
    scope = ExportScope("all", Charge.objects.all(), with_cost=True)
    parts = workbook_file(APRIL, scope, ExportOptions(currency="JPY"))
    rows = sheets_of(zipfile.ZipFile(io.BytesIO(b"".join(parts))))["Summary"]
    assert {row["F"]: Decimal(str(row["E"])) for row in rows if row.get("A") == "Total"} == sums
