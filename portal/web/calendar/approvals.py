"""Render the pages of approvals: waiting submissions, the effect of an approval, and the decision."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from portal import policy
from portal.errors import SERVICE_REFUSALS
from portal.input_checks import display_value as shown_value
from portal.models import Submission, SubmissionState, User
from portal.reads.calendar import approvals as reads
from portal.services.approvals import decisions, effects
from portal.services.approvals.payloads import expiry_of, pool_of_submission
from portal.services.approvals.quota_changes import present_values, values_after
from portal.web.calendar.quota_requests import quota_fields
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.context_processors import requests_label
from portal.web.page.service_form import ServiceForm
from portal.wording import request_texts
from portal.wording.pages import calendar_pages
from portal.wording.refusal_texts import refusal_sentence

KIND_CHOICES = (
    ("", "All"),
    (Submission.Kind.RESERVATION.value, "Reservations"),
    (Submission.Kind.SERIES.value, "Recurring"),
    (Submission.Kind.WINDOW_CHANGE.value, "Window changes"),
    (Submission.Kind.QUOTA_CHANGE.value, "Quotas"),
    (Submission.Kind.MEMBERSHIP.value, "Members"),
    (Submission.Kind.BUDGET.value, "Budgets"),
)


class DecisionForm(ServiceForm):
    """A form for the reason of a decision and the approved values.

    The fields have the names of the service's arguments.
    """

    comment = forms.CharField(
        required=False, max_length=2000, label="Reason, sent to the author", help_text="Required to decline."
    )

    def __init__(self, *args: Any, submission: Submission, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        payload = self.shown = submission.payload
        if submission.kind == Submission.Kind.QUOTA_CHANGE:
            self.shown = _quota_with_request(submission)
            self.fields |= quota_fields(self.shown)
        elif submission.kind == Submission.Kind.BUDGET:
            self.fields["amount"] = forms.CharField(
                label="Amount",
                initial=payload["amount"],
                max_length=30,
                help_text="Change it to approve another amount.",
            )
        elif submission.kind == Submission.Kind.RESERVATION:
            self.fields["units"] = forms.IntegerField(label="GPUs on each host", initial=payload["units"])
            self.fields["may_exceed_guarantee"] = forms.BooleanField(
                label="May use guarantees of other teams",
                required=False,
                initial=payload.get("may_exceed_guarantee", False),
            )

    def changes(self) -> dict[str, Any]:
        """Return the values that differ from those that the form shows."""
        given = {name: value for name, value in self.cleaned_data.items() if name != "comment"}
        absent: dict[str, Any] = {"may_exceed_guarantee": False, "period": "month", "when_used_up": "borrow"}
        return {
            name: value
            for name, value in given.items()
            if value != "" and value != self.shown.get(name, absent.get(name))
        }


def _quota_with_request(submission: Submission) -> dict[str, Any]:
    """Return the values that the quota would have after the approval."""
    present = present_values(submission.team, pool_of_submission(submission), submission.payload["model"])
    return values_after(submission.payload, present)


@sign_in_required
def approvals(request: HttpRequest) -> HttpResponseBase:
    """List the waiting submissions and show the oldest; ``decided=1`` lists decided submissions."""
    user, now = current_user(request), timezone.now()
    if request.GET.get("decided"):
        return render(
            request,
            "manage/approvals_decided.html",
            {
                "rows": _submission_rows(reads.decided_submissions(user, now), now),
                "heading": requests_label(user),
                "now": now,
            },
        )
    rows = list(reads.waiting_submissions(user))
    kind = request.GET.get("kind", "")
    known = kind in dict(KIND_CHOICES)
    if not known:
        allowed = ", ".join(value for value, _ in KIND_CHOICES if value)
        messages.error(request, calendar_pages.UNKNOWN_KIND.format(kind=shown_value(kind), allowed=allowed))
    shown = [row for row in rows if not kind or not known or row.kind == kind]
    context = _approvals_context(request, user, rows, shown, shown[0] if shown else None, now)
    return render(request, "manage/approvals.html", context, status=200 if known else 400)


@sign_in_required
def submission(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Show one submission next to the list of waiting submissions."""
    user, now = current_user(request), timezone.now()
    row = reads.visible_submission(user, public_id)
    if row is None:
        raise Http404(calendar_pages.SUBMISSION_NOT_FOUND)
    rows = list(reads.waiting_submissions(user))
    return render(request, "manage/approvals.html", _approvals_context(request, user, rows, rows, row, now))


