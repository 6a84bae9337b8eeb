"""Test the statements of cost centres: their numbers, their totals, and that they never change."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import pytest
from django.db import DatabaseError, transaction
from django.db.models import Sum

from scheduler.models import Project, Team
from telemetry.models import Budget, CostCentreStatement, Statement, StatementLine
from telemetry.money import statements
from telemetry.money.charges import charge_all_gpus
from telemetry.money.closing.cost_centre_statements import StatementTerms
from telemetry.money.signing.statement_digest import digest_lines
from telemetry.money.signing.statement_verification import verify_statement
from telemetry.reads.statement_document import statement_document
from tests.portal.rejections import rejected
from tests.telemetry.rows import at, begin_charges_at, change_in_place, end_hold, hold, workload
from tests.telemetry.test_statements import AFTER, APRIL, MARCH, busy_march, running_allocation
from tests.world import World, units_of

__all__ = ["busy_march"]
pytestmark = pytest.mark.django_db
MAY = dt.datetime(2026, 5, 1, 2, tzinfo=dt.UTC)
TERMS = StatementTerms("Northern Research Institute", "internal allocation, no VAT", 14)


def close(world: World, month: dt.date = MARCH, now: dt.datetime = AFTER) -> Statement:
    return statements.close_month(month=month, closed_by=world.finance, now=now, terms=TERMS)


def test_a_close_makes_one_numbered_statement_for_each_cost_centre_with_a_line(busy_march: World) -> None:
    statement = close(busy_march)
    lines = statement.lines.exclude(cost_centre="")
    codes = sorted(set(lines.values_list("cost_centre", flat=True)))
    made = list(statement.documents.order_by("pk"))
    assert [row.number for row in made] == [f"2026-03/{code}/1" for code in codes]
    assert {(row.issuer, row.tax_text, row.currency) for row in made} == {
        ("Northern Research Institute", "internal allocation, no VAT", "EUR")
    }
    assert {row.due_on for row in made} == {dt.date(2026, 4, 15)}


def test_the_statements_of_a_month_sum_to_its_charges_to_the_cent(busy_march: World) -> None:
    statement = close(busy_march)
    for row in statement.documents.all():
        lines = StatementLine.objects.filter(statement=statement, cost_centre=row.cost_centre)
        assert row.total == lines.aggregate(total=Sum("charged_cents"))["total"]
    totals = statement.documents.aggregate(total=Sum("total"))
    assert totals["total"] == Decimal(statement.totals["charged"])


@pytest.mark.parametrize("payer", ["operator", "guarantee", "use"])
def test_the_rows_of_a_statement_sum_to_its_total(busy_march: World, payer: str) -> None:
    statements.set_idle_payer(MARCH, payer)
    close(busy_march)
    for row in CostCentreStatement.objects.all():
        document = statement_document(row)
        assert document.charged + document.corrected == row.total
        assert sum(document.parts.values()) == document.charged
        assert sum(entry.gpu_hours for entry in document.rows) >= 0


def test_a_row_has_the_mean_price_of_its_work(busy_march: World) -> None:
    close(busy_march)
    vision = CostCentreStatement.objects.get(cost_centre="CC-100")
    prices = {entry.price for entry in statement_document(vision).rows if entry.workload == "vision job"}
    # The price rose from 2.40 to 2.999999 on the tenth, while one job ran.
    assert len(prices) > 1 and all(price and Decimal("2.4") < price <= 3 for price in prices)


def test_a_correction_of_a_closed_month_is_listed_separately_in_the_next_statement(busy_march: World) -> None:
    open_end = running_allocation()
    close(busy_march)
    end_hold(open_end, at(22, day=31), "finished")
    charge_all_gpus(AFTER + dt.timedelta(hours=1))  # a correction is charged in the month of the run
    charge_all_gpus(MAY)
    close(busy_march, APRIL, MAY)
    document = statement_document(CostCentreStatement.objects.get(number="2026-04/CC-100/1"))
    assert {entry.corrected_month for entry in document.corrections} == {MARCH}
    assert document.corrected < 0
    assert document.charged + document.corrected == document.statement.total


def test_a_statement_never_changes_after_the_close(busy_march: World) -> None:
    statement = close(busy_march)
    row = statement.documents.earliest("pk")
    before = statement_document(row)
    Team.objects.filter(pk=busy_march.vision.team.pk).update(name="Renamed")
    Project.objects.filter(pk=busy_march.vision.project.pk).update(name="Renamed")
    charge_all_gpus(AFTER + dt.timedelta(hours=3))
    assert statement_document(CostCentreStatement.objects.get(pk=row.pk)) == before
    copy = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}
    for change in (
        lambda: CostCentreStatement.objects.filter(pk=row.pk).update(total=0),
        lambda: CostCentreStatement.objects.filter(pk=row.pk)._raw_delete(using="default"),
        lambda: CostCentreStatement.objects.create(**{**copy, "id": None, "number": "x", "currency": "USD"}),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            change()


def test_the_digest_of_a_month_covers_the_statements_of_its_cost_centres(busy_march: World) -> None:
    statement = close(busy_march)
    documents = [line for line in map(json.loads, digest_lines(statement)) if line[0] == "document"]
    assert len(documents) == statement.documents.count()
    row = statement.documents.earliest("pk")
    for field, changed in (
        ("total", row.total + 1),
        ("postal_address", "x"),
        ("due_on", dt.date(2026, 5, 1)),
    ):
        before = getattr(row, field)
        change_in_place(row, **{field: changed})
        assert "the digest of its rows is" in verify_statement(statement).problems[0], field
        change_in_place(row, **{field: before})
        assert verify_statement(statement).problems == ()


def test_a_statement_keeps_the_budget_that_its_cost_centre_had_at_the_close(busy_march: World) -> None:
    Budget.objects.create(cost_centre="CC-100", month=MARCH, amount=Decimal("500.00"))
    close(busy_march)
    Budget.objects.update(amount=Decimal("900.00"))
    budgets = dict(CostCentreStatement.objects.values_list("cost_centre", "budget"))
    assert budgets["CC-100"] == Decimal("500.00")
    assert budgets["CC-200"] is None


def test_a_team_that_pays_for_idle_time_without_a_cost_centre_keeps_the_month_open(rates: World) -> None:
    begin_charges_at(rates, at(0, day=31))
    start, end = at(9, day=31), at(12, day=31)
    hold(workload(rates, rates.vision), units_of(rates.hosts["alpha"])[0], start, end, end_code="finished")
    charge_all_gpus(AFTER)
    statements.set_idle_payer(MARCH, "guarantee")
    with rejected("teams that pay for idle time without a cost centre"):
        close(rates)


def test_the_example_of_the_documentation_is_computed(rates: World) -> None:
    alpha = units_of(rates.hosts["alpha"])
    hold(workload(rates, rates.vision), alpha[0], at(9), at(19), end_code="finished")
    hold(workload(rates, rates.language), alpha[1], at(9), at(14), end_code="finished")
    charge_all_gpus(AFTER)
    close(rates)
    rows = [
        f"| {row.number} | {row.due_on:%-d %b %Y} | {row.total:,.2f} |"
        for row in CostCentreStatement.objects.order_by("number")
    ]
    text = (Path(__file__).resolve().parents[2] / "docs" / "money.md").read_text()
    table = text.partition("<!-- documents:")[2].partition("<!-- /documents")[0]
    assert table.splitlines()[3:] == rows
