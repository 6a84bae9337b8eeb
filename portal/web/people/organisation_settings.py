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
from portal.services.people.security_settings import change_security_settings
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import people_pages


class OrganisationForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name")
    time_zone = forms.CharField(max_length=60, label="Time zone")


class SecurityForm(ServiceForm):
    token_days = forms.IntegerField(
        label="API tokens last at most",
        help_text="Days. Existing tokens keep their end.",
    )
    separate_approver = forms.ChoiceField(
        label="Own requests",
        required=False,
        choices=[
            ("", "are decided by another person where there are two operators"),
            ("yes", "are always decided by another person"),
            ("no", "may be decided by their author"),
        ],
    )
    leaver_work = forms.ChoiceField(
        label=people_pages.LEAVER_WORK_LABEL,
        choices=people_pages.LEAVER_WORK_CHOICES,
        help_text="Applied within a minute, however an account was closed.",
    )
    second_factor_for = forms.ChoiceField(
        label="Second factor",
        required=False,
        choices=[
            ("nobody", "is free to everybody"),
            ("operators_and_finance", "is required of operators and finance"),
            ("everybody", "is required of everybody"),
        ],
    )
    step_up_minutes = forms.IntegerField(
        label="Proof of identity lasts",
        required=False,
        help_text="Minutes. Prices, closing a month, revoking a host and other accounts need a fresh one.",
    )


@sign_in_required
def organisation_settings(request: HttpRequest) -> HttpResponse:
    """Show and change the organisation, and list its pools."""
    organisation = Organisation.objects.first() or Organisation(name="")
    may_change = policy.may(request.user, "pool.change")
    initial = {
        "name": organisation.name,
        "time_zone": organisation.time_zone,
    }
    verb, security = request.POST.get("verb", ""), _security_form(request, organisation)
    form = OrganisationForm(request.POST if request.POST and verb != "security" else None, initial=initial)
    if verb == "security" and security.is_valid():
        if _save_security(request, security):
            return redirect("settings")
    elif request.method == "POST" and form.is_valid():
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
        "security": security,
        "pools": reads.pools(request.user),
        "may_change": may_change,
        "organisation_row": organisation,
        "may_see_recordings": policy.may(request.user, "recording.see"),
        "may_see_identity": policy.may(request.user, "identity.see"),
        "may_see_retention": policy.may(request.user, "retention.see"),
    }
    invalid = form.errors or security.errors
    return render(request, "organisation/settings.html", context, status=400 if invalid else 200)


def _security_form(request: HttpRequest, organisation: Organisation) -> SecurityForm:
    initial = {
        "token_days": organisation.token_days,
        "separate_approver": {None: "", True: "yes", False: "no"}[organisation.separate_approver],
        "leaver_work": organisation.leaver_work,
        "second_factor_for": organisation.second_factor_for,
        "step_up_minutes": organisation.step_up_minutes,
    }
    return SecurityForm(request.POST if request.POST.get("verb") == "security" else None, initial=initial)


def _save_security(request: HttpRequest, form: SecurityForm) -> bool:
    """Save the settings of security. Return False if they were refused."""
    done = form.carry_out(
        change_security_settings,
        actor=current_user(request),
        now=timezone.now(),
        token_days=form.cleaned_data["token_days"],
        separate_approver={"": None, "yes": True, "no": False}[form.cleaned_data["separate_approver"]],
        leaver_work=form.cleaned_data["leaver_work"],
        second_factor_for=form.cleaned_data["second_factor_for"] or None,
        step_up_minutes=form.cleaned_data["step_up_minutes"],
    )
    if done is not None:
        messages.success(request, "Saved.")
    return done is not None
