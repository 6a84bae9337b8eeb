"""Find notices about submissions: requests for approval and decisions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from portal.models import Approval, Submission, SubmissionState
from portal.notices.pending import PendingNotice
from portal.notices.recipients import lead_ids, operator_ids
from portal.wording import request_texts


def submissions_to_approve(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice for each new submission to those who may decide it, except its author."""
    waiting = Submission.objects.filter(
        state=SubmissionState.WAITING, created_at__gt=since, created_at__lte=now
    )
    operators: tuple[int, ...] | None = None
    for submission in waiting.select_related("team", "author"):
        if operators is None:
            operators = operator_ids()
        deciders = set(operators) | (
            lead_ids(submission.team_id) if submission.kind == Submission.Kind.MEMBERSHIP else set()
        )
        numbers = {
            "author": submission.author.get_username(),
            "what": request_texts.submission_summary(submission.kind, submission.payload),
            "team": submission.team.name,
        }
        users = tuple(sorted(deciders - {submission.author_id}))
        yield PendingNotice(
            "approval_wanted", f"wanted:{submission.pk}", users, numbers, submission=submission.pk
        )


def decided_submissions(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice to the author of each decided submission."""
    decided = Approval.objects.filter(decided_at__gt=since, decided_at__lte=now)
    for approval in decided.select_related("submission", "decided_by"):
        submission = approval.submission
        changed = approval.changed_payload
        numbers = {
            "by": approval.decided_by.get_username(),
            "what": request_texts.submission_summary(submission.kind, changed or submission.payload),
            "comment": approval.comment,
        }
        kind = "declined" if not approval.approved else "approved_changed" if changed else "approved"
        yield PendingNotice(
            kind, f"decided:{approval.pk}", (submission.author_id,), numbers, submission=submission.pk
        )
