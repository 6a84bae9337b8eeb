"""Record the reservations for which the pool has no usable units.

Owners and operators see such a reservation before it starts.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from django.db import transaction

from scheduler.coordination import locks
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.promises.unserved import unserved_reservations
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import core_values, snapshot
from scheduler.cycle.refusal_rows import json_numbers
from scheduler.models import Host, Pool, Reservation
from scheduler.state import nudge
from scheduler.state.states import OPEN_RESERVATION_STATES, AdminState, LeaseState, RepairState

# A host that has been silent for less time counts as present, because most hosts report again soon.
SILENCE_THAT_COUNTS = timedelta(minutes=15)


def record_unserved_reservations(pool: Pool, *, now: datetime) -> int:
    """Record the open reservations of a pool that cannot be served at present. Return their number.

    This function runs after an operator closes or opens a host. A sweep calls it for all other causes. Call
    it outside a transaction, so that all queries of its snapshot see the same data.
    """
    open_rows = Reservation.objects.filter(pool=pool, state__in=OPEN_RESERVATION_STATES)
    if not open_rows.exists():
        return 0
    taken = _with_absent_hosts(snapshot.take_snapshot([pool.pk], now), pool, now)
    found = {
        row.reservation: json_numbers(row.numbers)
        for row in unserved_reservations(taken, pool.pk, core_values.epoch_seconds(now))
    }
    changed = [row.pk for row in open_rows if row.at_risk_numbers != found.get(row.pk, {})]
    with transaction.atomic():
        for row in locks.reservations(changed).values():
            numbers = found.get(row.pk, {}) if row.state in OPEN_RESERVATION_STATES else {}
            since = row.at_risk_since or now if numbers else None
            Reservation.objects.filter(pk=row.pk).update(at_risk_since=since, at_risk_numbers=numbers)
            nudge.pages(nudge.CALENDAR, f"reservation:{row.public_id}")
    return len(found)


def _with_absent_hosts(taken: Snapshot, pool: Pool, now: datetime) -> Snapshot:
    """Return the snapshot as if hosts with a short silence or a full disk accepted work."""
    present = Host.objects.filter(
        pool=pool,
        admin_state=AdminState.IN_SERVICE,
        repair_state=RepairState.WELL,
        lease_state__in=(LeaseState.ALIVE, LeaseState.SUSPECT, LeaseState.SILENT),
        last_sync_at__gt=now - SILENCE_THAT_COUNTS,
    )
    ids = set(present.values_list("pk", flat=True))
    temporary = {str(ReasonCode.HOST_CLOSED), str(ReasonCode.HOST_FULL)}
    return replace(
        taken,
        hosts=tuple(
            replace(host, schedulable=True, closed_code="")
            if host.id in ids and host.closed_code in temporary
            else host
            for host in taken.hosts
        ),
    )
