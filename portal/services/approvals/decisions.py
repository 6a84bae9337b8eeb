"""Approve, decline, withdraw and expire submissions."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import SUBMISSION_TRANSITIONS, Approval, Membership, Submission, SubmissionState, User
from portal.services import audit
from portal.services.approvals.budget_requests import budget_before, budget_owner
from portal.services.approvals.effects import effect_on_guarantees
from portal.services.approvals.payloads import (
    expiry_of,
    json_values,
    pool_of_submission,
    reservation_request_of,
    reservation_to_change,
    series_request_of,
)
from portal.services.approvals.quota_changes import (
    agreed_payload,
    present_values,
    requested_values,
    slots_of,
    values_after,
)
from portal.services.approvals.submissions import check_quota_values
from portal.services.calendar import (
    approved_changes,
    recurring_reservations,
)
from portal.services.money.budgets import set_budget
from portal.wording import request_texts
from portal.wording.problems import administration_problems
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected

APPROVER_EDITABLE_FIELDS = {
    Submission.Kind.QUOTA_CHANGE: frozenset(
        {"guaranteed_gpus", "borrow_limit_gpus", "gpu_hours", "period", "when_used_up"}
    ),
    Submission.Kind.RESERVATION: frozenset(
        {"units", "hosts", "models", "profile", "start", "end", "may_exceed_guarantee"}
    ),
    Submission.Kind.SERIES: frozenset({"units", "may_exceed_guarantee"}),
    Submission.Kind.WINDOW_CHANGE: frozenset(),
    Submission.Kind.MEMBERSHIP: frozenset({"role"}),
    Submission.Kind.BUDGET: frozenset({"amount"}),
}


def approve_submission(
    *,
    actor: User,
    submission: Submission,
    now: datetime,
    changes: dict[str, Any] | None = None,
    comment: str = "",
    via: str = "web",
) -> Submission:
    """Check a submission again, approve it and carry it out, in one transaction.

    ``changes`` replaces values of the submission's payload. Raises OperationRejected if the submission is
    decided or has expired. Also raises OperationRejected if the request no longer fits. In this case the
    submission still waits for a decision. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "submission.decide", submission)
    checks = InputChecks()
    comment = checks.text("comment", comment, least=0, most=1000, lines=True)
    editable = APPROVER_EDITABLE_FIELDS[Submission.Kind(submission.kind)]
    for field in (changes or {}).keys() - editable:
        checks.note(
            field,
            field,
            administration_problems.FIELD_IS_FIXED.format(field=field, allowed=", ".join(sorted(editable))),
        )
    checks.done()
    expires_at = expiry_of(submission)
    if expires_at is not None and expires_at <= now:
        raise OperationRejected("submission_has_expired", {"start": expires_at.isoformat()})
    payload = agreed_payload(submission, changes or {})
    before, after = _values_for_audit(submission, payload)
    with transaction.atomic():
        _decide(submission, SubmissionState.APPROVED)
        changed = payload if payload != submission.payload else None
        _execute_submission(submission, payload, now, actor=actor, via=via)
        Approval.objects.create(
            submission=submission,
            decided_by=actor,
            approved=True,
            changed_payload=json_values(changed),
            comment=comment,
            decided_at=now,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="approve_submission",
            target=submission,
            before=before,
            after=after,
            why=comment,
        )
    return submission


def _values_for_audit(
    submission: Submission, payload: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the values before and after an approval: those of the quota, otherwise those of the request."""
    if submission.kind != Submission.Kind.QUOTA_CHANGE:
        return submission.payload, json_values(payload)
    present = present_values(submission.team, pool_of_submission(submission), payload["model"])
    changed = requested_values(payload)
    model = {"model": payload["model"]}
    return model | {name: present[name] for name in changed}, model | changed


def decline_submission(
    *, actor: User, submission: Submission, comment: str, now: datetime, via: str = "web"
) -> Submission:
    """Decline a submission. ``comment`` is required.

    Raises OperationRejected if another person has decided before. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "submission.decide", submission)
    checks = InputChecks()
    comment = checks.text("comment", comment, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        _decide(submission, SubmissionState.DECLINED)
        Approval.objects.create(
            submission=submission, decided_by=actor, approved=False, comment=comment, decided_at=now
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="decline_submission",
            target=submission,
            before=submission.payload,
            why=comment,
        )
    return submission


def withdraw_submission(
    *, actor: User, submission: Submission, now: datetime, via: str = "web"
) -> Submission:
    """Withdraw a waiting submission. Raises NotAllowed. Raises OperationRejected if it is decided."""
    policy.require(actor, "submission.withdraw", submission)
    with transaction.atomic():
        _decide(submission, SubmissionState.WITHDRAWN)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="withdraw_submission",
            target=submission,
            before=submission.payload,
        )
    return submission


