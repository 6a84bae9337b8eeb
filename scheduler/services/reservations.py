"""Promises on the timeline: made, moved and given up under their pool's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser as Person
from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from scheduler.coordination import locks
from scheduler.core.model import snapshot as model
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.core.planner import plan
from scheduler.core.promises.extensions import check_extension
from scheduler.core.promises.promise_timeline import ReservationRequester
from scheduler.core.promises.reservation_windows import (
    WindowCheckResult,
    check_reservation_window,
    check_reservation_windows,
    free_windows,
)
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import request_snapshot_cache, snapshot
from scheduler.models import BoundUnit, BudgetGate, Pool, Project, Reservation, Series, Workload
from scheduler.runs import commands
from scheduler.services.recurrence import Recurrence
from scheduler.services.workloads import end_queued_workload
from scheduler.state import nudge
from scheduler.state.states import OPEN_RESERVATION_STATES, ReservationState, WorkloadState, change_state

Window = tuple[datetime, datetime]


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
    owner: Person | None = None,
    **ask: Any,
) -> WindowCheckResult:
    """Would a reservation of this ask fit its window at present? Holds nothing; ``exclude`` is one that is being moved.

    ``owner`` is whose it would be: one person may hold so much. A budget that refuses new work refuses this, too.
    ``ask`` are the columns of ``scheduler.models.HardwareColumns``; ``name`` is accepted so that one set of columns serves all verbs.
    """
    taken, who = (
        request_snapshot_cache.take_cached_snapshot([pool.pk], now),
        None if owner is None else owner.pk,
    )
    return check_window_in_snapshot(taken, project, pool, start, end, now, may_exceed_guarantee, exclude, who, ask)


def first_windows(
    *,
    project: Project,
    pool: Pool,
    length: timedelta,
    now: datetime,
    owner: Person,
    may_exceed_guarantee: bool = False,
    **ask: Any,
) -> list[Window]:
    """The windows of a length that ``check_window`` names to who asks for one that does not fit."""
    taken, budget = request_snapshot_cache.take_cached_snapshot([pool.pk], now), _BudgetLimits(project, now)
    whose = ReservationRequester(project.team_id, owner.pk, may_exceed_guarantee, budget.borrows_again_from)
    found = free_windows(
        taken,
        _ask(**ask),
        whose,
        pool.pk,
        int(length.total_seconds()),
        snapshot.epoch_seconds(now),
        snapshot.epoch_seconds(budget.earliest(length, None, now)),
        pool.reservation_horizon_seconds,
    )
    return [(datetime.fromtimestamp(w.start, UTC), datetime.fromtimestamp(w.end, UTC)) for w in found]


def check_window_in_snapshot(
    taken: model.Snapshot,
    project: Project,
    pool: Pool,
    start: datetime,
    end: datetime,
    now: datetime,
    may_exceed_guarantee: bool,
    exclude: Reservation | None,
    owner: int | None,
    ask: Mapping[str, Any],
) -> WindowCheckResult:
    before = None if exclude is None else (max(exclude.start, now), exclude.end)
    budget = _BudgetLimits(project, now)
    if (no := budget.refuses((start, end), before)) is not None:
        return no
    return check_reservation_window(
        taken,
        _ask(**ask),
        project.team_id,
        pool.pk,
        snapshot.epoch_seconds(start),
        snapshot.epoch_seconds(end),
        snapshot.epoch_seconds(now),
        exclude_reservation=exclude.pk if exclude else None,
        may_exceed_guarantee=may_exceed_guarantee,
        horizon=pool.reservation_horizon_seconds,
        earliest=snapshot.epoch_seconds(budget.earliest(end - start, before, now)),
        user=owner,
        borrows_again_from=budget.borrows_again_from,
    )


class _BudgetLimits:
    """What the closed gates of a team and its project mean for its reservations."""

    def __init__(self, project: Project, now: datetime) -> None:
        gates = snapshot.closed_budget_gates(now)
        whose = (("team", project.team_id), ("project", project.pk))
        self.borrows_again_from = snapshot.budget_effect(
            gates, project.team_id, project.pk
        ).borrows_again_from
        self.closed = [
            g for w in whose if (g := gates.get(w, {}).get(BudgetGate.Action.REFUSE_NEW)) is not None
        ]

    def refuses(self, window: Window, before: Window | None = None) -> WindowCheckResult | None:
        """The answer to who would reserve more of the time until a gate opens than ``before``; None where it is no more."""
        for gate in self.closed:
            soonest = _earliest_start(gate, window[1] - window[0], before)
            if soonest is not None and window[0] < soonest:
                return WindowCheckResult(False, ReasonCode.BUDGET_CLOSED, tuple(sorted(gate.numbers.items())))
        return None

    def earliest(self, length: timedelta, before: Window | None, now: datetime) -> datetime:
        """From when on no gate refuses a window of a length instead of ``before``."""
        return max(
            [now, *(at for gate in self.closed if (at := _earliest_start(gate, length, before)) is not None)]
        )


def _earliest_start(gate: BudgetGate, length: timedelta, before: Window | None) -> datetime | None:
    """From when on a window of a length takes no more of the time until a gate opens than ``before``; None: it never does."""
    taken = timedelta(0)
    if before is not None:
        taken = max(taken, min(before[1], gate.until) - before[0])
    return None if length <= taken else gate.until - taken


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
) -> tuple[Reservation | None, WindowCheckResult]:
    """Promise it, when it fits what is promised already: judged again here, under the pool's lock.

    The reservation and its answer; None and the reason with the first windows that fit when it does not.
    """
    locks.pools([pool.pk])
    taken = snapshot.take_snapshot([pool.pk], now)
    answer = check_window_in_snapshot(taken, project, pool, start, end, now, may_exceed_guarantee, None, owner.pk, ask)
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
        **ask_columns(**ask),
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
    **ask: Any,
) -> tuple[Series | None, list[WindowCheckResult]]:
    """Promise every one of ``windows``, or none of them: judged together, under the pool's lock.

    ``windows`` are what the recurrence amounts to; they don't overlap. The answers are in their order, the first that does
    not fit with the first windows that would.
    """
    locks.pools([pool.pk])
    answers = check_windows(
        project=project,
        pool=pool,
        windows=windows,
        now=now,
        may_exceed_guarantee=may_exceed_guarantee,
        owner=owner,
        **ask,
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
            **ask_columns(**ask),
        )
        for start, end in windows
    )
    nudge.engine()
    nudge.pages(nudge.CALENDAR)
    return series, answers


def check_windows(
    *,
    project: Project,
    pool: Pool,
    windows: Sequence[tuple[datetime, datetime]],
    now: datetime,
    name: str = "",
    may_exceed_guarantee: bool = False,
    owner: Person | None = None,
    **ask: Any,
) -> list[WindowCheckResult]:
    """``check_window`` for windows that don't overlap one another and are wanted together. One reading of the pool."""
    bounds = [(snapshot.epoch_seconds(start), snapshot.epoch_seconds(end)) for start, end in windows]
    budget, longest = (
        _BudgetLimits(project, now),
        max((end - start for start, end in windows), default=timedelta(0)),
    )
    answers = check_reservation_windows(
        snapshot.take_snapshot([pool.pk], now),
        _ask(**ask),
        project.team_id,
        pool.pk,
        bounds,
        snapshot.epoch_seconds(now),
        may_exceed_guarantee=may_exceed_guarantee,
        horizon=pool.reservation_horizon_seconds,
        earliest=snapshot.epoch_seconds(budget.earliest(longest, None, now)),
        user=None if owner is None else owner.pk,
        borrows_again_from=budget.borrows_again_from,
    )
    return [budget.refuses(window) or answer for window, answer in zip(windows, answers, strict=True)]


