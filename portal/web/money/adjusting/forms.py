"""Define the forms of credits and manual adjustments."""

from __future__ import annotations

from datetime import date
from typing import Any

from django import forms

from portal import policy
from portal.models import User
from portal.services.money.adjusting.drafts import MAX_REASON_LENGTH, AdjustmentRequest
from portal.web.page.service_form import ServiceForm
from portal.wording.chargeback import adjustment_texts as texts
from scheduler.models import Project
from telemetry.models import CostCentre


class AdjustmentForm(ServiceForm):
    kind = forms.ChoiceField(label="Kind", choices=list(texts.KINDS.items()))
    month = forms.ChoiceField(label="Statement of", help_text=texts.MONTH_HINT)
    amount = forms.CharField(label="Amount", max_length=30, help_text=texts.AMOUNT_HINT)
    cost_centre = forms.ChoiceField(label="Cost centre", required=False, help_text=texts.CENTRE_HINT)
    project: forms.ModelChoiceField[Project] = forms.ModelChoiceField(
        label="Project", queryset=None, required=False, empty_label="none"
    )
    charge = forms.IntegerField(label="Charge line", min_value=1, required=False, help_text=texts.CHARGE_HINT)
    credited_month = forms.ChoiceField(
        label="Or the charges of", required=False, help_text=texts.CREDITED_MONTH_HINT
    )
    reason = forms.CharField(
        label="Reason",
        max_length=MAX_REASON_LENGTH,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=texts.REASON_HINT,
    )

    def __init__(
        self, *args: Any, user: User, months: list[date], credited: list[date], **kwargs: Any
    ) -> None:
        """``months`` are open; ``credited`` are the months whose charges a credit may give back."""
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["month"].choices = _month_choices(reversed(months))
        fields["credited_month"].choices = [("", "no month"), *_month_choices(credited)]
        codes = [(row.code, str(row)) for row in CostCentre.objects.order_by("code")]
        fields["cost_centre"].choices = [("", "that of the charge line"), *codes]
        fields["project"].queryset = policy.visible_projects(user).select_related("team").order_by("name")

    def wanted(self) -> AdjustmentRequest:
        """Return the values of a valid form."""
        given = self.cleaned_data
        month = given["credited_month"]
        return AdjustmentRequest(
            kind=given["kind"],
            month=date.fromisoformat(given["month"]),
            amount=given["amount"],
            reason=given["reason"],
            cost_centre=given["cost_centre"],
            project=given["project"],
            charge=given["charge"],
            credited_month=date.fromisoformat(month) if month else None,
        )


def _month_choices(months: Any) -> list[tuple[str, str]]:
    return [(month.isoformat(), f"{month:%B %Y}") for month in months]


class AdjustmentDecisionForm(ServiceForm):
    note = forms.CharField(
        label="Note", max_length=MAX_REASON_LENGTH, required=False, help_text=texts.NOTE_HINT
    )


class WithdrawalForm(ServiceForm):
    reason = forms.CharField(label="Reason", max_length=MAX_REASON_LENGTH)
