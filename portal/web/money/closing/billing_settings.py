"""Render the page of the settings of billing."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.services.money import billing_settings as service
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import statement_texts


class BillingForm(ServiceForm):
    tax_text = forms.CharField(
        label="Tax note", required=False, max_length=1000, help_text="Such as: internal allocation, no VAT."
    )
    payment_days = forms.IntegerField(label="Due after the close", help_text="Days, 0 to 365.")
    two_step_close = forms.BooleanField(
        label="Two people close a month",
        required=False,
        help_text="One person proposes the close; another person closes within three days.",
    )
    why = forms.CharField(label="Note", required=False, max_length=1000, help_text="Stored in the audit log.")


@sign_in_required
def billing_settings(request: HttpRequest) -> HttpResponseBase:
    """Show the settings of billing. A POST of finance changes them."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "charges.see_all")
    organisation = service.billing_organisation()
    initial = {name: getattr(organisation, name) for name in service.FIELDS}
    form = BillingForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        done = form.carry_out(service.change_billing_settings, actor=user, now=now, **form.cleaned_data)
        if done is not None:
            messages.success(request, statement_texts.BILLING_SAVED)
            return redirect("billing-settings")
    context = {
        "form": form,
        "organisation_row": organisation,
        "may_change": policy.may(user, "billing.change"),
        "now": now,
    }
    return render(request, "manage/billing_settings.html", context, status=400 if form.errors else 200)
