"""Render the page of prices, price factors, the currency and refund limits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.services.money.billing_currency import change_currency
from portal.services.money.price_factors import set_price_factor
from portal.services.money.rate_card import set_price
from portal.services.money.refund_limits import set_refund_limit
from portal.web.money.rate_card_forms import CurrencyForm, PriceFactorForm, PriceForm, RefundLimitForm
from portal.web.page.access import current_user, sign_in_required
from portal.wording.pages.money import money_pages


@sign_in_required
def rate_card(request: HttpRequest) -> HttpResponseBase:
    """Show prices, factors, currencies and refund limits with their dates. A POST adds one of them.

    ``verb`` in a POST names the form; the form of a price has none.
    """
    user, now = current_user(request), timezone.now()
    verb = request.POST.get("verb", "price")

    def data(name: str) -> Any:
        return request.POST if request.method == "POST" and verb == name else None

    forms = {
        "price": PriceForm(data("price")),
        "factor": PriceFactorForm(data("factor"), auto_id="factor_%s"),
        "currency": CurrencyForm(data("currency"), auto_id="currency_%s"),
        "refund_limit": RefundLimitForm(data("refund_limit"), user=user, auto_id="refund_%s"),
    }
    form = forms.get(verb)
    if form is not None and form.is_valid():
        done = SET_BY_VERB[verb](form, user, now)
        if done is not None:
            messages.success(request, done)
            return redirect("rate-card")
    context = {
        "rows": reads.rate_card(now),
        "factors": reads.price_factor_rows(now),
        "currencies": reads.currency_rows(now),
        "refund_limits": reads.refund_limit_rows(user, now),
        "form": forms["price"],
        "factor_form": forms["factor"],
        "currency_form": forms["currency"],
        "refund_form": forms["refund_limit"],
        "may_price": policy.may(user, "price.change"),
        "sees_cost": policy.sees_owner_cost(user),
        "now": now,
    }
    failed = any(each.errors for each in forms.values())
    return render(request, "manage/rate_card.html", context, status=400 if failed else 200)


def _set_price(form: PriceForm, user: User, now: datetime) -> str | None:
    """Set the price of a valid form. Return the message for the page; None if the service rejects it."""
    given = dict(form.cleaned_data)
    pool = form.pools.get(given.pop("pool"))
    row = form.carry_out(set_price, actor=user, pool=pool, now=now, **given)
    return None if row is None else money_pages.PRICE_SET


def _set_factor(form: PriceFactorForm, user: User, now: datetime) -> str | None:
    given = dict(form.cleaned_data)
    pool = form.pools.get(given.pop("pool"))
    row = form.carry_out(set_price_factor, actor=user, pool=pool, now=now, **given)
    return None if row is None else money_pages.PRICE_FACTOR_SET


def _change_currency(form: CurrencyForm, user: User, now: datetime) -> str | None:
    row = form.carry_out(change_currency, actor=user, now=now, **form.cleaned_data)
    if row is None:
        return None
    return money_pages.CURRENCY_CHANGED.format(currency=row.currency, month=row.first_month)


def _set_refund_limit(form: RefundLimitForm, user: User, now: datetime) -> str | None:
    given = dict(form.cleaned_data)
    pool = form.pools[given.pop("pool")]
    row = form.carry_out(set_refund_limit, actor=user, pool=pool, now=now, **given)
    return None if row is None else money_pages.REFUND_LIMIT_SET.format(pool=pool.name)


SET_BY_VERB: dict[str, Callable[[Any, User, datetime], str | None]] = {
    "price": _set_price,
    "factor": _set_factor,
    "currency": _change_currency,
    "refund_limit": _set_refund_limit,
}
