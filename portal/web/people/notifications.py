"""Render the page of the user's notifications."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal.models import Notification, User
from portal.notices.page_addresses import notice_path, report_path
from portal.reads.people import organisation as reads
from portal.services.people import accounts
from portal.web.page.access import current_user, sign_in_required
from portal.wording.notices import notice_texts

MATTERS_PER_PAGE = 50
MAX_EARLIER = 20  # earlier notices of a matter on the page


@sign_in_required
def notifications(request: HttpRequest) -> HttpResponse:
    """List the user's notices, one line for each matter, unread matters first.

    A POST marks the notices of ``notice`` as read; without it, all notices.
    """
    now = timezone.now()
    if request.method == "POST":
        ids = [int(given) for given in request.POST.getlist("notice") if given.isascii() and given.isdigit()]
        accounts.read_notifications(actor=current_user(request), now=now, ids=ids or None)
        return redirect("notifications")
    user = current_user(request)
    page = Paginator(reads.own_matters(user), MATTERS_PER_PAGE).get_page(request.GET.get("page"))
    notices = reads.notices_of_matters(user, [matter["matter_key"] for matter in page])
    rows = [
        _matter_row(matter, notices[matter["matter_key"]], user)
        for matter in page
        if notices[matter["matter_key"]]
    ]
    context = {
        "page": page,
        "groups": [
            ("Unread", [row for row in rows if row["unread_ids"]]),
            ("Read", [row for row in rows if not row["unread_ids"]]),
        ],
        "now": now,
    }
    return render(request, "organisation/notifications.html", context)


def _matter_row(matter: dict[str, Any], notices: list[Notification], user: User) -> dict[str, Any]:
    """Return the line of a matter: its newest notice, and the earlier notices."""
    newest, *earlier = notices
    return {
        "notice": newest,
        "text": notice_texts.notice_sentence(newest.kind, newest.numbers, user),
        "url": notice_path(newest),
        "report_url": next(filter(None, map(report_path, notices)), ""),
        "unread_ids": [notice.pk for notice in notices if notice.read_at is None],
        "earlier": [
            {"notice": notice, "text": notice_texts.notice_sentence(notice.kind, notice.numbers, user)}
            for notice in earlier[:MAX_EARLIER]
        ],
        "earlier_count": matter["count"] - 1,
    }
