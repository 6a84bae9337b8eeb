"""Define the forms of the rate card: prices, price factors, the currency and refund limits."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from django import forms

from portal import policy
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.web.page.service_form import ServiceForm
from portal.wording.pages.money import money_pages
from scheduler.core.model.snapshot import PoolKind
from scheduler.models import WorkloadType
from scheduler.requests import PRIORITY_NAMES


def _start_field(label: str = "From") -> forms.DateTimeField:
    return forms.DateTimeField(label=label, widget=forms.DateTimeInput(attrs={"type": "datetime-local"}))


class PriceForm(ServiceForm):
    pool = forms.ChoiceField(label="Pool", required=False)
    model = forms.ChoiceField(label="GPU model")
    cost = forms.CharField(label="Owner's cost, per GPU-hour", max_length=30)
    price = forms.CharField(
        label="Price, per GPU-hour", max_length=30, help_text="Enter the cost to charge no margin."
    )
    currency = forms.CharField(
        label="Currency",
        max_length=10,
        required=False,
        help_text="Empty: that of the month in which the price begins.",
    )
    valid_from = _start_field()
    note = forms.CharField(label="How the cost was calculated", required=False, max_length=1000)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pools = {pool.slug: pool for pool in reads.pools()}
        fields: dict[str, Any] = self.fields
        fields["pool"].choices = [
            ("", "Every pool"),
            *((slug, pool.name) for slug, pool in self.pools.items()),
        ]
        fields["model"].choices = [(model, model) for model in reads.models()]


class PriceFactorForm(ServiceForm):
    pool = forms.ChoiceField(label="Pool", required=False)
    priority = forms.ChoiceField(
        label="Priority", required=False, choices=[("", "None"), *((name, name) for name in PRIORITY_NAMES)]
    )
    workload_type = forms.ChoiceField(
        label="Or workload type",
        required=False,
        choices=[("", "None"), *((value, value) for value in WorkloadType.values)],
    )
    factor = forms.CharField(label="Factor", max_length=30, help_text="Such as 0.8. 1 is the price itself.")
    valid_from = _start_field()
    note = forms.CharField(label="Note", required=False, max_length=300)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pools = {pool.slug: pool for pool in reads.pools().filter(kind=PoolKind.DYNAMIC)}
        fields: dict[str, Any] = self.fields
        fields["pool"].choices = [
            ("", "Every shared pool"),
            *((slug, pool.name) for slug, pool in self.pools.items()),
        ]


class CurrencyForm(ServiceForm):
    currency = forms.CharField(label="Currency", max_length=10, help_text="A code of ISO 4217, such as EUR.")
    first_month = forms.CharField(
        label="From month", widget=forms.TextInput(attrs={"type": "month"}), max_length=20
    )
    why = forms.CharField(label="Note", required=False, max_length=1000, help_text="Stored in the audit log.")

    def clean_first_month(self) -> date:
        text = self.cleaned_data["first_month"]
        try:
            return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
        except ValueError:
            raise forms.ValidationError(money_pages.MONTH_INPUT_INVALID.format(given=text)) from None


class RefundLimitForm(ServiceForm):
    pool = forms.ChoiceField(label="Pool")
    forgiven_minutes = forms.IntegerField(
        label="Minutes", help_text="0 to 10,080: how much lost work before a stop is not charged at most."
    )
    valid_from = _start_field("For stops from")
    why = forms.CharField(label="Note", required=False, max_length=300, help_text="Stored in the audit log.")

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pools = {pool.slug: pool for pool in policy.visible_pools(user).order_by("name")}
        fields: dict[str, Any] = self.fields
        fields["pool"].choices = [(slug, pool.name) for slug, pool in self.pools.items()]
