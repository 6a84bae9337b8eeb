"""Find the pages that match a search."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

from portal import policy
from portal.models import User
from portal.reads.work.search import match_rank
from portal.web.page.context_processors import page_frame
from portal.wording.pages.searchable_pages import NAVIGATION_WORDS, PAGES


@dataclass(frozen=True)
class FoundPage:
    """A page that the search found. A lower ``rank`` is a better match."""

    rank: int
    label: str
    url: str
    icon: str


def matching_pages(request: HttpRequest, user: User, words: str) -> list[FoundPage]:
    """Return the pages that match and that the user may open."""
    further = {reverse(name): text for name, text in NAVIGATION_WORDS.items()}
    pages = [
        (item["label"], item["url"], item["icon"], further.get(item["url"], ""))
        for section in page_frame(request)["nav"]
        for item in section["items"]
    ]
    pages += [
        (page.label, reverse(page.url_name), page.icon, page.words)
        for page in PAGES
        if not page.action or policy.may(user, page.action)
    ]
    found = []
    for label, url, icon, other in pages:
        rank = match_rank(label, words, other)
        if rank is not None:
            found.append(FoundPage(rank, label, url, icon))
    return found
