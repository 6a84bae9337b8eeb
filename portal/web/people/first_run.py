"""Render the wizard of a new installation."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import Organisation, User
from portal.services.people import accounts, sign_ins
from portal.sign_in.client import client_of
from portal.sign_in.device_cookie import remember_device
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import people_pages
from scheduler.models import Host, Pool, Quota, Team, Workload

LOGIN_BACKEND = "allauth.account.auth_backends.AuthenticationBackend"  # the backend in config.settings


class FirstRunForm(ServiceForm):
    setup_code = forms.CharField(
        max_length=100,
        label="Setup code",
        help_text=people_pages.SETUP_CODE_HELP,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    organisation = forms.CharField(max_length=200, label="Organisation")
    time_zone = forms.CharField(
        max_length=60,
        initial="UTC",
        label="Time zone",
        help_text="Such as Europe/Berlin. The default for people who set none.",
    )
    currency = forms.CharField(
        max_length=10,
        initial="EUR",
        label="Currency",
        help_text="Three letters. Amounts are never converted.",
    )
    username = forms.CharField(
        max_length=200, label="Your user name", help_text="You will be the first operator."
    )
    email = forms.CharField(max_length=300, label="E-mail")
    password = forms.CharField(widget=forms.PasswordInput, label="Password")


@login_not_required
def first_run_wizard(request: HttpRequest) -> HttpResponse:
    """Create the organisation and its first operator, then show the remaining setup steps."""
    now = timezone.now()
    if not User.objects.exists():
        form = FirstRunForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            user = form.carry_out(accounts.first_run, now=now, **form.cleaned_data)
            if user is not None:
                login(request, user, backend=LOGIN_BACKEND)
                sign_ins.record_sign_in(user=user, client=client_of(request), method="first run", now=now)
                response = redirect("first-run")
                remember_device(request, response, user)
                return response
        return render(
            request, "organisation/first_run_account.html", {"form": form}, status=400 if form.errors else 200
        )
    if not request.user.is_authenticated:
        return redirect("account_login")
    if not policy.may(request.user, "host.change"):
        raise PermissionDenied(people_pages.SETUP_BY_OPERATOR)
    return render(
        request,
        "organisation/first_run.html",
        {"organisation": Organisation.objects.first(), "steps": setup_steps()},
    )


def setup_steps() -> list[dict[str, Any]]:
    """Return the setup steps in order, each with its state."""
    joined = Host.objects.exclude(credential_hash="").exists()
    return [
        {
            "title": "Make a pool",
            "done": Pool.objects.exists(),
            "url": "pool-new",
            "action": "Make a pool",
            "text": people_pages.SETUP_POOL,
        },
        {
            "title": "Add a host",
            "done": joined,
            "url": "host-add",
            "action": "Add a host",
            "text": people_pages.SETUP_HOST,
        },
        {
            "title": "Create a team",
            "done": Team.objects.exists(),
            "url": "teams",
            "action": "Create a team",
            "text": people_pages.SETUP_TEAM,
        },
        {
            "title": people_pages.SETUP_QUOTA_TITLE,
            "done": Quota.objects.exists(),
            "url": "teams",
            "action": "Choose a team",
            "text": people_pages.SETUP_QUOTA,
        },
        {
            "title": "Launch a notebook",
            "done": Workload.objects.exists(),
            "url": "notebooks",
            "action": "Launch a notebook",
            "text": people_pages.SETUP_NOTEBOOK,
        },
    ]
