"""Submit quota changes and memberships for approval."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from portal import policy
from portal.hardware_request import check_pool, gpu_models_of_pool
from portal.input_checks import InputChecks
from portal.models import Membership, Submission, User
from portal.services import audit
from portal.services.approvals.quota_changes import QUOTA_VALUES, present_values, requested_values
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, Quota, Team

MAX_QUOTA_GPUS = 1_000_000
MAX_QUOTA_GPU_HOURS = 1_000_000_000


def request_quota_change(
    *,
    actor: User,
    team: Team,
    pool: Pool,
    model: str,
    now: datetime,
    why: str = "",
    via: str = "web",
    **values: Any,
) -> Submission:
    """Request other values of a team's quota of one model. Values that are not given stay as they are.

    The ``values`` are those of QUOTA_VALUES: ``guaranteed_gpus``; ``borrow_limit_gpus``, None for no limit;
    ``gpu_hours``, the GPU-hours that the guarantee covers in each ``period`` (day, week or month), None for
    no limit; and ``when_used_up``, which applies after these hours until the period ends: "borrow" (the team
    may only borrow) or "refuse" (the team starts no new workload).

    Raises Invalid, NotAllowed. Raises OperationRejected if nothing would change, or if a request for this
    quota is waiting.
    """
    if unknown := values.keys() - set(QUOTA_VALUES):
        raise TypeError(f"unknown values of a quota: {', '.join(sorted(unknown))}")
    policy.require(actor, "quota.request", team)
    checks = InputChecks()
    check_pool(checks, pool, team)
    model = checks.choice("model", model, gpu_models_of_pool(pool))
    check_quota_values(checks, values)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    named = {"team": team.name, "model": model, "pool": pool.name}
    before = present_values(team, pool, model)
    payload = {"model": model, **before, **values, "before": before}
    changed = requested_values(payload)
    if not changed:
        raise OperationRejected("quota_is_unchanged", named, field="guaranteed_gpus")
    with transaction.atomic():
        submission = create_unique_submission(
            OperationRejected("quota_change_waits", named, field="model"),
            kind=Submission.Kind.QUOTA_CHANGE,
            team=team,
            pool=pool,
            author=actor,
            why=why,
            payload=payload,
            created_at=now,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="request_quota_change",
            target=submission,
            before={"model": model, **{name: before[name] for name in changed}},
            after={"model": model, **changed},
            why=why,
        )
    return submission


def request_membership(
    *, actor: User, team: Team, now: datetime, why: str = "", via: str = "web"
) -> Submission:
    """Request membership in a team.

    Raises Invalid, NotAllowed. Raises OperationRejected if the person is a member or has requested membership
    before.
    """
    policy.require(actor, "team.join", team)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    if Membership.objects.filter(user=actor, team=team).exists():
        raise OperationRejected("membership_exists", {"team": team.name})
    with transaction.atomic():
        payload = {"user": actor.pk, "role": Membership.Role.MEMBER.value}
        submission = create_unique_submission(
            OperationRejected("membership_request_waits", {"team": team.name}),
            kind=Submission.Kind.MEMBERSHIP,
            team=team,
            author=actor,
            why=why,
            payload=payload,
            created_at=now,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="request_membership",
            target=submission,
            after=payload,
            why=why,
        )
    return submission


def create_unique_submission(otherwise: OperationRejected, **columns: Any) -> Submission:
    """Create a submission if no equal submission is waiting. Call it inside a transaction.

    Raises ``otherwise`` if the database's unique constraint finds an equal submission. Raises
    OperationRejected if the team or the pool was removed.
    """
    try:
        with transaction.atomic():
            submission = Submission.objects.create(**columns)
    except IntegrityError:
        raise otherwise from None
    scheduling.reject_if_team_removed(submission.team)
    if submission.pool is not None:
        scheduling.reject_if_pool_removed(submission.pool)
    return submission


def check_quota_values(checks: InputChecks, values: Mapping[str, Any]) -> None:
    """Add a problem to ``checks`` for each value of a quota that is out of range."""
    if "guaranteed_gpus" in values:
        checks.count("guaranteed_gpus", values["guaranteed_gpus"], 0, MAX_QUOTA_GPUS, "GPUs")
    if values.get("borrow_limit_gpus") is not None:
        checks.count("borrow_limit_gpus", values["borrow_limit_gpus"], 0, MAX_QUOTA_GPUS, "GPUs")
    if values.get("gpu_hours") is not None:
        checks.count("gpu_hours", values["gpu_hours"], 1, MAX_QUOTA_GPU_HOURS, "GPU-hours")
    if "period" in values:
        checks.choice("period", values["period"], Quota.Period.values)
    if "when_used_up" in values:
        checks.choice("when_used_up", values["when_used_up"], Quota.WhenUsedUp.values)