# Not split: the function builds one dict, and a function for a part would need the same eight arguments.
def _approvals_context(
    request: HttpRequest,
    user: User,
    rows: list[Submission],
    shown: list[Submission],
    chosen: Submission | None,
    now: datetime,
    form: DecisionForm | None = None,
) -> dict[str, Any]:
    kind = request.GET.get("kind", "")
    counts = {value: sum(1 for row in rows if not value or row.kind == value) for value, _ in KIND_CHOICES}
    decidable = policy.decidable_submissions(user, shown)
    context: dict[str, Any] = {
        "heading": requests_label(user),
        "decides_all": policy.may(user, "approval.see"),
        "may_decide_some": bool(decidable),
        "rows": [
            row | {"may_decide": row["submission"].pk in decidable} for row in _submission_rows(shown, now)
        ],
        "waiting": len(rows),
        "oldest": rows[0].created_at if rows else None,
        "kinds": [
            {
                "label": f"{label} {counts[value]}",
                "url": f"?kind={value}" if value else "?",
                "current": value == kind,
            }
            for value, label in KIND_CHOICES
        ],
        "chosen": chosen,
        "now": now,
    }
    if chosen is not None:
        place = next((index for index, row in enumerate(shown) if row.pk == chosen.pk), None)
        open_, expires_at = chosen.state == SubmissionState.WAITING, expiry_of(chosen)
        context |= {
            "title": reads.submission_title(chosen),
            "project": reads.project_of_submission(chosen),
            "effect": _effect(chosen, user, now) if open_ else None,
            "expires_at": expires_at,
            "expired": request_texts.expired_submission_sentence(expires_at)
            if chosen.state == SubmissionState.EXPIRED and expires_at
            else "",
            "open": open_,
            "may_decide": open_ and policy.may(user, "submission.decide", chosen),
            "decided_by_another": open_ and policy.may_not_decide_own(user, chosen),
            "may_withdraw": open_ and policy.may(user, "submission.withdraw", chosen),
            "form": form or DecisionForm(submission=chosen),
            "next": shown[place + 1] if place is not None and place + 1 < len(shown) else None,
            "previous": shown[place - 1] if place else None,
        }
    return context


def _effect(chosen: Submission, user: User, now: datetime) -> dict[str, Any]:
    """Return the effect of approving a submission.

    Workloads and reservations that the user may not see are left out.
    """
    effect = effects.visible_effect(user, chosen, now)
    for name, visible in (
        ("evicted", policy.visible_workloads),
        ("overlapping", policy.visible_reservations),
    ):
        if effect.get(name):
            seen = set(
                visible(user).filter(pk__in=[row.pk for row in effect[name]]).values_list("pk", flat=True)
            )
            effect[name] = [row for row in effect[name] if row.pk in seen]
    effect["too_many_gpus"] = max(0, -effect.get("free_after_gpus", 0))
    return effect


def _submission_rows(rows: Any, now: datetime) -> list[dict[str, Any]]:
    return [{"submission": row, "title": reads.submission_title(row)} for row in rows]


# -- decisions -----------------------------------------------------------------------------------------------


@require_POST
@sign_in_required
def decide(request: HttpRequest, public_id: uuid.UUID, verb: str) -> HttpResponseBase:
    """Approve, decline or withdraw one submission. An approval can change the requested values."""
    user, now = current_user(request), timezone.now()
    row = reads.visible_submission(user, public_id)
    if row is None:
        raise Http404(calendar_pages.SUBMISSION_NOT_FOUND)
    form = DecisionForm(request.POST, submission=row)
    if verb == "withdraw":
        form.is_valid()
        done = form.carry_out(decisions.withdraw_submission, actor=user, submission=row, now=now)
    elif not form.is_valid():
        done = None
    elif verb == "approve":
        done = form.carry_out(
            decisions.approve_submission,
            actor=user,
            submission=row,
            changes=form.changes(),
            comment=form.cleaned_data["comment"],
            now=now,
        )
    else:
        done = form.carry_out(
            decisions.decline_submission,
            actor=user,
            submission=row,
            comment=form.cleaned_data["comment"],
            now=now,
        )
    if done is None:
        row.refresh_from_db()
        rows = list(reads.waiting_submissions(user))
        return render(
            request,
            "manage/approvals.html",
            _approvals_context(request, user, rows, rows, row, now, form),
            status=400,
        )
    decision = {"approve": "Approved", "decline": "Declined", "withdraw": "Withdrawn"}[verb]
    what = reads.decided_summary(row)
    messages.success(
        request,
        calendar_pages.SUBMISSION_DECIDED.format(
            decision=decision, title=what, team=row.team.name, author=row.author.username
        ),
    )
    return redirect("approvals" if policy.may(user, "approval.see") else "home")


@require_POST
@sign_in_required
def decide_several(request: HttpRequest) -> HttpResponseBase:
    """Approve or decline the ticked submissions one by one. A submission that fails keeps waiting."""
    user, now = current_user(request), timezone.now()
    verb = request.POST.get("verb", "")
    if verb not in ("approve", "decline"):
        messages.error(request, calendar_pages.UNKNOWN_DECISION.format(verb=verb[:20]))
        return redirect("approvals")
    ticked = request.POST.getlist("submission")[:200]
    if not ticked:
        messages.error(request, calendar_pages.NOTHING_TICKED)
    done = 0
    for text in ticked:
        row = reads.visible_submission(user, _parse_uuid(text))
        if row is None:
            continue
        try:
            if verb == "approve":
                decisions.approve_submission(actor=user, submission=row, now=now)
            else:
                decisions.decline_submission(
                    actor=user, submission=row, comment=request.POST.get("comment", ""), now=now
                )
            done += 1
        except SERVICE_REFUSALS as refusal:
            title = reads.submission_title(row)
            reason = refusal_sentence(refusal)
            messages.error(
                request, calendar_pages.STILL_WAITS.format(title=title, team=row.team.name, reason=reason)
            )
    if done:
        messages.success(request, f"{done} {'approved' if verb == 'approve' else 'declined'}.")
    return redirect("approvals")


def _parse_uuid(text: str) -> uuid.UUID:
    """Return the text as a UUID, or raise Http404."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Http404 from None
