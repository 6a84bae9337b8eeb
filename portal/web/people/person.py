"""Render the page of one account, and the pages that change it after they have shown the effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.people.accounts import recent_sign_ins
from portal.reads.people.organisation import people
from portal.services.people import account_security, accounts, person_removal
from portal.services.people.account_effects import AccountEffect, preview_account_change, tokens_in_force
from portal.sign_in.own_session import keep_own_session
from portal.web.page.access import current_user, get_visible_or_404, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import people_pages
from portal.wording.people.account_texts import ACCOUNT_VERBS
from scheduler.models import UnixIdentity


class AccountReasonForm(ServiceForm):
    why = forms.CharField(label=people_pages.REASON_LABEL, required=False, max_length=1000)


class ProtectAccountForm(AccountReasonForm):
    revoke_tokens = forms.BooleanField(required=False, label=people_pages.REVOKE_TOKENS)


class AddressForm(ProtectAccountForm):
    email = forms.CharField(max_length=300, label="New e-mail address")
    field_order = ["email"]


class RolesForm(ProtectAccountForm):
    operator = forms.BooleanField(required=False, label="Operator")
    finance = forms.BooleanField(required=False, label="Finance")
    auditor = forms.BooleanField(required=False, label="Auditor")
    field_order = ["operator", "finance", "auditor"]


class RemovePersonForm(AccountReasonForm):
    work = forms.ChoiceField(
        label=people_pages.LEAVER_WORK_LABEL,
        choices=[("", people_pages.LEAVER_WORK_AS_SET), *people_pages.LEAVER_WORK_CHOICES],
        required=False,
    )
    field_order = ["work"]

    def clean_work(self) -> str | None:
        """Return the choice; None for that of the settings."""
        return self.cleaned_data["work"] or None


class TokensForm(AccountReasonForm):
    tokens = forms.TypedMultipleChoiceField(
        coerce=int, required=False, label="Tokens", widget=forms.CheckboxSelectMultiple
    )
    field_order = ["tokens"]


def _close(**arguments: Any) -> User:
    return accounts.change_user(active=False, **arguments)


def _open(**arguments: Any) -> User:
    return accounts.change_user(active=True, **arguments)


# For each verb of the pages: the form, and the service that it calls.
CHANGES: Mapping[str, tuple[type[AccountReasonForm], Callable[..., Any]]] = {
    "change_roles": (RolesForm, accounts.change_user),
    "close_account": (AccountReasonForm, _close),
    "open_account": (AccountReasonForm, _open),
    "end_sessions": (ProtectAccountForm, account_security.end_sessions),
    "revoke_tokens": (TokensForm, account_security.revoke_tokens),
    "reset_password": (ProtectAccountForm, account_security.reset_password),
    "reset_second_factor": (ProtectAccountForm, account_security.reset_second_factor),
    "change_address": (AddressForm, account_security.change_address),
    "remove_person": (RemovePersonForm, person_removal.remove_person),
    "stop_work": (AccountReasonForm, account_security.stop_work),
}


@sign_in_required
def person(request: HttpRequest, username: str) -> HttpResponse:
    """Show an account to operators: its state, its tokens, its sign-ins, and the changes that protect it."""
    user, now = _account(request, username), timezone.now()
    verbs = [verb for verb in CHANGES if verb != ("open_account" if user.is_active else "close_account")]
    context = {
        "person": user,
        "effect": preview_account_change(
            actor=current_user(request), user=user, verb="end_sessions", now=now
        ),
        "identity": UnixIdentity.objects.filter(person=user).first(),
        "events": recent_sign_ins(request.user, user),
        "changes": [
            (ACCOUNT_VERBS[verb].label, reverse("person-change", args=[username, verb.replace("_", "-")]))
            for verb in verbs
        ],
        "now": now,
    }
    return render(request, "organisation/person.html", context)


@sign_in_required
def person_change(request: HttpRequest, username: str, verb: str) -> HttpResponse:
    """Show the effect of a change of an account; on POST, carry it out."""
    user, now, name = _account(request, username), timezone.now(), verb.replace("-", "_")
    if name not in CHANGES:
        raise Http404
    effect = preview_account_change(actor=current_user(request), user=user, verb=name, now=now)
    form = _form(request, name, user, now)
    if request.method == "POST" and form.is_valid():
        service = CHANGES[name][1]
        done = form.carry_out(service, actor=current_user(request), user=user, now=now, **form.cleaned_data)
        if done is not None:
            keep_own_session(request, user)
            messages.success(request, ACCOUNT_VERBS[name].done.format(username))
            if name == "reset_password":
                return password_link_page(request, user, str(done))
            return redirect("person", username=username)
    return _effect_page(request, user, effect, form)


def _effect_page(
    request: HttpRequest, user: User, effect: AccountEffect, form: AccountReasonForm
) -> HttpResponse:
    texts = ACCOUNT_VERBS[effect.verb]
    context = {
        "effect": effect,
        "title": texts.title.format(user.username),
        "label": texts.label,
        "form": form,
        "back": reverse("person", args=[user.username]),
        "now": timezone.now(),
    }
    return render(request, "organisation/person_change.html", context, status=400 if form.errors else 200)


def password_link_page(request: HttpRequest, user: User, link: str) -> HttpResponse:
    """Show the one-time link with which a person sets a password. It is shown once and never stored."""
    response = render(request, "organisation/password_link.html", {"person": user, "link": link})
    response["Cache-Control"] = "no-store"
    return response


def _account(request: HttpRequest, username: str) -> User:
    user = get_visible_or_404(people(request.user), "account", username=username)
    policy.require(request.user, "user.change")
    return user


def _form(request: HttpRequest, verb: str, user: User, now: datetime) -> AccountReasonForm:
    form = CHANGES[verb][0](
        request.POST if request.method == "POST" else None,
        initial={role: getattr(user, role) for role in accounts.ROLES},
    )
    if isinstance(form, TokensForm):
        choices = [(token.pk, f"{token.name} ({token.prefix}…)") for token in tokens_in_force(user, now)]
        form.fields["tokens"].choices = choices  # type: ignore[attr-defined]
        form.fields["tokens"].help_text = people_pages.TOKENS_HELP
    return form
