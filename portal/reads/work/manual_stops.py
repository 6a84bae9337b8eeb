"""Who stopped work by hand, from the audit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from portal.models import AuditEvent
from scheduler.core.reasons import ReasonCode
from scheduler.models import Workload


@dataclass(frozen=True)
class ManualStop:
    """A person's word: who, by user id and by name, and why, which may be empty."""

    user_id: int | None
    name: str
    why: str


def is_manual_stop(workload: Workload) -> bool:
    """Whether somebody stopped it, or is stopping it, rather than the engine."""
    return ReasonCode.CANCELLED in (workload.outcome, workload.stop_requested)


def manual_stops_of(workloads: Iterable[Workload]) -> dict[int, ManualStop]:
    """By workload, those that were stopped by hand. No query where none was, else one."""
    by_target = {
        f"workload:{workload.public_id}": workload.pk for workload in workloads if is_manual_stop(workload)
    }
    if not by_target:
        return {}
    events = AuditEvent.objects.filter(verb="cancel_workload", target__in=by_target).order_by("at", "pk")
    return {
        by_target[event.target]: ManualStop(event.actor_id, event.actor_name, event.why) for event in events
    }
