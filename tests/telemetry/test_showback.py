"""Test showback: charges that are shown and not invoiced, and that the sums by mode add up."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from django.db import DatabaseError, transaction
from django.db.models import Sum

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent
from portal.services.money import billing_modes
from telemetry.audit.adjustment_audit import audit_adjustments
from telemetry.budgets.spending import SpendScope, period_spend
from telemetry.exports.csv_files import statement_file
from telemetry.exports.focus.check import check_focus_month
from telemetry.exports.focus.files import focus_csv
from telemetry.models import BillingMode, CostCentreStatement, Statement, StatementLine, TeamBillingMode
from telemetry.money import statements
from telemetry.money.adjusting import adjustments
from telemetry.money.charges import charge_all_gpus
from telemetry.money.shared_idle import assign_due_cents
from telemetry.money.signing.statement_digest import digest_lines
from telemetry.reads.chargeback import charges_by
from telemetry.reads.statement_document import statement_document
from tests.telemetry.rows import at, change_in_place, cost_centre, end_hold, hold, price, workload
from tests.telemetry.test_adjustments import approved, charge, credit_of, march, proposed, refused
from tests.telemetry.test_focus import COST, DETAIL, OPTIONS, close, everything, read
from tests.telemetry.test_money_example import documented_table
from tests.telemetry.test_statements import AFTER, APRIL, MARCH, busy_march, running_allocation
from tests.world import H100, TeamOfWorld, World, units_of

__all__ = ["busy_march", "march"]
pytestmark = pytest.mark.django_db
MODE_COLUMNS = ("x_BillingMode", "billing_mode")


def set_mode(
    world: World, team: TeamOfWorld, mode: str = "showback", month: dt.date = MARCH
) -> TeamBillingMode:
    return billing_modes.set_billing_mode(
        actor=world.finance, team=team.team, mode=mode, first_month=month, now=AFTER
    )


def cents(**where: object) -> Decimal:
    lines = StatementLine.objects.filter(statement__month=MARCH, **where)
    return lines.aggregate(total=Sum("charged_cents", default=Decimal(0)))["total"]


@pytest.mark.parametrize("payer", ["operator", "guarantee"])
def test_the_sums_by_mode_add_up_to_what_is_charged(march: World, payer: str) -> None:
    assert statements.set_idle_payer(MARCH, payer)
    set_mode(march, march.vision)
    approved(march, "-12.50", team=march.vision.team.pk)
    statement = close(march)
    documents = [statement_document(row) for row in statement.documents.all()]
    shown = sum(document.shown for document in documents)
    invoiced = sum(document.statement.total for document in documents)
    assert shown == cents(showback=True) != 0
    assert invoiced + shown + cents(cost_centre="") == cents() == Decimal(statement.totals["charged"])
    for document in documents:
        parts = document.charged + document.corrected + document.adjusted
        assert parts == document.statement.total


def test_showback_is_shown_and_counts_in_budgets(march: World) -> None:
    team = march.vision.team
    before = charges_by("team", MARCH).charged, period_spend(SpendScope(team=team.pk), "money", MARCH, APRIL)
    set_mode(march, march.vision)
    table = charges_by("team", MARCH)
    assert (table.charged, period_spend(SpendScope(team=team.pk), "money", MARCH, APRIL)) == before
    rows = {row.key: row for row in table.groups}
    assert rows[team.pk].shown == rows[team.pk].charged > 0
    assert rows[march.language.team.pk].shown == 0
    assert table.total.shown == rows[team.pk].shown


def test_focus_rows_of_showback_have_a_cost_and_a_billed_cost_of_zero(march: World) -> None:
    set_mode(march, march.vision)
    close(march)
    rows = [row for row in read() if row["x_TeamName"] == march.vision.team.name]
    assert {Decimal(row["BilledCost"]) for row in rows} == {Decimal(0)}
    assert {row["InvoiceId"] for row in rows} == {""}
    assert {row["x_BillingMode"] for row in rows} == {"showback"}
    assert sum(Decimal(row["EffectiveCost"]) for row in rows) > 0
    assert march.vision.team.name not in {row["x_TeamName"] for row in read(DETAIL)}
    assert check_focus_month(MARCH, everything(), OPTIONS).failures == ()


def files_of_march() -> list[str]:
    """Return the header of each file of March that names the billing mode of its lines."""
    writers = (partial(focus_csv, COST), statement_file)
    return [b"".join(write(MARCH, everything(), OPTIONS)).decode() for write in writers]


def test_the_statement_lines_of_a_file_name_their_billing_mode(march: World) -> None:
    set_mode(march, march.vision)
    close(march)
    rows = list(csv.DictReader(io.StringIO(files_of_march()[1])))[:-1]
    by_mode = {mode: {row["team"] for row in rows if row["billing_mode"] == mode} for mode in BillingMode}
    assert by_mode[BillingMode.SHOWBACK] == {march.vision.team.name}
    assert march.language.team.name in by_mode[BillingMode.CHARGEBACK]
    shown = sum(Decimal(row["amount"]) for row in rows if row["billing_mode"] == "showback")
    assert shown == cents(showback=True) != 0


def test_the_files_of_a_month_that_was_closed_earlier_keep_their_columns(march: World) -> None:
    set_mode(march, march.vision)
    statement = close(march)
    assert all(name in text for name, text in zip(MODE_COLUMNS, files_of_march(), strict=True))
    change_in_place(statement, file_format=1)
    assert not any(name in text for name, text in zip(MODE_COLUMNS, files_of_march(), strict=True))
    assert check_focus_month(MARCH, everything(), OPTIONS).failures == ()


def test_the_later_of_two_modes_with_one_start_counts(march: World) -> None:
    set_mode(march, march.vision)
    set_mode(march, march.vision, "chargeback")
    assert not StatementLine.objects.filter(showback=True).exists()
    with pytest.raises(Invalid, match=r"allowed: showback"):
        set_mode(march, march.vision, "chargeback")


def test_a_correction_has_the_mode_of_its_month(march: World) -> None:
    set_mode(march, march.vision)
    open_end = running_allocation()
    close(march)
    set_mode(march, march.vision, "chargeback", APRIL)
    end_hold(open_end, at(22, day=31), "finished")
    charge_all_gpus(AFTER + dt.timedelta(hours=1))
    lines = StatementLine.objects.filter(statement__month=APRIL, team=march.vision.team)
    corrections = lines.exclude(corrected_month=None)
    assert corrections.exists() and not corrections.filter(showback=False).exists()
    assert not lines.filter(corrected_month=None, showback=True).exists()


def test_a_credit_has_the_mode_of_the_charges_that_it_gives_back(march: World) -> None:
    columns, team = credit_of(charge()), march.vision.team.pk
    assert columns["team"] == team
    row = approved(march, "-12.50", team=team)
    close(march)
    waiting = proposed(march, "-1.00", month=APRIL, **columns)
    set_mode(march, march.vision, month=APRIL)
    with refused("adjustment_in_other_mode"):
        adjustments.approve(waiting, decided_by=march.auditor, now=AFTER)
    with refused("adjustment_in_other_mode"):
        proposed(march, "-1.00", month=APRIL, **columns)
    with refused("adjustment_in_other_mode"):
        adjustments.withdraw(row, withdrawn_by=march.finance, reason="Wrong.", now=AFTER)
    assert approved(march, "-1.00", month=APRIL).state == "approved"


def test_a_new_mode_does_not_separate_a_credit_from_its_charges(march: World) -> None:
    columns = credit_of(charge())
    close(march)
    row = approved(march, "-1.00", month=APRIL, **columns)
    with refused("billing_mode_changes_credit"):
        set_mode(march, march.vision, month=APRIL)
    assert not TeamBillingMode.objects.exists()
    counter = adjustments.withdraw(row, withdrawn_by=march.finance, reason="Wrong.", now=AFTER)
    adjustments.approve(counter, decided_by=march.auditor, now=AFTER)
    assert set_mode(march, march.vision, month=APRIL).mode == "showback"


def test_a_closed_month_keeps_its_modes(march: World) -> None:
    row = set_mode(march, march.vision)
    statement = close(march)
    with pytest.raises(Invalid) as found:
        set_mode(march, march.vision, "chargeback")
    words = found.value.fields["first_month"]
    assert words.startswith("first_month is 2026-03; allowed: from 2026-04")
    copy = {"team": row.team, "mode": "chargeback", "created_by": row.created_by, "created_at": AFTER}
    for change in (
        lambda: TeamBillingMode.objects.create(first_month=MARCH, **copy),
        lambda: TeamBillingMode.objects.filter(pk=row.pk).update(mode="chargeback"),
        lambda: TeamBillingMode.objects.filter(pk=row.pk).delete(),
        lambda: StatementLine.objects.filter(statement=statement).update(showback=False),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            change()


def test_the_digest_and_the_audit_cover_showback(march: World) -> None:
    set_mode(march, march.vision)
    statement = close(march)
    marked = [json.loads(text)[1] for text in digest_lines(statement) if text.startswith('["showback"')]
    assert marked == sorted(statement.lines.filter(showback=True).values_list("pk", flat=True))
    assert list(audit_adjustments(MARCH)) == []
    line = statement.lines.filter(showback=True).earliest("pk")
    change_in_place(line, showback=False)
    assert [each.subject for each in audit_adjustments(MARCH)] == [f"statement line {line.pk}"]


def test_only_finance_sets_a_mode_and_it_is_audited(march: World) -> None:
    with pytest.raises(NotAllowed):
        billing_modes.set_billing_mode(
            actor=march.auditor, team=march.vision.team, mode="showback", first_month=MARCH, now=AFTER
        )
    set_mode(march, march.vision)
    assert AuditEvent.objects.get(verb="set_billing_mode").after["mode"] == "showback"


def test_the_documented_sums_equal_those_of_the_code(world: World, root: Path) -> None:
    price(H100, "2.10", "2.40", since=at(0, day=1))
    for team, unit in zip((world.vision, world.language), units_of(world.hosts["alpha"]), strict=False):
        cost_centre(team, "CC-100", at(0, day=1))
        hold(workload(world, team), unit, at(9), at(19), end_code="finished")
    charge_all_gpus(at(20))
    with transaction.atomic():
        assign_due_cents()
    set_mode(world, world.language)
    document = statement_document(
        CostCentreStatement(
            statement=Statement.objects.get(month=MARCH),
            cost_centre="CC-100",
            currency="EUR",
            total=cents(cost_centre="CC-100", showback=False),
        )
    )
    rows = (
        ("charged", cents(cost_centre="CC-100")),
        ("statement of CC-100", document.statement.total),
        ("shown, not invoiced", document.shown),
    )
    assert [f"| {name} | {amount} |" for name, amount in rows] == documented_table(root, "showback")
