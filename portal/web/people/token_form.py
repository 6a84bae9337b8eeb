"""Define the form of a new API token, and revoke a token that a page posts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404

from portal import policy
from portal.models import ApiToken, TokenScope, User
from portal.services.people import api_tokens
from portal.services.people.security_settings import security_settings
from portal.web.page.access import current_user
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import people_pages

USUAL_DAYS = (30, 90, 365)


class TokenForm(ServiceForm):
    argument_fields = {"expires_at": "days"}

    name = forms.CharField(
        max_length=200, label="Name", help_text="The machine or program that uses the token, such as laptop."
    )
    scopes = forms.MultipleChoiceField(
        choices=[(scope, people_pages.SCOPE_LABELS[scope]) for scope in TokenScope.values],
        widget=forms.CheckboxSelectMultiple,
        initial=list(api_tokens.USUAL_SCOPES),
        label="It may",
    )
    days = forms.ChoiceField(required=False, initial="90", label="Valid for")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Offer the usual lifetimes up to the longest, which the settings contain."""
        super().__init__(*args, **kwargs)
        longest = security_settings().token_days
        choices = [(str(days), f"{days} days") for days in USUAL_DAYS if days < longest]
        field = self.fields["days"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [*choices, ("", f"{longest} days, the longest")]

    def create(self, request: HttpRequest, now: datetime, user: User | None = None) -> str:
        """Create the token of the form for the viewer, or for a service account. Return its text.

        The text is empty if the form is invalid.
        """
        if not self.is_valid():
            return ""
        days = self.cleaned_data["days"]
        created = self.carry_out(
            api_tokens.create_token,
            actor=current_user(request),
            user=user,
            name=self.cleaned_data["name"],
            scopes=self.cleaned_data["scopes"],
            expires_at=now + timedelta(days=int(days)) if days else None,
            now=now,
        )
        return created[1] if created is not None else ""


def revoke_posted_token(request: HttpRequest, now: datetime) -> None:
    """Revoke the token whose key is posted, unless it is revoked. Raises Http404."""
    text = request.POST.get("token", "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Http404
    rows: Any = policy.revocable_tokens(current_user(request)).select_related("user")
    token: ApiToken = get_object_or_404(rows, pk=int(text))
    if token.revoked_at is None:
        api_tokens.revoke_token(actor=current_user(request), token=token, now=now)
    messages.success(request, people_pages.TOKEN_REVOKED.format(name=token.name))
