"""Test credits and manual adjustments: their limits, their statement lines, and that nothing changes them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected
from telemetry.audit.adjustment_audit import audit_adjustments
from telemetry.audit.ledger_audit import audit_month
from telemetry.budgets.spending import SpendScope, period_spend
from telemetry.models import Adjustment, Charge, ChargeCell, CostCentreStatement, Statement, StatementLine
from telemetry.money import statements
from telemetry.money.adjusting import adjustments
from telemetry.money.adjusting.adjustments import AdjustmentDraft
from telemetry.money.adjusting.credit_limits import line_of_charge
from telemetry.money.charges import charge_all_gpus
from telemetry.money.close_checks import ADJUSTMENTS_DECIDED, close_checks
from telemetry.money.closing import proposals
from telemetry.money.shared_idle import assign_due_cents
from telemetry.money.signing.statement_digest import digest_lines
from telemetry.money.signing.statement_verification import verify_statement
from telemetry.money.statement_lines import statement_lines
from telemetry.reads.chargeback import charges_by
from telemetry.reads.statement_document import statement_document
from tests.seeds import first_cases
from tests.telemetry.rows import at, change_in_place, cost_centre, hold, price, split, workload
from tests.telemetry.test_money_example import documented_table
from tests.telemetry.test_statements import AFTER, APRIL, MARCH, busy_march
from tests.world import H100, World, units_of, world_fixture

__all__ = ["busy_march"]
pytestmark = pytest.mark.django_db


def write_march(world: World) -> World:
    """Return the organisation with a charged March whose lines have cents."""
    with transaction.atomic():
        assign_due_cents()
    return world


march = world_fixture(write_march, after=busy_march)


@contextmanager
def refused(code: str) -> Iterator[None]:
    """Expect OperationRejected with this code."""
    with pytest.raises(OperationRejected) as raised:
        yield
    assert raised.value.code == code


def draft(amount: str, month: dt.date = MARCH, **also: Any) -> AdjustmentDraft:
    columns = {"kind": "adjustment", "cost_centre": "CC-100", "reason": "The host was slow."}
    return AdjustmentDraft(month=month, amount=Decimal(amount), **columns | also)


def proposed(world: World, amount: str, **also: Any) -> Adjustment:
    return adjustments.propose(draft(amount, **also), author=world.finance, now=AFTER)


def approved(world: World, amount: str, **also: Any) -> Adjustment:
    return adjustments.approve(proposed(world, amount, **also), decided_by=world.auditor, now=AFTER)


def charge(centre: str = "CC-100") -> Charge:
    return Charge.objects.filter(month=MARCH, cost_centre=centre, charged__gt=1).earliest("pk")


def credit_of(line: Charge) -> dict[str, Any]:
    """Return the columns of a credit of a charge line."""
    statement = Statement.objects.get(month=MARCH)
    return {
        "kind": "credit",
        "cost_centre": line.cost_centre,
        "team": line.team_id,
        "project": line.project_id,
        "credited": statement,
        "line": line_of_charge(line),
        "charge": line,
    }


def close(world: World, month: dt.date = MARCH) -> Statement:
    return statements.close_month(month=month, closed_by=world.finance, now=AFTER)


def total_of(centre: str) -> Decimal:
    return sum((row.amount for row in statement_lines(MARCH) if row.cost_centre == centre), Decimal(0))


def test_an_adjustment_counts_when_another_person_has_approved_it(march: World) -> None:
    before = total_of("CC-100")
    row = proposed(march, "-12.50")
    assert total_of("CC-100") == before
    adjustments.approve(row, decided_by=march.auditor, now=AFTER, note="agreed")
    assert total_of("CC-100") == before - Decimal("12.50")
    assert (row.number, row.state, row.decided_by_name) == ("2026-03-A1", "approved", "auditor")


def test_the_author_does_not_approve(march: World) -> None:
    row = proposed(march, "5")
    with refused("adjustment_needs_another_person"):
        adjustments.approve(row, decided_by=march.finance, now=AFTER)
    with pytest.raises(DatabaseError), transaction.atomic():
        Adjustment.objects.filter(pk=row.pk).update(state="approved", decided_by=march.finance)


def test_an_adjustment_is_decided_once(march: World) -> None:
    row = proposed(march, "5")
    stale = Adjustment.objects.get(pk=row.pk)
    adjustments.reject(row, decided_by=march.auditor, now=AFTER, note="no")
    with refused("adjustment_is_decided"):
        adjustments.approve(stale, decided_by=march.auditor, now=AFTER)
    assert not StatementLine.objects.filter(bucket="adjustment").exists()


def test_all_views_of_a_month_include_its_adjustments(march: World) -> None:
    approved(march, "-12.50", team=march.vision.team.pk)
    approved(march, "7.25", cost_centre="CC-900")
    table = charges_by("cost_centre", MARCH)
    lines = sum((row.amount for row in statement_lines(MARCH)), Decimal(0))
    totals = statements.statement_totals(MARCH)
    assert table.charged == lines == Decimal(totals["charged"])
    assert table.total.adjustment == Decimal(totals["adjusted"]) == Decimal("-5.25")
    for row in (*table.groups, table.total):
        parts = row.used + row.idle + row.unmeasured + row.reserved_unused + row.idle_share + row.adjustment
        assert parts == row.charged
    assert sum(cell.charged_cents for cell in ChargeCell.objects.filter(statement__month=MARCH)) == lines
    assert period_spend(SpendScope(cost_centre="CC-900"), "money", MARCH, APRIL) == Decimal("7.25")
    assert next(row for row in table.groups if row.key == "CC-900").gpu_hours == 0


def test_the_equation_of_a_pool_leaves_adjustments_out(march: World) -> None:
    before = statements.statement_totals(MARCH)["pools"]
    approved(march, "-12.50")
    assert statements.statement_totals(MARCH)["pools"] == before
    assert all(check["ok"] for check in close_checks(MARCH))


@pytest.mark.parametrize("subject", ["charge", "line", "statement"])
def test_a_credit_is_at_most_its_charge_minus_earlier_credits(march: World, subject: str) -> None:
    columns = credit_of(charge())
    if subject != "charge":
        columns["charge"] = None
    if subject == "statement":
        columns["line"] = None
    with pytest.raises(OperationRejected) as found:
        proposed(march, "-100000", **columns)
    assert (found.value.code, found.value.field) == ("credit_above_charge", "amount")
    assert found.value.numbers["subject"] == subject
    most = Decimal(found.value.numbers["least"])
    approved(march, str(most), **columns)
    with refused("credit_above_charge"):
        proposed(march, "-0.01", **columns)


def test_credits_of_a_charge_line_count_for_its_statement_line_too(march: World) -> None:
    columns = credit_of(charge())
    line = columns["line"]
    approved(march, "-1", **columns)
    with refused("credit_above_charge"):
        proposed(march, str(-line.charged_cents), **columns | {"charge": None})


def test_of_two_waiting_credits_the_second_is_checked_again_when_it_is_approved(march: World) -> None:
    columns = credit_of(charge())
    first = proposed(march, "-1", **columns)
    most = -Decimal(int(columns["charge"].charged))
    with refused("credit_above_charge"):
        proposed(march, str(most), **columns)
    adjustments.reject(first, decided_by=march.auditor, now=AFTER)
    second = proposed(march, str(most), **columns)
    # A row that the check of the proposal has not seen: as if both had been proposed at the same time.
    copy = {f.attname: getattr(second, f.attname) for f in Adjustment._meta.concrete_fields}
    third = Adjustment.objects.create(**copy | {"id": None, "number": "2026-03-A9"})
    adjustments.approve(second, decided_by=march.auditor, now=AFTER)
    with refused("credit_above_charge"):
        adjustments.approve(third, decided_by=march.auditor, now=AFTER)


def test_a_person_sees_credits_of_their_own_work(march: World) -> None:
    line = charge()
    row = approved(march, "-1.00", **credit_of(line))
    cells = ChargeCell.objects.filter(user=line.user_id)
    assert row.cell is not None and row.cell.user_id == line.user_id
    assert charges_by("bucket", MARCH, cells).total.adjustment == Decimal("-1.00")


def test_an_approved_adjustment_is_withdrawn_by_the_opposite_amount(march: World) -> None:
    before, columns = total_of("CC-100"), credit_of(charge())
    row = approved(march, "-1.00", **columns)
    counter = adjustments.withdraw(row, withdrawn_by=march.finance, reason="Wrong line.", now=AFTER)
    assert (counter.amount, counter.state, counter.withdraws_id) == (Decimal("1.00"), "proposed", row.pk)
    with refused("adjustment_is_withdrawn"):
        adjustments.withdraw(row, withdrawn_by=march.finance, reason="Again.", now=AFTER)
    adjustments.approve(counter, decided_by=march.auditor, now=AFTER)
    assert total_of("CC-100") == before
    approved(march, "-1.00", **columns)
    assert list(audit_adjustments(MARCH)) == []


def test_a_proposed_adjustment_is_withdrawn_without_an_amount(march: World) -> None:
    row = adjustments.withdraw(proposed(march, "9"), withdrawn_by=march.finance, reason="Mistake.", now=AFTER)
    assert row.state == "withdrawn"
    assert not StatementLine.objects.filter(bucket="adjustment").exists()


def test_an_undecided_adjustment_keeps_its_month_open(march: World) -> None:
    row = proposed(march, "5")
    check = next(each for each in close_checks(MARCH) if each["check"] == ADJUSTMENTS_DECIDED)
    assert not check["ok"] and check["figures"]["undecided"][0]["number"] == row.number
    with refused("month_check_failed"):
        close(march)
    adjustments.reject(row, decided_by=march.auditor, now=AFTER)
    assert close(march).state == "closed"


def test_an_approval_after_a_proposal_to_close_is_seen_by_the_second_person(march: World) -> None:
    proposals.propose_close(month=MARCH, proposed_by=march.finance, now=AFTER)
    approved(march, "5")
    with refused("month_changed_since_proposal"):
        statements.close_month(month=MARCH, closed_by=march.auditor, now=AFTER, two_people=True)


def test_a_closed_month_gets_no_adjustment(march: World) -> None:
    row = approved(march, "-12.50")
    close(march)
    with pytest.raises(OperationRejected) as found:
        proposed(march, "5")
    assert found.value.code == "adjustment_month_is_closed"
    assert found.value.numbers == {"month": "2026-03", "first_open": "2026-04"}
    copy = {field.attname: getattr(row, field.attname) for field in Adjustment._meta.concrete_fields}
    new = {**copy, "id": None, "number": "x", "state": "proposed", "cell_id": None}
    for change in (
        lambda: Adjustment.objects.create(**new),
        lambda: Adjustment.objects.filter(pk=row.pk).update(reason="Another reason."),
        lambda: Adjustment.objects.filter(pk=row.pk)._raw_delete(using="default"),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            change()


def test_a_withdrawal_of_a_closed_month_goes_into_the_present_month(march: World) -> None:
    row = approved(march, "-12.50")
    close(march)
    counter = adjustments.withdraw(row, withdrawn_by=march.finance, reason="Wrong.", now=AFTER)
    assert counter.statement.month == APRIL


def test_a_credit_of_a_closed_month_goes_into_the_open_month(march: World) -> None:
    line = charge()
    columns = credit_of(line)
    close(march)
    row = approved(march, "-1.00", month=APRIL, **columns)
    assert (row.statement.month, row.credited.month) == (APRIL, MARCH)
    with refused("credit_above_charge"):
        proposed(march, str(-line.charged), month=APRIL, **columns)


def test_the_statement_of_a_cost_centre_lists_its_adjustments(march: World) -> None:
    row = approved(march, "-12.50", reason="Two days without a network.")
    close(march)
    statement = CostCentreStatement.objects.get(cost_centre="CC-100")
    document = statement_document(statement)
    assert document.charged + document.corrected + document.adjusted == statement.total
    entry = document.adjustments[0]
    assert (entry.number, entry.reason) == (row.number, "Two days without a network.")
    assert (entry.author, entry.approver) == (march.finance.username, march.auditor.username)


def test_the_digest_of_a_month_covers_its_adjustments(march: World) -> None:
    row = approved(march, "-12.50")
    statement = close(march)
    rows = [json.loads(text) for text in digest_lines(statement)]
    assert [each[2] for each in rows if each[0] == "adjustment"] == [row.number]
    assert verify_statement(statement).problems == ()
    change_in_place(row, reason="Another reason.")
    assert verify_statement(statement).problems


def test_the_audit_finds_no_difference_in_correct_adjustments(march: World) -> None:
    approved(march, "-12.50")
    approved(march, "-1.00", **credit_of(charge()))
    assert [str(each) for each in audit_month(MARCH, AFTER)] == []


@pytest.mark.parametrize("planted", first_cases(2, ["amount", "cost_centre", "cell", "line"]))
def test_the_audit_finds_one_changed_adjustment(march: World, planted: str) -> None:
    row = approved(march, "-12.50")
    assert row.cell is not None
    if planted == "amount":
        change_in_place(row, amount=Decimal("-12.51"))
    elif planted == "cost_centre":
        change_in_place(row, cost_centre="CC-110")
    elif planted == "cell":
        change_in_place(row.cell, charged_cents=Decimal("-12.49"))
    else:
        change_in_place(row.cell.line, slot_seconds=840)
    assert [str(each) for each in audit_adjustments(MARCH)]


def test_the_documented_statement_equals_that_of_the_code(world: World, root: Path) -> None:
    price(H100, "2.10", "2.40", since=at(0, day=1))
    cost_centre(world.vision, "CC-100", at(0, day=1))
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(19), end_code="finished")
    charge_all_gpus(at(20))
    with transaction.atomic():
        assign_due_cents()
    march = Statement.objects.get(month=MARCH)
    approved(world, "-6.00", kind="credit", credited=march)
    approved(world, "1.50")
    own = [row for row in statement_lines(MARCH) if row.cost_centre == "CC-100"]
    order = ["used", "credit", "adjustment"]
    figures = [
        (row.bucket, row.gpu_hours, row.amount) for row in sorted(own, key=lambda r: order.index(r.bucket))
    ]
    total = ("total", sum(row[1] for row in figures), sum(row[2] for row in figures))
    assert [f"| {name} | {hours:.2f} | {amount} |" for name, hours, amount in [*figures, total]] == (
        documented_table(root, "adjustments")
    )
    with pytest.raises(OperationRejected) as found:
        proposed(world, "-20", kind="credit", credited=march)
    documented = " ".join((root / "docs" / "money.md").read_text().split())
    assert refusal_sentence(found.value) in documented


def test_the_audit_finds_a_credit_above_its_charge(march: World) -> None:
    line = charge()
    row = approved(march, "-1.00", **credit_of(line))
    change_in_place(row, amount=-line.charged - 1)
    found = [str(each) for each in audit_adjustments(MARCH)]
    assert any(f"charge line {line.pk}: sum of credits" in each for each in found)


def test_the_audit_finds_a_credit_whose_charge_was_reversed_later(march: World) -> None:
    line = charge()
    row = approved(march, "-1.00", **credit_of(line))
    split(march.vision, line.start, AFTER, CC_900="100")
    charge_all_gpus(AFTER)
    assert line.corrections.filter(reversal=True, month=MARCH).exists()
    found = [str(each) for each in audit_adjustments(MARCH)]
    assert any(f"charge line {line.pk}: sum of credits is -1.00" in each for each in found), found
    counter = adjustments.withdraw(row, withdrawn_by=march.finance, reason="Charged anew.", now=AFTER)
    adjustments.approve(counter, decided_by=march.auditor, now=AFTER)
    assert [str(each) for each in audit_adjustments(MARCH)] == []
