"""Submit quota changes and memberships for approval."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from portal import policy
from portal.hardware_request import check_pool, gpu_models_of_pool
from portal.input_checks import InputChecks
from portal.models import Membership, Submission, User
from portal.services import audit
from scheduler import services as scheduling
from scheduler.core.model.slots import SLOTS_PER_GPU
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
    guaranteed_gpus: int,
    now: datetime,
    borrow_limit_gpus: int | None = None,
    gpu_hours: int | None = None,
    period: str = "month",
    when_used_up: str = "borrow",
    why: str = "",
    via: str = "web",
) -> Submission:
    """Request a guarantee of GPUs of one model for a team, and a limit on borrowing.

    A borrowing limit of None means no limit. ``gpu_hours`` limits the GPU-hours that the guarantee covers in
    each ``period`` (day, week or month); None means no limit. If these hours are used up, ``when_used_up``
    applies until the period ends: "borrow" (the team may only borrow) or "refuse" (the team starts no new
    workload). Raises Invalid, NotAllowed. Raises OperationRejected if an equal request is waiting.
    """
    policy.require(actor, "quota.request", team)
    checks = InputChecks()
    check_pool(checks, pool, team)
    model = checks.choice("model", model, gpu_models_of_pool(pool))
    check_quota_gpus(checks, guaranteed_gpus, borrow_limit_gpus)
    check_gpu_hours(checks, gpu_hours, period, when_used_up)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    payload = {
        "model": model,
        "guaranteed_gpus": guaranteed_gpus,
        "borrow_limit_gpus": borrow_limit_gpus,
        "gpu_hours": gpu_hours,
        "period": period,
        "when_used_up": when_used_up,
    }
    named = {"team": team.name, "model": model, "pool": pool.name}
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
            after=payload,
            why=why,
            before=quota_fields(Quota.objects.filter(team=team, pool=pool, model=model).first()),
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


def check_quota_gpus(checks: InputChecks, guaranteed_gpus: Any, borrow_limit_gpus: Any) -> None:
    """Add a problem to ``checks`` for each number of GPUs that is out of range."""
    checks.count("guaranteed_gpus", guaranteed_gpus, 0, MAX_QUOTA_GPUS, "GPUs")
    if borrow_limit_gpus is not None:
        checks.count("borrow_limit_gpus", borrow_limit_gpus, 0, MAX_QUOTA_GPUS, "GPUs")


def check_gpu_hours(checks: InputChecks, gpu_hours: Any, period: Any, when_used_up: Any) -> None:
    if gpu_hours is not None:
        checks.count("gpu_hours", gpu_hours, 1, MAX_QUOTA_GPU_HOURS, "GPU-hours")
    checks.choice("period", period, Quota.Period.values)
    checks.choice("when_used_up", when_used_up, Quota.WhenUsedUp.values)


def quota_fields(quota: Quota | None) -> dict[str, Any] | None:
    if quota is None:
        return None
    limit = quota.borrow_limit_slots
    return {
        "model": quota.model,
        "guaranteed_gpus": quota.guaranteed_slots / SLOTS_PER_GPU,
        "borrow_limit_gpus": None if limit is None else limit / SLOTS_PER_GPU,
        "gpu_hours": quota.gpu_hours,
        "period": quota.hours_period,
        "when_used_up": quota.when_used_up,
    }