@transaction.atomic
def cancel_series(series: Series, *, now: datetime) -> int:
    """Give up every occurrence that is not over; how many they were. What runs inside one is told to go."""
    locks.pools([series.pool_id])
    open_ = series.occurrences.filter(state__in=OPEN_RESERVATION_STATES).values_list("pk", flat=True)
    rows = locks.reservations(open_)
    return sum(
        close_reservation(row, ReservationState.CANCELLED, now)
        for row in rows.values()
        if row.state in OPEN_RESERVATION_STATES
    )


def lock_reservation(reservation: Reservation) -> Reservation:
    """The row as it is, under its own and its pool's lock until the transaction ends. Inside a transaction."""
    locks.pools([reservation.pool_id])
    return locks.reservations([reservation.pk])[reservation.pk]


@transaction.atomic
def change_reservation(
    reservation: Reservation, *, start: datetime | None = None, end: datetime | None = None, now: datetime
) -> WindowCheckResult:
    """Move, shorten or extend it when the timeline allows. Once it is active only its end can change, and it keeps its units.

    When the answer does not fit, nothing was changed; a reservation that is over answers RESERVATION_OVER.
    """
    locks.pools([reservation.pool_id])
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    answer = check_change(fresh, start=start, end=end, now=now)
    if answer.fits:
        _set_window(fresh, *changed_window(fresh, start, end))
        reservation.start, reservation.end = fresh.start, fresh.end
    return answer


