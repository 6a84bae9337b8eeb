"""Promises on the timeline: made, moved and given up under their pool's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser as Person
from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from scheduler import commands, locks, nudge, snapshot
from scheduler.core import model, timeline
from scheduler.core.model import WHOLE, WindowAnswer
from scheduler.core.planner import plan
from scheduler.core.reasons import Code
from scheduler.models import BoundUnit, Pool, Project, Reservation, Workload
from scheduler.services.workloads import end_queued
from scheduler.snapshot import PROMISED
from scheduler.states import ReservationState, WorkloadState, change_state


def check_window(
    *,
    project: Project,
    pool: Pool,
    start: datetime,
    end: datetime,
    now: datetime,
    name: str = "",
    may_exceed_guarantee: bool = False,
    exclude: Reservation | None = None,
    **ask: Any,
) -> WindowAnswer:
    """Would a reservation of this ask fit its window at present? Holds nothing; ``exclude`` is one that is being moved.

    ``ask`` are the columns of ``scheduler.models.AskFields``; ``name`` is accepted so that one set of columns serves all verbs.
    """
    return timeline.window_answer(
        snapshot.take([pool.pk], now),
        _ask(**ask),
        project.team_id,
        pool.pk,
        project.pk,
        snapshot.seconds(start),
        snapshot.seconds(end),
        snapshot.seconds(now),
        exclude_reservation=exclude.pk if exclude else None,
        may_exceed_guarantee=may_exceed_guarantee,
        horizon=pool.reservation_horizon_seconds,
    )


@transaction.atomic
def confirm_reservation(
    *,
    owner: Person,
    project: Project,
    pool: Pool,
    name: str,
    start: datetime,
    end: datetime,
    now: datetime,
    may_exceed_guarantee: bool = False,
    **ask: Any,
) -> tuple[Reservation | None, WindowAnswer]:
    """Promise it, when it fits what is promised already: judged again here, under the pool's lock.

    The reservation and its answer; None and the reason with the first windows that fit when it does not.
    """
    locks.pools([pool.pk])
    answer = check_window(
        project=project, pool=pool, start=start, end=end, now=now, may_exceed_guarantee=may_exceed_guarantee, **ask
    )
    if not answer.fits:
        return None, answer
    reservation = Reservation.objects.create(
        pool=pool, project=project, owner_id=owner.pk, name=name, start=start, end=end,
        may_exceed_guarantee=may_exceed_guarantee, created_at=now, **_columns(**ask),
    )  # fmt: skip
    _tell(reservation)
    return reservation, answer


@transaction.atomic
def change_reservation(
    reservation: Reservation, *, start: datetime | None = None, end: datetime | None = None, now: datetime
) -> WindowAnswer:
    """Move, shorten or extend it when the timeline allows. Once it is active only its end can change.

    When the answer does not fit, nothing was changed; a reservation that is over answers RESERVATION_OVER.
    """
    locks.pools([reservation.pool_id])
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    if fresh.state not in PROMISED:
        return WindowAnswer(False, Code.RESERVATION_OVER, (("state", fresh.state),))
    first = start if start is not None and fresh.state == ReservationState.CONFIRMED else fresh.start
    last = end or fresh.end
    answer = check_window(
        project=fresh.project, pool=fresh.pool, start=max(first, now), end=last, now=now, exclude=fresh,
        may_exceed_guarantee=fresh.may_exceed_guarantee, **{field: getattr(fresh, field) for field in snapshot.ASK_COLUMNS},
    )  # fmt: skip
    if answer.fits:
        _set_window(fresh, first, last)
        reservation.start, reservation.end = first, last
    return answer


@transaction.atomic
def shorten_reservation(reservation: Reservation, *, end: datetime, now: datetime) -> bool:
    """Let it end earlier, but not in the past. False when it is over or ``end`` is not between now and its end."""
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    if fresh.state not in PROMISED or not max(now, fresh.start) < end <= fresh.end:
        return False
    _set_window(fresh, fresh.start, end)
    reservation.end = end
    return True


@transaction.atomic
def cancel_reservation(reservation: Reservation, *, now: datetime) -> bool:
    """Give it up. What runs inside it is told to go, what waits for it ends. False when it is over already."""
    locks.pools([reservation.pool_id])
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    if fresh.state not in PROMISED:
        return False
    close_reservation(fresh, ReservationState.CANCELLED, now)
    reservation.state, reservation.ended_at = fresh.state, fresh.ended_at
    return True


def close_reservation(reservation: Reservation, state: ReservationState, now: datetime) -> bool:
    """It is over, released or cancelled: its units are anybody's again, and its work ends. Inside a transaction."""
    if not change_state(reservation, "state", old=ReservationState(reservation.state), new=state, ended_at=now):
        return False
    _unbind(reservation, now)
    inside = Workload.objects.filter(reservation=reservation).exclude(state=WorkloadState.ENDED)
    for workload in locks.workloads(inside.values_list("pk", flat=True)).values():
        if workload.state == WorkloadState.QUEUED:
            end_queued(workload, code=Code.RESERVATION_OVER, now=now)
        else:
            commands.stop(workload, code=Code.RESERVATION_OVER, grace_seconds=reservation.pool.grace_seconds, now=now)
    _tell(reservation)
    return True


