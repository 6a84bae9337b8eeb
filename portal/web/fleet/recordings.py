"""List and download recordings of planning cycles."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from portal import policy
from portal.reads.work import recordings as reads
from portal.web.page.access import sign_in_required

RECORDINGS_PER_PAGE = 50


@sign_in_required
def recordings(request: HttpRequest) -> HttpResponse:
    """List the recordings of planning cycles, latest first. A recording can be replayed."""
    policy.require(request.user, "recording.see")
    page = Paginator(reads.latest_recordings(), RECORDINGS_PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "organisation/recordings.html", {"page": page, "now": timezone.now()})


@sign_in_required
def recording(request: HttpRequest, pk: int) -> HttpResponse:
    """Return a recording as a file for ``manage.py replay_snapshot``."""
    policy.require(request.user, "recording.see")
    return reads.as_download(pk)
