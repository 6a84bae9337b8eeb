"""Find the page of the portal that a notice is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import reverse

from portal.models import NoticeMessageItem, Notification

HOST_NOTIFICATION_KINDS = {
    "host_trouble",
    "disk_is_full",
    "hardware_event",
    "strays_found",
    "diagnostic_failed",
    "gpu_is_back",
    "geometry_changed",
    "geometry_failed",
}

# Notices about the end of a workload, and about the advice of its report.
REPORT_NOTICES = ("ended", "advice")

# By the kind of a notice that has no row of its own: the path from its numbers.
PATHS_BY_KIND: dict[str, Callable[[dict[str, Any]], str]] = {
    "month_waits": lambda numbers: reverse("month-close", args=[numbers["month"][:7]]),
    "statements_made": lambda numbers: f"{reverse('cost-centre-statements')}?month={numbers['month'][:7]}",
    "spend_question": lambda numbers: reverse("unusual-spend", args=[numbers["spend"]]),
    "token_ends": lambda numbers: reverse("service-accounts" if numbers.get("account") else "tokens"),
    "channel_fails": lambda numbers: reverse("notice-channel", args=[numbers["channel"]]),
    "channel_test": lambda numbers: reverse("notice-channels"),
}


def notice_path(notice: Notification | NoticeMessageItem) -> str:
    """Return the path of the page of the object that the notice is about; "" if it has no page."""
    workload = notice.workload
    if workload is not None and notice.kind.startswith("array_") and workload.array is not None:
        return reverse("array", args=[workload.array.public_id])
    if workload is not None:
        return reverse("notebook" if workload.kind == "notebook" else "job", args=[workload.public_id])
    if notice.reservation is not None:
        return reverse("reservation", args=[notice.reservation.public_id])
    if notice.submission is not None:
        return reverse("submission", args=[notice.submission.public_id])
    if notice.kind in HOST_NOTIFICATION_KINDS and notice.numbers.get("host"):
        return reverse("host", args=[notice.numbers["host"]])
    path = PATHS_BY_KIND.get(notice.kind)
    return path(notice.numbers) if path else ""


def report_path(notice: Notification) -> str:
    """Return the path of the report that a notice is about; "" for other notices."""
    if notice.kind not in REPORT_NOTICES or notice.workload is None or not notice.workload.attempt:
        return ""
    return reverse("workload-report", args=[notice.workload.public_id])
