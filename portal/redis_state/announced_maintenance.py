"""Keep the announced maintenance of the database in Redis, so that each page shows it without a query.

The services that begin and end a maintenance write it, and the task of notices writes it again every few
seconds. It expires at the announced end. While Redis is unavailable, pages show no announcement.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from redis.exceptions import RedisError

from scheduler.models import DatabaseMaintenance
from scheduler.state import nudge

MAINTENANCE_KEY = f"{nudge.SITE}:database-maintenance"


@dataclass(frozen=True)
class AnnouncedMaintenance:
    """The end of a maintenance and its reason."""

    ends_at: datetime
    reason: str

    @property
    def header(self) -> str:
        """Return the maintenance as JSON in ASCII, for the header of an answer."""
        return json.dumps({"ends_at": self.ends_at.isoformat(), "reason": self.reason})


def publish_maintenance(maintenance: DatabaseMaintenance | None) -> None:
    """Show this maintenance on pages from now on; None shows no maintenance."""
    connection = nudge.redis_connection()
    try:
        if maintenance is None:
            connection.delete(MAINTENANCE_KEY)
        else:
            shown = AnnouncedMaintenance(maintenance.ends_at, maintenance.reason)
            connection.set(MAINTENANCE_KEY, shown.header, pxat=int(maintenance.ends_at.timestamp() * 1000))
    except RedisError:
        return  # the next run of the task of notices repeats it


def announced_maintenance() -> AnnouncedMaintenance | None:
    """Return the maintenance that lasts now; None if there is none, or if Redis is unavailable."""
    try:
        found = nudge.redis_connection().get(MAINTENANCE_KEY)
    except RedisError:
        return None
    if not isinstance(found, bytes):
        return None
    values = json.loads(found)
    return AnnouncedMaintenance(datetime.fromisoformat(values["ends_at"]), values["reason"])
