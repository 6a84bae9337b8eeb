"""Collect unused reservations and long waits, for alerts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Count, Exists, Max, Min, OuterRef, Q, Subquery

from scheduler.core.reasons import ReasonCode
from scheduler.models import Allocation, BoundUnit, Reservation, Workload
from scheduler.state.states import ReservationState, WorkloadState
from telemetry.alerts.alert_values import AlertEvaluation, KindValues, SubjectValue
from telemetry.core.alerts.judgement import AlertValue
from telemetry.core.alerts.kinds import AlertKind

# Reasons for a wait that more GPUs would not shorten.
OWN_WAITS = (
    ReasonCode.DEPENDENCY,
    ReasonCode.ARRAY_LIMIT,
    ReasonCode.RESERVATION_NOT_STARTED,
    ReasonCode.RESERVATION_OVER,
    ReasonCode.RESERVATION_NOT_YOURS,
)


def waiting_values(evaluation: AlertEvaluation) -> KindValues:
    """Return the values of reservations with bound GPUs, and of the queues of all pools. Runs two queries."""
    return {
        AlertKind.RESERVED_UNUSED: _unused_reservations(evaluation),
        AlertKind.LONG_WAIT: _waits(evaluation),
    }


def _unused_reservations(evaluation: AlertEvaluation) -> dict[int, SubjectValue]:
    """Return the minutes for which no work has used each reservation.

    Two signals must agree: no work holds a GPU of the reservation, and no work waits inside it.
    """
    here = Workload.objects.filter(reservation=OuterRef("pk")).exclude(state=WorkloadState.ENDED)
    ended = Workload.objects.filter(reservation=OuterRef("pk"), ended_at__isnull=False).order_by("-ended_at")
    bound = BoundUnit.objects.filter(reservation=OuterRef("pk"), period__contains=evaluation.now)
    active = Reservation.objects.filter(
        state=ReservationState.ACTIVE, start__lte=evaluation.now, end__gt=evaluation.now
    )
    rows = active.filter(Exists(bound)).annotate(
        has_work=Exists(here),
        is_held=Exists(
            Allocation.objects.filter(reservation=OuterRef("pk"), period__contains=evaluation.now)
        ),
        bound_at=Max(
            "bound_units__period__startswith", filter=Q(bound_units__period__contains=evaluation.now)
        ),
        used_until=Subquery(ended.values("ended_at")[:1]),
    )
    values = {}
    for row in rows:
        times: list[datetime] = [row.start, *(at for at in (row.bound_at, row.used_until) if at is not None)]
        is_used = row.has_work or row.is_held
        minutes = 0.0 if is_used else max(0.0, (evaluation.now - max(times)).total_seconds() / 60)
        evidence: dict[str, Any] = {"gpus": row.units, "since": max(times).timestamp()}
        value = AlertValue(round(minutes, 1), round(minutes, 1), evidence)
        values[row.pk] = SubjectValue(row.pool_id, value, {"reservation_id": row.pk})
    return values


def _waits(evaluation: AlertEvaluation) -> dict[int, SubjectValue]:
    """Return the longest wait of each pool in minutes, of work that waits for GPUs."""
    waiting = Workload.objects.filter(state=WorkloadState.QUEUED, simulated=False, held_back=False)
    waiting = waiting.exclude(reason_code__in=OWN_WAITS).filter(
        Q(not_before=None) | Q(not_before__lte=evaluation.now)
    )
    values = {}
    rows = waiting.values_list("pool_id").annotate(Min("queued_at"), Count("pk")).order_by("pool_id")
    for pool, oldest, count in rows:
        minutes = round((evaluation.now - oldest).total_seconds() / 60, 1)
        value = AlertValue(minutes, minutes, {"since": oldest.timestamp(), "waiting": count})
        values[pool] = SubjectValue(pool, value)
    return values
