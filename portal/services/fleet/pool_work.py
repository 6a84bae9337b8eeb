"""Set as which user the work of a pool runs, what it may do, and how large homes may be."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.services import audit
from scheduler import services as scheduling
from scheduler.models import Pool, RunsAs, Team

WORK_FIELDS = ("runs_as", "perf_events", "home_limit_gib")
MAX_HOME_LIMIT_GIB = 1_000_000


def change_pool_work(
    *, actor: User, pool: Pool, now: datetime, why: str = "", via: str = "web", **given: Any
) -> Pool:
    """Change the given fields of WORK_FIELDS. A ``home_limit_gib`` of None means no limit.

    Work that is submitted later has the new settings; ``perf_events`` also applies to waiting work. Raises
    Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "pool.change")
    checks = InputChecks()
    values: dict[str, Any] = {}
    if "runs_as" in given:
        values["runs_as"] = checks.choice("runs_as", given["runs_as"], RunsAs.values)
    if "perf_events" in given:
        values["perf_events"] = checks.flag("perf_events", given["perf_events"])
    if "home_limit_gib" in given:
        values["home_limit_gib"] = _checked_home_limit(checks, given["home_limit_gib"])
    why = checks.text("why", why, least=0, most=300)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(pool, *WORK_FIELDS)
        pool = scheduling.change_work_settings(pool, **values)
        if before != audit.audited_fields(pool, *WORK_FIELDS):
            audit.record_change(
                target=pool, before=before, actor=actor, via=via, now=now, verb="change_pool_work", why=why
            )
    return pool


def change_home_limit(
    *,
    actor: User,
    team: Team,
    home_limit_gib: int | None,
    now: datetime,
    why: str = "",
    via: str = "web",
) -> Team:
    """Set the largest size of new homes of a team. None: that of the pool. Raises Invalid, NotAllowed."""
    policy.require(actor, "pool.change")
    checks = InputChecks()
    limit = _checked_home_limit(checks, home_limit_gib)
    why = checks.text("why", why, least=0, most=300)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(team, "home_limit_gib")
        Team.objects.filter(pk=team.pk).update(home_limit_gib=limit)
        team.refresh_from_db()
        audit.record_change(
            target=team, before=before, actor=actor, via=via, now=now, verb="change_home_limit", why=why
        )
    return team


def _checked_home_limit(checks: InputChecks, value: Any) -> int | None:
    return None if value is None else checks.count("home_limit_gib", value, 1, MAX_HOME_LIMIT_GIB, "GiB")
