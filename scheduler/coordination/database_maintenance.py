"""Read the announced maintenance of the database."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q

from scheduler.models import DatabaseMaintenance


def current_maintenance(now: datetime) -> DatabaseMaintenance | None:
    """Return the maintenance of the database in progress at ``now``, or None. This takes one query."""
    rows = DatabaseMaintenance.objects.filter(Q(ended_at__isnull=True) | Q(ended_at__gt=now))
    return rows.filter(starts_at__lte=now, ends_at__gt=now).order_by("-ends_at").first()
