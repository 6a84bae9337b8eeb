"""Find reservations for which the pool has no usable units, whatever the cause."""

from __future__ import annotations

from datetime import datetime

from scheduler.models import Pool
from scheduler.services.reservation_risk import record_unserved_reservations
from scheduler.state.states import OPEN_RESERVATION_STATES


def sweep_unserved_reservations(now: datetime) -> int:
    """Record the open reservations that cannot be served at present. Return their number. Idempotent."""
    pools = Pool.objects.filter(reservations__state__in=OPEN_RESERVATION_STATES).distinct().order_by("pk")
    return sum(record_unserved_reservations(pool, now=now) for pool in pools)
