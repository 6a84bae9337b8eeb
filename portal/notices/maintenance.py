"""Find maintenance of hosts and of the database, for notices to the people whom it concerns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from portal.models import AuditEvent, User
from portal.notices.pending import PendingNotice
from scheduler.models import DatabaseMaintenance, Host, MaintenanceWindow, Reservation, Workload
from scheduler.state.states import ReservationState, WorkloadState


def database_maintenance(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice to everybody about each maintenance of the database that has begun and still lasts."""
    begun = DatabaseMaintenance.objects.filter(
        starts_at__gt=since, starts_at__lte=now, ends_at__gt=now, ended_at=None
    )
    for row in begun:
        people = User.objects.filter(is_active=True, service_team=None).values_list("pk", flat=True)
        numbers = {"until": int(row.ends_at.timestamp()), "why": row.reason}
        yield PendingNotice("database_maintenance", f"database:{row.pk}", tuple(people), numbers)


def maintenance_windows(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield notices about announced and cancelled maintenance windows.

    The owners of affected work and reservations receive them.
    """
    for window in MaintenanceWindow.objects.filter(created_at__gt=since, created_at__lte=now).select_related(
        "host"
    ):
        common = {"host": window.host.name, "end": window.end.timestamp(), "reason": window.reason}
        yield from _affected_by_window(
            "maintenance_announced",
            f"window:{window.pk}",
            window.host,
            window.start,
            window.end,
            common,
        )
    taken_back = AuditEvent.objects.filter(verb="cancel_maintenance", at__gt=since, at__lte=now)
    for event in taken_back.order_by("pk"):
        host = Host.objects.filter(name=event.target_name).first()
        before = event.before or {}
        if host is not None and "start" in before and "end" in before:
            start, end = datetime.fromisoformat(before["start"]), datetime.fromisoformat(before["end"])
            yield from _affected_by_window(
                "maintenance_cancelled", f"no window:{event.pk}", host, start, end, {"host": host.name}
            )


def _affected_by_window(
    kind: str, source: str, host: Host, start: datetime, end: datetime, common: dict[str, Any]
) -> Iterator[PendingNotice]:
    """Yield notices to the owners of affected work and reservations.

    Work on the host is affected if it may still run when the window starts. An active reservation is affected
    if it is bound to the host's GPUs during the window.
    """
    common = {**common, "start": start.timestamp()}
    running = Workload.objects.filter(runs__host=host, runs__ended_at=None, simulated=False).distinct()
    for workload in running.exclude(state=WorkloadState.ENDED).select_related("array"):
        if (workload.started_at or start) + timedelta(seconds=workload.max_runtime_seconds) > start:
            of = f"a{workload.array_id}" if workload.array else workload.pk
            numbers = {
                **common,
                "name": workload.array.name if workload.array else workload.name,
                "moves": True,
            }
            yield PendingNotice(kind, f"{source}:{of}", (workload.owner_id,), numbers, workload=workload.pk)
    bound = Reservation.objects.filter(
        state=ReservationState.ACTIVE, end__gt=start, start__lt=end, bound_units__unit__gpu__host=host
    ).distinct()
    if kind == "maintenance_announced":
        # The owners of reservations at risk get a different notice.
        bound = bound.filter(at_risk_since=None)
    for reservation in bound:
        numbers = {**common, "name": reservation.name, "moves": False}
        owner = (reservation.owner_id,)
        yield PendingNotice(kind, f"{source}:r{reservation.pk}", owner, numbers, reservation=reservation.pk)