@transaction.atomic
def move_reservation(reservation: Reservation, *, now: datetime) -> bool:
    """Let go of its units, some of which can't be used, so that the next cycle binds others. False while work runs inside."""
    locks.pools([reservation.pool_id])
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    if fresh.state != ReservationState.ACTIVE or fresh.allocations.filter(period__upper_inf=True).exists():
        return False
    _unbind(fresh, now)
    _tell(fresh)
    return True


def _unbind(reservation: Reservation, now: datetime) -> None:
    for bound in BoundUnit.objects.filter(reservation=reservation, period__endswith__gt=now):
        if bound.period.lower >= now:
            bound.delete()
        else:
            BoundUnit.objects.filter(pk=bound.pk).update(period=DateTimeTZRange(bound.period.lower, now))


def evicted_by_reservation(
    *, project: Project, pool: Pool, start: datetime, end: datetime, now: datetime, name: str = "",
    may_exceed_guarantee: bool = False, **ask: Any,
) -> list[Workload]:  # fmt: skip
    """Which work would be told to go if this reservation began now: for the one who approves it. The same ``plan()`` says so."""
    taken = snapshot.take([pool.pk], now)
    at = snapshot.seconds(now)
    hypothetical = model.Reservation(
        id=1 + max((r.id for r in taken.reservations), default=0), team=project.team_id, project=project.pk, pool=pool.pk,
        ask=_ask(**ask), start=at, end=at + snapshot.seconds(end) - snapshot.seconds(start),
        may_exceed_guarantee=may_exceed_guarantee,
    )  # fmt: skip
    answer = plan(snapshot.with_reservation(taken, hypothetical), at)
    victims = [e.workload for e in answer.evictions if e.for_reservation == hypothetical.id]
    return list(Workload.objects.filter(pk__in=victims).select_related("project__team", "owner").order_by("pk"))


def _columns(
    *, units: int, hosts: int = 1, models_wanted: Sequence[str] = (), profile: str = WHOLE, min_memory_mib: int = 0,
    min_compute_capability: int = 0, nvlink: bool = False, labels_required: Mapping[str, str] | None = None,
    cpu_milli: int = 0, memory_mib: int = 0,
) -> dict[str, object]:  # fmt: skip
    return {
        "units": units, "hosts": hosts, "models_wanted": list(models_wanted), "profile": profile,
        "min_memory_mib": min_memory_mib, "min_compute_capability": min_compute_capability, "nvlink": nvlink,
        "labels_required": dict(labels_required or {}), "cpu_milli": cpu_milli, "memory_mib": memory_mib,
    }  # fmt: skip


def _ask(**ask: Any) -> model.Ask:
    return snapshot.ask_of(Reservation(**_columns(**ask)))  # type: ignore[arg-type]


def _set_window(reservation: Reservation, start: datetime, end: datetime) -> None:
    still_bound = BoundUnit.objects.filter(reservation=reservation, period__endswith=reservation.end)
    Reservation.objects.filter(pk=reservation.pk).update(start=start, end=end)
    for bound in list(still_bound):  # what it has let go of before stays as it was
        BoundUnit.objects.filter(pk=bound.pk).update(period=DateTimeTZRange(bound.period.lower, end))
    reservation.start, reservation.end = start, end
    _tell(reservation)


def _tell(reservation: Reservation) -> None:
    nudge.engine()
    nudge.pages(nudge.CALENDAR, f"reservation:{reservation.public_id}")
