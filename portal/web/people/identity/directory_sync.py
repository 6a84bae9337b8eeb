"""Render the page that compares the accounts with an LDAP directory."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import DirectorySync
from portal.services.people.identity import directory_sync as verbs
from portal.sign_in.oidc.providers import LDAP, find_provider
from portal.web.page.access import current_user, sign_in_required


@sign_in_required
def directory_sync(request: HttpRequest, slug: str) -> HttpResponse:
    """Show what a sync would do. On POST, sync."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "identity.change")
    provider = find_provider(slug, kind=LDAP, also_inactive=True)
    if provider is None:
        raise Http404
    if request.method == "POST":
        done = verbs.sync_now(
            actor=user, provider=slug, now=now, allow_loss=request.POST.get("allow_loss") == "on"
        )
        is_done = done.outcome == DirectorySync.Outcome.DONE
        (messages.success if is_done else messages.error)(request, done.text)
        return redirect("identity-provider", slug)
    plan = verbs.preview_sync(actor=user, provider=slug, now=now)
    return render(request, "organisation/identity/sync.html", {"provider": provider, "effect": plan})
