"""Render the page of prices and refund limits."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.services.money import rate_card as price_service
from portal.services.money.refund_limits import set_refund_limit
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import money_pages


class PriceForm(ServiceForm):
    pool = forms.ChoiceField(label="Pool", required=False)
    model = forms.ChoiceField(label="GPU model")
    cost = forms.CharField(label="Owner's cost, per GPU-hour", max_length=30)
    price = forms.CharField(
        label="Price, per GPU-hour", max_length=30, help_text="Enter the cost to charge no margin."
    )
    valid_from = forms.DateTimeField(
        label="From", widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )
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


class RefundLimitForm(ServiceForm):
    pool = forms.ChoiceField(label="Pool")
    forgiven_minutes = forms.IntegerField(
        label="Minutes", help_text="0 to 10,080: how much lost work before a stop is not charged at most."
    )
    valid_from = forms.DateTimeField(
        label="For stops from", widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )
    why = forms.CharField(label="Note", required=False, max_length=300, help_text="Stored in the audit log.")

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pools = {pool.slug: pool for pool in policy.visible_pools(user).order_by("name")}
        fields: dict[str, Any] = self.fields
        fields["pool"].choices = [(slug, pool.name) for slug, pool in self.pools.items()]


@sign_in_required
def rate_card(request: HttpRequest) -> HttpResponseBase:
    """Show all prices and refund limits with their dates; finance adds entries that start now or later."""
    user, now = current_user(request), timezone.now()
    refund_posted = request.POST.get("verb") == "refund_limit"
    form = PriceForm(None if refund_posted else request.POST or None)
    refund_form = RefundLimitForm(request.POST if refund_posted else None, user=user)
    if refund_posted and refund_form.is_valid():
        given = dict(refund_form.cleaned_data)
        pool = refund_form.pools[given.pop("pool")]
        if refund_form.carry_out(set_refund_limit, actor=user, pool=pool, now=now, **given) is not None:
            messages.success(request, money_pages.REFUND_LIMIT_SET.format(pool=pool.name))
            return redirect("rate-card")
    elif request.method == "POST" and form.is_valid():
        given = dict(form.cleaned_data)
        own_pool = form.pools.get(given.pop("pool"))
        if form.carry_out(price_service.set_price, actor=user, pool=own_pool, now=now, **given) is not None:
            messages.success(request, money_pages.PRICE_SET)
            return redirect("rate-card")
    context = {
        "rows": reads.rate_card(now),
        "refund_limits": reads.refund_limit_rows(user, now),
        "form": form,
        "refund_form": refund_form,
        "may_price": policy.may(user, "price.change"),
        "sees_cost": policy.sees_owner_cost(user),
        "now": now,
    }
    return render(
        request, "manage/rate_card.html", context, status=400 if form.errors or refund_form.errors else 200
    )
