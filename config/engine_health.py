"""Report the health of the engine for the readiness probe."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from scheduler.models import Leader

# Allows for some missed cycles: a cycle starts every two seconds and takes less than ten.
MAX_CYCLE_AGE = timedelta(seconds=30)


def engine_status() -> str:
    """Return ``ok`` or a short description of the problem. Reads only one row."""
    return engine_status_at(timezone.now())


def engine_status_at(now: datetime) -> str:
    """Return the status of the engine at ``now``: ``ok`` or a short description of the problem."""
    last = Leader.objects.filter(pk=1).values_list("last_cycle_at", flat=True).first()
    if last is None:
        return "no cycle yet"
    late = now - last
    return "ok" if late <= MAX_CYCLE_AGE else f"last cycle {int(late.total_seconds())} s ago"
