"""Read submissions that wait for a decision, and decided submissions."""

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
    """Return the visible submissions that wait, oldest first."""
    rows = policy.visible_submissions(viewer).filter(state=SubmissionState.WAITING)
    return rows.select_related("team", "pool", "author").order_by("created_at", "pk")


def decided_submissions(viewer: User, now: datetime) -> QuerySet[Submission]:
    """Return the visible submissions of the last month that no longer wait, newest first."""
    rows = policy.visible_submissions(viewer).exclude(state=SubmissionState.WAITING)
    rows = rows.filter(created_at__gte=now - timedelta(days=DECIDED_WINDOW_DAYS))
    return rows.select_related("team", "pool", "author", "approval__decided_by", "reservation").order_by(
        "-created_at", "-pk"
    )


def visible_submission(viewer: User, public_id: Any) -> Submission | None:
    """Return one visible submission with everything that its page shows."""
    rows = policy.visible_submissions(viewer).select_related(
        "team", "pool", "author", "approval__decided_by", "reservation"
    )
    return rows.filter(public_id=public_id).first()


@dataclass(frozen=True)
class GuaranteeLine:
    """A team's guarantee of one model in one pool, in GPUs, and its possible maximum."""

    pool: Pool
    model: str
    own: float
    borrow_limit: float | None
    most: float
    capacity: float
    others: float


def guarantee_lines(team: Team, pools: Iterable[Pool]) -> list[GuaranteeLine]:
    """Return a line for every model of these pools, by pool and model."""
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
    """Return a short title of the request; the first letter is a capital."""
    words = request_texts.submission_summary(submission.kind, submission.payload)
    return words[:1].upper() + words[1:]


def project_of_submission(submission: Submission) -> Project | None:
    """Return the project of a submitted reservation."""
    return Project.objects.filter(pk=submission.payload.get("project")).first()
