"""Render the page on which finance chooses who pays for the idle time of a month."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.reads.money import chargeback as reads
from portal.services.money import months
from portal.web.money.months import month_or_404
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages.money import money_pages
from telemetry.money.pricing.billing_currencies import currency_of_month


class IdlePayerForm(ServiceForm):
    payer = forms.ChoiceField(
        label="Payer", choices=list(money_pages.IDLE_PAYERS.items()), widget=forms.RadioSelect
    )
    why = forms.CharField(label="Note", required=False, max_length=1000, help_text="Stored in the audit log.")


@sign_in_required
def idle_payer(request: HttpRequest, month: str) -> HttpResponseBase:
    """Show what each team pays with each payer of the idle time. A POST sets the payer of an open month."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "charges.see_all")
    first_day = month_or_404(month, now)
    statement = reads.statement_of(first_day)
    present = statement.idle_payer if statement is not None else "operator"
    form = IdlePayerForm(request.POST or None, initial={"payer": present})
    if request.method == "POST" and form.is_valid():
        done = form.carry_out(
            months.set_idle_payer, actor=user, month=first_day, now=now, **form.cleaned_data
        )
        if done is not None:
            messages.success(request, money_pages.IDLE_PAYER_SET.format(month=first_day))
            return redirect("idle-payer", month=f"{first_day:%Y-%m}")
    closed = statement is not None and statement.state == "closed"
    context = {
        "month": first_day,
        "currency": currency_of_month(first_day),
        "closed": closed,
        "present": present,
        "payers": money_pages.IDLE_PAYERS,
        "headings": money_pages.IDLE_PAYER_HEADINGS,
        "operator": money_pages.IDLE_SHARE_OF_OPERATOR,
        "effects": [] if closed else reads.idle_payer_effects(first_day),
        "may_change": policy.may(user, "statement.close") and not closed,
        "form": form,
    }
    return render(request, "manage/idle_payer.html", context, status=400 if form.errors else 200)
