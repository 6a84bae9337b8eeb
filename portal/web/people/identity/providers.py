"""Render the pages on which operators set how people sign in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import IdentityProvider, Organisation
from portal.reads.people.identity import claim_rules
from portal.services.people.identity import providers as verbs
from portal.services.people.identity.directory_sync import last_sync
from portal.services.people.identity.rules import preview_for_claims
from portal.services.people.identity.sign_in import local_sign_in_allowed
from portal.sign_in.ldap.checks import CHOICES, MAX_LENGTH, OPTIONAL
from portal.sign_in.ldap.settings import DIRECTORY_FIELDS, DirectorySettings
from portal.sign_in.oidc.providers import (
    LDAP,
    OIDC,
    UNIX_CLAIM_COLUMNS,
    ProviderSettings,
    all_providers,
    find_provider,
)
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.web.people.identity.oidc import TEST_CLAIMS_KEY, callback_url
from portal.wording.pages import identity_pages, people_pages

PROVIDER_FIELDS = (
    "name",
    "issuer",
    "client_id",
    "scopes",
    "username_claim",
    "ca_certificates",
    "active",
    "creates_accounts",
    *UNIX_CLAIM_COLUMNS,
)


class LocalSignInForm(ServiceForm):
    allowed = forms.BooleanField(required=False, label=people_pages.LOCAL_SIGN_IN_LABEL)
    why = forms.CharField(label=people_pages.REASON_LABEL, required=False, max_length=1000)


class CommonForm(ServiceForm):
    """The fields that providers of both kinds have."""

    name = forms.CharField(max_length=80, label="Name", help_text="The label of the button.")
    ca_certificates = forms.CharField(
        required=False,
        label="Certificates",
        help_text=people_pages.CERTIFICATES_HELP,
        widget=forms.Textarea(attrs={"rows": 4}),
    )
    active = forms.BooleanField(required=False, initial=True, label="People can sign in with it")
    creates_accounts = forms.BooleanField(
        required=False, initial=True, label="A new person gets an account at the first sign-in"
    )
    uid_claim = forms.CharField(
        max_length=80,
        required=False,
        label="Claim with the Unix user number",
        help_text=people_pages.UID_CLAIM_HELP,
    )
    gid_claim = forms.CharField(max_length=80, required=False, label="Claim with the Unix group number")
    groups_claim = forms.CharField(max_length=80, required=False, label="Claim with further Unix groups")
    unix_name_claim = forms.CharField(max_length=80, required=False, label="Claim with the Unix name")
    home_claim = forms.CharField(max_length=80, required=False, label="Claim with the home")
    why = forms.CharField(label=people_pages.REASON_LABEL, required=False, max_length=1000)

    @property
    def given(self) -> dict[str, Any]:
        """Return the arguments of the verb that creates or changes the provider."""
        return self.cleaned_data


class ProviderForm(CommonForm):
    issuer = forms.CharField(max_length=300, label="Issuer", help_text=people_pages.ISSUER_HELP)
    client_id = forms.CharField(max_length=200, label="Client id")
    secret = forms.CharField(
        max_length=500,
        required=False,
        label="Client secret",
        help_text=people_pages.SECRET_HELP,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )
    scopes = forms.CharField(max_length=200, label="Scopes", initial="openid profile email")
    username_claim = forms.CharField(
        max_length=80, label="Claim with the user name", initial="preferred_username"
    )
    field_order = ("name", "issuer", "client_id", "secret", "scopes", "username_claim")


class DirectoryForm(CommonForm):
    """The settings of an LDAP directory. Each has the default of ``DirectorySettings``."""

    secret = forms.CharField(
        max_length=500,
        required=False,
        label="Password of the service account",
        help_text=people_pages.SECRET_HELP,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )
    field_order = ("name", *DIRECTORY_FIELDS[:3], "secret", *DIRECTORY_FIELDS[3:])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        defaults = DirectorySettings()
        for name in DIRECTORY_FIELDS:
            self.fields[name] = _directory_field(name, getattr(defaults, name))
        self.order_fields(self.field_order)

    @property
    def given(self) -> dict[str, Any]:
        """Return the arguments of the verb that creates or changes the provider."""
        common = {name: value for name, value in self.cleaned_data.items() if name not in DIRECTORY_FIELDS}
        return {**common, "directory": {name: self.cleaned_data[name] for name in DIRECTORY_FIELDS}}


def _directory_field(name: str, default: Any) -> forms.Field:
    label, hint = identity_pages.DIRECTORY_LABELS[name]
    common: dict[str, Any] = {"label": label, "help_text": hint, "initial": default}
    if name in CHOICES:
        return forms.ChoiceField(**common, choices=[(each, each) for each in CHOICES[name]])
    if isinstance(default, bool):
        return forms.BooleanField(**common, required=False)
    if isinstance(default, int):
        return forms.IntegerField(**common)
    return forms.CharField(**common, max_length=MAX_LENGTH, required=name not in OPTIONAL)


@sign_in_required
def sign_in_settings(request: HttpRequest) -> HttpResponse:
    """List the providers and the rules, and turn sign-in by password on or off."""
    policy.require(request.user, "identity.see")
    form = LocalSignInForm(request.POST or None, initial={"allowed": local_sign_in_allowed()})
    if request.method == "POST" and form.is_valid():
        done = form.carry_out(
            verbs.set_local_sign_in, actor=current_user(request), now=timezone.now(), **form.cleaned_data
        )
        if done is not None:
            messages.success(request, "Saved.")
            return redirect("sign-in-settings")
    context = {
        "form": form,
        "providers": all_providers(),
        "rules": claim_rules(request.user),
        "may_change": policy.may(request.user, "identity.change"),
        "passwords": Organisation.objects.filter(local_sign_in=True).exists(),
    }
    return render(request, "organisation/identity/settings.html", context, status=400 if form.errors else 200)


@sign_in_required
def new_provider(request: HttpRequest) -> HttpResponse:
    """Create an OpenID Connect provider. It can be tested before anybody signs in with it."""
    return _new_provider(request, ProviderForm(request.POST or None), OIDC)


@sign_in_required
def new_directory(request: HttpRequest) -> HttpResponse:
    """Create an LDAP directory. It can be tested before anybody signs in with it."""
    return _new_provider(request, DirectoryForm(request.POST or None), LDAP)


def _new_provider(request: HttpRequest, form: CommonForm, kind: str) -> HttpResponse:
    policy.require(request.user, "identity.change")
    if request.method == "POST" and form.is_valid():
        made = form.carry_out(
            verbs.create_provider, actor=current_user(request), now=timezone.now(), kind=kind, **form.given
        )
        if made is not None:
            messages.success(request, people_pages.PROVIDER_CREATED.format(name=made.name))
            return redirect("identity-provider", made.slug)
    context = {"form": form, "provider": None, "may_change": True}
    return render(request, "organisation/identity/provider.html", context, status=400 if form.errors else 200)


@sign_in_required
def identity_provider(request: HttpRequest, slug: str) -> HttpResponse:
    """Show, change, remove or test a provider. A provider of the environment can only be tested."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "identity.change" if request.method == "POST" else "identity.see")
    provider = find_provider(slug, also_inactive=True)
    if provider is None:
        raise Http404
    action = request.POST.get("action", "") if request.method == "POST" else ""
    form = _provider_form(request, provider, action)
    row = IdentityProvider.objects.filter(slug=slug).first()
    if action in ("save", "remove") and row is not None:
        done_at = _carry_out(request, form, action, row, {"actor": user, "now": now})
        if done_at is not None:
            return redirect(*done_at)
    person = request.POST.get("person", "")
    test = None
    if action == "test":
        test = verbs.run_connection_test(actor=user, now=now, slug=slug, username=person[:150])
    context = {
        "form": form,
        "provider": provider,
        "test": test,
        "person": person,
        "claims": _claim_rows(test.claims) if test else [],
        "granted": preview_for_claims(actor=user, provider=slug, claims=test.claims) if test else None,
        "last_sync": last_sync(slug),
        "callback": callback_url(slug),
        "may_change": policy.may(user, "identity.change"),
    }
    return render(request, "organisation/identity/provider.html", context, status=400 if form.errors else 200)


