from __future__ import annotations

from dataclasses import replace

from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import PoolKind, ReservationInfo, Snapshot
from scheduler.core.promises.promise_timeline import PromiseTimeline, ReservationRequester, quota_violation
from scheduler.core.promises.reservation_windows import (
    SEARCH_HORIZON_SECONDS,
    WindowCheckResult,
    _pool_state_for,
    first_windows,
    user_cap_violation,
)
from scheduler.core.reasons import Reason, ReasonCode, reason_numbers


def check_extension(
    snapshot: Snapshot,
    reservation: int,
    end: int,
    now: int,
    horizon: int = SEARCH_HORIZON_SECONDS,
    borrows_again_from: int | None = None,
) -> WindowCheckResult:
    """May a reservation that has its units keep them until ``end``, which is later than its end now?

    It keeps the same units: no maintenance may touch them by then, every other reservation that can be kept now must be
    kept all the same, and the guarantees of others hold for the time that is added. When not: why, and the first windows
    for the added time, from its present end on.
    """
    row = next(r for r in snapshot.reservations if r.id == reservation)
    board, impossible = _pool_state_for(snapshot, row.ask, row.team, row.pool, now)
    if board is None or impossible is not None:
        return WindowCheckResult(
            False, *(impossible or (ReasonCode.NOT_YOUR_POOL, reason_numbers(pool=row.pool)))
        )
    before, whose = (
        PromiseTimeline(board),
        ReservationRequester(row.team, row.user, row.may_exceed_guarantee, borrows_again_from),
    )
    longer = tuple(replace(r, end=end) if r.id == reservation else r for r in snapshot.reservations)
    after = PromiseTimeline(PoolState(replace(snapshot, reservations=longer), board.pool, now))
    displaced = sorted(before.tentative_units.keys() - after.tentative_units.keys())
    mine = {board.unit_index[u] for u in row.units if u in board.unit_index}
    serviced = {
        s.unit
        for s in before.promised_intervals
        if s.team is None and s.unit in mine and s.start < end and s.end > now
    }
    code, why = "", reason_numbers()
    if displaced or serviced:
        code, why = (
            ReasonCode.EXTENSION_BLOCKED,
            reason_numbers(
                end=row.end, maintenance=len(serviced), need=len(row.units), reservations=len(displaced)
            ),
        )
    elif not whose.may_exceed:
        code, why = _extension_quota_violation(before, row, mine, whose, end)
    if not code:
        return WindowCheckResult(True)
    limits = (max(now, row.end), now + horizon)
    return WindowCheckResult(False, code, why, first_windows(before, row.ask, whose, end - row.end, limits))


def _extension_quota_violation(
    before: PromiseTimeline, row: ReservationInfo, mine: set[int], whose: ReservationRequester, end: int
) -> Reason:
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
        kept = PromiseTimeline(
            PoolState(replace(snapshot, running=running), pool, now)
        ).tentative_units.keys()
        lost = (board.reservation_by_id[r] for r in sorted(gone.tentative_units.keys() - kept))
        return sorted(
            (r for r in lost if r.end > row.until and r.start < limit), key=lambda r: (r.start, r.id)
        )

    displaced, in_service_until = broken(until), min([until, *serviced])
    if not displaced and in_service_until == until:
        return WindowCheckResult(True)
    # What stays longer keeps no more promises, and the next is broken only by who stays beyond its start.
    moments = sorted(
        {r.start for r in board.reservations if row.until < r.start < until} | {in_service_until}
    )
    fitting = [moment for moment in moments if row.until < moment <= in_service_until]
    low, high = 0, len(fitting)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if not broken(fitting[middle]) else (low, middle)
    latest = fitting[low - 1] if low else row.until
    why = reason_numbers(
        latest=latest,
        limit=row.until,
        maintenance=sum(start < until for start in serviced),
        reservations=len(displaced),
        start=min([r.start for r in displaced] + [start for start in serviced if start < until]),
        until=until,
    )
    return WindowCheckResult(False, ReasonCode.MORE_TIME_BLOCKED, why)
