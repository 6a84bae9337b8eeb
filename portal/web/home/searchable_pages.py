"""Define the pages that the search finds, with the words that people use for them."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

from portal import policy
from portal.models import User
from portal.reads.work.search import match_rank
from portal.web.page.context_processors import page_frame


@dataclass(frozen=True)
class SearchablePage:
    """A page without an entry in the navigation, or with more words than its entry.

    ``action`` is the action of the policy that opens the page; "" for everybody who has signed in.
    """

    label: str
    url_name: str
    icon: str
    words: str = ""
    action: str = ""


# Further words for entries of the navigation, by the name of the URL.
NAVIGATION_WORDS = {
    "ask": "reserve book reservation gpu",
    "notebooks": "jupyter lab",
    "jobs": "batch training run submit",
    "volumes": "storage home files environments",
    "calendar": "reservations bookings",
    "queue": "waiting position why",
    "fleet": "hosts gpus nodes servers",
    "utilisation": "usage idle waste",
    "chargeback": "cost money month invoice",
    "teams": "quota guarantee projects",
    "people": "users accounts members",
    "tokens": "api key secret",
    "audit": "log history changes",
    "system-health": "status checks backup version",
    "settings": "organisation pools",
}
PAGES = (
    SearchablePage("Change the password", "account_change_password", "key", "passphrase account"),
    SearchablePage("Preferences", "preferences", "settings", "account profile time zone e-mail theme"),
    SearchablePage("Ways to sign in", "own-identities", "user", "identity provider sso account"),
    SearchablePage("Notices", "notifications", "bell", "notifications messages"),
    SearchablePage("Service accounts", "service-accounts", "key", "robot ci token"),
    SearchablePage("Rate card", "rate-card", "money", "prices cost per hour"),
    SearchablePage("Budgets", "budgets", "money", "limit spending"),
    SearchablePage("Cost centres", "cost-centres", "money", "payers split"),
    SearchablePage("Statements of cost centres", "cost-centre-statements", "money", "invoice month"),
    SearchablePage("Credits and adjustments", "adjustments", "money", "refund correction"),
    SearchablePage("Health rules", "health-rules", "warning", "xid errors quarantine"),
    SearchablePage("How many GPUs?", "capacity", "utilisation", "capacity study sizing", "capacity.see"),
    SearchablePage("Add a host", "host-add", "plus", "join agent install node", "host.change"),
    SearchablePage("Add a pool", "pool-new", "plus", "new pool", "pool.change"),
    SearchablePage("Sign-in settings", "sign-in-settings", "key", "oidc sso provider", "identity.see"),
    SearchablePage("Retention", "retention", "history", "samples rollups delete", "retention.see"),
    SearchablePage("Recordings", "recordings", "history", "replay decisions", "recording.see"),
    SearchablePage(
        "Maintenance of the database",
        "database-maintenance",
        "settings",
        "postgresql",
        "database_maintenance.see",
    ),
)


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
