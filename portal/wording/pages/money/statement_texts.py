"""Define texts of the statements of cost centres, and of the pages on which a month is closed."""

from __future__ import annotations

PART_LABELS = {
    "used": "used",
    "idle": "idle while held",
    "unmeasured": "not measured",
    "reserved_unused": "reserved, unused",
    "idle_share": "share of idle GPUs",
}
WITHOUT_WORKLOAD = {"reserved_unused": "reservation or dedicated pool", "idle_share": "idle GPUs of the pool"}
SHARED_IDLE_GROUP = "Share of idle GPUs"
DEDICATED_GROUP = "Dedicated pool, unused"
DIGEST_VALID = "The digest of {month:%B %Y} and its signature are valid: no row of the month has changed."
DIGEST_UNSIGNED = "The digest of {month:%B %Y} is valid: no row of the month has changed. It is not signed."
DIGEST_WRONG = "{month:%B %Y} does not verify: {problems}."
NO_DOCUMENT = "No cost centre was charged in this month."
ZONE_SET = "Billing months are in {zone} from {month:%B %Y} on."
BILLING_MODES = {
    "chargeback": "Chargeback: the charges are invoiced",
    "showback": "Showback: the charges are shown, not invoiced",
}
BILLING_MODE_HINT = "A month that is not closed."
BILLING_MODE_SET = "{team} has {mode} from {month:%B %Y} on."
BILLING_SAVED = "The settings of billing are saved."


def group_title(project: str, person: str, part: str) -> str:
    """Return the heading of the rows of a project and a person."""
    if part == "idle_share":
        return SHARED_IDLE_GROUP
    return ", ".join(text for text in (project or DEDICATED_GROUP, person) if text)
