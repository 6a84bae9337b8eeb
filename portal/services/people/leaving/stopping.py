"""Stop workloads and cancel reservations of a person, each in a transaction with its audit record."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal.models import User
from portal.services import audit
from scheduler import services as scheduling
from scheduler.models import Reservation, Workload
from scheduler.state.states import WorkloadState


def stop_workload(actor: User | None, workload: Workload, now: datetime, why: str, via: str) -> bool:
    """Cancel a waiting workload, or stop a running one. Return False if it ends anyway."""
    with transaction.atomic():
        before = audit.audited_fields(workload, "state")
        if not scheduling.cancel_workload(workload, now=now):
            return False
        workload.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="cancel_workload",
            target=workload,
            before=before,
            after=audit.audited_fields(workload, "state", "stop_requested"),
            why=why,
        )
    return True


def cancel_unless_shared(
    actor: User | None, owner: User, reservation: Reservation, now: datetime, why: str, via: str
) -> bool:
    """Cancel a reservation, unless somebody else than its owner has work in it."""
    others = Workload.objects.filter(reservation=reservation).exclude(owner=owner)
    with transaction.atomic():
        if others.exclude(state=WorkloadState.ENDED).exists():
            return False
        before = audit.audited_fields(reservation, "state")
        if not scheduling.cancel_reservation(reservation, now=now):
            return False
        reservation.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="cancel_reservation",
            target=reservation,
            before=before,
            after=audit.audited_fields(reservation, "state"),
            why=why,
        )
    return True