def check_change(
    reservation: Reservation, *, start: datetime | None = None, end: datetime | None = None, now: datetime
) -> WindowCheckResult:
    """Would ``change_reservation`` do it at present? What lies within its window as it is always fits."""
    if reservation.state not in OPEN_RESERVATION_STATES:
        return WindowCheckResult(False, ReasonCode.RESERVATION_OVER, (("state", reservation.state),))
    first, last = changed_window(reservation, start, end)
    if reservation.start <= first and last <= reservation.end:
        return WindowCheckResult(True)
    pool = reservation.pool
    if reservation.bound_units.filter(period__endswith__gt=now).exists():
        budget = _BudgetLimits(reservation.project, now)
        if (no := budget.refuses((first, last), (reservation.start, reservation.end))) is not None:
            return no
        return check_extension(
            snapshot.take_snapshot([pool.pk], now),
            reservation.pk,
            snapshot.epoch_seconds(last),
            snapshot.epoch_seconds(now),
            horizon=pool.reservation_horizon_seconds,
            borrows_again_from=budget.borrows_again_from,
        )
    ask = {field: getattr(reservation, field) for field in snapshot.ASK_COLUMNS}
    return check_window_in_snapshot(
        snapshot.take_snapshot([pool.pk], now),
        reservation.project,
        pool,
        max(first, now),
        last,
        now,
        reservation.may_exceed_guarantee,
        reservation,
        reservation.owner_id,
        ask,
    )


def changed_window(
    reservation: Reservation, start: datetime | None, end: datetime | None
) -> tuple[datetime, datetime]:
    """What was given instead of what is; a start that has passed can't be moved."""
    moves = start is not None and reservation.state == ReservationState.CONFIRMED
    return (start if moves and start is not None else reservation.start), end or reservation.end


@transaction.atomic
def shorten_reservation(reservation: Reservation, *, end: datetime, now: datetime) -> bool:
    """Let it end earlier, but not in the past. False when it is over or ``end`` is not between now and its end."""
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    if fresh.state not in OPEN_RESERVATION_STATES or not max(now, fresh.start) < end <= fresh.end:
        return False
    _set_window(fresh, fresh.start, end)
    reservation.end = end
    return True


@transaction.atomic
def cancel_reservation(reservation: Reservation, *, now: datetime) -> bool:
    """Give it up. What runs inside it is told to go, what waits for it ends. False when it is over already."""
    locks.pools([reservation.pool_id])
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    if fresh.state not in OPEN_RESERVATION_STATES:
        return False
    close_reservation(fresh, ReservationState.CANCELLED, now)
    reservation.state, reservation.ended_at = fresh.state, fresh.ended_at
    return True


