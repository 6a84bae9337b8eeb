"""Close billing months, and choose who pays for idle time."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.reads.money.charged_months import first_charged_month
from portal.reads.money.unmapped import unmapped_in_month
from portal.services import audit
from portal.services.money.billing_settings import billing_organisation, statement_terms
from portal.services.step_up import require_fresh_proof
from portal.wording.problems import administration_problems
from scheduler.core.rejection import OperationRejected
from telemetry.exports.focus.rehearsal import check_rehearsed_files
from telemetry.models import CloseProposal, MonthRehearsal, Statement, StatementState
from telemetry.money import statements
from telemetry.money.billing_months import month_of
from telemetry.money.closing import proposals, rehearsals

MAX_NAMED_PAYERS = 10
IDLE_PAYERS = ("operator", "guarantee", "use")


def close_month(
    *,
    actor: User,
    month: date,
    now: datetime,
    why: str = "",
    missing_samples_reason: str = "",
    via: str = "web",
) -> Statement:
    """Close a past month: run its checks and write its statement. The statement never changes afterwards.

    If the settings of billing say so, another person must have proposed the close within three days. If hosts
    have not sent all samples of the month, ``missing_samples_reason`` is the reason to close the month
    without these samples.

    Raises Invalid, NotAllowed. Raises OperationRejected if the month is closed, if a check fails, if samples
    are missing and no reason is given, or if a valid proposal of another person is required and missing. The
    error names the failed check or the hosts.
    """
    two_people = billing_organisation().two_step_close
    policy.require(actor, "statement.confirm" if two_people else "statement.close")
    require_fresh_proof(actor, "close_month", now)
    checks = InputChecks()
    month = _ended_month(checks, month, now)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    reason = checks.text("missing_samples_reason", missing_samples_reason, least=0, most=1000, lines=True)
    checks.done()
    # If two people close, propose_close has required them, and the close is refused if lines changed since.
    if not two_people:
        _require_cost_centres(month)
    with transaction.atomic():
        statement = statements.close_month(
            month=month,
            closed_by=actor,
            now=now,
            terms=statement_terms(),
            missing_samples_reason=reason,
            two_people=two_people,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="close_month",
            target=statement,
            why=why,
            after=audit.audited_fields(
                statement,
                "month",
                "state",
                "digest",
                "totals",
                "missing_samples",
                "missing_samples_reason",
                "proposed_by_id",
            ),
        )
    return statement


def propose_close(
    *,
    actor: User,
    month: date,
    now: datetime,
    why: str = "",
    missing_samples_reason: str = "",
    via: str = "web",
) -> CloseProposal:
    """Run the checks of a past month and propose to close it: the first of two steps.

    Another person closes the month within three days. Raises Invalid, NotAllowed. Raises OperationRejected if
    the settings let one person close months, if the month is closed, or if a check fails.
    """
    policy.require(actor, "statement.close")
    require_fresh_proof(actor, "propose_close", now)
    checks = InputChecks()
    month = _ended_month(checks, month, now)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    reason = checks.text("missing_samples_reason", missing_samples_reason, least=0, most=1000, lines=True)
    checks.done()
    if not billing_organisation().two_step_close:
        raise OperationRejected("close_is_one_step", {"month": f"{month:%Y-%m}"}, field="month")
    _require_cost_centres(month)
    with transaction.atomic():
        proposal = proposals.propose_close(
            month=month, proposed_by=actor, now=now, note=why, missing_samples_reason=reason
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="propose_close",
            target=proposal.statement,
            why=why,
            after=audit.audited_fields(proposal, "charged", "lines_digest", "missing_samples_reason"),
        )
    return proposal


def rehearse_close(*, actor: User, month: date, now: datetime, via: str = "web") -> MonthRehearsal:
    """Run all checks of a close with the audit and the rules of FOCUS, store the results and return them.

    The ledger does not change. The month may be in progress. Raises NotAllowed, and OperationRejected if the
    month is closed or has no charge.
    """
    policy.require(actor, "charges.see_all")
    statement = Statement.objects.filter(month=month).first()
    numbers = {"month": f"{month:%Y-%m}"}
    if statement is None:
        raise OperationRejected("month_has_no_charge", numbers, field="month")
    if statement.state == StatementState.CLOSED:
        raise OperationRejected("month_is_closed", numbers, field="month")
    return check_rehearsed_files(rehearsals.rehearse_month(statement, now, actor))


def set_idle_payer(
    *, actor: User, month: date, payer: str, now: datetime, why: str = "", via: str = "web"
) -> Statement:
    """Set who pays for the idle capacity of a month.

    ``payer`` is "operator" (no team pays), "guarantee" (teams pay in proportion to their guarantees of the
    month) or "use" (teams pay in proportion to their use). The month is this month or an earlier one with
    charges. Raises Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "statement.close")
    checks = InputChecks()
    month = checks.month("month", month)
    payer = checks.choice("payer", payer, IDLE_PAYERS)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    first, last = first_charged_month(now), month_of(now)
    if "month" not in checks.problems and not first <= month <= last:
        problem = administration_problems.IDLE_PAYER_MONTH.format(month=month, first=first, last=last)
        checks.note("month", month.isoformat(), problem)
    checks.done()
    with transaction.atomic():
        statement = statements.get_or_create_statement(month)
        before = audit.audited_fields(statement, "idle_payer")
        if not statements.set_idle_payer(month, payer):
            raise OperationRejected("idle_payer_is_fixed", {"month": month.isoformat()}, field="month")
        statement.refresh_from_db()
        audit.record_change(
            actor=actor, via=via, now=now, verb="set_idle_payer", target=statement, before=before, why=why
        )
    return statement


def _require_cost_centres(month: date) -> None:
    """Raise OperationRejected if charges of the month have no cost centre. The error names the people who
    must act. The checks of a close find the same fault later, and more cases of it, but do not know the
    people.
    """
    unmapped = [{"name": each.name, "who_acts": each.who_acts} for each in unmapped_in_month(month)]
    if unmapped:
        numbers = {"month": f"{month:%Y-%m}", "count": len(unmapped), "payers": unmapped[:MAX_NAMED_PAYERS]}
        raise OperationRejected("month_is_unmapped", numbers, field="month")


def _ended_month(checks: InputChecks, month: Any, now: datetime) -> date:
    clean = checks.month("month", month)
    if "month" not in checks.problems and clean >= month_of(now):
        checks.note(
            "month",
            clean.isoformat(),
            administration_problems.MONTH_IS_NOT_PAST.format(month=clean, this_month=month_of(now)),
        )
    first = first_charged_month(now)
    if "month" not in checks.problems and clean < first:
        checks.note(
            "month",
            clean.isoformat(),
            administration_problems.MONTH_WITHOUT_CHARGES.format(month=clean, first=first),
        )
    return clean
