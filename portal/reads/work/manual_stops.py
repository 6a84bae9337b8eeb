"""Read from the audit record who stopped a workload."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from portal.models import AuditEvent
from scheduler.core.reasons import ReasonCode
from scheduler.models import Workload


@dataclass(frozen=True)
class ManualStop:
    """A stop by a person: user id, name, and the reason, which may be empty."""

    user_id: int | None
    name: str
    why: str


def is_manual_stop(workload: Workload) -> bool:
    """Return True if a person, not the engine, stopped the workload or is stopping it."""
    return ReasonCode.CANCELLED in (workload.outcome, workload.stop_requested)


def manual_stops_of(workloads: Iterable[Workload]) -> dict[int, ManualStop]:
    """Return the manual stops by workload id. Takes one query, or none without manual stops."""
    by_target = {
        f"workload:{workload.public_id}": workload.pk for workload in workloads if is_manual_stop(workload)
    }
    if not by_target:
        return {}
    events = AuditEvent.objects.filter(verb="cancel_workload", target__in=by_target).order_by("at", "pk")
    return {
        by_target[event.target]: ManualStop(event.actor_id, event.actor_name, event.why) for event in events
    }
