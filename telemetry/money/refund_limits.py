"""Read the refund limits of pools: the longest time before a stop that lost work is not charged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta

from telemetry.models import RefundLimit

DEFAULT_FORGIVEN_MINUTES = 60  # the limit of a pool until finance sets a limit for it


class RefundLimits:
    """The refund limits of pools over time."""

    def __init__(self, limits: Collection[RefundLimit]) -> None:
        """Keep ``limits``, which must be in order of time."""
        self._by_pool: dict[int, list[RefundLimit]] = defaultdict(list)
        for limit in limits:
            self._by_pool[limit.pool_id].append(limit)

    def minutes_at(self, pool: int, stop: datetime) -> int | None:
        """Return the limit in minutes for work of the pool that stops at ``stop``; None means no limit."""
        for limit in reversed(self.of(pool)):
            if limit.valid_from <= stop:
                return limit.forgiven_minutes
        return DEFAULT_FORGIVEN_MINUTES

    def of(self, pool: int) -> list[RefundLimit]:
        """Return the limits of the pool in order of time. It is empty if the default has always applied."""
        return self._by_pool.get(pool, [])

    def at(self, pool: int, stop: datetime) -> timedelta | None:
        """Return the limit for work of the pool that stops at ``stop``; None means no limit."""
        minutes = self.minutes_at(pool, stop)
        return None if minutes is None else timedelta(minutes=minutes)


def load_refund_limits(pools: Collection[int]) -> RefundLimits:
    """Return the refund limits of these pools. Runs one query."""
    return RefundLimits(list(RefundLimit.objects.filter(pool__in=pools).order_by("valid_from", "pk")))
