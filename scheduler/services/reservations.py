"""Confirm, change and close reservations under the lock of their pool."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser as Person
from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from scheduler.coordination import locks
from scheduler.coordination.bound_units import release_units
from scheduler.core.promises.reservation_windows import (
    WindowCheckResult,
)
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import snapshot
from scheduler.models import BoundUnit, Pool, Project, Reservation, Series, Workload
from scheduler.requests import HardwareRequest
from scheduler.runs import commands
from scheduler.services.recurrence import Recurrence
from scheduler.services.removed_rows import reject_if_removed
from scheduler.services.reservation_checks import (
    changed_window,
    check_change,
    check_window_in_snapshot,
    check_windows,
)
from scheduler.services.workloads import end_queued_workload
from scheduler.state import nudge
from scheduler.state.states import OPEN_RESERVATION_STATES, ReservationState, WorkloadState, change_state


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
    **hardware: Any,
) -> tuple[Reservation | None, WindowCheckResult]:
    """Confirm a reservation if it fits. The check runs under the lock of the pool.

    Return the reservation and the result of the check. If the reservation does not fit, return None and the
    result, which has the reason and the first windows that fit (no windows if a closed budget is the reason).
    Raises OperationRejected ``pool_or_team_is_removed``.
    """
    locks.pools([pool.pk])
    request = HardwareRequest(**hardware)
    reject_if_removed(pool, project)
    taken = snapshot.take_snapshot([pool.pk], now)
    answer = check_window_in_snapshot(
        taken, project, pool, start, end, now, may_exceed_guarantee, None, owner.pk, request
    )
    if not answer.fits:
        return None, answer
    reservation = Reservation.objects.create(
        pool=pool,
        project=project,
        owner_id=owner.pk,
        name=name,
        start=start,
        end=end,
        may_exceed_guarantee=may_exceed_guarantee,
        created_at=now,
        **request.hardware_columns(),
    )
    _notify(reservation)
    return reservation, answer


@transaction.atomic
def confirm_series(
    *,
    owner: Person,
    project: Project,
    pool: Pool,
    name: str,
    recurrence: Recurrence,
    windows: Sequence[tuple[datetime, datetime]],
    now: datetime,
    may_exceed_guarantee: bool = False,
    **hardware: Any,
) -> tuple[Series | None, list[WindowCheckResult]]:
    """Confirm a reservation for every window, or for none. The check runs under the lock of the pool.

    ``windows`` are the occurrences of ``recurrence`` and do not overlap. Return the series, or None if a
    window does not fit, and one result per window in the same order. The first rejection has the first
    windows that fit. Raises OperationRejected ``pool_or_team_is_removed``.
    """
    locks.pools([pool.pk])
    reject_if_removed(pool, project)
    answers = check_windows(
        project=project,
        pool=pool,
        windows=windows,
        now=now,
        may_exceed_guarantee=may_exceed_guarantee,
        owner=owner,
        **hardware,
    )
    if not all(answer.fits for answer in answers):
        return None, answers
    series = Series.objects.create(
        pool=pool,
        project=project,
        owner_id=owner.pk,
        name=name,
        weekdays=sorted(recurrence.weekdays),
        starts_at=recurrence.starts_at,
        ends_at=recurrence.ends_at,
        time_zone=recurrence.time_zone,
        first_day=recurrence.first_day,
        last_day=recurrence.last_day,
        created_at=now,
    )
    Reservation.objects.bulk_create(
        Reservation(
            pool=pool,
            project=project,
            owner_id=owner.pk,
            name=name,
            series=series,
            start=start,
            end=end,
            may_exceed_guarantee=may_exceed_guarantee,
            created_at=now,
            **HardwareRequest(**hardware).hardware_columns(),
        )
        for start, end in windows
    )
    nudge.engine()
    nudge.pages(nudge.CALENDAR)
    return series, answers


@transaction.atomic
def cancel_series(series: Series, *, now: datetime) -> int:
    """Cancel every open occurrence of a series and stop the work in it. Return the number of occurrences."""
    locks.pools([series.pool_id])
    open_ = series.occurrences.filter(state__in=OPEN_RESERVATION_STATES).values_list("pk", flat=True)
    rows = locks.reservations(open_)
    return sum(
        close_reservation(row, ReservationState.CANCELLED, now)
        for row in rows.values()
        if row.state in OPEN_RESERVATION_STATES
    )


def lock_reservation(reservation: Reservation) -> Reservation:
    """Lock a reservation and its pool, and return the locked row. The caller has opened a transaction."""
    locks.pools([reservation.pool_id])
    return locks.reservations([reservation.pk])[reservation.pk]


@transaction.atomic
def change_reservation(
    reservation: Reservation, *, start: datetime | None = None, end: datetime | None = None, now: datetime
) -> WindowCheckResult:
    """Move, shorten or extend a reservation if the new window fits.

    An active reservation keeps its units, and only its end can change. If the new window does not fit,
    nothing is changed. The result for a closed reservation has the code RESERVATION_OVER.
    """
    locks.pools([reservation.pool_id])
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    answer = check_change(fresh, start=start, end=end, now=now)
    if answer.fits:
        _set_window(fresh, *changed_window(fresh, start, end))
        reservation.start, reservation.end = fresh.start, fresh.end
    return answer


@transaction.atomic
def shorten_reservation(reservation: Reservation, *, end: datetime, now: datetime) -> bool:
    """Set an earlier end of a reservation.

    ``end`` must be later than ``now`` and than the start, and not later than the present end. Return False if
    it is not, or if the reservation is closed.
    """
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    if fresh.state not in OPEN_RESERVATION_STATES or not max(now, fresh.start) < end <= fresh.end:
        return False
    _set_window(fresh, fresh.start, end)
    reservation.end = end
    return True


@transaction.atomic
def cancel_reservation(reservation: Reservation, *, now: datetime) -> bool:
    """Cancel a reservation. Its running work is stopped, and its waiting work ends.

    Return False if the reservation is already closed.
    """
    locks.pools([reservation.pool_id])
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    if fresh.state not in OPEN_RESERVATION_STATES:
        return False
    close_reservation(fresh, ReservationState.CANCELLED, now)
    reservation.state, reservation.ended_at = fresh.state, fresh.ended_at
    return True


def close_reservation(reservation: Reservation, state: ReservationState, now: datetime) -> bool:
    """Close a reservation, release its units and end its work.

    ``state`` is OVER, RELEASED or CANCELLED. The caller has opened a transaction.
    """
    if not change_state(
        reservation,
        "state",
        old=ReservationState(reservation.state),
        new=state,
        ended_at=now,
        at_risk_since=None,
        at_risk_numbers={},
    ):
        return False
    release_units(reservation, now)
    inside = Workload.objects.filter(reservation=reservation).exclude(state=WorkloadState.ENDED)
    for workload in locks.workloads(inside.values_list("pk", flat=True)).values():
        if workload.state == WorkloadState.QUEUED:
            end_queued_workload(workload, code=ReasonCode.RESERVATION_OVER, now=now)
        else:
            commands.order_stop(
                workload,
                code=ReasonCode.RESERVATION_OVER,
                grace_seconds=reservation.pool.grace_seconds,
                now=now,
            )
    _notify(reservation)
    return True


@transaction.atomic
def rebind_reservation(reservation: Reservation, *, now: datetime) -> bool:
    """Release all units of a reservation with an unusable unit. The next cycle binds other units.

    Return False if work runs in the reservation or the reservation is not active.
    """
    locks.pools([reservation.pool_id])
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    if fresh.state != ReservationState.ACTIVE or fresh.allocations.filter(period__upper_inf=True).exists():
        return False
    release_units(fresh, now)
    _notify(fresh)
    return True


def _set_window(reservation: Reservation, start: datetime, end: datetime) -> None:
    still_bound = BoundUnit.objects.filter(reservation=reservation, period__endswith=reservation.end)
    Reservation.objects.filter(pk=reservation.pk).update(start=start, end=end)
    for bound in list(still_bound):  # bindings that ended before the reservation's end do not change
        BoundUnit.objects.filter(pk=bound.pk).update(period=DateTimeTZRange(bound.period.lower, end))
    reservation.start, reservation.end = start, end
    _notify(reservation)


def _notify(reservation: Reservation) -> None:
    nudge.engine()
    nudge.pages(nudge.CALENDAR, f"reservation:{reservation.public_id}")
