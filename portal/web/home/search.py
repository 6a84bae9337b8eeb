"""Search workloads, reservations, hosts and teams by name."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from portal.reads.work import search as reads
from portal.web.page.access import current_user, sign_in_required
from portal.web.work.workload_text import workload_url
from portal.wording import state_labels

MAX_QUERY_LENGTH = 80


@sign_in_required
def search(request: HttpRequest) -> HttpResponse:
    """Render the rows whose name contains ``?q=``.

    The search dialog gets a part of a page. Without JavaScript, the user gets a whole page.
    """
    query = request.GET.get("q", "").strip()[:MAX_QUERY_LENGTH]
    context = {"groups": _result_groups(reads.search(current_user(request), query)), "words": query}
    template = "components/palette_results.html" if request.headers.get("HX-Request") else "work/search.html"
    return render(request, template, context)


def _result_groups(results: reads.SearchResults) -> list[dict[str, Any]]:
    groups = [
        {
            "title": "Notebooks and jobs",
            "items": [
                {
                    "label": workload.name,
                    "url": workload_url(workload),
                    "icon": workload.kind,
                    "detail": f"{state_labels.workload_state_label(workload)[1]}, {workload.project.name}",
                }
                for workload in results.workloads
            ],
        },
        {
            "title": "Reservations",
            "items": [
                {
                    "label": r.name,
                    "url": reverse("reservation", args=[r.public_id]),
                    "icon": "calendar",
                    "detail": r.state,
                }
                for r in results.reservations
            ],
        },
        {
            "title": "Hosts",
            "items": [
                {
                    "label": h.name,
                    "url": reverse("host", args=[h.name]),
                    "icon": "host",
                    "detail": h.pool.name,
                }
                for h in results.hosts
            ],
        },
        {
            "title": "Teams",
            "items": [
                {"label": t.name, "url": reverse("team", args=[t.slug]), "icon": "team", "detail": t.tag}
                for t in results.teams
            ],
        },
    ]
    return [group for group in groups if group["items"]]
