"""Render the page of the settings of billing."""

from __future__ import annotations

from datetime import UTC, date, datetime

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.services.money import billing_settings as service
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages.money import money_pages, statement_texts
from telemetry.money.billing_months import billing_calendar, month_of


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


class BillingZoneForm(ServiceForm):
    first_month = forms.CharField(label="From month", help_text="One that has not begun, such as 2027-01.")
    time_zone = forms.CharField(max_length=60, label="Time zone", help_text="Such as Europe/Berlin.")
    why = forms.CharField(label="Note", required=False, max_length=1000, help_text="Stored in the audit log.")

    def clean_first_month(self) -> date:
        text = self.cleaned_data["first_month"]
        try:
            return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
        except ValueError:
            raise forms.ValidationError(money_pages.MONTH_INPUT_INVALID.format(given=text)) from None


@sign_in_required
def billing_settings(request: HttpRequest) -> HttpResponseBase:
    """Show the settings of billing. A POST of finance changes them."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "charges.see_all")
    organisation = service.billing_organisation()
    initial = {name: getattr(organisation, name) for name in service.FIELDS}
    zone_posted = request.POST.get("verb") == "zone"
    form = BillingForm(None if zone_posted else request.POST or None, initial=initial)
    earliest = service.earliest_zone_month(now)
    zone_form = BillingZoneForm(
        request.POST if zone_posted else None, initial={"first_month": f"{earliest:%Y-%m}"}
    )
    if zone_posted and zone_form.is_valid():
        zone = zone_form.carry_out(service.set_billing_zone, actor=user, now=now, **zone_form.cleaned_data)
        if zone is not None:
            messages.success(
                request, statement_texts.ZONE_SET.format(zone=zone.time_zone, month=zone.first_month)
            )
            return redirect("billing-settings")
    elif request.method == "POST" and form.is_valid():
        done = form.carry_out(service.change_billing_settings, actor=user, now=now, **form.cleaned_data)
        if done is not None:
            messages.success(request, statement_texts.BILLING_SAVED)
            return redirect("billing-settings")
    context = {
        "form": form,
        "zone_form": zone_form,
        "zones": service.billing_zones(),
        "zone_now": billing_calendar().zone_name(month_of(now)),
        "organisation_row": organisation,
        "may_change": policy.may(user, "billing.change"),
        "now": now,
    }
    return render(
        request,
        "manage/billing_settings.html",
        context,
        status=400 if form.errors or zone_form.errors else 200,
    )
