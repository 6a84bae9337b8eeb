"""Render the page of budgets."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import Submission, User
from portal.reads.calendar import approvals
from portal.reads.money import chargeback as reads
from portal.services.money import budgets as budget_service
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.chargeback.charge_scope_texts import budget_scope_sentence
from portal.wording.pages.money import money_pages
from telemetry.models import CostCentre
from telemetry.money.billing_months import month_of


class BudgetForm(ServiceForm):
    team = forms.ChoiceField(label="Team", required=False)
    cost_centre = forms.ChoiceField(label="Or cost centre", required=False)
    period = forms.ChoiceField(
        label="Period",
        choices=[("month", "Month"), ("quarter", "Quarter"), ("year", "Year")],
        initial="month",
        required=False,
    )
    month = forms.CharField(
        label="First month", max_length=7, widget=forms.TextInput(attrs={"type": "month"})
    )
    measure = forms.ChoiceField(
        label="Measure", choices=[("money", "Money"), ("gpu_hours", "GPU-hours")], initial="money"
    )
    amount = forms.CharField(label="Amount", max_length=30)
    action = forms.ChoiceField(
        label="When the budget is used up",
        choices=[
            ("notify", "Notify people"),
            ("refuse_new", "Refuse new work"),
            ("stop_borrowing", "Stop borrowing"),
            ("stop_running", "Stop running work"),
        ],
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {team.slug: team for team in policy.visible_teams(user).order_by("name")}
        fields: dict[str, Any] = self.fields
        fields["team"].choices = [("", "None"), *((slug, team.name) for slug, team in self.teams.items())]
        centres = list(CostCentre.objects.order_by("code").values_list("code", flat=True))
        fields["cost_centre"].choices = [("", "None"), *((code, code) for code in centres)]

    def clean_period(self) -> str:
        return self.cleaned_data["period"] or "month"

    def clean_month(self) -> date:
        text = self.cleaned_data["month"]
        try:
            return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
        except ValueError:
            raise forms.ValidationError(money_pages.MONTH_INPUT_INVALID.format(given=text)) from None


@sign_in_required
def budgets(request: HttpRequest) -> HttpResponseBase:
    """Show and set budgets of this and later months."""
    user, now = current_user(request), timezone.now()
    verb = request.POST.get("verb", "")
    budget_form = BudgetForm(request.POST if verb == "budget" else None, user=user)
    if verb == "budget" and budget_form.is_valid():
        given = dict(budget_form.cleaned_data)
        team = budget_form.teams.get(given.pop("team"))
        subject = team.name if team else given["cost_centre"]
        if (
            budget_form.carry_out(budget_service.set_budget, actor=user, team=team, now=now, **given)
            is not None
        ):
            messages.success(request, money_pages.BUDGET_SET.format(subject=subject))
            return redirect("budgets")
    context = {
        "budgets": reads.budget_rows(user, month_of(now), now),
        "budget_requests": [
            {"row": row, "title": approvals.submission_title(row)}
            for row in approvals.waiting_submissions(user).filter(kind=Submission.Kind.BUDGET)
        ],
        "month": month_of(now),
        "budget_form": budget_form,
        "may_budget": policy.may(user, "budget.change"),
        "scope_sentence": _scope_sentence(user),
        "now": now,
    }
    return render(request, "manage/budgets.html", context, status=400 if budget_form.errors else 200)


def _scope_sentence(user: User) -> str:
    if policy.sees_all_charges(user) or policy.sees_all_teams(user):
        return budget_scope_sentence(None)
    return budget_scope_sentence(
        list(policy.visible_teams(user).order_by("name").values_list("name", flat=True))
    )
