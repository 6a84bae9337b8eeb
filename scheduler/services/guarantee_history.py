"""Record each change of a guarantee with its time, because statements use the guarantees of their month."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet

from scheduler.models import GuaranteeChange, Pool, Quota, Team


def record_guarantee_change(
    *, team: Team, pool: Pool, model: str, slots_before: int, slots_after: int, now: datetime
) -> None:
    """Record a changed guarantee. Nothing is recorded if the slots are equal."""
    if slots_before != slots_after:
        GuaranteeChange.objects.create(
            team=team, pool=pool, model=model, slots_before=slots_before, slots_after=slots_after, at=now
        )


def remove_quotas(quotas: QuerySet[Quota], now: datetime) -> None:
    """Mark the quotas as removed, and record that their guarantees ended."""
    rows = quotas.filter(guaranteed_slots__gt=0).order_by("pk")
    GuaranteeChange.objects.bulk_create(
        GuaranteeChange(
            team_id=quota.team_id,
            pool_id=quota.pool_id,
            model=quota.model,
            slots_before=quota.guaranteed_slots,
            slots_after=0,
            at=now,
        )
        for quota in rows
    )
    quotas.update(removed_at=now)
