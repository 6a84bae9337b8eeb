"""Read the credits and manual adjustments that a viewer may see."""

from __future__ import annotations

from django.db.models import QuerySet

from portal import policy
from portal.models import User
from telemetry.models import Adjustment


def visible_adjustments(viewer: User) -> QuerySet[Adjustment]:
    """Return the visible credits and adjustments, newest first, with the rows that pages name."""
    rows = policy.visible_adjustments(viewer).select_related(
        "statement", "team", "project__team", "credited", "withdraws", "author", "decided_by"
    )
    return rows.order_by("-proposed_at", "-pk")
