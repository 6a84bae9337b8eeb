"""Render the page of the organisation's settings."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import Organisation
from portal.reads.people import organisation as reads
from portal.services.people import organisation as organisation_service
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm


class OrganisationForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name")
    time_zone = forms.CharField(max_length=60, label="Time zone")


@sign_in_required
def organisation_settings(request: HttpRequest) -> HttpResponse:
    """Show and change the organisation, and list its pools."""
    organisation = Organisation.objects.first() or Organisation(name="")
    may_change = policy.may(request.user, "pool.change")
    initial = {
        "name": organisation.name,
        "time_zone": organisation.time_zone,
    }
    form = OrganisationForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        done = form.carry_out(
            organisation_service.change_organisation,
            actor=current_user(request),
            now=timezone.now(),
            **form.cleaned_data,
        )
        if done is not None:
            messages.success(request, "Saved.")
            return redirect("settings")
    context = {
        "form": form,
        "pools": reads.pools(request.user),
        "may_change": may_change,
        "organisation_row": organisation,
        "may_see_recordings": policy.may(request.user, "recording.see"),
        "may_see_identity": policy.may(request.user, "identity.see"),
        "may_see_retention": policy.may(request.user, "retention.see"),
    }
    return render(request, "organisation/settings.html", context, status=400 if form.errors else 200)
