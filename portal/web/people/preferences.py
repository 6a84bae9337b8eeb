"""Render the page of the user's preferences."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal.services.people import accounts
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm


class PreferencesForm(ServiceForm):
    time_zone = forms.CharField(
        max_length=60,
        required=False,
        label="Time zone",
        help_text="Empty: the browser's, or else the organisation's.",
    )
    theme = forms.ChoiceField(
        choices=[("system", "as the system"), ("light", "light"), ("dark", "dark")], label="Theme"
    )


@sign_in_required
def preferences(request: HttpRequest) -> HttpResponse:
    """Show and change the user's time zone and theme."""
    user = current_user(request)
    form = PreferencesForm(request.POST or None, initial={"time_zone": user.time_zone, "theme": user.theme})
    if (
        request.method == "POST"
        and form.is_valid()
        and form.carry_out(accounts.set_preferences, actor=user, now=timezone.now(), **form.cleaned_data)
        is not None
    ):
        messages.success(request, "Saved.")
        response = redirect("preferences")
        response.set_cookie("theme", form.cleaned_data["theme"], max_age=365 * 86_400, samesite="Lax")
        return response
    return render(
        request, "organisation/preferences.html", {"form": form}, status=400 if form.errors else 200
    )
