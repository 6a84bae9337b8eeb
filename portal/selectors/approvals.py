"""What waits for somebody's word, and what was decided."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from portal import policy, wording
from portal.models import Submission, SubmissionState, User
from scheduler.models import Project

DECIDED_DAYS = 30


def waiting(viewer: User) -> QuerySet[Submission]:
    """Visible submissions that wait, oldest first."""
    rows = policy.visible_submissions(viewer).filter(state=SubmissionState.WAITING)
    return rows.select_related("team", "pool", "author").order_by("created_at", "pk")


def decided(viewer: User, now: datetime) -> QuerySet[Submission]:
    """Visible submissions of the last month that do not wait any more, newest first."""
    rows = policy.visible_submissions(viewer).exclude(state=SubmissionState.WAITING)
    rows = rows.filter(created_at__gte=now - timedelta(days=DECIDED_DAYS))
    return rows.select_related("team", "pool", "author", "approval__decided_by", "reservation").order_by(
        "-created_at", "-pk"
    )


def one(viewer: User, public_id: Any) -> Submission | None:
    """One visible submission with all its page shows."""
    rows = policy.visible_submissions(viewer).select_related(
        "team", "pool", "author", "approval__decided_by", "reservation"
    )
    return rows.filter(public_id=public_id).first()


def title(submission: Submission) -> str:
    """What is asked, in a few words, beginning with a capital letter."""
    words = wording.submission_what(submission.kind, submission.payload)
    return words[:1].upper() + words[1:]


def project_of(submission: Submission) -> Project | None:
    """The project a reservation is asked for."""
    return Project.objects.filter(pk=submission.payload.get("project")).first()
