"""Render the page on which a team lead requests a new budget."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

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
from scheduler.models import Project, Team
from telemetry.money.billing_months import month_of


class BudgetRequestForm(ServiceForm):
    owner = forms.ChoiceField(label="Budget of")
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

    def __init__(self, team: Team, now: datetime, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.projects = {
            f"project:{row.pk}": row for row in Project.objects.filter(team=team).order_by("name")
        }
        centres = verbs.requestable_cost_centres(team, now)
        self.fields["owner"].choices = [  # type: ignore[attr-defined]
            ("team", calendar_pages.BUDGET_OF_TEAM.format(name=team.name)),
            *(
                (key, calendar_pages.BUDGET_OF_PROJECT.format(name=row.name))
                for key, row in self.projects.items()
            ),
            *((f"cost_centre:{code}", calendar_pages.BUDGET_OF_CENTRE.format(code=code)) for code in centres),
        ]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``request_budget`` that the form gives."""
        given = dict(self.cleaned_data)
        owner = given.pop("owner")
        if owner in self.projects:
            given["project"] = self.projects[owner]
        elif owner != "team":
            given["cost_centre"] = owner.partition(":")[2]
        return given

    def clean_month(self) -> date:
        text = self.cleaned_data["month"]
        try:
            return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
        except ValueError:
            raise forms.ValidationError(money_pages.MONTH_INPUT_INVALID.format(given=text)) from None


@sign_in_required
def request_budget(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Show or submit a team lead's request for a new budget. Finance decides about the request.

    The budget is that of the team, of one of its projects, or of a cost centre that pays for them.
    """
    user, now = current_user(request), timezone.now()
    team = get_object_or_404(policy.visible_teams(user), slug=slug)
    policy.require(user, "budget.request", team)
    initial = {"month": f"{month_of(now):%Y-%m}", "owner": "team"}
    form = BudgetRequestForm(team, now, request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        made = form.carry_out(verbs.request_budget, actor=user, team=team, now=now, **form.arguments())
        if made is not None:
            messages.success(request, calendar_pages.BUDGET_REQUESTED)
            return redirect("submission", made.public_id)
    rows = [
        row
        for row in reads.budget_rows(user, month_of(now), now)
        if team.pk in (row["budget"].team_id, getattr(row["budget"].project, "team_id", None))
    ]
    context = {"team": team, "form": form, "budgets": rows}
    return render(request, "manage/budget_request.html", context, status=400 if form.errors else 200)
