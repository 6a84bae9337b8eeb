"""Expire the requests for reservations that nobody has decided before their start."""

from __future__ import annotations

from datetime import datetime

from portal.models import Submission, SubmissionState
from portal.services.approvals.decisions import expire_submission


def expire_submissions(now: datetime) -> int:
    """Expire every waiting submission that is due, and return their number.

    A repeated call does no harm.
    """
    waiting = Submission.objects.filter(state=SubmissionState.WAITING).order_by("pk")
    return sum(expire_submission(submission, now=now) for submission in waiting)
