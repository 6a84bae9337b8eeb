"""Define the pages that the search finds, with the words that people use for them."""

from __future__ import annotations

from dataclasses import dataclass


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
    SearchablePage(
        "Account",
        "account",
        "user",
        "preferences profile time zone e-mail theme sessions second factor passkey",
    ),
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
