"""Render the page on which a team lead requests a new budget."""

from __future__ import annotations

from datetime import UTC, date, datetime

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from portal import policy
from portal.reads.money import chargeback as reads
from portal.services.approvals import budget_requests as verbs
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import calendar_pages
from portal.wording.pages.money import money_pages
from telemetry.money.billing_months import month_of


class BudgetRequestForm(ServiceForm):
    period = forms.ChoiceField(
        label="Period", choices=[("month", "Month"), ("quarter", "Quarter"), ("year", "Year")]
    )
    month = forms.CharField(
        label="First month", max_length=7, widget=forms.TextInput(attrs={"type": "month"})
    )
    measure = forms.ChoiceField(label="Measure", choices=[("money", "Money"), ("gpu_hours", "GPU-hours")])
    amount = forms.CharField(label="Amount", max_length=30, help_text="The whole budget, not the difference.")
    why = forms.CharField(
        label="Why", max_length=2000, widget=forms.Textarea(attrs={"rows": 3}), required=False
    )

    def clean_month(self) -> date:
        text = self.cleaned_data["month"]
        try:
            return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
        except ValueError:
            raise forms.ValidationError(money_pages.MONTH_INPUT_INVALID.format(given=text)) from None


@sign_in_required
def request_budget(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Show or submit a team lead's request for a new budget. Finance decides about the request."""
    user, now = current_user(request), timezone.now()
    team = get_object_or_404(policy.visible_teams(user), slug=slug)
    policy.require(user, "budget.request", team)
    form = BudgetRequestForm(request.POST or None, initial={"month": f"{month_of(now):%Y-%m}"})
    if request.method == "POST" and form.is_valid():
        made = form.carry_out(verbs.request_budget, actor=user, team=team, now=now, **form.cleaned_data)
        if made is not None:
            messages.success(request, calendar_pages.BUDGET_REQUESTED)
            return redirect("submission", made.public_id)
    rows = [row for row in reads.budget_rows(user, month_of(now), now) if row["budget"].team_id == team.pk]
    context = {"team": team, "form": form, "budgets": rows}
    return render(request, "manage/budget_request.html", context, status=400 if form.errors else 200)
