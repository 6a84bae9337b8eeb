"""Search pages, workloads, reservations, hosts, teams and people by name, the best match first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from portal.reads.work import search as reads
from portal.web.home.searchable_pages import matching_pages
from portal.web.page.access import current_user, sign_in_required
from portal.web.work.workload_text import workload_url
from portal.wording import state_labels

MAX_QUERY_LENGTH = 80
MAX_SHOWN = 20


@dataclass(frozen=True)
class SearchItem:
    """A line of the results. A lower ``rank`` is a better match."""

    rank: int
    label: str
    url: str
    icon: str
    detail: str


@sign_in_required
def search(request: HttpRequest) -> HttpResponse:
    """Render the pages and rows that match ``?q=``, the best match first.

    The search dialog gets a part of a page. Without JavaScript, the user gets a whole page.
    """
    words = request.GET.get("q", "").strip()[:MAX_QUERY_LENGTH]
    items: list[SearchItem] = []
    if words:
        items += (
            SearchItem(page.rank, page.label, page.url, page.icon, "Page")
            for page in matching_pages(request, current_user(request), words)
        )
        items += _rows(reads.search(current_user(request), words), words)
    # The sort is stable: among equal ranks, pages come first, then the kinds in the order of `_rows`.
    items.sort(key=lambda item: item.rank)
    template = "components/palette_results.html" if request.headers.get("HX-Request") else "work/search.html"
    return render(request, template, {"items": items[:MAX_SHOWN], "words": words})


def _rows(results: reads.SearchResults, words: str) -> Iterator[SearchItem]:
    """Return the found rows, each with its page."""

    def item(name: str, url: str, icon: str, detail: str) -> SearchItem:
        rank = reads.match_rank(name, words)
        return SearchItem(reads.OTHER_FIELD if rank is None else rank, name, url, icon, detail)

    for host in results.hosts:
        yield item(host.name, reverse("host", args=[host.name]), "host", f"Host, {host.pool.name}")
    for team in results.teams:
        yield item(team.name, reverse("team", args=[team.slug]), "team", "Team")
    for person in results.people:
        detail = person.get_full_name() or "Person"
        yield item(person.username, reverse("person", args=[person.username]), "user", detail)
    for workload in results.workloads:
        state = state_labels.workload_state_label(workload)[1]
        yield item(workload.name, workload_url(workload), workload.kind, f"{state}, {workload.project.name}")
    for row in results.reservations:
        url = reverse("reservation", args=[row.public_id])
        yield item(row.name, url, "calendar", f"Reservation, {row.state}")
