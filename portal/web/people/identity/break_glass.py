"""Render the page of a one-time link with which an operator signs in when no provider works."""

from __future__ import annotations

from allauth.account.internal.flows.login import record_authentication
from allauth.account.utils import perform_login
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache

from portal.services.people import sign_ins
from portal.services.people.identity.break_glass import use_break_glass_link
from portal.sign_in.client import client_of
from portal.wording.pages.identity_pages import BREAK_GLASS_INVALID


@login_not_required
@never_cache
def break_glass(request: HttpRequest, code: str) -> HttpResponse:
    """Show a button, so that no program that opens links uses this one up. On POST, sign the operator in.

    A second factor is still required.
    """
    if request.method != "POST":
        return render(request, "account/break_glass.html")
    client, now = client_of(request), timezone.now()
    user = use_break_glass_link(code, client, now)
    if user is None:
        sign_ins.record_refused_identity(
            account=None,
            client=client,
            provider="break glass",
            code="link_invalid",
            text=BREAK_GLASS_INVALID,
            now=now,
        )
        return render(request, "account/sign_in_refused.html", {"message": BREAK_GLASS_INVALID}, status=403)
    record_authentication(request, user, "break glass")
    answer: HttpResponse = perform_login(request, user, email_verification="none")
    return answer
