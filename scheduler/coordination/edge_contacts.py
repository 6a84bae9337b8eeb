"""Record the contact of edge processes with the database, and the leases that they renewed from memory.

A contact writes both in one transaction. While every edge is in contact, the stored times of reports are
therefore complete. An edge without contact may renew leases until its ``renews_until``. The rule for silent
hosts counts this time (``scheduler.coordination.leases``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Least

from scheduler.coordination import leases, locks
from scheduler.coordination.database_maintenance import current_maintenance
from scheduler.models import EdgeContact

KEPT_AFTER_END = timedelta(days=1)  # rows of ended processes are kept this long after their last effect

# A renewal for an earlier agent of the host counts for the work of the earlier agent. Until the new agent
# reports, both columns have the time of the earlier agent's last report.
STORE_RENEWALS_SQL = """
UPDATE scheduler_host AS h SET
  last_sync_at = CASE
    WHEN h.agent_instance = v.instance OR h.last_sync_at = h.agent_before_heard_at
    THEN GREATEST(h.last_sync_at, v.at) ELSE h.last_sync_at END,
  agent_before_heard_at = CASE WHEN h.agent_instance = v.instance THEN h.agent_before_heard_at
    ELSE GREATEST(h.agent_before_heard_at, v.at) END
FROM unnest(%s::bigint[], %s::text[], %s::timestamptz[]) AS v (host, instance, at)
WHERE h.id = v.host
"""


@dataclass(frozen=True, slots=True)
class MemoryRenewal:
    """A lease that an edge renewed without the database. ``at`` is the arrival of the host's report."""

    host: int
    instance: str  # id of the agent that sent the report
    at: datetime


@dataclass(frozen=True, slots=True)
class RenewalLimits:
    """The time until which a process may renew leases from memory without another contact.

    ``maintenance_until`` is the announced end of the database's maintenance, or None.
    """

    renews_until: datetime
    maintenance_until: datetime | None


@transaction.atomic
def record_contact(
    *,
    process: str,
    address: str,
    started_at: datetime,
    renewals: Collection[MemoryRenewal],
    now: datetime,
) -> RenewalLimits:
    """Record a contact at ``now`` and all leases that the process has renewed from memory before ``now``."""
    if renewals:
        _store_renewals(renewals)
    maintenance = current_maintenance(now)
    until = now + timedelta(seconds=leases.MEMORY_RENEWAL_SECONDS)
    if maintenance is not None:
        until = max(until, maintenance.ends_at)
    known = EdgeContact.objects.filter(pk=process).update(seen_at=now, renews_until=until)
    if not known:
        # Only one process can listen at an address, so an earlier process with this address has ended.
        earlier = EdgeContact.objects.filter(address=address)
        earlier.update(renews_until=Least(F("renews_until"), started_at))
        EdgeContact.objects.filter(
            renews_until__lt=now - KEPT_AFTER_END, seen_at__lt=now - KEPT_AFTER_END
        ).delete()
        EdgeContact.objects.create(process=process, address=address, seen_at=now, renews_until=until)
    return RenewalLimits(until, maintenance.ends_at if maintenance is not None else None)


@transaction.atomic
def record_end(process: str, renewals: Collection[MemoryRenewal]) -> None:
    """Record that an edge process ends and renews no more leases."""
    if renewals:
        _store_renewals(renewals)
    EdgeContact.objects.filter(pk=process).delete()


def _store_renewals(renewals: Collection[MemoryRenewal]) -> None:
    locks.hosts(renewal.host for renewal in renewals)
    with connection.cursor() as cursor:
        cursor.execute(
            STORE_RENEWALS_SQL,
            [
                [renewal.host for renewal in renewals],
                [renewal.instance for renewal in renewals],
                [renewal.at for renewal in renewals],
            ],
        )
