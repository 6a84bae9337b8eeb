"""Render the page System health."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from portal.reads.system.health import system_health as read_system_health
from portal.web.page.access import sign_in_required
from portal.wording import system_texts


@sign_in_required
def system_health(request: HttpRequest) -> HttpResponse:
    """Show each check with its value, state, limit and advice."""
    health = read_system_health(request.user, timezone.now())
    context = {
        "health": health,
        "about": system_texts.PAGE_ABOUT,
        "summary": [(system_texts.STATE_LABELS[state], count) for state, count in health.counts],
    }
    return render(request, "organisation/system.html", context)