@transaction.atomic
def expire_submission(submission: Submission, *, now: datetime) -> bool:
    """Expire a submission that nobody has decided in time, and return True.

    Return False, and change nothing, if it is decided or not yet due.
    """
    expires_at = expiry_of(submission)
    if expires_at is None or now < expires_at or not _change_waiting(submission, SubmissionState.EXPIRED):
        return False
    audit.record(
        actor=None,
        via="program",
        now=now,
        verb="expire_submission",
        target=submission,
        before=submission.payload,
        why=request_texts.EXPIRED_UNDECIDED,
    )
    return True


def _change_waiting(submission: Submission, new: SubmissionState) -> bool:
    """Set the new state if the submission is still waiting, in one conditional UPDATE.

    Return False if it is no longer waiting.
    """
    if new not in SUBMISSION_TRANSITIONS[SubmissionState.WAITING]:
        raise ValueError(new)
    if not Submission.objects.filter(pk=submission.pk, state=SubmissionState.WAITING).update(state=new):
        return False
    submission.state = new
    return True


def _decide(submission: Submission, new: SubmissionState) -> None:
    """Set the new state. Raises OperationRejected if the submission is decided or has expired."""
    if not _change_waiting(submission, new):
        submission.refresh_from_db()
        expires_at = expiry_of(submission)
        if submission.state == SubmissionState.EXPIRED and expires_at is not None:
            raise OperationRejected("submission_has_expired", {"start": expires_at.isoformat()})
        by = Approval.objects.filter(submission=submission).select_related("decided_by").first()
        raise OperationRejected(
            "submission_is_decided",
            {"state": submission.state, "decided_by": str(by.decided_by) if by else ""},
        )


def _execute_submission(
    submission: Submission, payload: dict[str, Any], now: datetime, *, actor: User, via: str
) -> None:
    if submission.kind == Submission.Kind.QUOTA_CHANGE:
        _change_quota(submission, payload, now)
    elif submission.kind == Submission.Kind.RESERVATION:
        _confirm_reservation(submission, payload, now)
    elif submission.kind == Submission.Kind.SERIES:
        _confirm_series(submission, payload, now)
    elif submission.kind == Submission.Kind.WINDOW_CHANGE:
        approved_changes.apply_submitted_change(reservation_to_change(submission), payload, now)
    elif submission.kind == Submission.Kind.BUDGET:
        _set_budget(submission, payload, now, actor, via)
    else:
        _add_member(submission, payload, now)


def _set_budget(
    submission: Submission, payload: dict[str, Any], now: datetime, actor: User, via: str
) -> None:
    """Set the requested budget. An existing budget keeps its action; a new budget only notifies."""
    before = budget_before(submission.team, payload)
    set_budget(
        actor=actor,
        **budget_owner(submission.team, payload),
        period=payload["period"],
        month=date.fromisoformat(payload["month"]),
        measure=payload["measure"],
        amount=payload["amount"],
        action="notify" if before is None else before.action,
        now=now,
        via=via,
    )


def _change_quota(submission: Submission, payload: dict[str, Any], now: datetime) -> None:
    checks = InputChecks()
    check_quota_values(checks, requested_values(payload))
    checks.done()
    pool = pool_of_submission(submission)
    values = values_after(payload, present_values(submission.team, pool, payload["model"]))
    effect = effect_on_guarantees(submission, payload)
    changed = scheduling.change_quota(
        team=submission.team,
        pool=pool,
        model=payload["model"],
        guaranteed_slots=slots_of(values.pop("guaranteed_gpus")) or 0,
        borrow_limit_slots=slots_of(values.pop("borrow_limit_gpus")),
        now=now,
        **values,
    )
    if not changed:
        gpus = {name: value for name, value in effect.items() if name.endswith("_gpus")}
        named = {"team": submission.team.name, "pool": pool.name, "model": payload["model"]}
        raise OperationRejected("guarantee_is_too_large", {**named, **gpus}, field="guaranteed_gpus")


def _confirm_reservation(submission: Submission, payload: dict[str, Any], now: datetime) -> None:
    request = reservation_request_of(submission, payload, now)
    reservation = approved_changes.confirm_reservation(submission.author, request, now)
    Submission.objects.filter(pk=submission.pk).update(reservation=reservation)
    submission.reservation = reservation


def _confirm_series(submission: Submission, payload: dict[str, Any], now: datetime) -> None:
    series = recurring_reservations.confirm_series(
        submission.author, series_request_of(submission, payload, now), now
    )
    first = series.occurrences.order_by("start", "pk").first()
    Submission.objects.filter(pk=submission.pk).update(reservation=first)
    submission.reservation = first


def _add_member(submission: Submission, payload: dict[str, Any], now: datetime) -> None:
    checks = InputChecks()
    role = checks.choice("role", payload["role"], Membership.Role.values)
    checks.done()
    Membership.objects.update_or_create(
        user=submission.author,
        team=submission.team,
        defaults={"role": role},
        create_defaults={"role": role, "created_at": now},
    )
    scheduling.reject_if_team_removed(submission.team)
