"""Read the planned maintenance of the database, and which edges know of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.coordination.database_maintenance import current_maintenance
from scheduler.coordination.leases import lease_rules
from scheduler.models import DatabaseMaintenance, EdgeContact


@dataclass(frozen=True)
class DatabaseMaintenanceStatus:
    """The current maintenance, or None, and the number of edges in contact with the database.

    ``edges_ready``: number of these edges that renew leases until the announced end.
    """

    maintenance: DatabaseMaintenance | None
    edges: int
    edges_ready: int

    @property
    def may_stop_database(self) -> bool:
        """Return True if a maintenance is in progress and every edge knows its end."""
        return self.maintenance is not None and 0 < self.edges == self.edges_ready


def database_maintenance_status(now: datetime) -> DatabaseMaintenanceStatus:
    """Return the status of the maintenance of the database at ``now``. This takes two queries."""
    maintenance = current_maintenance(now)
    since = now - timedelta(seconds=lease_rules().margin_seconds)
    known = list(EdgeContact.objects.filter(seen_at__gte=since).values_list("renews_until", flat=True))
    ready = 0 if maintenance is None else sum(until >= maintenance.ends_at for until in known)
    return DatabaseMaintenanceStatus(maintenance, len(known), ready)
