"""Render the page of the user's notifications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from portal.models import Notification
from portal.reads.people import organisation as reads
from portal.services.people import accounts
from portal.web.page.access import current_user, sign_in_required
from portal.wording import notice_texts

NOTIFICATIONS_PER_PAGE = 50
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
            "url": _notification_url(notice),
            "report_url": _report_url(notice),
        }
        for notice in page
    ]
    return render(request, "organisation/notifications.html", {"page": page, "rows": rows, "now": now})


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
