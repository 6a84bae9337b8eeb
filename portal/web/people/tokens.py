"""Render the page of the user's API tokens."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal.reads.people import organisation as reads
from portal.web.page.access import sign_in_required
from portal.web.people.token_form import TokenForm, revoke_posted_token


@sign_in_required
def tokens(request: HttpRequest) -> HttpResponse:
    """List, create and revoke API tokens. The text of a new token is shown once."""
    now = timezone.now()
    if request.POST.get("verb") == "revoke":
        revoke_posted_token(request, now)
        return redirect("tokens")
    form = TokenForm(request.POST or None)
    text = form.create(request, now) if request.method == "POST" else ""
    context = {
        "rows": reads.own_tokens(request.user),
        "form": TokenForm() if text else form,
        "text": text,
        "now": now,
        "portal": f"{settings.GPUPOOL_PORTAL_URL}/",
    }
    response = render(request, "organisation/tokens.html", context, status=400 if form.errors else 200)
    response["Cache-Control"] = "no-store"
    return response
