"""Render the page on which a month is rehearsed, proposed and closed."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money.close_evidence import CloseRehearsal, check_evidence, close_state, focus_evidence
from portal.reads.money.closing import journal
from portal.reads.people.organisation import audit_events
from portal.services.money import months
from portal.services.money.billing_settings import billing_organisation
from portal.web.money.months import month_or_404
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages.money import close_texts, money_pages
from telemetry.money import statements
from telemetry.money.close_checks import SAMPLES_ARRIVED
from telemetry.money.closing.proposals import PROPOSAL_LIFETIME
from telemetry.money.pricing.billing_currencies import currency_of_month

SHOWN_CHANGES = 8  # rows of the journal of changes that the page shows; the audit page has all changes


class CloseMonthForm(ServiceForm):
    why = forms.CharField(label="Note", required=False, max_length=1000, help_text="Stored in the audit log.")
    missing_samples_reason = forms.CharField(
        label="Why close without the missing samples",
        required=False,
        max_length=1000,
        help_text="Stored with the statement, with your name and the hosts.",
    )


@sign_in_required
def month_close(request: HttpRequest, month: str) -> HttpResponseBase:
    """Show the checks of a month with the evidence behind them.

    Quick checks run now. The results of the slow checks come from the last rehearsal. A POST rehearses,
    proposes or closes the month.
    """
    user, now = current_user(request), timezone.now()
    policy.require(user, "charges.see_all")
    two_people = billing_organisation().two_step_close
    rehearses = request.POST.get("verb") == "rehearse"
    if request.method == "POST" and not rehearses:
        policy.require(user, "statement.confirm" if two_people else "statement.close")
    first_day = month_or_404(month, now)
    form = CloseMonthForm(request.POST or None)
    if request.method == "POST" and form.is_valid() and _carry_out(request, form, first_day, now):
        return redirect("month-close", month=f"{first_day:%Y-%m}")
    rehearsal = close_state(first_day, now)
    context = {
        "month": first_day,
        "rehearsal": rehearsal,
        "checks": [
            *(
                {**check, "evidence": check_evidence(check, first_day, rehearsal.unmapped)}
                for check in rehearsal.checks
            ),
            *focus_evidence(rehearsal.stored),
        ],
        "owes_samples": any(
            check["check"] == SAMPLES_ARRIVED and not check["ok"] for check in rehearsal.checks
        ),
        "steps": _steps(rehearsal, two_people),
        "totals": statements.statement_totals(first_day),
        "currency": currency_of_month(first_day),
        "two_people": two_people,
        "may_propose": two_people and policy.may(user, "statement.close"),
        "may_close": _may_close(user, rehearsal, two_people),
        "form": form,
        "journal": audit_events(user).filter(journal.of_month(first_day))[:SHOWN_CHANGES],
        "now": now,
    }
    return render(request, "manage/month_close.html", context, status=400 if form.errors else 200)


def _carry_out(request: HttpRequest, form: CloseMonthForm, month: date, now: datetime) -> bool:
    """Rehearse, propose or close the month, as the button says. Return False if a service refused it."""
    user = current_user(request)
    if request.POST.get("verb") == "rehearse":
        done = form.carry_out(months.rehearse_close, actor=user, month=month, now=now)
        if done is not None:
            messages.success(request, close_texts.rehearsed(month, done.checks))
        return done is not None
    given: dict[str, Any] = {"actor": user, "month": month, "now": now, **form.cleaned_data}
    if request.POST.get("verb") == "propose":
        if form.carry_out(months.propose_close, **given) is None:
            return False
        messages.success(request, close_texts.proposed(month, now + PROPOSAL_LIFETIME))
        return True
    if form.carry_out(months.close_month, **given) is None:
        return False
    messages.success(request, money_pages.MONTH_CLOSED.format(month=month))
    return True


def _may_close(user: User, rehearsal: CloseRehearsal, two_people: bool) -> bool:
    if not two_people:
        return policy.may(user, "statement.close")
    proposal = rehearsal.proposal
    return (
        proposal is not None and proposal.proposed_by_id != user.pk and policy.may(user, "statement.confirm")
    )


def _steps(rehearsal: CloseRehearsal, two_people: bool) -> list[dict[str, Any]]:
    statement, proposal = rehearsal.statement, rehearsal.proposal
    closed = rehearsal.closed and statement is not None
    proposer = statement.proposed_by if closed and statement else proposal.proposed_by if proposal else None
    closer = statement.closed_by if closed and statement else None
    return close_texts.close_steps(
        passed=rehearsal.passed,
        checks=len(rehearsal.checks),
        statements=len(rehearsal.totals),
        proposer=proposer.get_username() if proposer else "",
        closer=closer.get_username() if closer else "",
        over=rehearsal.over,
        two_people=proposer is not None if closed else two_people,
    )
