"""Reservations that are asked for: does a window fit, which are the first that do, may what is there stay longer?

Answered on the timeline of what is promised (``timeline.Promises``), with what teams are guaranteed and may borrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.core.fit.cheapest_units import cheapest_units
from scheduler.core.fit.feasibility import infeasible_reason
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

WINDOW_GRID_SECONDS = 60  # reservations begin and end on whole minutes
SEARCH_HORIZON_SECONDS = 14 * 86_400
MAX_WINDOWS_SHOWN = 3
WINDOW_VALID_SECONDS = (
    300  # seconds for which a window that is named can be asked for, if nothing changes but the time
)


def user_cap_violation(
    promises: PromiseTimeline, whose: ReservationRequester, need: int, start: int, end: int
) -> Reason:
    """Why one person's reservations would be more than one person may hold in the pool, or an empty code."""
    board, cap = promises.board, promises.board.policy.most_slots_per_user
    if cap is None or whose.user is None:
        return "", ()
    mine = [r for r in board.reservations if r.user == whose.user and r.id != promises.exclude]
    mine = [r for r in mine if r.start < end and r.end > start]
    size = {r.id: _slots_promised(promises, r) for r in mine}
    for moment in sorted({start, *(r.start for r in mine if r.start > start)}):
        held = sum(size[r.id] for r in mine if r.start <= moment < r.end)
        if held + need > cap:
            return ReasonCode.OVER_USER_CAP, reason_numbers(at=moment, cap=cap, held=held, need=need)
    return "", ()


def _slots_promised(promises: PromiseTimeline, reservation: ReservationInfo) -> int:
    """Of the units that it has or counts on; of the smallest that would do where there are none at present."""
    board = promises.board
    units = [
        board.unit_index[u] for u in reservation.units if u in board.unit_index
    ] or promises.tentative_units.get(reservation.id)
    if units:
        return int(board.slots[units].sum())
    return min(
        (board.slots_needed(reservation.ask, kind) for kind in board.kinds_for(reservation.ask)), default=0
    )


def _window_violation(
    promises: PromiseTimeline, ask: Ask, whose: ReservationRequester, start: int, end: int
) -> Reason:
    """The code and numbers of why a window does not fit; an empty code when it does."""
    board = promises.board
    mask = promises.open_units(start, end)
    cost = promises.cost(start, None)
    first: Reason | None = None
    for kind in board.kinds_for(ask):
        if cheapest_units(board, ask, kind, mask, cost) is None:
            continue
        why = _quota_or_cap_violation(promises, ask, kind, whose, start, end)
        if not why[0]:
            return "", ()
        first = first or why
    if first is not None:
        return first
    fitting = board.fitting(ask)
    return ReasonCode.WINDOW_FULL, reason_numbers(
        free=int((mask & fitting).sum()), hosts=ask.hosts, need=ask.total_units, total=int(fitting.sum())
    )


