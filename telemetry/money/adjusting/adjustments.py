"""Propose, approve, reject and withdraw credits and manual adjustments.

All functions take ``lock_ledger``. A close takes this lock too, so the month of an adjustment stays open
until the end of the transaction. The second of two concurrent credits sees the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db import transaction

from scheduler.core.rejection import OperationRejected
from scheduler.models import Team
from telemetry.ledger.locks import lock_ledger
from telemetry.models import (
    ADJUSTMENT_TRANSITIONS,
    Adjustment,
    AdjustmentKindChoices,
    AdjustmentState,
    Charge,
    Statement,
    StatementLine,
    StatementState,
)
from telemetry.money.adjusting.adjustment_lines import add_to_statement
from telemetry.money.adjusting.credit_limits import COUNTED, COUNTED_OR_WAITING, check_credit
from telemetry.money.billing_months import billing_calendar, next_month
from telemetry.money.pricing.billing_modes import mode_of
from telemetry.money.shared_idle import assign_month_cents
from telemetry.money.statements import get_or_create_statement


@dataclass(frozen=True)
class AdjustmentDraft:
    """An adjustment that a person proposes. A credit has ``credited``: the month of its charges."""

    month: date
    kind: str
    cost_centre: str
    amount: Decimal
    reason: str
    team: int | None = None
    project: int | None = None
    credited: Statement | None = None
    line: StatementLine | None = None
    charge: Charge | None = None


@transaction.atomic
def propose(draft: AdjustmentDraft, *, author: Any, now: datetime) -> Adjustment:
    """Store a proposed adjustment. It changes no amount yet.

    Raises OperationRejected ``adjustment_month_is_closed``, ``credit_in_other_currency``,
    ``adjustment_in_other_mode``, ``credited_line_may_change`` or ``credit_above_charge``.
    """
    lock_ledger()
    statement = _open_statement(draft.month)
    row = Adjustment(
        statement=statement,
        number=_next_number(statement),
        kind=draft.kind,
        cost_centre=draft.cost_centre,
        team_id=draft.team,
        project_id=draft.project,
        currency=statement.currency,
        amount=draft.amount,
        reason=draft.reason,
        credited=draft.credited,
        line=draft.line,
        charge=draft.charge,
        day=_day_of(draft.month, now),
        author=author,
        author_name=author.get_username(),
        proposed_at=now,
    )
    _check_mode(row)
    if row.kind == AdjustmentKindChoices.CREDIT:
        _check_credited(row)
        check_credit(row, COUNTED_OR_WAITING)
    row.save(force_insert=True)
    return row


@transaction.atomic
def approve(adjustment: Adjustment, *, decided_by: Any, now: datetime, note: str = "") -> Adjustment:
    """Approve an adjustment and add it to the statement of its month.

    Raises OperationRejected ``adjustment_needs_another_person``, ``adjustment_is_decided``,
    ``adjustment_month_is_closed``, ``adjustment_in_other_mode`` or ``credit_above_charge``.
    """
    lock_ledger()
    if adjustment.author_id == decided_by.pk:
        numbers = {"number": adjustment.number, "author": adjustment.author_name}
        raise OperationRejected("adjustment_needs_another_person", numbers)
    _open_statement(adjustment.statement.month)
    _check_mode(adjustment)
    if adjustment.kind == AdjustmentKindChoices.CREDIT and adjustment.withdraws_id is None:
        check_credit(adjustment, COUNTED)
    cell = add_to_statement(adjustment)
    _decide(adjustment, AdjustmentState.APPROVED, decided_by, now, note, cell=cell)
    assign_month_cents(adjustment.statement)
    return adjustment


@transaction.atomic
def reject(adjustment: Adjustment, *, decided_by: Any, now: datetime, note: str = "") -> Adjustment:
    """Reject a proposed adjustment. Raises OperationRejected ``adjustment_is_decided``."""
    lock_ledger()
    _decide(adjustment, AdjustmentState.REJECTED, decided_by, now, note)
    return adjustment


@transaction.atomic
def withdraw(adjustment: Adjustment, *, withdrawn_by: Any, reason: str, now: datetime) -> Adjustment:
    """Withdraw an adjustment.

    A proposed one gets the state withdrawn. For an approved one, the opposite amount is proposed: in the same
    month if this is open, otherwise in the present month. Return the changed or the new row.

    Raises OperationRejected ``adjustment_is_decided``, ``adjustment_is_withdrawn`` or
    ``adjustment_in_other_mode``.
    """
    lock_ledger()
    adjustment.refresh_from_db()
    if adjustment.state == AdjustmentState.PROPOSED:
        _decide(adjustment, AdjustmentState.WITHDRAWN, withdrawn_by, now, reason)
        return adjustment
    if adjustment.state != AdjustmentState.APPROVED:
        raise _decided_error(adjustment)
    waiting = Adjustment.objects.filter(withdraws=adjustment, state__in=COUNTED_OR_WAITING).first()
    if waiting is not None or adjustment.withdraws_id is not None:
        other = waiting or adjustment
        raise OperationRejected("adjustment_is_withdrawn", {"number": adjustment.number, "by": other.number})
    month = adjustment.statement.month
    if adjustment.statement.state != StatementState.OPEN:
        month = billing_calendar().month_of(now)
    statement = _open_statement(month)
    if statement.currency != adjustment.currency:
        raise _currency_error(adjustment.currency, statement)
    row = Adjustment(
        statement=statement,
        number=_next_number(statement),
        kind=adjustment.kind,
        cost_centre=adjustment.cost_centre,
        team_id=adjustment.team_id,
        project_id=adjustment.project_id,
        currency=adjustment.currency,
        amount=-adjustment.amount,
        reason=reason,
        credited=adjustment.credited,
        line=adjustment.line,
        charge=adjustment.charge,
        withdraws=adjustment,
        day=_day_of(month, now),
        author=withdrawn_by,
        author_name=withdrawn_by.get_username(),
        proposed_at=now,
    )
    _check_mode(row)
    row.save(force_insert=True)
    return row


def check_new_mode(team: Team, first_month: date) -> None:
    """Raise OperationRejected ``billing_mode_changes_credit`` if a credit has another mode than its charges.

    The caller holds ``lock_ledger`` and has stored the new mode. It must undo this if the function raises.
    """
    rows = Adjustment.objects.filter(
        team=team,
        state=AdjustmentState.APPROVED,
        statement__state=StatementState.OPEN,
        statement__month__gte=first_month,
    ).exclude(withdrawals__state=AdjustmentState.APPROVED)
    for row in rows.select_related("statement", "credited", "line", "withdraws__statement").order_by("pk"):
        mode, wanted = _modes(team, row)
        if mode != wanted:
            numbers = {
                "month": f"{first_month:%Y-%m}",
                "number": row.number,
                "team": team.name,
                "wanted": wanted,
                "later": f"{next_month(row.statement.month):%Y-%m}",
            }
            raise OperationRejected("billing_mode_changes_credit", numbers, field="first_month")


def _decide(
    adjustment: Adjustment, new: AdjustmentState, by: Any, now: datetime, note: str, **also: Any
) -> None:
    """Change the state by compare-and-swap. Raises OperationRejected if the row is decided already."""
    if new not in ADJUSTMENT_TRANSITIONS[AdjustmentState.PROPOSED]:
        raise ValueError(f"adjustment: {AdjustmentState.PROPOSED} -> {new}")
    changed = Adjustment.objects.filter(pk=adjustment.pk, state=AdjustmentState.PROPOSED).update(
        state=new,
        decided_by=by,
        decided_by_name=by.get_username(),
        decided_at=now,
        decision_note=note,
        **also,
    )
    adjustment.refresh_from_db()
    if not changed:
        raise _decided_error(adjustment)


def _decided_error(adjustment: Adjustment) -> OperationRejected:
    numbers = {
        "number": adjustment.number,
        "state": adjustment.state,
        "decided_by": adjustment.decided_by_name,
    }
    return OperationRejected("adjustment_is_decided", numbers)


def _open_statement(month: date) -> Statement:
    """Return the open statement of a month. Raises OperationRejected if the month is closed."""
    statement = get_or_create_statement(month)
    if statement.state != StatementState.OPEN:
        numbers = {"month": f"{month:%Y-%m}", "first_open": f"{_first_open_month(month):%Y-%m}"}
        raise OperationRejected("adjustment_month_is_closed", numbers, field="month")
    return statement


def _first_open_month(month: date) -> date:
    """Return the first month after ``month`` that is not closed."""
    while Statement.objects.filter(month=month).exclude(state=StatementState.OPEN).exists():
        month = next_month(month)
    return month


def _next_number(statement: Statement) -> str:
    return f"{statement.month:%Y-%m}-A{statement.adjustments.count() + 1}"


def _day_of(month: date, now: datetime) -> date:
    """Return the day on which an adjustment counts: today, or the last day of an earlier month."""
    calendar = billing_calendar()
    if calendar.month_of(now) == month:
        return calendar.day_of(now)
    return date.fromordinal(next_month(month).toordinal() - 1)


def _check_credited(credit: Adjustment) -> None:
    """Raise OperationRejected if the charges have another currency, or if their line may still change."""
    subject = credit.line or credit.credited
    if subject is not None and subject.currency != credit.currency:
        raise _currency_error(subject.currency, credit.statement)
    line = credit.line
    # Each charging run divides the idle time of an open month again, and replaces these lines.
    if line is not None and line.idle_share and line.statement.state == StatementState.OPEN:
        numbers = {"month": f"{line.statement.month:%Y-%m}"}
        raise OperationRejected("credited_line_may_change", numbers, field="line")


def _check_mode(row: Adjustment) -> None:
    """Raise OperationRejected if the team is invoiced in only one of two months.

    These are the month of the statement, and that of the credited charges or of the adjustment that is taken
    back. Otherwise an invoiced charge would get a credit that nobody is paid, or the reverse.
    """
    if row.team is None:
        return
    mode, wanted = _modes(row.team, row)
    if mode != wanted:
        numbers = {
            "month": f"{row.statement.month:%Y-%m}",
            "team": row.team.name,
            "mode": mode,
            "wanted": wanted,
        }
        raise OperationRejected("adjustment_in_other_mode", numbers, field="month")


def _modes(team: Team, row: Adjustment) -> tuple[str, str]:
    """Return the modes of a team in the month of the statement, and in the month that the row refers to.

    That is the month of the use that a credit gives back, or of the adjustment that is taken back.
    """
    own = referred = row.statement.month
    if row.withdraws is not None:
        referred = row.withdraws.statement.month
    elif row.line is not None and row.line.corrected_month is not None:
        referred = row.line.corrected_month
    elif row.credited is not None:
        referred = row.credited.month
    return mode_of(team, own), mode_of(team, referred)


def _currency_error(currency: str, statement: Statement) -> OperationRejected:
    numbers = {"currency": currency, "month": f"{statement.month:%Y-%m}", "wanted": statement.currency}
    return OperationRejected("credit_in_other_currency", numbers, field="month")
