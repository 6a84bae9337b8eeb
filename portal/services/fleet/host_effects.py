"""Preview an operator's verb on a host, such as cordon or drain. The preview changes nothing.

It lists the affected workloads with their end times, and the affected reservations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.reads.fleet import host_details as reads
from portal.services.fleet.hosts import (
    checked_maintenance_window,
    host_change_refusal,
)
from portal.wording import host_texts
from scheduler import services as scheduling
from scheduler.coordination import leases
from scheduler.core.what_if.drain import DrainedWorkload
from scheduler.models import Host, Reservation, Workload
from scheduler.reads import explanations
from scheduler.state.states import ReservationState

# These verbs exclude the host from planning, so reservations may lose units on it.
PLANNED_VERBS = ("cordon", "drain", "revoke")


@dataclass(frozen=True)
class AffectedWorkload:
    """A workload on the host, and how the verb affects it.

    ``happens`` is a key of ``host_texts.WORKLOAD_EFFECTS``. ``by`` is the latest time at which the workload
    leaves the host; None means at once.
    """

    workload: Workload
    happens: str
    by: datetime | None
    begins_anew: bool = False

    @property
    def words(self) -> str:
        return host_texts.workload_effect_text(self.happens, self.begins_anew)


@dataclass(frozen=True)
class HostEffect:
    """The effect of a verb on a host.

    - ``gpus``: the number of GPUs that leave the pool, or that come back if the verb is "return". None if no
      GPU leaves or comes back.
    - ``reservations``: active reservations that are bound to GPUs of the host.
    - ``moved``: active and future reservations whose planned GPUs would change.
    - ``unkept``: reservations that could no longer be served.
    - ``last_end``: the latest time at which a present workload ends. None if no workload runs, or if the verb
      ends all workloads.

    ``moved`` and ``unkept`` are None if the verb affects no reservation.
    """

    verb: str
    host: Host
    gpus: int | None
    work: list[AffectedWorkload]
    reservations: list[Reservation] = field(default_factory=list)
    unkept: list[Reservation] | None = None
    moved: list[Reservation] | None = None

    @property
    def last_end(self) -> datetime | None:
        if self.verb in ("revoke", "off", "maintenance"):
            return None
        return max((row.by for row in self.work if row.by), default=None)

    @property
    def text(self) -> str:
        """Return a sentence about the effect of the verb."""
        return host_texts.HOST_VERBS[self.verb].text


def preview_host_verb(
    *,
    actor: User,
    host: Host,
    verb: Any,
    now: datetime,
    start: datetime | None = None,
    end: datetime | None = None,
) -> HostEffect:
    """Return the effect of a verb on a host. ``start`` and ``end`` are the window of the verb "maintenance".

    Raises Invalid, NotAllowed and OperationRejected in the same cases as the verb itself.
    """
    policy.require(actor, "host.change")
    checks = InputChecks()
    name = checks.choice("verb", verb, list(host_texts.HOST_VERBS))
    checks.done()
    if name == "maintenance":
        first, last = checked_maintenance_window(start, end, now)
        scheduling.check_maintenance(host, start=first, end=last)
        return host_verb_effect(host, name, now, first, last)
    if refusal := host_change_refusal(host, name, now):
        raise refusal
    return host_verb_effect(host, name, now)


def host_verb_effect(
    host: Host, verb: str, now: datetime, start: datetime | None = None, end: datetime | None = None
) -> HostEffect:
    """Return the effect of a verb on a host, even if the verb would be refused.

    ``verb`` is a key of ``host_texts.HOST_VERBS``. The caller has loaded ``host.pool``.
    """
    gpus = None if verb == "off" else host.gpus.filter(retired_at=None).count()
    if verb == "maintenance" and start is not None and end is not None:
        effect = explanations.maintenance_effect(host, start, end, now)
        return HostEffect(
            verb,
            host,
            gpus,
            _effect_of_maintenance(host, start, now),
            _bound_reservations(host, start, end),
            _reservations(effect.broken),
            _reservations(effect.moved),
        )
    if verb in PLANNED_VERBS:
        found = explanations.drain_effect(host, now)
        moved = {each.workload: each for each in found.workloads}
        return HostEffect(
            verb,
            host,
            gpus,
            affected_workloads(host, verb, now, moved),
            sorted(_reservations(found.reservations), key=lambda row: (row.end, row.pk)),
            _reservations(found.broken_reservations),
            _reservations(found.moved_reservations),
        )
    return HostEffect(verb, host, gpus, affected_workloads(host, verb, now))


def affected_workloads(
    host: Host, verb: str, now: datetime, moved: Mapping[int, DrainedWorkload] | None = None
) -> list[AffectedWorkload]:
    """Return the workloads on the host and how the verb affects each of them, the earliest end first.

    For a drain, ``moved`` contains the planner's result for each workload, by workload id.
    """
    rows = reads.remaining_workloads(host, now)
    if verb == "drain":
        return _soonest_first([_effect_of_drain(host, row, now, moved or {}) for row in rows])
    if verb == "revoke":
        ends = (host.last_sync_at or now) + timedelta(seconds=leases.silence_limits_seconds([host])[host.pk])
        return _soonest_first([AffectedWorkload(row.workload, "lease", ends) for row in rows])
    if verb == "off":
        return _soonest_first([AffectedWorkload(row.workload, "lost", None) for row in rows])
    return _soonest_first(
        [AffectedWorkload(row.workload, "leaves" if row.leaves else "runs_on", row.by) for row in rows]
    )


def _soonest_first(rows: list[AffectedWorkload]) -> list[AffectedWorkload]:
    return sorted(rows, key=lambda row: (row.by.timestamp() if row.by else 0.0, row.workload.pk))


def _effect_of_drain(
    host: Host, row: reads.RemainingWorkload, now: datetime, moved: Mapping[int, DrainedWorkload]
) -> AffectedWorkload:
    if not row.workload.preemptible and not row.leaves:
        return AffectedWorkload(row.workload, "runs_to_end", row.by)
    plan = moved.get(row.workload.pk)
    notice = now + timedelta(seconds=host.pool.notice_seconds + host.pool.grace_seconds)
    happens = "leaves" if plan is None else "moves" if plan.placement else "moves_and_waits"
    return AffectedWorkload(
        row.workload,
        happens,
        row.by if row.leaves else min(row.by, notice),
        plan is not None and plan.loses_checkpoint,
    )


def _effect_of_maintenance(host: Host, start: datetime, now: datetime) -> list[AffectedWorkload]:
    """Return how a maintenance window affects each workload on the host.

    A workload that could still run when the window starts gets its notice early enough to stop before.
    """
    return _soonest_first(
        [
            AffectedWorkload(
                row.workload, "before" if row.by <= start else "moved_before", min(row.by, max(start, now))
            )
            for row in reads.remaining_workloads(host, now)
        ]
    )


def _reservations(ids: Iterable[int]) -> list[Reservation]:
    rows = Reservation.objects.filter(pk__in=ids).select_related("project__team", "owner")
    return list(rows.order_by("start", "pk"))


def _bound_reservations(host: Host, start: datetime, end: datetime) -> list[Reservation]:
    found = Reservation.objects.filter(
        state=ReservationState.ACTIVE, start__lt=end, end__gt=start, bound_units__unit__gpu__host=host
    )
    return list(found.select_related("project__team", "owner").distinct().order_by("end", "pk"))