def _quota_or_cap_violation(
    promises: PromiseTimeline, ask: Ask, kind: int, whose: ReservationRequester, start: int, end: int
) -> Reason:
    board = promises.board
    if whose.may_exceed:
        return "", ()
    need = board.slots_needed(ask, kind)
    over = user_cap_violation(promises, whose, need, start, end)
    if over[0] or board.pool.kind is PoolKind.STATIC:
        return over
    return quota_violation(promises, whose, board.kinds[kind].model, need, start, end)


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
    """Would a reservation of ``ask`` for ``[start, end)`` keep every promise made so far?

    Checked against other reservations, work that may not be evicted until its limit, maintenance, closed hosts, and the
    guarantees of other teams, what its team may borrow (nothing before ``borrows_again_from``) and what ``user`` may hold, unless
    ``may_exceed_guarantee``. When it does not fit: the code, its numbers and the first
    windows of the same length that do, and can be asked for within ``WINDOW_VALID_SECONDS``; from ``earliest`` at the soonest to
    ``now + horizon``, on whole minutes. ``exclude_reservation`` is one that is being moved.
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
    """``check_reservation_window`` for several windows that do not overlap one another, and may so be promised together. The first
    that does not fit names the windows that would, from its own start on; those after it only why."""
    board, impossible = _pool_state_for(snapshot, ask, team, pool, now)
    if board is None or impossible is not None:
        return [
            WindowCheckResult(False, *(impossible or (ReasonCode.NOT_YOUR_POOL, reason_numbers(pool=pool))))
        ] * len(windows)
    promises = PromiseTimeline(board, exclude_reservation)
    whose = ReservationRequester(team, user, may_exceed_guarantee, borrows_again_from)
    answers: list[WindowCheckResult] = []
    all_fit = True
    for start, end in windows:
        code, why = _window_violation(promises, ask, whose, start, end)
        first: tuple[ReservationWindow, ...] = ()
        if code and all_fit:
            since = start if len(windows) > 1 else now
            limits = (max(now, since, earliest), now + horizon)
            first = first_windows(promises, ask, whose, end - start, limits)
        all_fit = all_fit and not code
        answers.append(WindowCheckResult(not code, code, why, first))
    return answers


def _pool_state_for(
    snapshot: Snapshot, ask: Ask, team: int, pool: int, now: int
) -> tuple[PoolState | None, Reason | None]:
    """The pool's board, and why a team's ask could have no window in it at all, or None."""
    owner = next((p for p in snapshot.pools if p.id == pool), None)
    if owner is None:
        return None, None
    board = PoolState(snapshot, owner, now)
    impossible = infeasible_reason(board, ask, team)
    if impossible is None and owner.kind is PoolKind.DYNAMIC and team not in board.ledger.teams_with_quota:
        impossible = ReasonCode.NO_QUOTA, reason_numbers(pool=pool, team=team)
    return board, impossible


def first_windows(
    promises: PromiseTimeline, ask: Ask, whose: ReservationRequester, length: int, limits: tuple[int, int]
) -> tuple[ReservationWindow, ...]:
    """The first windows of a length in which an ask fits, beginning within ``limits`` (both included).

    They fit if asked for now and ``WINDOW_VALID_SECONDS`` later: whoever reads of one takes a moment, and what is preemptible leaves a
    unit so much later the later it is told to. Besides the first moment only those are tried at which a window that does
    not fit may begin to: so the first minute is found.
    """
    board = promises.board
    later = PromiseTimeline(
        PoolState(board.facts, board.pool, board.now + WINDOW_VALID_SECONDS), promises.exclude
    )
    first, last = max(limits[0], later.board.now), limits[1]
    begins = _times_that_may_fit(promises, whose) | _times_that_may_fit(later, whose)
    moments = {at for at in begins if first < at <= last}
    found: list[ReservationWindow] = []
    for at in sorted(
        {-(-moment // WINDOW_GRID_SECONDS) * WINDOW_GRID_SECONDS for moment in {first, *moments}}
    ):
        if at > last or len(found) == MAX_WINDOWS_SHOWN:
            break
        if not any(_window_violation(asked, ask, whose, at, at + length)[0] for asked in (later, promises)):
            found.append(ReservationWindow(at, at + length))
    return tuple(found)


def _times_that_may_fit(promises: PromiseTimeline, whose: ReservationRequester) -> set[int]:
    """The moments from which on less may be in a window's way: something promised ends, a disk that is full counts as emptied, the
    GPU-hours of the team's guarantee are counted anew, or it may borrow again. A window that begins later meets no less of what is
    to come."""
    board = promises.board
    moments = {stretch.end for stretch in promises.all_promised_intervals()}
    if (
        whose.user is not None
    ):  # one that can't be kept has no stretch, and counts against what its owner may hold
        moments |= {r.end for r in board.reservations if r.user == whose.user and r.id != promises.exclude}
    if has_full_disks(board):
        moments.add(full_disks_cleared_at(board))
    if whose.borrows_again_from is not None:
        moments.add(whose.borrows_again_from)
    used_up = (quota for (team, _), quota in board.ledger.used_up.items() if team == whose.team)
    return moments | {quota.used_up_until for quota in used_up if quota.used_up_until is not None}


def free_windows(
    snapshot: Snapshot,
    ask: Ask,
    whose: ReservationRequester,
    pool: int,
    length: int,
    now: int,
    earliest: int,
    horizon: int,
) -> tuple[ReservationWindow, ...]:
    """The first windows of a length in which a reservation of ``ask`` would fit for whoever asks within ``WINDOW_VALID_SECONDS``, from
    ``earliest`` to ``now + horizon``; empty where there is none, and where it could never be had."""
    board, impossible = _pool_state_for(snapshot, ask, whose.team, pool, now)
    if board is None or impossible is not None:
        return ()
    return first_windows(PromiseTimeline(board), ask, whose, length, (max(now, earliest), now + horizon))


def free_units_by_time(
    snapshot: Snapshot, pool: int, model: str, profile: str, start: int, end: int, step: int, now: int
) -> list[tuple[int, int]]:
    """For the calendar: (time, units of a model that could still be promised for all of ``[time, time + step)``)."""
    owner = next(p for p in snapshot.pools if p.id == pool)
    board = PoolState(snapshot, owner, now)
    promises = PromiseTimeline(board)
    wanted = np.array([u.model == model and u.profile == profile for u in board.units], dtype=np.bool_)
    return [(at, int((promises.open_units(at, at + step) & wanted).sum())) for at in range(start, end, step)]


@dataclass(frozen=True, slots=True)
class ReservationWindow:
    """A stretch of the timeline in which an ask fits: ``[start, end)``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WindowCheckResult:
    """Does a reservation's ask fit its window? When not: why, and the first windows of that length that do."""

    fits: bool
    code: str = ""
    numbers: ReasonNumbers = ()
    first_windows: tuple[ReservationWindow, ...] = field(default=())
