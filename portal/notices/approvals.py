"""Find events of submissions for notices: new requests, decisions and expiry."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from portal.models import Approval, AuditEvent, Submission, SubmissionState
from portal.notices.pending import PendingNotice
from portal.notices.recipients import finance_ids, lead_ids, operator_ids
from portal.wording import request_texts


def submissions_to_approve(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each new submission to the users who may decide it, except its author."""
    waiting = Submission.objects.filter(
        state=SubmissionState.WAITING, created_at__gt=since, created_at__lte=now
    )
    operators: tuple[int, ...] | None = None
    for submission in waiting.select_related("team", "author"):
        if operators is None:
            operators = operator_ids()
        deciders = set(operators)
        if submission.kind == Submission.Kind.MEMBERSHIP:
            deciders |= lead_ids(submission.team_id)
        elif submission.kind == Submission.Kind.BUDGET:
            deciders = set(finance_ids())
        users = tuple(sorted(deciders - {submission.author_id}))
        yield PendingNotice(
            "approval_wanted",
            f"wanted:{submission.pk}",
            users,
            _request_numbers(submission),
            submission=submission.pk,
        )


def expired_submissions(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each expired submission to its author and to operators."""
    events = AuditEvent.objects.filter(verb="expire_submission", at__gt=since, at__lte=now)
    ids = [target.partition(":")[2] for target in events.values_list("target", flat=True)]
    for submission in Submission.objects.filter(public_id__in=ids).select_related("team", "author"):
        users = tuple(sorted({submission.author_id, *operator_ids()}))
        yield PendingNotice(
            "submission_expired",
            f"expired:{submission.pk}",
            users,
            _request_numbers(submission),
            submission=submission.pk,
        )


def _request_numbers(submission: Submission) -> dict[str, str]:
    return {
        "author": submission.author.get_username(),
        "what": request_texts.submission_summary(submission.kind, submission.payload),
        "team": submission.team.name,
    }


def decided_submissions(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each decided submission to its author."""
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
            kind,
            f"decided:{approval.pk}",
            (submission.author_id,),
            numbers,
            submission=submission.pk,
            actor=approval.decided_by_id,
        )
