"""Render the page of the user's notifications."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal.notices.page_addresses import notice_path, report_path
from portal.reads.people import organisation as reads
from portal.services.people import accounts
from portal.web.page.access import current_user, sign_in_required
from portal.wording import notice_texts

NOTIFICATIONS_PER_PAGE = 50


@sign_in_required
def notifications(request: HttpRequest) -> HttpResponse:
    """List the user's notifications, newest first; a POST marks them as read."""
    now = timezone.now()
    if request.method == "POST":
        accounts.read_notifications(actor=current_user(request), now=now)
        return redirect("notifications")
    page = Paginator(reads.own_notices(request.user), NOTIFICATIONS_PER_PAGE).get_page(
        request.GET.get("page")
    )
    rows = [
        {
            "notice": notice,
            "text": notice_texts.notice_sentence(notice.kind, notice.numbers, request.user),
            "url": notice_path(notice),
            "report_url": report_path(notice),
        }
        for notice in page
    ]
    return render(request, "organisation/notifications.html", {"page": page, "rows": rows, "now": now})