def close_reservation(reservation: Reservation, state: ReservationState, now: datetime) -> bool:
    """It is over, released or cancelled: its units are anybody's again, and its work ends. Inside a transaction."""
    if not change_state(
        reservation, "state", old=ReservationState(reservation.state), new=state, ended_at=now
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
    """Let go of its units, some of which can't be used, so that the next cycle binds others. False while work runs inside."""
    locks.pools([reservation.pool_id])
    fresh = locks.reservations([reservation.pk])[reservation.pk]
    if fresh.state != ReservationState.ACTIVE or fresh.allocations.filter(period__upper_inf=True).exists():
        return False
    release_units(fresh, now)
    _notify(fresh)
    return True


def release_units(reservation: Reservation, now: datetime) -> None:
    for bound in BoundUnit.objects.filter(reservation=reservation, period__endswith__gt=now):
        _end_binding(bound, now)


def _end_binding(bound: BoundUnit, now: datetime) -> None:
    if bound.period.lower >= now:
        bound.delete()
    else:
        BoundUnit.objects.filter(pk=bound.pk).update(period=DateTimeTZRange(bound.period.lower, now))


def release_expired_bindings(now: datetime) -> None:
    """Where the clock was ahead as reservations ended, and was set back, they would keep units until that time comes again."""
    for bound in BoundUnit.objects.filter(period__endswith__gt=now).exclude(
        reservation__state__in=OPEN_RESERVATION_STATES
    ):
        _end_binding(bound, now)


def evicted_by_reservation(
    *,
    project: Project,
    pool: Pool,
    start: datetime,
    end: datetime,
    now: datetime,
    name: str = "",
    may_exceed_guarantee: bool = False,
    **ask: Any,
) -> list[Workload]:
    """Which work would be told to go if this reservation began now: for the one who approves it. The same ``plan()`` says so."""
    taken = request_snapshot_cache.take_cached_snapshot([pool.pk], now)
    at = snapshot.epoch_seconds(now)
    hypothetical = model.ReservationInfo(
        id=1 + max((r.id for r in taken.reservations), default=0),
        team=project.team_id,
        project=project.pk,
        pool=pool.pk,
        ask=_ask(**ask),
        start=at,
        end=at + snapshot.epoch_seconds(end) - snapshot.epoch_seconds(start),
        may_exceed_guarantee=may_exceed_guarantee,
    )
    answer = plan(snapshot.with_reservation(taken, hypothetical), at)
    victims = [e.workload for e in answer.evictions if e.for_reservation == hypothetical.id]
    return list(
        Workload.objects.filter(pk__in=victims).select_related("project__team", "owner").order_by("pk")
    )


def ask_columns(
    *,
    units: int,
    hosts: int = 1,
    models_wanted: Sequence[str] = (),
    profile: str = WHOLE_GPU_PROFILE,
    min_memory_mib: int = 0,
    min_compute_capability: int = 0,
    nvlink: bool = False,
    labels_required: Mapping[str, str] | None = None,
    cpu_milli: int = 0,
    memory_mib: int = 0,
    labels_preferred: Mapping[str, str] | None = None,
    spread: bool = False,
) -> dict[str, object]:
    return {
        "units": units,
        "hosts": hosts,
        "models_wanted": list(models_wanted),
        "profile": profile,
        "min_memory_mib": min_memory_mib,
        "min_compute_capability": min_compute_capability,
        "nvlink": nvlink,
        "labels_required": dict(labels_required or {}),
        "cpu_milli": cpu_milli,
        "memory_mib": memory_mib,
        "labels_preferred": dict(labels_preferred or {}),
        "spread": spread,
    }


def _ask(**ask: Any) -> model.Ask:
    return snapshot.ask_from_row(Reservation(**ask_columns(**ask)))  # type: ignore[arg-type]


def _set_window(reservation: Reservation, start: datetime, end: datetime) -> None:
    still_bound = BoundUnit.objects.filter(reservation=reservation, period__endswith=reservation.end)
    Reservation.objects.filter(pk=reservation.pk).update(start=start, end=end)
    for bound in list(still_bound):  # what it has let go of before stays as it was
        BoundUnit.objects.filter(pk=bound.pk).update(period=DateTimeTZRange(bound.period.lower, end))
    reservation.start, reservation.end = start, end
    _notify(reservation)


def _notify(reservation: Reservation) -> None:
    nudge.engine()
    nudge.pages(nudge.CALENDAR, f"reservation:{reservation.public_id}")
