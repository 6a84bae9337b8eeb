"""Check whether a requested reservation fits at a given time, and find the first times at which it would fit.

A window is the time ``[start, end)`` of a reservation. An ask is the hardware that it requests. A window fits
if enough units have no other promise during it (see ``PromiseTimeline``). It must also leave the guarantees
of other teams (the slots that they can always have) and respect the team's borrow limit and the user's cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.core.fit.cheapest_units import cheapest_units
from scheduler.core.fit.feasibility import infeasible_reason
from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import Ask, PoolKind, ReservationInfo, Snapshot
from scheduler.core.promises.promise_timeline import (
    PromiseTimeline,
    ReservationRequester,
    full_disks_cleared_at,
    has_full_disks,
    quota_violation,
)
from scheduler.core.reasons import Reason, ReasonCode, ReasonNumbers, reason_numbers

WINDOW_GRID_SECONDS = 60  # the windows that are found start on whole minutes
SEARCH_HORIZON_SECONDS = 14 * 86_400
MAX_WINDOWS_SHOWN = 3
# A window that is shown to a user can be requested for this long, if nothing else changes.
WINDOW_VALID_SECONDS = 300


def user_cap_violation(
    promises: PromiseTimeline, requester: ReservationRequester, need: int, start: int, end: int
) -> Reason:
    """Return the reason if the user's reservations would exceed the pool's cap on one user.

    ``need`` is the number of slots of the new reservation. The code is "" if the cap is not exceeded.
    """
    state, cap = promises.state, promises.state.policy.max_slots_per_user
    if cap is None or requester.user is None:
        return "", ()
    own = [r for r in state.reservations if r.user == requester.user and r.id != promises.exclude]
    own = [r for r in own if r.start < end and r.end > start]
    size = {r.id: _slots_promised(promises, r) for r in own}
    for time in sorted({start, *(r.start for r in own if r.start > start)}):
        held = sum(size[r.id] for r in own if r.start <= time < r.end)
        if held + need > cap:
            return ReasonCode.OVER_USER_CAP, reason_numbers(at=time, cap=cap, held=held, need=need)
    return "", ()


def _slots_promised(promises: PromiseTimeline, reservation: ReservationInfo) -> int:
    """Return the slots of the units that a reservation has, or is expected to get.

    If no units are found for it at present, return the fewest slots that its ask can need.
    """
    state = promises.state
    units = [
        state.unit_index[u] for u in reservation.units if u in state.unit_index
    ] or promises.tentative_units.get(reservation.id)
    if units:
        return int(state.slots[units].sum())
    return min(
        (state.slots_needed(reservation.ask, kind) for kind in state.kinds_for(reservation.ask)), default=0
    )


def _window_violation(
    promises: PromiseTimeline, ask: Ask, requester: ReservationRequester, start: int, end: int
) -> Reason:
    """Return the reason why a window does not fit. The code is "" if it fits."""
    state = promises.state
    mask = promises.open_units(start, end)
    cost = promises.cost(start, None)
    first_violation: Reason | None = None
    for kind in state.kinds_for(ask):
        if cheapest_units(state, ask, kind, mask, cost) is None:
            continue
        numbers = _quota_or_cap_violation(promises, ask, kind, requester, start, end)
        if not numbers[0]:
            return "", ()
        first_violation = first_violation or numbers
    if first_violation is not None:
        return first_violation
    fitting = state.units_serving(ask)
    return ReasonCode.WINDOW_FULL, reason_numbers(
        free=int((mask & fitting).sum()), hosts=ask.hosts, need=ask.total_units, total=int(fitting.sum())
    )


def _most_promised_to_team(promises: PromiseTimeline, ask: Ask, team: int, start: int, end: int) -> int:
    """Return the most slots of the requested models that the team has promised or in use during a window."""
    state = promises.state
    models = {state.kinds[kind].model for kind in state.kinds_for(ask)}
    times = {start, *promises.promise_starts_within(start, end)}
    return max((promises.promised(model, time).get(team, 0) for model in models for time in times), default=0)


def _quota_or_cap_violation(
    promises: PromiseTimeline, ask: Ask, kind: int, requester: ReservationRequester, start: int, end: int
) -> Reason:
    """Return the reason if the user cap or a quota forbids a window. Otherwise the code is ""."""
    state = promises.state
    if requester.may_exceed:
        return "", ()
    need = state.slots_needed(ask, kind)
    over = user_cap_violation(promises, requester, need, start, end)
    if over[0] or state.pool.kind is PoolKind.STATIC:
        return over
    return quota_violation(promises, requester, state.kinds[kind].model, need, start, end)


def check_reservation_window(
    snapshot: Snapshot,
    ask: Ask,
    team: int,
    pool: int,
    start: int,
    end: int,
    now: int,
    exclude_reservation: int | None = None,
    may_exceed_guarantee: bool = False,
    horizon: int = SEARCH_HORIZON_SECONDS,
    earliest: int = 0,
    user: int | None = None,
    borrows_again_from: int | None = None,
) -> WindowCheckResult:
    """Check whether a reservation of ``ask`` for ``[start, end)`` can be confirmed.

    It must break no other reservation. Maintenance, closed hosts, and running work that may not be evicted
    are obstacles. If ``may_exceed_guarantee`` is False, the window must also respect the guarantees of other
    teams, the team's borrow limit and the cap on ``user``. The team may not borrow before
    ``borrows_again_from``; None means no such restriction.

    If the window does not fit, the result has the reason and the first windows of the same length that fit.
    These windows start on whole minutes, at ``earliest`` or later and at most ``horizon`` seconds after
    ``now``. They can be requested for the next ``WINDOW_VALID_SECONDS``.

    ``exclude_reservation`` is a reservation that is to be moved. It is treated as if it did not exist.
    """
    return check_reservation_windows(
        snapshot,
        ask,
        team,
        pool,
        [(start, end)],
        now,
        exclude_reservation,
        may_exceed_guarantee,
        horizon,
        earliest,
        user,
        borrows_again_from,
    )[0]


def check_reservation_windows(
    snapshot: Snapshot,
    ask: Ask,
    team: int,
    pool: int,
    windows: Sequence[tuple[int, int]],
    now: int,
    exclude_reservation: int | None = None,
    may_exceed_guarantee: bool = False,
    horizon: int = SEARCH_HORIZON_SECONDS,
    earliest: int = 0,
    user: int | None = None,
    borrows_again_from: int | None = None,
) -> list[WindowCheckResult]:
    """Check several windows that do not overlap. Return one result for each window.

    Because they do not overlap, all windows that fit can be promised together. The result of the first window
    that does not fit also has alternatives: the first windows that fit. If several windows are checked, the
    alternatives begin at the start of this window or later. The results of later windows have no
    alternatives.
    """
    state, impossible = _pool_state_for(snapshot, ask, team, pool, now)
    if state is None or impossible is not None:
        return [
            WindowCheckResult(False, *(impossible or (ReasonCode.NOT_YOUR_POOL, reason_numbers(pool=pool))))
        ] * len(windows)
    promises = PromiseTimeline(state, exclude_reservation)
    requester = ReservationRequester(team, user, may_exceed_guarantee, borrows_again_from)
    results: list[WindowCheckResult] = []
    all_fit = True
    for start, end in windows:
        code, numbers = _window_violation(promises, ask, requester, start, end)
        windows_found: tuple[ReservationWindow, ...] = ()
        if code and all_fit:
            earliest_shown = start if len(windows) > 1 else now
            limits = (max(now, earliest_shown, earliest), now + horizon)
            windows_found = first_windows(promises, ask, requester, end - start, limits)
        all_fit = all_fit and not code
        promised = _most_promised_to_team(promises, ask, team, start, end)
        results.append(WindowCheckResult(not code, code, numbers, windows_found, promised))
    return results


def _pool_state_for(
    snapshot: Snapshot, ask: Ask, team: int, pool: int, now: int
) -> tuple[PoolState | None, Reason | None]:
    """Return (state, reason) of a pool.

    ``state`` is None if the pool is unknown. ``reason`` is None if some window may fit the team's ask;
    otherwise it says why no window can ever fit.
    """
    owner = next((p for p in snapshot.pools if p.id == pool), None)
    if owner is None:
        return None, None
    state = PoolState(PoolSnapshot(snapshot, owner), now)
    impossible = infeasible_reason(state, ask, team)
    if impossible is None and owner.kind is PoolKind.DYNAMIC and team not in state.ledger.teams_with_quota:
        impossible = ReasonCode.NO_QUOTA, reason_numbers(pool=pool, team=team)
    return state, impossible


def first_windows(
    promises: PromiseTimeline, ask: Ask, requester: ReservationRequester, length: int, limits: tuple[int, int]
) -> tuple[ReservationWindow, ...]:
    """Return the first windows of ``length`` seconds in which an ask fits.

    The windows start at or between the two times in ``limits``, and at least ``WINDOW_VALID_SECONDS`` after
    now. Each window fits if it is requested now, and also if it is requested ``WINDOW_VALID_SECONDS`` later,
    because a user needs time to choose. The second check can fail although the first one succeeds, because a
    later request also evicts work later.

    Only the earliest start and the times at which an obstacle ends are tried. This is enough to find the
    first possible minute.
    """
    state = promises.state
    later = PromiseTimeline(
        PoolState(state.pool_snapshot, state.now + WINDOW_VALID_SECONDS), promises.exclude
    )
    earliest, last = max(limits[0], later.state.now), limits[1]
    start_times = _start_times_to_try(promises, requester) | _start_times_to_try(later, requester)
    start_times = {earliest, *(time for time in start_times if earliest < time <= last)}
    windows: list[ReservationWindow] = []
    for start in sorted({-(-time // WINDOW_GRID_SECONDS) * WINDOW_GRID_SECONDS for time in start_times}):
        if start > last or len(windows) == MAX_WINDOWS_SHOWN:
            break
        if not any(
            _window_violation(timeline, ask, requester, start, start + length)[0]
            for timeline in (later, promises)
        ):
            windows.append(ReservationWindow(start, start + length))
    return tuple(windows)


def _start_times_to_try(promises: PromiseTimeline, requester: ReservationRequester) -> set[int]:
    """Return the times at which an obstacle to a window ends.

    At such a time a promise ends, a full disk counts as cleared, the GPU-hours of the team's guarantee are
    reset, or the team may borrow again. Between two such times, a later start has at least as many obstacles
    as an earlier start.
    """
    state = promises.state
    times = {interval.end for interval in promises.all_promised_intervals()}
    if requester.user is not None:
        # A reservation that cannot be kept has no promised interval, but it still counts for the user cap.
        times |= {r.end for r in state.reservations if r.user == requester.user and r.id != promises.exclude}
    if has_full_disks(state):
        times.add(full_disks_cleared_at(state))
    if requester.borrows_again_from is not None:
        times.add(requester.borrows_again_from)
    used_up = (quota for (team, _), quota in state.ledger.used_up.items() if team == requester.team)
    return times | {quota.used_up_until for quota in used_up if quota.used_up_until is not None}


def free_windows(
    snapshot: Snapshot,
    ask: Ask,
    requester: ReservationRequester,
    pool: int,
    length: int,
    now: int,
    earliest: int,
    horizon: int,
) -> tuple[ReservationWindow, ...]:
    """Return the first windows of ``length`` seconds in which a reservation of ``ask`` would fit.

    The windows start at ``earliest`` or later and at most ``horizon`` seconds after ``now``. They can be
    requested for the next ``WINDOW_VALID_SECONDS``. The result is empty if no window fits.
    """
    state, impossible = _pool_state_for(snapshot, ask, requester.team, pool, now)
    if state is None or impossible is not None:
        return ()
    return first_windows(PromiseTimeline(state), ask, requester, length, (max(now, earliest), now + horizon))


def free_units_by_time(
    snapshot: Snapshot, pool: int, model: str, profile: str, start: int, end: int, step: int, now: int
) -> list[tuple[int, int]]:
    """Return (time, number of units) for every ``step`` seconds from ``start`` to ``end``, for the calendar.

    The number counts the units of a model and profile that could be promised for ``[time, time + step)``.
    """
    owner = next(p for p in snapshot.pools if p.id == pool)
    state = PoolState(PoolSnapshot(snapshot, owner), now)
    promises = PromiseTimeline(state)
    requested = np.array([u.model == model and u.profile == profile for u in state.units], dtype=np.bool_)
    return [
        (time, int((promises.open_units(time, time + step) & requested).sum()))
        for time in range(start, end, step)
    ]


@dataclass(frozen=True, slots=True)
class ReservationWindow:
    """A time from ``start`` until just before ``end`` in which an ask fits."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WindowCheckResult:
    """The answer to the question whether a reservation fits in a window.

    If it does not fit, the answer has the reason, and possibly the first windows that fit instead.
    ``promised_slots`` is the most that the team already has promised or in use during the window, of one
    requested model.
    """

    fits: bool
    code: str = ""
    numbers: ReasonNumbers = ()
    first_windows: tuple[ReservationWindow, ...] = field(default=())
    promised_slots: int = 0
