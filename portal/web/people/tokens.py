"""Render the page of the user's API tokens."""

from __future__ import annotations

from datetime import timedelta

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from portal.reads.people import organisation as reads
from portal.services.people import api_tokens
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import people_pages

TOKEN_LIFETIMES = [("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("", "no end")]


class TokenForm(ServiceForm):
    name = forms.CharField(
        max_length=200, label="Name", help_text="The machine or program that uses the token, such as laptop."
    )
    days = forms.ChoiceField(choices=TOKEN_LIFETIMES, required=False, initial="90", label="Valid for")


@sign_in_required
def tokens(request: HttpRequest) -> HttpResponse:
    """List, create and revoke API tokens. The text of a new token is shown once."""
    now = timezone.now()
    if request.POST.get("verb") == "revoke":
        token = get_object_or_404(reads.own_tokens(request.user), pk=_id_or_404(request.POST.get("token")))
        if token.revoked_at is None:
            api_tokens.revoke_token(actor=current_user(request), token=token, now=now)
        messages.success(request, people_pages.TOKEN_REVOKED.format(name=token.name))
        return redirect("tokens")
    form, text = TokenForm(request.POST or None), ""
    if request.method == "POST" and form.is_valid():
        days = form.cleaned_data["days"]
        expires_at = now + timedelta(days=int(days)) if days else None
        created = form.carry_out(
            api_tokens.create_token,
            actor=current_user(request),
            name=form.cleaned_data["name"],
            expires_at=expires_at,
            now=now,
        )
        if created is not None:
            text, form = created[1], TokenForm()
    context = {
        "rows": reads.own_tokens(request.user),
        "form": form,
        "text": text,
        "now": now,
        "portal": request.build_absolute_uri("/"),
    }
    response = render(request, "organisation/tokens.html", context, status=400 if form.errors else 200)
    response["Cache-Control"] = "no-store"
    return response


def _id_or_404(text: str | None) -> int:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Http404
    return int(text)
