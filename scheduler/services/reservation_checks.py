"""Check whether a new or changed reservation fits. This module changes no row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser as Person

from scheduler.core.model import snapshot as model
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
from scheduler.cycle import core_values, gate_effects, request_snapshot_cache, snapshot
from scheduler.models import BudgetGate, Pool, Project, Reservation, Workload
from scheduler.requests import HardwareRequest
from scheduler.state.states import OPEN_RESERVATION_STATES, ReservationState

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
    **hardware: Any,
) -> WindowCheckResult:
    """Check whether a reservation would fit its window now. Nothing is reserved.

    ``exclude``: the reservation that would be moved to this window. ``owner``: the user whose limit of GPUs
    applies. ``hardware``: the fields of ``HardwareRequest``. ``name`` is ignored, so that callers can pass
    the same arguments to every operation. A closed budget gate that rejects new work also rejects the window.
    """
    taken = request_snapshot_cache.take_cached_snapshot([pool.pk], now)
    owner_id = None if owner is None else owner.pk
    return check_window_in_snapshot(
        taken,
        project,
        pool,
        start,
        end,
        now,
        may_exceed_guarantee,
        exclude,
        owner_id,
        HardwareRequest(**hardware),
    )


def first_windows(
    *,
    project: Project,
    pool: Pool,
    length: timedelta,
    now: datetime,
    owner: Person,
    may_exceed_guarantee: bool = False,
    **hardware: Any,
) -> list[Window]:
    """Return the first windows of the given length that fit.

    If ``check_window`` rejects a window, its result has the same windows. It has none if a closed budget is
    the reason.
    """
    taken, budget = request_snapshot_cache.take_cached_snapshot([pool.pk], now), _BudgetLimits(project, now)
    requester = ReservationRequester(
        project.team_id, owner.pk, may_exceed_guarantee, budget.borrows_again_from
    )
    found = free_windows(
        taken,
        core_values.ask_from_row(HardwareRequest(**hardware)),
        requester,
        pool.pk,
        int(length.total_seconds()),
        core_values.epoch_seconds(now),
        core_values.epoch_seconds(budget.earliest(length, None, now)),
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
    hardware: HardwareRequest,
) -> WindowCheckResult:
    """Check one window against a snapshot. ``exclude`` and ``owner`` are as for ``check_window``."""
    before = None if exclude is None else (max(exclude.start, now), exclude.end)
    budget = _BudgetLimits(project, now)
    if (rejection := budget.refuses((start, end), before)) is not None:
        return rejection
    return check_reservation_window(
        taken,
        core_values.ask_from_row(hardware),
        project.team_id,
        pool.pk,
        core_values.epoch_seconds(start),
        core_values.epoch_seconds(end),
        core_values.epoch_seconds(now),
        exclude_reservation=exclude.pk if exclude else None,
        may_exceed_guarantee=may_exceed_guarantee,
        horizon=pool.reservation_horizon_seconds,
        earliest=core_values.epoch_seconds(budget.earliest(end - start, before, now)),
        user=owner,
        borrows_again_from=budget.borrows_again_from,
    )


class _BudgetLimits:
    """The limits that closed budget gates of a team and its project set on reservations."""

    def __init__(self, project: Project, now: datetime) -> None:
        gates = gate_effects.closed_budget_gates(now)
        owners = (("team", project.team_id), ("project", project.pk))
        self.borrows_again_from = gate_effects.budget_effect(
            gates, project.team_id, project.pk
        ).borrows_again_from
        self.closed = [
            gate
            for owner in owners
            if (gate := gates.get(owner, {}).get(BudgetGate.GateAction.REFUSE_NEW)) is not None
        ]

    def refuses(self, window: Window, before: Window | None = None) -> WindowCheckResult | None:
        """Return the rejection of a window by a closed gate, or None if no gate rejects it.

        ``before`` is the present window if the window of a reservation changes. The change is rejected only
        if it adds reserved time before the gate opens.
        """
        for gate in self.closed:
            soonest = _earliest_start(gate, window[1] - window[0], before)
            if soonest is not None and window[0] < soonest:
                return WindowCheckResult(False, ReasonCode.BUDGET_CLOSED, tuple(sorted(gate.numbers.items())))
        return None

    def earliest(self, length: timedelta, before: Window | None, now: datetime) -> datetime:
        """Return the earliest start at which no gate rejects a window of this length.

        ``before`` is the present window, which the new window replaces, or None.
        """
        return max(
            [now, *(at for gate in self.closed if (at := _earliest_start(gate, length, before)) is not None)]
        )


def _earliest_start(gate: BudgetGate, length: timedelta, before: Window | None) -> datetime | None:
    """Return the earliest start at which ``gate`` allows a window of this length.

    The window may reserve only as much time before the opening of the gate as the present window ``before``
    does. Return None if any start is allowed. Without ``before``, the result is the time at which the gate
    opens.
    """
    taken = timedelta(0)
    if before is not None:
        taken = max(taken, min(before[1], gate.until) - before[0])
    return None if length <= taken else gate.until - taken


def check_windows(
    *,
    project: Project,
    pool: Pool,
    windows: Sequence[tuple[datetime, datetime]],
    now: datetime,
    name: str = "",
    may_exceed_guarantee: bool = False,
    owner: Person | None = None,
    **hardware: Any,
) -> list[WindowCheckResult]:
    """Check several windows that would be reserved together, against one snapshot.

    The windows must not overlap. The results have the order of the windows.
    """
    bounds = [(core_values.epoch_seconds(start), core_values.epoch_seconds(end)) for start, end in windows]
    budget, longest = (
        _BudgetLimits(project, now),
        max((end - start for start, end in windows), default=timedelta(0)),
    )
    answers = check_reservation_windows(
        snapshot.take_snapshot([pool.pk], now),
        core_values.ask_from_row(HardwareRequest(**hardware)),
        project.team_id,
        pool.pk,
        bounds,
        core_values.epoch_seconds(now),
        may_exceed_guarantee=may_exceed_guarantee,
        horizon=pool.reservation_horizon_seconds,
        earliest=core_values.epoch_seconds(budget.earliest(longest, None, now)),
        user=None if owner is None else owner.pk,
        borrows_again_from=budget.borrows_again_from,
    )
    return [budget.refuses(window) or answer for window, answer in zip(windows, answers, strict=True)]


def check_change(
    reservation: Reservation, *, start: datetime | None = None, end: datetime | None = None, now: datetime
) -> WindowCheckResult:
    """Check whether ``change_reservation`` would succeed now.

    A new window that lies within the present window always fits.
    """
    if reservation.state not in OPEN_RESERVATION_STATES:
        return WindowCheckResult(False, ReasonCode.RESERVATION_OVER, (("state", reservation.state),))
    first, last = changed_window(reservation, start, end)
    if reservation.start <= first and last <= reservation.end:
        return WindowCheckResult(True)
    pool = reservation.pool
    if reservation.bound_units.filter(period__endswith__gt=now).exists():
        budget = _BudgetLimits(reservation.project, now)
        if (rejection := budget.refuses((first, last), (reservation.start, reservation.end))) is not None:
            return rejection
        return check_extension(
            snapshot.take_snapshot([pool.pk], now),
            reservation.pk,
            core_values.epoch_seconds(last),
            core_values.epoch_seconds(now),
            horizon=pool.reservation_horizon_seconds,
            borrows_again_from=budget.borrows_again_from,
        )
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
        HardwareRequest.from_row(reservation),
    )


def changed_window(
    reservation: Reservation, start: datetime | None, end: datetime | None
) -> tuple[datetime, datetime]:
    """Return the new start and end of a reservation. The start of an active reservation does not change.

    None means that the start or end stays.
    """
    moves = start is not None and reservation.state == ReservationState.CONFIRMED
    return (start if moves and start is not None else reservation.start), end or reservation.end


def evicted_by_reservation(
    *,
    project: Project,
    pool: Pool,
    start: datetime,
    end: datetime,
    now: datetime,
    name: str = "",
    may_exceed_guarantee: bool = False,
    **hardware: Any,
) -> list[Workload]:
    """Return the workloads that would be evicted if this reservation started now.

    The approver of the reservation sees them. The planner computes them with a hypothetical reservation.
    """
    taken = request_snapshot_cache.take_cached_snapshot([pool.pk], now)
    at = core_values.epoch_seconds(now)
    hypothetical = model.ReservationInfo(
        id=1 + max((r.id for r in taken.reservations), default=0),
        team=project.team_id,
        project=project.pk,
        pool=pool.pk,
        ask=core_values.ask_from_row(HardwareRequest(**hardware)),
        start=at,
        end=at + core_values.epoch_seconds(end) - core_values.epoch_seconds(start),
        may_exceed_guarantee=may_exceed_guarantee,
    )
    answer = plan(snapshot.with_reservation(taken, hypothetical), at)
    victims = [e.workload for e in answer.evictions if e.for_reservation == hypothetical.id]
    return list(
        Workload.objects.filter(pk__in=victims).select_related("project__team", "owner").order_by("pk")
    )
