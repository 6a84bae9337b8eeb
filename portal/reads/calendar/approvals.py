"""Read submissions (requests that need an approval), both waiting and decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from portal import policy
from portal.models import Submission, SubmissionState, User
from portal.wording import request_texts
from scheduler import services as scheduling
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Gpu, Pool, Project, Quota, Team

DECIDED_WINDOW_DAYS = 30


def waiting_submissions(viewer: User) -> QuerySet[Submission]:
    """Return the visible submissions that wait for a decision, oldest first."""
    rows = policy.visible_submissions(viewer).filter(state=SubmissionState.WAITING)
    return rows.select_related("team", "pool", "author").order_by("created_at", "pk")


def decided_submissions(viewer: User, now: datetime) -> QuerySet[Submission]:
    """Return the visible submissions that no longer wait for a decision, newest first.

    Only submissions that were created in the last DECIDED_WINDOW_DAYS days are returned.
    """
    rows = policy.visible_submissions(viewer).exclude(state=SubmissionState.WAITING)
    rows = rows.filter(created_at__gte=now - timedelta(days=DECIDED_WINDOW_DAYS))
    return rows.select_related("team", "pool", "author", "approval__decided_by", "reservation").order_by(
        "-created_at", "-pk"
    )


def visible_submission(viewer: User, public_id: Any) -> Submission | None:
    """Return the submission with this id and the related rows that its page shows.

    Return None if the viewer may not see the submission.
    """
    rows = policy.visible_submissions(viewer).select_related(
        "team", "pool", "author", "approval__decided_by", "reservation"
    )
    return rows.filter(public_id=public_id).first()


@dataclass(frozen=True)
class GuaranteeLine:
    """A team's guarantee of one GPU model in one pool. All numbers are numbers of GPUs.

    ``own`` is the team's current guarantee, and ``most`` the largest guarantee that the team could have.
    ``capacity`` is the number of GPUs of the model in the pool. ``others`` is the sum of the guarantees of
    other teams. ``borrow_limit`` is None if the team has no limit.
    """

    pool: Pool
    model: str
    own: float
    borrow_limit: float | None
    most: float
    capacity: float
    others: float


def guarantee_lines(team: Team, pools: Iterable[Pool]) -> list[GuaranteeLine]:
    """Return one line for each GPU model in each of these pools, sorted by pool and model.

    A model without a quota of the team has a line with a guarantee of 0.
    """
    by_id = {pool.pk: pool for pool in pools}
    own = {(quota.pool_id, quota.model): quota for quota in Quota.objects.filter(team=team)}
    there = Gpu.objects.filter(host__pool__in=by_id, retired_at=None).order_by("host__pool__name", "model")
    return [
        _guarantee_line(team, by_id[pool], model, own.get((pool, model)))
        for pool, model in there.values_list("host__pool_id", "model").distinct()
    ]


def _guarantee_line(team: Team, pool: Pool, model: str, quota: Quota | None) -> GuaranteeLine:
    room = scheduling.guarantee_capacity(pool=pool, model=model, team=team)
    limit = quota.borrow_limit_slots if quota else None
    return GuaranteeLine(
        pool=pool,
        model=model,
        own=quota.guaranteed_slots / SLOTS_PER_GPU if quota else 0.0,
        borrow_limit=None if limit is None else limit / SLOTS_PER_GPU,
        most=room.most / SLOTS_PER_GPU,
        capacity=room.capacity / SLOTS_PER_GPU,
        others=room.others / SLOTS_PER_GPU,
    )


def submission_title(submission: Submission) -> str:
    """Return a short title of the request, with a capital first letter."""
    words = decided_summary(submission)
    return words[:1].upper() + words[1:]


def decided_summary(submission: Submission) -> str:
    """Return a short text of what was approved; without an approval, of what is requested."""
    # A submission whose approval has just failed is approved only in memory and has no decision.
    approval = getattr(submission, "approval", None) if submission.state == SubmissionState.APPROVED else None
    agreed = approval.changed_payload if approval else None
    return request_texts.submission_summary(submission.kind, agreed or submission.payload)


def project_of_submission(submission: Submission) -> Project | None:
    """Return the project for which a reservation is requested; None if the submission names no project."""
    given = submission.payload.get("project")  # the request of a budget has "team/project" here
    return Project.objects.filter(pk=given).first() if isinstance(given, int) else None
