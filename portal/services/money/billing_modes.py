"""Set whether the charges of a team are invoiced (chargeback) or shown only (showback)."""

from __future__ import annotations

from datetime import date, datetime

from django.db import transaction
from django.db.models import QuerySet

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.reads.money.charged_months import first_charged_month
from portal.services import audit
from portal.wording.problems import administration_problems
from scheduler.models import Team
from telemetry.ledger.locks import lock_ledger
from telemetry.models import BillingMode, Statement, StatementState, TeamBillingMode
from telemetry.money.adjusting.adjustments import check_new_mode
from telemetry.money.billing_months import month_of, next_month
from telemetry.money.pricing.billing_modes import add_billing_mode, mode_of


def set_billing_mode(
    *,
    actor: User,
    team: Team,
    mode: str,
    first_month: date,
    now: datetime,
    why: str = "",
    via: str = "web",
) -> TeamBillingMode:
    """Set the billing mode of a team, starting with a month that is not closed.

    The lines of open months follow at once. Raises Invalid, NotAllowed. Raises OperationRejected if an
    approved credit in an open month would then have another mode than the charges that it gives back.
    """
    policy.require(actor, "billing.change")
    checks = InputChecks()
    mode = checks.choice("mode", mode, BillingMode.values)
    first_month = checks.month("first_month", first_month)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    with transaction.atomic():
        lock_ledger()  # a close takes this lock, too: the month stays open until the mode is stored
        earliest, latest = allowed_months(now)
        if "first_month" not in checks.problems and not earliest <= first_month <= latest:
            problem = administration_problems.BILLING_MODE_MONTH.format(
                month=first_month, earliest=earliest, latest=latest
            )
            checks.note("first_month", first_month.isoformat(), problem)
        before = mode_of(team, first_month)
        if mode == before and not checks.problems:
            problem = administration_problems.BILLING_MODE_IS_THE_SAME.format(
                mode=mode,
                team=team.name,
                month=first_month,
                allowed=", ".join(each for each in BillingMode.values if each != mode),
            )
            checks.note("mode", mode, problem)
        checks.done()
        row = add_billing_mode(team, mode, first_month, actor, now)
        check_new_mode(team, first_month)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_billing_mode",
            target=row,
            team_id=team.pk,
            before={"mode": before},
            after=audit.audited_fields(row, "mode", "first_month"),
            why=why,
        )
    return row


def billing_modes() -> QuerySet[TeamBillingMode]:
    """Return the billing modes of all teams. The mode with the latest first month comes first."""
    rows = TeamBillingMode.objects.select_related("team", "created_by")
    return rows.order_by("-first_month", "-pk")


def allowed_months(now: datetime) -> tuple[date, date]:
    """Return the first and the last month from which a new mode may begin.

    The first is the month after the last closed one. The last is the month after the present one.
    """
    closed = Statement.objects.exclude(state=StatementState.OPEN).order_by("-month").first()
    earliest = next_month(closed.month) if closed else first_charged_month(now)
    return earliest, next_month(month_of(now))