def _provider_form(request: HttpRequest, provider: ProviderSettings, action: str) -> CommonForm:
    """Return the form with the posted values, or with the current ones. A removal posts only a reason."""
    kind = ProviderForm if provider.directory is None else DirectoryForm
    present = {name: getattr(provider, name) for name in PROVIDER_FIELDS}
    if provider.directory is not None:
        present |= provider.directory.stored()
    if action == "save":
        return kind(request.POST, initial=present)
    if action == "remove":
        return kind({**present, "why": request.POST.get("why", "")}, initial=present)
    return kind(initial=present)


def _claim_rows(claims: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, json.dumps(claims[name], ensure_ascii=False)) for name in sorted(claims)]


def _carry_out(
    request: HttpRequest, form: CommonForm, action: str, row: IdentityProvider, given: dict[str, Any]
) -> list[str] | None:
    """Save or remove a provider. Return the page that follows, or None if the form has errors."""
    if not form.is_valid():
        return None
    if action == "save":
        form.carry_out(verbs.change_provider, provider=row, **given, **form.given)
        text, page = "Saved.", ["identity-provider", row.slug]
    else:
        form.carry_out(verbs.remove_provider, provider=row, why=form.cleaned_data["why"], **given)
        text, page = people_pages.PROVIDER_REMOVED.format(name=row.name), ["sign-in-settings"]
    if form.errors:
        return None
    messages.success(request, text)
    return page


@sign_in_required
def test_claims(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the claims of the operator's test sign-in, and what the rules would give. Nothing was changed."""
    policy.require(request.user, "identity.change")
    provider = find_provider(slug, also_inactive=True)
    stored = request.session.get(TEST_CLAIMS_KEY)
    if provider is None or not stored or stored["provider"] != slug:
        raise Http404
    claims = stored["claims"]
    context = {
        "provider": provider,
        "claims": _claim_rows(claims),
        "granted": preview_for_claims(actor=current_user(request), provider=slug, claims=claims),
    }
    return render(request, "organisation/identity/claims.html", context)
