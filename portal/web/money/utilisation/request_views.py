"""Render the requests behind the waiting times of one size, with pages and CSV."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from portal.reads.utilisation.drill_answers import LEVEL_ANSWERS
from portal.reads.utilisation.wait_requests import MAX_REQUESTS, WaitRequests, named_requests, wait_requests
from portal.web.components.quantities import grouped, short_duration
from portal.web.money.charges.addresses import requested_format
from portal.web.money.utilisation.views import utilisation_query
from portal.web.page.access import address_checks, sign_in_required
from portal.web.page.csv_export import csv_response
from portal.web.page.pagination import paginate
from portal.wording.formatting import with_count
from portal.wording.pages.money import utilisation_texts
from scheduler.models import Workload
from telemetry.reads.wait_times import RequestWait

OWN_PARAMETERS = ("size", "page", "format")
ANSWER = LEVEL_ANSWERS["wait-requests"]


@sign_in_required
def wait_request_list(request: HttpRequest) -> HttpResponseBase:
    """List the requests of one size; the other parameters are those of the utilisation page."""
    given = {name: value for name, value in request.GET.items() if name not in OWN_PARAMETERS}
    size = request.GET.get("size", "")
    query = utilisation_query(request, given)  # type: ignore[arg-type]
    with address_checks():
        if requested_format(request) == "csv":
            return csv_response("wait-requests.csv", ANSWER.columns, ANSWER.rows(query, {"size": size}))
        found = wait_requests(query, size)
    page = paginate(request, found.rows)
    context = {
        "title": utilisation_texts.REQUESTS_TITLE.format(size=with_count(found.size, "GPU")),
        "period": query.period.text(query.now),
        "about": _about(found),
        "page": page,
        "rows": [_row(work, wait) for work, wait in named_requests(list(page.object_list))],
        "back": query.address(waits="size") + "#chart-waits",
        "csv": query.requests_address(found.size, format="csv"),
        "now": timezone.now(),
    }
    return render(request, "manage/utilisation_requests.html", context)


def _about(found: WaitRequests) -> str:
    texts = [utilisation_texts.requests_submitted(found.total)]
    if found.total > MAX_REQUESTS:
        texts.append(utilisation_texts.REQUESTS_CUT.format(most=MAX_REQUESTS))
    if found.hidden:
        texts.append(utilisation_texts.REQUESTS_HIDDEN.format(hidden=grouped(found.hidden)))
    return " ".join(texts)


def _row(work: Workload, wait: RequestWait) -> dict[str, Any]:
    if wait.waited is not None:
        waited = short_duration(wait.waited)
    else:
        waited = utilisation_texts.STILL_WAITS if wait.still_waiting else utilisation_texts.NOT_STARTED
    page = "notebook" if work.kind == "notebook" else "job"
    return {
        "work": work,
        "url": reverse(page, args=[work.public_id]),
        "waited": waited,
        "preemptions": wait.preemptions,
    }
