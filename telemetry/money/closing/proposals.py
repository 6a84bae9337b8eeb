"""Propose to close a month, and check a proposal when another person closes the month.

A proposal changes nothing in the ledger: the month stays open, and late facts are still charged in it. The
second person can only close exactly the lines that the first person proposed. If the lines have changed
since, the close is rejected, and the month must be proposed again.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

from django.db import connection, transaction

from scheduler.core.rejection import OperationRejected
from telemetry.core.amounts import ZERO
from telemetry.ledger.locks import lock_ledger
from telemetry.models import CloseProposal, Statement, StatementState
from telemetry.money.billing_months import month_of
from telemetry.money.close_checks import passed_checks
from telemetry.money.shared_idle import assign_month_cents

PROPOSAL_LIFETIME = timedelta(days=3)

_LINES_DIGEST = """
SELECT encode(sha256(convert_to(coalesce(string_agg(json_build_array(id, pool_id, cost_centre, team_id,
        project_id, workload_type, model, bucket, corrected_month, idle_share, shared_out, slot_seconds,
        cost_cents::text, charged_cents::text)::text
        || CASE WHEN showback THEN ' showback' ELSE '' END, E'\\n' ORDER BY id), ''), 'UTF8')), 'hex')
FROM telemetry_statementline WHERE statement_id = %s"""


@transaction.atomic
def propose_close(
    *, month: date, proposed_by: Any, now: datetime, note: str = "", missing_samples_reason: str = ""
) -> CloseProposal:
    """Run the checks of a month that is over, and store a proposal to close it.

    Earlier proposals no longer apply.

    Raises OperationRejected ``month_is_not_over``, ``month_is_closed``, ``month_check_failed`` or
    ``month_samples_missing``. Nothing changes in these cases.
    """
    numbers: dict[str, Any] = {"month": f"{month:%Y-%m}"}
    if month >= month_of(now):
        raise OperationRejected("month_is_not_over", numbers, field="month")
    lock_ledger()
    statement = Statement.objects.filter(month=month).first()
    if statement is not None and statement.state != StatementState.OPEN:
        raise OperationRejected("month_is_closed", numbers, field="month")
    if statement is not None:
        assign_month_cents(statement)
    passed_checks(month, now, missing_samples_reason)
    if statement is None:
        raise ValueError(f"month: {month} has no statement, but its checks passed")
    return CloseProposal.objects.create(
        statement=statement,
        proposed_by=proposed_by,
        proposed_at=now,
        charged=charged_total(statement),
        lines_digest=lines_digest(statement),
        missing_samples_reason=missing_samples_reason,
        note=note,
    )


def current_proposal(month: date, now: datetime) -> CloseProposal | None:
    """Return the newest proposal to close a month; None if there is none, or if it has expired."""
    rows = CloseProposal.objects.filter(statement__month=month).select_related("proposed_by", "statement")
    newest = rows.order_by("-proposed_at", "-pk").first()
    return newest if newest is not None and now < newest.proposed_at + PROPOSAL_LIFETIME else None


def checked_proposal(statement: Statement, closed_by: Any, now: datetime) -> CloseProposal:
    """Return the proposal that a person may carry out now. The caller has assigned the month's cents.

    Raises OperationRejected ``close_not_proposed``, ``close_needs_another_person`` or
    ``month_changed_since_proposal``.
    """
    numbers: dict[str, Any] = {"month": f"{statement.month:%Y-%m}"}
    proposal = current_proposal(statement.month, now)
    if proposal is None:
        raise OperationRejected(
            "close_not_proposed", {**numbers, "days": PROPOSAL_LIFETIME.days}, field="month"
        )
    if proposal.proposed_by_id == closed_by.pk:
        raise OperationRejected("close_needs_another_person", numbers, field="month")
    if proposal.lines_digest != lines_digest(statement):
        numbers |= {"proposed": str(proposal.charged), "charged": str(charged_total(statement))}
        raise OperationRejected("month_changed_since_proposal", numbers, field="month")
    return proposal


def lines_digest(statement: Statement) -> str:
    """Return a SHA-256 digest of the lines of a statement, with their hours and cents."""
    with connection.cursor() as cursor:
        cursor.execute(_LINES_DIGEST, [statement.pk])
        return str(cursor.fetchone()[0])


def charged_total(statement: Statement) -> Any:
    """Return the sum of the charges on a statement's lines, without lines in another currency."""
    lines = statement.lines.filter(currency=statement.currency)
    return sum(lines.values_list("charged_cents", flat=True), ZERO)
