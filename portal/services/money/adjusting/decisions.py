"""Propose, approve, reject and withdraw credits and manual adjustments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.services import audit
from portal.services.money.adjusting.drafts import MAX_REASON_LENGTH, AdjustmentRequest, checked_draft
from telemetry.models import Adjustment, AdjustmentState, BillingMode
from telemetry.money.adjusting import adjustments
from telemetry.money.adjusting.adjustment_lines import cost_centre_total
from telemetry.money.pricing.billing_modes import mode_of

AUDITED = ("number", "kind", "cost_centre", "amount", "currency", "reason", "state")


@dataclass(frozen=True)
class StatementEffect:
    """The total of a cost centre's statement before and after an adjustment is approved."""

    before: Decimal
    after: Decimal
    currency: str


def propose_adjustment(
    *, actor: User, request: AdjustmentRequest, now: datetime, via: str = "web"
) -> Adjustment:
    """Propose a credit or a manual adjustment. Another person of finance approves or rejects it.

    Raises Invalid, NotAllowed. Raises OperationRejected if a credit is above its charge, or if the month was
    closed meanwhile.
    """
    policy.require(actor, "adjustment.change")
    checks = InputChecks()
    draft = checked_draft(checks, request, now)
    checks.done()
    with transaction.atomic():
        row = adjustments.propose(draft, author=actor, now=now)
        _record(row, actor, now, via, "propose_adjustment")
    return row


def approve_adjustment(
    *, actor: User, adjustment: Adjustment, now: datetime, note: str = "", via: str = "web"
) -> Adjustment:
    """Approve a proposed adjustment. Its amount is on the statement at once.

    Raises Invalid, NotAllowed. Raises OperationRejected if the actor proposed it, if it is decided, if its
    month is closed, or if a credit is above the rest of its charge.
    """
    policy.require(actor, "adjustment.change")
    note = _checked_text("note", note, least=0)
    with transaction.atomic():
        row = adjustments.approve(adjustment, decided_by=actor, now=now, note=note)
        _record(row, actor, now, via, "approve_adjustment", why=note)
    return row


def reject_adjustment(
    *, actor: User, adjustment: Adjustment, now: datetime, note: str = "", via: str = "web"
) -> Adjustment:
    """Reject a proposed adjustment. Raises Invalid, NotAllowed, OperationRejected."""
    policy.require(actor, "adjustment.change")
    note = _checked_text("note", note, least=1)
    with transaction.atomic():
        row = adjustments.reject(adjustment, decided_by=actor, now=now, note=note)
        _record(row, actor, now, via, "reject_adjustment", why=note)
    return row


def withdraw_adjustment(
    *, actor: User, adjustment: Adjustment, reason: str, now: datetime, via: str = "web"
) -> Adjustment:
    """Withdraw a proposed adjustment, or propose the opposite amount of an approved one.

    Return the changed or the new row. Raises Invalid, NotAllowed, OperationRejected.
    """
    policy.require(actor, "adjustment.change")
    reason = _checked_text("reason", reason, least=1)
    with transaction.atomic():
        row = adjustments.withdraw(adjustment, withdrawn_by=actor, reason=reason, now=now)
        _record(row, actor, now, via, "withdraw_adjustment", why=reason)
    return row


def effect_of(adjustment: Adjustment) -> StatementEffect:
    """Return the effect of a proposed adjustment on the statement of its cost centre, as of now.

    An adjustment of a team with showback is shown and not invoiced, so it does not change the total.
    """
    statement, team = adjustment.statement, adjustment.team
    before = cost_centre_total(statement, adjustment.cost_centre, adjustment.currency)
    is_shown = team is not None and mode_of(team, statement.month) == BillingMode.SHOWBACK
    is_added = adjustment.state == AdjustmentState.PROPOSED and not is_shown
    added = adjustment.amount if is_added else Decimal(0)
    return StatementEffect(before, before + added, adjustment.currency)


def _checked_text(field: str, text: Any, *, least: int) -> str:
    checks = InputChecks()
    clean = checks.text(field, text, least=least, most=MAX_REASON_LENGTH, lines=True)
    checks.done()
    return clean


def _record(row: Adjustment, actor: User, now: datetime, via: str, verb: str, why: str = "") -> None:
    audit.record(
        actor=actor,
        via=via,
        now=now,
        verb=verb,
        target=row,
        team_id=row.team_id,
        after=audit.audited_fields(row, *AUDITED),
        why=why,
    )
