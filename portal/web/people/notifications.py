"""Render the page of the user's notifications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from portal.models import Notification, User
from portal.reads.people import organisation as reads
from portal.services.people import accounts
from portal.web.page.access import current_user, sign_in_required
from portal.wording import notice_texts

MATTERS_PER_PAGE = 50
MAX_EARLIER = 20  # earlier notices of a matter on the page
HOST_NOTIFICATION_KINDS = {
    "host_trouble",
    "hardware_event",
    "strays_found",
    "diagnostic_failed",
    "gpu_is_back",
    "geometry_changed",
    "geometry_failed",
}


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
    notices = reads.notices_of_matters(user, [matter["topic"] for matter in page])
    rows = [
        _matter_row(matter, notices[matter["topic"]], user) for matter in page if notices[matter["topic"]]
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
        "url": _notification_url(newest),
        "report_url": next(filter(None, map(_report_url, notices)), ""),
        "unread_ids": [notice.pk for notice in notices if notice.read_at is None],
        "earlier": [
            {"notice": notice, "text": notice_texts.notice_sentence(notice.kind, notice.numbers, user)}
            for notice in earlier[:MAX_EARLIER]
        ],
        "earlier_count": matter["count"] - 1,
    }


# Notices about the end of a workload, and about the advice of its report.
REPORT_NOTICES = ("ended", "advice")


def _report_url(notice: Notification) -> str:
    """Return the URL of the report that a notice is about; empty for other notices."""
    if notice.kind not in REPORT_NOTICES or notice.workload is None or not notice.workload.attempt:
        return ""
    return reverse("workload-report", args=[notice.workload.public_id])


# By the kind of a notice that has no row of its own: the URL from its numbers.
ADDRESSES_BY_KIND: dict[str, Callable[[dict[str, Any]], str]] = {
    "month_waits": lambda numbers: reverse("month-close", args=[numbers["month"][:7]]),
    "statements_made": lambda numbers: f"{reverse('cost-centre-statements')}?month={numbers['month'][:7]}",
    "spend_question": lambda numbers: reverse("unusual-spend", args=[numbers["spend"]]),
    "token_ends": lambda numbers: reverse("service-accounts" if numbers.get("account") else "tokens"),
}


def _notification_url(notice: Notification) -> str:
    """Return the URL of the object that the notification is about; empty if it has no page."""
    if notice.workload is not None and notice.kind.startswith("array_") and notice.workload.array is not None:
        return reverse("array", args=[notice.workload.array.public_id])
    if notice.workload is not None:
        return reverse(
            "notebook" if notice.workload.kind == "notebook" else "job", args=[notice.workload.public_id]
        )
    if notice.reservation is not None:
        return reverse("reservation", args=[notice.reservation.public_id])
    if notice.submission is not None:
        return reverse("submission", args=[notice.submission.public_id])
    if notice.kind in HOST_NOTIFICATION_KINDS and notice.numbers.get("host"):
        return reverse("host", args=[notice.numbers["host"]])
    address = ADDRESSES_BY_KIND.get(notice.kind)
    return address(notice.numbers) if address else ""
