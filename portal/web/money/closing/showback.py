"""Render the page of the billing modes of teams."""

from __future__ import annotations

from datetime import date
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.services.money import billing_modes as service
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages.money import statement_texts
from scheduler.models import Team
from telemetry.money.billing_months import next_month


class BillingModeForm(ServiceForm):
    team: forms.ModelChoiceField[Team] = forms.ModelChoiceField(label="Team", queryset=None)
    mode = forms.ChoiceField(label="Mode", choices=list(statement_texts.BILLING_MODES.items()))
    first_month = forms.ChoiceField(label="From", help_text=statement_texts.BILLING_MODE_HINT)
    why = forms.CharField(label="Note", required=False, max_length=1000)

    def __init__(self, *args: Any, user: Any, months: list[date], **kwargs: Any) -> None:
        """Offer ``months`` as the start of the mode."""
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["team"].queryset = policy.visible_teams(user).order_by("name")
        fields["first_month"].choices = [(month.isoformat(), f"{month:%B %Y}") for month in months]

    def clean_first_month(self) -> date:
        """Return the month as a date."""
        return date.fromisoformat(self.cleaned_data["first_month"])


@sign_in_required
def showback(request: HttpRequest) -> HttpResponseBase:
    """List the billing modes of teams. A POST of finance sets one."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "charges.see_all")
    month, latest = service.allowed_months(now)
    months = [latest]
    while month < latest:
        months.insert(-1, month)
        month = next_month(month)
    form = BillingModeForm(request.POST or None, user=user, months=months)
    if request.method == "POST" and form.is_valid():
        row = form.carry_out(service.set_billing_mode, actor=user, now=now, **form.cleaned_data)
        if row is not None:
            text = statement_texts.BILLING_MODE_SET
            messages.success(request, text.format(team=row.team.name, mode=row.mode, month=row.first_month))
            return redirect("showback")
    context = {
        "rows": service.billing_modes(),
        "form": form,
        "may_change": policy.may(user, "billing.change"),
        "now": now,
    }
    return render(request, "manage/showback.html", context, status=400 if form.errors else 200)
