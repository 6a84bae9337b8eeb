"""Render the page on which finance closes a month."""

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
from portal.wording.pages import money_pages
from telemetry.money import statements
from telemetry.money.billing_months import month_of
from telemetry.money.close_checks import close_checks, missing_samples


class CloseMonthForm(ServiceForm):
    why = forms.CharField(label="Note", required=False, max_length=1000, help_text="Stored in the audit log.")
    missing_samples_reason = forms.CharField(
        label="Why close without the missing samples",
        required=False,
        max_length=1000,
        help_text="Stored with the statement, with your name and the hosts.",
    )


@sign_in_required
def month_close(request: HttpRequest, month: str) -> HttpResponseBase:
    """Show the checks of a month. A POST closes the month; its charges then never change."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "statement.close")
    first_day = month_or_404(month, now)
    form = CloseMonthForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        closed = form.carry_out(
            months.close_month,
            actor=user,
            month=first_day,
            why=form.cleaned_data["why"],
            missing_samples_reason=form.cleaned_data["missing_samples_reason"],
            now=now,
        )
        if closed is not None:
            messages.success(
                request,
                money_pages.MONTH_CLOSED.format(month=first_day),
            )
            return redirect(f"/chargeback/?month={first_day:%Y-%m}")
    statement = reads.statement_of(first_day)
    checks = close_checks(first_day)
    context = {
        "month": first_day,
        "checks": checks,
        "missing_samples": missing_samples(checks),
        "totals": statements.statement_totals(first_day),
        "closed": statement is not None and statement.state == "closed",
        "over": first_day < month_of(now),
        "form": form,
        "now": now,
    }
    return render(request, "manage/month_close.html", context, status=400 if form.errors else 200)
