"""Announce and end the maintenance of the database."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from scheduler.coordination import locks
from scheduler.coordination.database_maintenance import current_maintenance
from scheduler.core.rejection import OperationRejected
from scheduler.models import DatabaseMaintenance
from scheduler.state import nudge


@transaction.atomic
def begin_database_maintenance(
    *, duration: timedelta, reason: str, announced_by: str, now: datetime
) -> DatabaseMaintenance:
    """Stop the placement of work, and let edges renew leases from memory, for ``duration`` from now.

    Raises OperationRejected ``database_maintenance_lasts`` if one is in progress already.
    """
    locks.leader()  # the engine applies no plan, and no second announcement begins, at the same time
    lasting = current_maintenance(now)
    if lasting is not None:
        raise OperationRejected(
            "database_maintenance_lasts", {"until": lasting.ends_at.isoformat(), "why": lasting.reason}
        )
    maintenance = DatabaseMaintenance.objects.create(
        starts_at=now, ends_at=now + duration, reason=reason, announced_by=announced_by
    )
    nudge.pages(nudge.HOSTS)
    return maintenance


@transaction.atomic
def end_database_maintenance(*, now: datetime) -> DatabaseMaintenance:
    """End the maintenance of the database, and place work again.

    An edge that has lost its contact continues to renew leases until the announced end, so the announced end
    still counts for silent hosts. Raises OperationRejected ``no_database_maintenance``.
    """
    locks.leader()
    lasting = current_maintenance(now)
    if lasting is None:
        raise OperationRejected("no_database_maintenance")
    lasting.ended_at = now
    lasting.save(update_fields=["ended_at"])
    nudge.engine()
    nudge.pages(nudge.HOSTS)
    return lasting
