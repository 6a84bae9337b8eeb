"""Find new credits and adjustments, and decisions about them, for notices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from portal.notices.pending import PendingNotice
from portal.notices.recipients import finance_ids, lead_ids
from telemetry.models import Adjustment, AdjustmentState


def adjustments_to_decide(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each new proposal to the people of finance who may decide it."""
    waiting = Adjustment.objects.filter(
        state=AdjustmentState.PROPOSED, proposed_at__gt=since, proposed_at__lte=now
    )
    for row in waiting.order_by("pk"):
        users = tuple(sorted({*finance_ids()} - {row.author_id}))
        numbers = {**_numbers(row), "author": row.author_name}
        yield PendingNotice("adjustment_proposed", f"adjustment:{row.pk}", users, numbers)


def decided_adjustments(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each approval and rejection to its author.

    The leads of its team also get a notice about an approval.
    """
    decided = Adjustment.objects.filter(
        state__in=(AdjustmentState.APPROVED, AdjustmentState.REJECTED),
        decided_at__gt=since,
        decided_at__lte=now,
    )
    for row in decided.order_by("pk"):
        users = {row.author_id}
        if row.state == AdjustmentState.APPROVED and row.team_id is not None:
            users |= lead_ids(row.team_id)
        numbers = {**_numbers(row), "state": row.state, "by": row.decided_by_name}
        source = f"adjustment decided:{row.pk}"
        yield PendingNotice(
            "adjustment_decided", source, tuple(sorted(users)), numbers, actor=row.decided_by_id
        )


def _numbers(row: Adjustment) -> dict[str, Any]:
    return {
        "number": row.number,
        "amount": f"{row.amount} {row.currency}",
        "cost_centre": row.cost_centre,
    }
