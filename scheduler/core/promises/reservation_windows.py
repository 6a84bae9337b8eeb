"""Reservations that are asked for: does a window fit, which are the first that do, may what is there stay longer?

Answered on the timeline of what is promised (``timeline.Promises``), with what teams are guaranteed and may borrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import (
    Ask,
    PoolKind,
    Reason,
    ReservationInfo,
    ReservationWindow,
    Snapshot,
    WindowCheckResult,
)
from scheduler.core.promises.promise_timeline import (
    PromiseTimeline,
    ReservationRequester,
    cheapest_units,
    full_disks_cleared_at,
    has_full_disks,
    infeasible_reason,
    quota_violation,
    reason_numbers,
)
from scheduler.core.reasons import ReasonCode

WINDOW_GRID_SECONDS = 60  # reservations begin and end on whole minutes
SEARCH_HORIZON_SECONDS = 14 * 86_400
MAX_WINDOWS_SHOWN = 3
WINDOW_VALID_SECONDS = 300  # seconds for which a window that is named can be asked for, if nothing changes but the time


def user_cap_violation(promises: PromiseTimeline, whose: ReservationRequester, need: int, start: int, end: int) -> Reason:
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
    units = [board.unit_index[u] for u in reservation.units if u in board.unit_index] or promises.tentative_units.get(reservation.id)
    if units:
        return int(board.slots[units].sum())
    return min((board.slots_needed(reservation.ask, kind) for kind in board.kinds_for(reservation.ask)), default=0)


def _window_violation(promises: PromiseTimeline, ask: Ask, whose: ReservationRequester, start: int, end: int) -> Reason:
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


def _quota_or_cap_violation(promises: PromiseTimeline, ask: Ask, kind: int, whose: ReservationRequester, start: int, end: int) -> Reason:
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
        snapshot, ask, team, pool, [(start, end)], now, exclude_reservation, may_exceed_guarantee, horizon, earliest, user,
        borrows_again_from,
    )[0]  # fmt: skip


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
        return [WindowCheckResult(False, *(impossible or (ReasonCode.NOT_YOUR_POOL, reason_numbers(pool=pool))))] * len(windows)
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
    later = PromiseTimeline(PoolState(board.facts, board.pool, board.now + WINDOW_VALID_SECONDS), promises.exclude)
    first, last = max(limits[0], later.board.now), limits[1]
    begins = _times_that_may_fit(promises, whose) | _times_that_may_fit(later, whose)
    moments = {at for at in begins if first < at <= last}
    found: list[ReservationWindow] = []
    for at in sorted({-(-moment // WINDOW_GRID_SECONDS) * WINDOW_GRID_SECONDS for moment in {first, *moments}}):
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
    if whose.user is not None:  # one that can't be kept has no stretch, and counts against what its owner may hold
        moments |= {r.end for r in board.reservations if r.user == whose.user and r.id != promises.exclude}
    if has_full_disks(board):
        moments.add(full_disks_cleared_at(board))
    if whose.borrows_again_from is not None:
        moments.add(whose.borrows_again_from)
    used_up = (quota for (team, _), quota in board.ledger.used_up.items() if team == whose.team)
    return moments | {quota.used_up_until for quota in used_up if quota.used_up_until is not None}


def free_windows(
    snapshot: Snapshot, ask: Ask, whose: ReservationRequester, pool: int, length: int, now: int, earliest: int, horizon: int
) -> tuple[ReservationWindow, ...]:
    """The first windows of a length in which a reservation of ``ask`` would fit for whoever asks within ``WINDOW_VALID_SECONDS``, from
    ``earliest`` to ``now + horizon``; empty where there is none, and where it could never be had."""
    board, impossible = _pool_state_for(snapshot, ask, whose.team, pool, now)
    if board is None or impossible is not None:
        return ()
    return first_windows(PromiseTimeline(board), ask, whose, length, (max(now, earliest), now + horizon))


def check_extension(
    snapshot: Snapshot, reservation: int, end: int, now: int, horizon: int = SEARCH_HORIZON_SECONDS, borrows_again_from: int | None = None
) -> WindowCheckResult:
    """May a reservation that has its units keep them until ``end``, which is later than its end now?

    It keeps the same units: no maintenance may touch them by then, every other reservation that can be kept now must be
    kept all the same, and the guarantees of others hold for the time that is added. When not: why, and the first windows
    for the added time, from its present end on.
    """
    row = next(r for r in snapshot.reservations if r.id == reservation)
    board, impossible = _pool_state_for(snapshot, row.ask, row.team, row.pool, now)
    if board is None or impossible is not None:
        return WindowCheckResult(False, *(impossible or (ReasonCode.NOT_YOUR_POOL, reason_numbers(pool=row.pool))))
    before, whose = PromiseTimeline(board), ReservationRequester(row.team, row.user, row.may_exceed_guarantee, borrows_again_from)
    longer = tuple(replace(r, end=end) if r.id == reservation else r for r in snapshot.reservations)
    after = PromiseTimeline(PoolState(replace(snapshot, reservations=longer), board.pool, now))
    displaced = sorted(before.tentative_units.keys() - after.tentative_units.keys())
    mine = {board.unit_index[u] for u in row.units if u in board.unit_index}
    serviced = {s.unit for s in before.promised_intervals if s.team is None and s.unit in mine and s.start < end and s.end > now}
    code, why = "", reason_numbers()
    if displaced or serviced:
        code, why = (
            ReasonCode.EXTENSION_BLOCKED,
            reason_numbers(end=row.end, maintenance=len(serviced), need=len(row.units), reservations=len(displaced)),
        )
    elif not whose.may_exceed:
        code, why = _extension_quota_violation(before, row, mine, whose, end)
    if not code:
        return WindowCheckResult(True)
    limits = (max(now, row.end), now + horizon)
    return WindowCheckResult(
        False, code, why, first_windows(before, row.ask, whose, end - row.end, limits)
    )


def _extension_quota_violation(before: PromiseTimeline, row: ReservationInfo, mine: set[int], whose: ReservationRequester, end: int) -> Reason:
    """What keeps its team and its owner from having its units in the time that is added."""
    board = before.board
    used: dict[str, int] = {}
    for unit in mine:
        used[board.model_of(unit)] = used.get(board.model_of(unit), 0) + int(board.slots[unit])
    over = user_cap_violation(before, whose, sum(used.values()), row.end, end)
    for name, need in sorted(used.items()) if board.pool.kind is PoolKind.DYNAMIC else ():
        over = over if over[0] else quota_violation(before, whose, name, need, row.end, end)
    return over


def check_longer_runtime(snapshot: Snapshot, workload: int, until: int, now: int) -> WindowCheckResult:
    """May running work that nobody can tell to go stay on its units until ``until``, which is later than its limit now?

    Every reservation that could be kept if it were gone must be kept all the same, and no maintenance of its hosts may begin
    before. When not: ``latest`` among the numbers is the longest that fits, its limit now where none does. What is
    preemptible, or runs inside a reservation, is in nobody's way.
    """
    row = next((r for r in snapshot.running if r.id == workload), None)
    if row is None or row.preemptible or row.stopping or row.reservation is not None:
        return WindowCheckResult(True)
    pool = next(p for p in snapshot.pools if p.id == row.pool)
    rest = tuple(r for r in snapshot.running if r.id != workload)
    gone = PromiseTimeline(PoolState(replace(snapshot, running=rest), pool, now))
    board = gone.board
    hosts = {int(board.host_of[board.unit_index[u]]) for u in row.units if u in board.unit_index}
    serviced = sorted(start for host, start, end in board.maintenance if host in hosts and end > now)

    def broken(limit: int) -> list[ReservationInfo]:
        """The promises that would not be kept if it stayed until then."""
        running = (*rest, replace(row, until=limit))
        kept = PromiseTimeline(PoolState(replace(snapshot, running=running), pool, now)).tentative_units.keys()
        lost = (board.reservation_by_id[r] for r in sorted(gone.tentative_units.keys() - kept))
        return sorted((r for r in lost if r.end > row.until and r.start < limit), key=lambda r: (r.start, r.id))

    displaced, in_service_until = broken(until), min([until, *serviced])
    if not displaced and in_service_until == until:
        return WindowCheckResult(True)
    # What stays longer keeps no more promises, and the next is broken only by who stays beyond its start.
    moments = sorted({r.start for r in board.reservations if row.until < r.start < until} | {in_service_until})
    fitting = [moment for moment in moments if row.until < moment <= in_service_until]
    low, high = 0, len(fitting)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if not broken(fitting[middle]) else (low, middle)
    latest = fitting[low - 1] if low else row.until
    why = reason_numbers(
        latest=latest, limit=row.until, maintenance=sum(start < until for start in serviced), reservations=len(displaced),
        start=min([r.start for r in displaced] + [start for start in serviced if start < until]), until=until,
    )  # fmt: skip
    return WindowCheckResult(False, ReasonCode.MORE_TIME_BLOCKED, why)


def free_units_by_time(
    snapshot: Snapshot, pool: int, model: str, profile: str, start: int, end: int, step: int, now: int
) -> list[tuple[int, int]]:
    """For the calendar: (time, units of a model that could still be promised for all of ``[time, time + step)``)."""
    owner = next(p for p in snapshot.pools if p.id == pool)
    board = PoolState(snapshot, owner, now)
    promises = PromiseTimeline(board)
    wanted = np.array([u.model == model and u.profile == profile for u in board.units], dtype=np.bool_)
    return [(at, int((promises.open_units(at, at + step) & wanted).sum())) for at in range(start, end, step)]
