"""Render the page on which operators announce and end maintenance of the database."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.reads.fleet.database_maintenance import database_maintenance_status
from portal.services.fleet import database_maintenance as verbs
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import database_pages


class DatabaseMaintenanceForm(ServiceForm):
    """The announced duration and the reason. The service checks both."""

    minutes = forms.IntegerField(
        initial=30,
        help_text=f"{verbs.MIN_MINUTES} to {verbs.MAX_MINUTES}. The maintenance then ends by itself.",
    )
    why = forms.CharField(max_length=300, label="Reason", help_text="Shown to everybody on the fleet page.")


@sign_in_required
def database_maintenance(request: HttpRequest) -> HttpResponse:
    """Show the current maintenance. On POST, begin one; with ``end``, end it."""
    user, now = current_user(request), timezone.now()
    changes = request.method == "POST"
    policy.require(user, "database_maintenance.change" if changes else "database_maintenance.see")
    is_end = changes and "end" in request.POST
    form = DatabaseMaintenanceForm(request.POST if changes and not is_end else None)
    end_form = ServiceForm(request.POST if is_end else None)
    done = _end(end_form, actor=user, now=now) if is_end else changes and _begin(form, actor=user, now=now)
    if done:
        messages.success(request, done)
        return redirect("database-maintenance")
    context = {
        "form": form,
        "end_form": end_form,
        "found": database_maintenance_status(now),
        "may_change": policy.may(user, "database_maintenance.change"),
        "now": now,
    }
    status = 400 if form.errors or end_form.errors else 200
    return render(request, "organisation/database_maintenance.html", context, status=status)


def _begin(form: DatabaseMaintenanceForm, **given: Any) -> str:
    """Begin a maintenance, and return the message for the operator. Return '' if the form has errors."""
    if not form.is_valid():
        return ""
    begun = form.carry_out(verbs.begin_database_maintenance, **form.cleaned_data, **given)
    return database_pages.MAINTENANCE_BEGUN if begun is not None else ""


def _end(form: ServiceForm, **given: Any) -> str:
    """End the maintenance, and return the message for the operator. Return '' if the form has errors."""
    if not form.is_valid():
        return ""
    ended = form.carry_out(verbs.end_database_maintenance, **given)
    return database_pages.MAINTENANCE_ENDED if ended is not None else ""
