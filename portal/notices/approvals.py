"""Find events of submissions for notices: new requests, decisions and expiry."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from portal.models import Approval, AuditEvent, Submission, SubmissionState
from portal.notices.pending import PendingNotice
from portal.notices.recipients import finance_ids, lead_ids, operator_ids

# Values of a payload that may be row ids. Answers of the API show the numbers of a notice.
ROW_ID_NAMES = ("project", "pool", "reservation", "user")


def submissions_to_approve(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each new submission to the users who may decide it, except its author."""
    waiting = Submission.objects.filter(
        state=SubmissionState.WAITING, created_at__gt=since, created_at__lte=now
    )
    for submission in waiting.select_related("team", "author"):
        yield PendingNotice(
            "approval_wanted",
            f"wanted:{submission.pk}",
            _deciders(submission),
            _request_numbers(submission),
            submission=submission.pk,
        )


def late_submissions(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a reminder about each submission that has waited for GPUPOOL_APPROVAL_REMINDER_HOURS.

    The users who may decide it and all operators receive it.
    """
    before = now - timedelta(hours=settings.GPUPOOL_APPROVAL_REMINDER_HOURS)
    late = Submission.objects.filter(state=SubmissionState.WAITING, created_at__lte=before)
    for submission in late.select_related("team", "author").order_by("pk"):
        users = {*_deciders(submission), *operator_ids()} - {submission.author_id}
        numbers = {**_request_numbers(submission), "since": int(submission.created_at.timestamp())}
        source = f"approval waits:{submission.pk}"
        yield PendingNotice("approval_waits", source, tuple(sorted(users)), numbers, submission=submission.pk)


def _deciders(submission: Submission) -> tuple[int, ...]:
    """Return the users who may decide a submission, except its author."""
    if submission.kind == Submission.Kind.BUDGET:
        deciders = set(finance_ids())
    elif submission.kind == Submission.Kind.MEMBERSHIP:
        deciders = {*operator_ids(), *lead_ids(submission.team_id)}
    else:
        deciders = set(operator_ids())
    return tuple(sorted(deciders - {submission.author_id}))


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


def _request_numbers(submission: Submission) -> dict[str, Any]:
    return {
        "author": submission.author.get_username(),
        "request": _request_of(submission, submission.payload),
        "team": submission.team.name,
    }


def _request_of(submission: Submission, payload: dict[str, Any]) -> dict[str, Any]:
    """Return the kind and the values of a request. Its text is built for each reader, in their zone."""
    row_ids = {name for name in ROW_ID_NAMES if isinstance(payload.get(name), int)}
    return {
        "kind": submission.kind,
        "payload": {name: value for name, value in payload.items() if name not in row_ids},
    }


def decided_submissions(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each decided submission to its author."""
    decided = Approval.objects.filter(decided_at__gt=since, decided_at__lte=now)
    for approval in decided.select_related("submission", "decided_by"):
        submission = approval.submission
        changed = approval.changed_payload
        numbers = {
            "by": approval.decided_by.get_username(),
            "request": _request_of(submission, changed or submission.payload),
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
