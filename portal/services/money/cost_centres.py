"""Name the cost centres that pay for projects, and for the unused time of dedicated pools."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.services import audit
from portal.services.money.start_dates import check_start_date
from portal.wording.pages import money_pages
from portal.wording.problems import administration_problems
from scheduler.core.model.snapshot import PoolKind
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, Project
from telemetry.models import ChargeBucketChoices, CostCentre, Statement, StatementState
from telemetry.money.billing_months import month_bounds, next_month


def set_cost_centre(
    *,
    actor: User,
    code: str,
    valid_from: datetime,
    now: datetime,
    project: Project | None = None,
    pool: Pool | None = None,
    via: str = "web",
) -> CostCentre:
    """Set the cost centre of a project, or of the unused time of a dedicated pool, from ``valid_from`` on.

    The first cost centre may begin in the past, in a month that is not closed: the lines without a cost
    centre are then corrected. Any later one begins in this hour or later, after all charged time that the
    earlier one pays for. Raises Invalid, NotAllowed. Raises
    OperationRejected if there is another cost centre from the same time on.
    """
    policy.require(actor, "cost_centre.change")
    checks = InputChecks()
    if (project is None) == (pool is None):
        checks.note("project", None, administration_problems.PROJECT_AND_POOL)
    if pool is not None and pool.kind != PoolKind.STATIC:
        problem = administration_problems.COST_CENTRE_OF_SHARED_POOL.format(pool=pool.slug)
        checks.note("pool", pool.slug, problem)
    code = checks.text("code", code, most=40)
    valid_from = checks.aware_datetime("valid_from", valid_from)
    if "valid_from" not in checks.problems:
        _check_start(checks, project, pool, valid_from, now)
    checks.done()
    with transaction.atomic():
        row, created = CostCentre.objects.get_or_create(
            project=project, pool=pool, valid_from=valid_from, defaults={"code": code, "created_at": now}
        )
        if not created:
            numbers = {"valid_from": valid_from.isoformat(), "subject": str(project or pool)}
            raise OperationRejected("cost_centre_exists", numbers, field="valid_from")
        payer = {"project": project.slug} if project else {"pool": pool.slug if pool else ""}
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_cost_centre",
            target=row,
            team_id=project.team_id if project else pool.team_id if pool else None,
            after={**payer, **audit.audited_fields(row, "code", "valid_from")},
        )
    return row


def _check_start(
    checks: InputChecks, project: Project | None, pool: Pool | None, valid_from: datetime, now: datetime
) -> None:
    """Add a problem if the cost centre would begin in time that another cost centre has paid for."""
    if CostCentre.objects.filter(project=project, pool=pool, valid_from__lte=valid_from).exists():
        # Lines without a cost centre do not matter: charging corrects them.
        subject = project.name if project else money_pages.DEDICATED_UNUSED
        unused = {"pool": pool, "project": None, "bucket": ChargeBucketChoices.RESERVED_UNUSED}
        payer: dict[str, Any] = {"project": project} if project else unused
        check_start_date(checks, valid_from, now, subject, cost_centre__gt="", **payer)
        return
    given = valid_from.isoformat()
    last_closed = Statement.objects.filter(state=StatementState.CLOSED).order_by("-month").first()
    earliest = month_bounds(next_month(last_closed.month))[0] if last_closed else None
    if earliest is not None and valid_from < earliest:
        problem = administration_problems.COST_CENTRE_MONTH_IS_CLOSED.format(
            valid_from=given, earliest=earliest.isoformat()
        )
        checks.note("valid_from", given, problem)
