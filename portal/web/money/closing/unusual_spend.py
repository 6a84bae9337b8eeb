"""Store a person's reason for unusual spend, and ask the people who know it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.unusual_spend import UnusualRow, questions_about, unusual_rows
from portal.services.money.unusual_spend import ask_about_spend, explain_unusual_spend, people_to_ask
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages.money import unusual_texts
from telemetry.models import StatementState, UnusualSpend


class ExplainForm(ServiceForm):
    reason = forms.CharField(
        label="Why it is right",
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="Stored with your name, and shown to everybody who sees this spend.",
    )


class QuestionForm(ServiceForm):
    question = forms.CharField(
        label="Question",
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 5}),
        help_text="Sent as a notice, and kept in the audit log. You can also copy it.",
    )


@sign_in_required
def explain(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Show one unusual spend with its evidence, and store a reason for it. Finance can ask for the reason."""
    user, now = current_user(request), timezone.now()
    found = policy.visible_unusual_spend(user).filter(pk=pk)
    spend = found.select_related("statement").first()
    if spend is None:
        raise Http404
    if request.method == "POST":
        policy.require(user, "unusual_spend.explain", spend)
    asks = request.POST.get("verb") == "ask"
    month = spend.statement.month
    [row] = unusual_rows(user, found, month, spend.statement.state == StatementState.CLOSED)
    draft = {"question": unusual_texts.question(row.title, row.detail, month)}
    question = QuestionForm(request.POST if asks else None, initial=draft)
    form = ExplainForm(request.POST if request.method == "POST" and not asks else None)
    if question.is_valid() and _asked(request, question, spend, now):
        return redirect("unusual-spend", pk=pk)
    if form.is_valid() and _explained(request, form, spend, now):
        return redirect(f"{reverse('chargeback')}?month={month:%Y-%m}#unusual")
    context = {"row": row, "form": form, "now": now, "month": month, "scope": charge_scope(user)}
    context |= _asking(user, row, question)
    status = 400 if form.errors or question.errors else 200
    return render(request, "manage/unusual_spend.html", context, status=status)


def _asking(user: User, row: UnusualRow, question: QuestionForm) -> dict[str, Any]:
    """Return the questions about a spend. If the viewer may ask, also return the form for a new question."""
    context: dict[str, Any] = {"asked": questions_about(user, row.spend), "question": None, "people": []}
    if row.may_explain and row.explanation is None and policy.may(user, "unusual_spend.explain_all"):
        context["question"] = question
        context["people"] = [each for each in people_to_ask(row.spend) if each.pk != user.pk]
    return context


def _asked(request: HttpRequest, form: QuestionForm, spend: UnusualSpend, now: datetime) -> bool:
    """Send the question. Return False if the service refused it."""
    given = form.cleaned_data
    people = form.carry_out(ask_about_spend, actor=current_user(request), spend=spend, now=now, **given)
    if people is not None:
        messages.success(request, unusual_texts.asked([each.get_username() for each in people]))
    return people is not None


def _explained(request: HttpRequest, form: ExplainForm, spend: UnusualSpend, now: datetime) -> bool:
    """Store the reason. Return False if the service refused it."""
    given = form.cleaned_data
    done = form.carry_out(explain_unusual_spend, actor=current_user(request), spend=spend, now=now, **given)
    if done is not None:
        messages.success(request, unusual_texts.EXPLAINED)
    return done is not None
