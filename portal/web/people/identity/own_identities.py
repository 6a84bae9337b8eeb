"""Render the page on which people connect their account to identity providers."""

from __future__ import annotations

from allauth.socialaccount.models import SocialAccount
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from portal.reads.people.identity import own_identities as connected
from portal.services.people.identity.sign_in import disconnect_identity
from portal.sign_in.oidc.providers import active_providers
from portal.web.page.access import (
    current_user,
    get_visible_or_404,
    posted_key,
    run_and_redirect,
    sign_in_required,
)
from portal.wording.pages import identity_pages


@sign_in_required
def own_identities(request: HttpRequest) -> HttpResponseBase:
    """List the connected identities, with a button for each provider. On POST, disconnect one."""
    user = current_user(request)
    if request.method == "POST":
        key = posted_key(request, "identity")
        rows = SocialAccount.objects.filter(user=user)
        account = get_visible_or_404(
            rows, "identity", pk=int(key) if key.isascii() and key.isdecimal() else 0
        )
        return run_and_redirect(
            request,
            lambda: disconnect_identity(actor=user, account=account, now=timezone.now()),
            done=identity_pages.DISCONNECTED.format(name=account.provider),
            to=reverse("own-identities"),
        )
    found = connected(user)
    context = {
        "identities": found,
        "providers": [
            each for each in active_providers() if each.slug not in {row.provider for row in found}
        ],
    }
    return render(request, "organisation/identity/own.html", context)
