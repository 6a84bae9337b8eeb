"""The answer of the search dialog."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from portal.reads.work import search as reads
from portal.web.page.access import current_user, sign_in_required
from portal.web.work.workload_card import workload_url
from portal.wording import state_labels

MAX_QUERY_LENGTH = 80


@sign_in_required
def search(request: HttpRequest) -> HttpResponse:
    """``?q=``: rows whose name contains it. As a part for the dialog; as a page for those without JavaScript."""
    words = request.GET.get("q", "").strip()[:MAX_QUERY_LENGTH]
    context = {"groups": _result_groups(reads.search(current_user(request), words)), "words": words}
    template = "components/palette_results.html" if request.headers.get("HX-Request") else "work/search.html"
    return render(request, template, context)


def _result_groups(found: reads.SearchResults) -> list[dict[str, Any]]:
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
                for workload in found.workloads
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
                for r in found.reservations
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
                for h in found.hosts
            ],
        },
        {
            "title": "Teams",
            "items": [
                {"label": t.name, "url": reverse("team", args=[t.slug]), "icon": "team", "detail": t.tag}
                for t in found.teams
            ],
        },
    ]
    return [group for group in groups if group["items"]]
