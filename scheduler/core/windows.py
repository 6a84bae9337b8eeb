"""Reservations that are asked for: does a window fit, which are the first that do, may what is there stay longer?

Answered on the timeline of what is promised (``timeline.Promises``), with what teams are guaranteed and may borrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scheduler.core.board import Board
from scheduler.core.model import Ask, PoolKind, Reservation, Snapshot, Why, Window, WindowAnswer
from scheduler.core.reasons import Code
from scheduler.core.timeline import (
    Claimant,
    Promises,
    cheapest_units,
    full_disks_pass_at,
    has_full_disks,
    never_fits,
    numbers,
    over_claims,
)

GRAIN = 60  # reservations begin and end on whole minutes
HORIZON = 14 * 86_400
WINDOWS_SHOWN = 3
TO_ASK = 300  # seconds for which a window that is named can be asked for, if nothing changes but the time


def over_own_cap(promises: Promises, whose: Claimant, need: int, start: int, end: int) -> Why:
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
            return Code.OVER_USER_CAP, numbers(at=moment, cap=cap, held=held, need=need)
    return "", ()


def _slots_promised(promises: Promises, reservation: Reservation) -> int:
    """Of the units that it has or counts on; of the smallest that would do where there are none at present."""
    board = promises.board
    units = [board.unit_index[u] for u in reservation.units if u in board.unit_index] or promises.witness.get(reservation.id)
    if units:
        return int(board.slots[units].sum())
    return min((board.need_slots(reservation.ask, kind) for kind in board.kinds_for(reservation.ask)), default=0)


def _judge(promises: Promises, ask: Ask, whose: Claimant, start: int, end: int) -> Why:
    """The code and numbers of why a window does not fit; an empty code when it does."""
    board = promises.board
    mask = promises.open_units(start, end)
    cost = promises.cost(start, None)
    first: Why | None = None
    for kind in board.kinds_for(ask):
        if cheapest_units(board, ask, kind, mask, cost) is None:
            continue
        why = _over_limits(promises, ask, kind, whose, start, end)
        if not why[0]:
            return "", ()
        first = first or why
    if first is not None:
        return first
    fitting = board.fitting(ask)
    return Code.WINDOW_FULL, numbers(
        free=int((mask & fitting).sum()), hosts=ask.hosts, need=ask.total_units, total=int(fitting.sum())
    )


def _over_limits(promises: Promises, ask: Ask, kind: int, whose: Claimant, start: int, end: int) -> Why:
    board = promises.board
    if whose.may_exceed:
        return "", ()
    need = board.need_slots(ask, kind)
    over = over_own_cap(promises, whose, need, start, end)
    if over[0] or board.pool.kind is PoolKind.STATIC:
        return over
    return over_claims(promises, whose, board.kinds[kind].model, need, start, end)


def window_answer(
    snapshot: Snapshot,
    ask: Ask,
    team: int,
    pool: int,
    start: int,
    end: int,
    now: int,
    exclude_reservation: int | None = None,
    may_exceed_guarantee: bool = False,
    horizon: int = HORIZON,
    earliest: int = 0,
    user: int | None = None,
    borrows_again_from: int | None = None,
) -> WindowAnswer:
    """Would a reservation of ``ask`` for ``[start, end)`` keep every promise made so far?

    Checked against other reservations, work that may not be evicted until its limit, maintenance, closed hosts, and the
    guarantees of other teams, what its team may borrow (nothing before ``borrows_again_from``) and what ``user`` may hold, unless
    ``may_exceed_guarantee``. When it does not fit: the code, its numbers and the first
    windows of the same length that do, and can be asked for within ``TO_ASK``; from ``earliest`` at the soonest to
    ``now + horizon``, on whole minutes. ``exclude_reservation`` is one that is being moved.
    """
    return window_answers(
        snapshot, ask, team, pool, [(start, end)], now, exclude_reservation, may_exceed_guarantee, horizon, earliest, user,
        borrows_again_from,
    )[0]  # fmt: skip


def window_answers(
    snapshot: Snapshot,
    ask: Ask,
    team: int,
    pool: int,
    windows: Sequence[tuple[int, int]],
    now: int,
    exclude_reservation: int | None = None,
    may_exceed_guarantee: bool = False,
    horizon: int = HORIZON,
    earliest: int = 0,
    user: int | None = None,
    borrows_again_from: int | None = None,
) -> list[WindowAnswer]:
    """``window_answer`` for several windows that do not overlap one another, and may so be promised together. The first
    that does not fit names the windows that would, from its own start on; those after it only why."""
    board, impossible = _board_for(snapshot, ask, team, pool, now)
    if board is None or impossible is not None:
        return [WindowAnswer(False, *(impossible or (Code.NOT_YOUR_POOL, numbers(pool=pool))))] * len(windows)
    promises = Promises(board, exclude_reservation)
    whose = Claimant(team, user, may_exceed_guarantee, borrows_again_from)
    answers: list[WindowAnswer] = []
    all_fit = True
    for start, end in windows:
        code, why = _judge(promises, ask, whose, start, end)
        first: tuple[Window, ...] = ()
        if code and all_fit:
            since = start if len(windows) > 1 else now
            limits = (max(now, since, earliest), now + horizon)
            first = first_windows(promises, ask, whose, end - start, limits)
        all_fit = all_fit and not code
        answers.append(WindowAnswer(not code, code, why, first))
    return answers


def _board_for(
    snapshot: Snapshot, ask: Ask, team: int, pool: int, now: int
) -> tuple[Board | None, Why | None]:
    """The pool's board, and why a team's ask could have no window in it at all, or None."""
    owner = next((p for p in snapshot.pools if p.id == pool), None)
    if owner is None:
        return None, None
    board = Board(snapshot, owner, now)
    impossible = never_fits(board, ask, team)
    if impossible is None and owner.kind is PoolKind.DYNAMIC and team not in board.ledger.teams_with_quota:
        impossible = Code.NO_QUOTA, numbers(pool=pool, team=team)
    return board, impossible


def first_windows(
    promises: Promises, ask: Ask, whose: Claimant, length: int, limits: tuple[int, int]
) -> tuple[Window, ...]:
    """The first windows of a length in which an ask fits, beginning within ``limits`` (both included).

    They fit if asked for now and ``TO_ASK`` later: whoever reads of one takes a moment, and what is preemptible leaves a
    unit so much later the later it is told to. Besides the first moment only those are tried at which a window that does
    not fit may begin to: so the first minute is found.
    """
    board = promises.board
    later = Promises(Board(board.facts, board.pool, board.now + TO_ASK), promises.exclude)
    first, last = max(limits[0], later.board.now), limits[1]
    begins = _may_begin_to_fit(promises, whose) | _may_begin_to_fit(later, whose)
    moments = {at for at in begins if first < at <= last}
    found: list[Window] = []
    for at in sorted({-(-moment // GRAIN) * GRAIN for moment in {first, *moments}}):
        if at > last or len(found) == WINDOWS_SHOWN:
            break
        if not any(_judge(asked, ask, whose, at, at + length)[0] for asked in (later, promises)):
            found.append(Window(at, at + length))
    return tuple(found)


def _may_begin_to_fit(promises: Promises, whose: Claimant) -> set[int]:
    """The moments from which on less may be in a window's way: something promised ends, a disk that is full counts as emptied, the
    GPU-hours of the team's guarantee are counted anew, or it may borrow again. A window that begins later meets no less of what is
    to come."""
    board = promises.board
    moments = {stretch.end for stretch in promises.stretches()}
    if whose.user is not None:  # one that can't be kept has no stretch, and counts against what its owner may hold
        moments |= {r.end for r in board.reservations if r.user == whose.user and r.id != promises.exclude}
    if has_full_disks(board):
        moments.add(full_disks_pass_at(board))
    if whose.borrows_again_from is not None:
        moments.add(whose.borrows_again_from)
    used_up = (quota for (team, _), quota in board.ledger.used_up.items() if team == whose.team)
    return moments | {quota.used_up_until for quota in used_up if quota.used_up_until is not None}


def free_windows(
    snapshot: Snapshot, ask: Ask, whose: Claimant, pool: int, length: int, now: int, earliest: int, horizon: int
) -> tuple[Window, ...]:
    """The first windows of a length in which a reservation of ``ask`` would fit for whoever asks within ``TO_ASK``, from
    ``earliest`` to ``now + horizon``; empty where there is none, and where it could never be had."""
    board, impossible = _board_for(snapshot, ask, whose.team, pool, now)
    if board is None or impossible is not None:
        return ()
    return first_windows(Promises(board), ask, whose, length, (max(now, earliest), now + horizon))


def extension_answer(
    snapshot: Snapshot, reservation: int, end: int, now: int, horizon: int = HORIZON, borrows_again_from: int | None = None
) -> WindowAnswer:
    """May a reservation that has its units keep them until ``end``, which is later than its end now?

    It keeps the same units: no maintenance may touch them by then, every other reservation that can be kept now must be
    kept all the same, and the guarantees of others hold for the time that is added. When not: why, and the first windows
    for the added time, from its present end on.
    """
    row = next(r for r in snapshot.reservations if r.id == reservation)
    board, impossible = _board_for(snapshot, row.ask, row.team, row.pool, now)
    if board is None or impossible is not None:
        return WindowAnswer(False, *(impossible or (Code.NOT_YOUR_POOL, numbers(pool=row.pool))))
    before, whose = Promises(board), Claimant(row.team, row.user, row.may_exceed_guarantee, borrows_again_from)
    longer = tuple(replace(r, end=end) if r.id == reservation else r for r in snapshot.reservations)
    after = Promises(Board(replace(snapshot, reservations=longer), board.pool, now))
    displaced = sorted(before.witness.keys() - after.witness.keys())
    mine = {board.unit_index[u] for u in row.units if u in board.unit_index}
    serviced = {s.unit for s in before.fixed if s.team is None and s.unit in mine and s.start < end and s.end > now}
    code, why = "", numbers()
    if displaced or serviced:
        code, why = (
            Code.EXTENSION_BLOCKED,
            numbers(end=row.end, maintenance=len(serviced), need=len(row.units), reservations=len(displaced)),
        )
    elif not whose.may_exceed:
        code, why = _over_limits_for_longer(before, row, mine, whose, end)
    if not code:
        return WindowAnswer(True)
    limits = (max(now, row.end), now + horizon)
    return WindowAnswer(
        False, code, why, first_windows(before, row.ask, whose, end - row.end, limits)
    )


def _over_limits_for_longer(before: Promises, row: Reservation, mine: set[int], whose: Claimant, end: int) -> Why:
    """What keeps its team and its owner from having its units in the time that is added."""
    board = before.board
    used: dict[str, int] = {}
    for unit in mine:
        used[board.model_of(unit)] = used.get(board.model_of(unit), 0) + int(board.slots[unit])
    over = over_own_cap(before, whose, sum(used.values()), row.end, end)
    for name, need in sorted(used.items()) if board.pool.kind is PoolKind.DYNAMIC else ():
        over = over if over[0] else over_claims(before, whose, name, need, row.end, end)
    return over


def longer_answer(snapshot: Snapshot, workload: int, until: int, now: int) -> WindowAnswer:
    """May running work that nobody can tell to go stay on its units until ``until``, which is later than its limit now?

    Every reservation that could be kept if it were gone must be kept all the same, and no maintenance of its hosts may begin
    before. When not: ``latest`` among the numbers is the longest that fits, its limit now where none does. What is
    preemptible, or runs inside a reservation, is in nobody's way.
    """
    row = next((r for r in snapshot.running if r.id == workload), None)
    if row is None or row.preemptible or row.stopping or row.reservation is not None:
        return WindowAnswer(True)
    pool = next(p for p in snapshot.pools if p.id == row.pool)
    rest = tuple(r for r in snapshot.running if r.id != workload)
    gone = Promises(Board(replace(snapshot, running=rest), pool, now))
    board = gone.board
    hosts = {int(board.host_of[board.unit_index[u]]) for u in row.units if u in board.unit_index}
    serviced = sorted(start for host, start, end in board.maintenance if host in hosts and end > now)

    def broken(limit: int) -> list[Reservation]:
        """The promises that would not be kept if it stayed until then."""
        running = (*rest, replace(row, until=limit))
        kept = Promises(Board(replace(snapshot, running=running), pool, now)).witness.keys()
        lost = (board.reservation_by_id[r] for r in sorted(gone.witness.keys() - kept))
        return sorted((r for r in lost if r.end > row.until and r.start < limit), key=lambda r: (r.start, r.id))

    displaced, in_service_until = broken(until), min([until, *serviced])
    if not displaced and in_service_until == until:
        return WindowAnswer(True)
    # What stays longer keeps no more promises, and the next is broken only by who stays beyond its start.
    moments = sorted({r.start for r in board.reservations if row.until < r.start < until} | {in_service_until})
    fitting = [moment for moment in moments if row.until < moment <= in_service_until]
    low, high = 0, len(fitting)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if not broken(fitting[middle]) else (low, middle)
    latest = fitting[low - 1] if low else row.until
    why = numbers(
        latest=latest, limit=row.until, maintenance=sum(start < until for start in serviced), reservations=len(displaced),
        start=min([r.start for r in displaced] + [start for start in serviced if start < until]), until=until,
    )  # fmt: skip
    return WindowAnswer(False, Code.MORE_TIME_BLOCKED, why)


def free_units(
    snapshot: Snapshot, pool: int, model: str, profile: str, start: int, end: int, step: int, now: int
) -> list[tuple[int, int]]:
    """For the calendar: (time, units of a model that could still be promised for all of ``[time, time + step)``)."""
    owner = next(p for p in snapshot.pools if p.id == pool)
    board = Board(snapshot, owner, now)
    promises = Promises(board)
    wanted = np.array([u.model == model and u.profile == profile for u in board.units], dtype=np.bool_)
    return [(at, int((promises.open_units(at, at + step) & wanted).sum())) for at in range(start, end, step)]
