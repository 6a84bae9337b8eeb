"""Render the page of the own account, and the page on which a required second factor is set up."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from portal.models import Organisation
from portal.reads.people.identity import own_identities
from portal.reads.people.own_account import own_second_factors, own_sessions, own_sign_ins
from portal.services.people import accounts, browser_sessions
from portal.services.people.account_effects import tokens_in_force
from portal.services.people.required_second_factor import second_factor_missing, second_factor_required
from portal.sign_in.oidc.providers import active_providers
from portal.sign_in.own_session import keep_own_session
from portal.web.page.access import current_user, get_visible_or_404, posted_key, sign_in_required
from portal.web.page.organisation import current_organisation
from portal.web.page.service_form import ServiceForm
from portal.web.people.sign_in_form import ChangeOwnPasswordForm
from portal.wording.people import account_texts


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
def account(request: HttpRequest) -> HttpResponseBase:
    """Show the own account. On POST, change the preferences or end sessions, as ``verb`` says."""
    user, now = current_user(request), timezone.now()
    verb = request.POST.get("verb", "preferences") if request.method == "POST" else ""
    if verb == "end-session":
        return _end_session(request)
    if verb == "end-sessions":
        return _end_sessions(request)
    initial = {"time_zone": user.time_zone, "theme": user.theme}
    form = PreferencesForm(request.POST if verb else None, initial=initial)
    if verb and form.is_valid():
        done = form.carry_out(accounts.set_preferences, actor=user, now=now, **form.cleaned_data)
        if done is not None:
            messages.success(request, "Saved.")
            response = redirect("account")
            response.set_cookie("theme", form.cleaned_data["theme"], max_age=365 * 86_400, samesite="Lax")
            return response
    organisation = current_organisation(request) or Organisation()
    factors, tokens = own_second_factors(user), tokens_in_force(user, now)
    required = second_factor_required(user, organisation)
    context = {
        "form": form,
        "password_form": ChangeOwnPasswordForm(user=user) if user.has_usable_password() else None,
        "factors": factors,
        "factor_sentence": account_texts.second_factor_sentence(bool(factors), required),
        "step_up_minutes": organisation.step_up_minutes,
        "sessions": own_sessions(user, now),
        "own_key": request.session.session_key,
        "tokens": tokens,
        "about": account_texts.account_sentence(factors, tokens, now),
        "identities": own_identities(user),
        "providers": active_providers(),
        "events": own_sign_ins(user),
        "now": now,
    }
    return render(request, "organisation/own_account/page.html", context, status=400 if form.errors else 200)


def _end_session(request: HttpRequest) -> HttpResponse:
    user, now, key = current_user(request), timezone.now(), posted_key(request, "session")
    pk = int(key) if key.isascii() and key.isdecimal() and len(key) <= 18 else 0
    session = get_visible_or_404(own_sessions(user, now), "session", pk=pk)
    browser_sessions.end_own_session(actor=user, session=session, now=now)
    messages.success(request, account_texts.SESSION_ENDED)
    return redirect(f"{reverse('account')}#sessions")


def _end_sessions(request: HttpRequest) -> HttpResponse:
    user = current_user(request)
    browser_sessions.end_own_sessions(
        actor=user, now=timezone.now(), revoke_tokens="revoke_tokens" in request.POST
    )
    keep_own_session(request, user)
    messages.success(request, account_texts.SESSIONS_ENDED)
    return redirect(f"{reverse('account')}#sessions")


@sign_in_required
def second_factor_page(request: HttpRequest) -> HttpResponse:
    """Lead a person whose second factor is required and missing to the pages that set one up."""
    user = current_user(request)
    missing = second_factor_missing(user, current_organisation(request))
    context = {"required": missing, "back": None if missing else reverse("account")}
    return render(request, "organisation/own_account/second_factor_required.html", context)


@sign_in_required
def to_account(request: HttpRequest, section: str) -> HttpResponse:
    """Redirect an address of an earlier page to its section of the account page."""
    return redirect(f"{reverse('account')}#{section}")
