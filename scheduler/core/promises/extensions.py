"""Check whether a reservation may be extended, and whether running work may exceed its runtime limit.

A reservation can be kept if enough units have no other promise during its whole time.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import PoolKind, ReservationInfo, RunningWorkload, Snapshot
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
    """Check whether a reservation may keep its units until ``end``, which is later than its present end.

    The extension is allowed if these conditions hold:

    - No maintenance of the units' hosts is in progress or begins before ``end``.
    - Every other reservation that can be kept now can still be kept.
    - The guarantees of other teams, the team's borrow limit and the user's cap allow the added time. This is
      not checked for a reservation that may exceed guarantees.

    If the extension is not possible, the result has the reason. It also has the first windows, from the
    present end on, in which a reservation as long as the added time would fit.
    """
    row = next(r for r in snapshot.reservations if r.id == reservation)
    state, impossible = _pool_state_for(snapshot, row.ask, row.team, row.pool, now)
    if state is None or impossible is not None:
        return WindowCheckResult(
            False, *(impossible or (ReasonCode.NOT_YOUR_POOL, reason_numbers(pool=row.pool)))
        )
    timeline, requester = (
        PromiseTimeline(state),
        ReservationRequester(row.team, row.user, row.may_exceed_guarantee, borrows_again_from),
    )
    displaced = timeline.tentative_units.keys() - _kept_if_extended(snapshot, state, reservation, end, now)
    own_units = {state.unit_index[u] for u in row.units if u in state.unit_index}
    units_in_maintenance = _units_in_maintenance(timeline, own_units, end, now)
    code, numbers = "", reason_numbers()
    if displaced or units_in_maintenance:
        code, numbers = (
            ReasonCode.EXTENSION_BLOCKED,
            reason_numbers(
                end=row.end,
                maintenance=len(units_in_maintenance),
                need=len(row.units),
                reservations=len(displaced),
            ),
        )
    elif not requester.may_exceed:
        code, numbers = _extension_quota_violation(timeline, row, own_units, requester, end)
    if not code:
        return WindowCheckResult(True)
    limits = (max(now, row.end), now + horizon)
    return WindowCheckResult(
        False, code, numbers, first_windows(timeline, row.ask, requester, end - row.end, limits)
    )


def _kept_if_extended(snapshot: Snapshot, state: PoolState, reservation: int, end: int, now: int) -> set[int]:
    """Return the ids of the reservations that could be kept if ``reservation`` lasted until ``end``.

    Only reservations that still need units are included.
    """
    extended = tuple(replace(r, end=end) if r.id == reservation else r for r in snapshot.reservations)
    pool_extended = PoolSnapshot(replace(snapshot, reservations=extended), state.pool)
    return set(PromiseTimeline(PoolState(pool_extended, now)).tentative_units)


def _units_in_maintenance(timeline: PromiseTimeline, units: set[int], end: int, now: int) -> set[int]:
    """Return the units in ``units`` whose hosts have maintenance between ``now`` and ``end``."""
    return {
        interval.unit
        for interval in timeline.promised_intervals
        if interval.team is None and interval.unit in units and interval.start < end and interval.end > now
    }


def _extension_quota_violation(
    timeline: PromiseTimeline,
    row: ReservationInfo,
    own_units: set[int],
    requester: ReservationRequester,
    end: int,
) -> Reason:
    """Return the reason if quotas or the user cap forbid the added time. Otherwise the code is ""."""
    state = timeline.state
    used: dict[str, int] = {}
    for unit in own_units:
        used[state.model_of(unit)] = used.get(state.model_of(unit), 0) + int(state.slots[unit])
    violation = user_cap_violation(timeline, requester, sum(used.values()), row.end, end)
    for name, need in sorted(used.items()) if state.pool.kind is PoolKind.DYNAMIC else ():
        violation = (
            violation if violation[0] else quota_violation(timeline, requester, name, need, row.end, end)
        )
    return violation


def check_longer_runtime(snapshot: Snapshot, workload: int, until: int, now: int) -> WindowCheckResult:
    """Check whether running work may stay until ``until``, which is later than its runtime limit.

    It may stay if no maintenance of its hosts is in progress or begins before ``until``, and if every
    reservation that can be kept without this workload can also be kept with it. Otherwise the number
    ``latest`` in the result is the latest runtime limit that is possible. If no later limit is possible,
    ``latest`` is the present limit.

    Preemptible work may always stay, because it can be evicted. Work inside a reservation may always stay,
    because the reservation is the limit. Work that is stopping or no longer runs is not checked.
    """
    row = next((r for r in snapshot.running if r.id == workload), None)
    if row is None or row.preemptible or row.stopping or row.reservation is not None:
        return WindowCheckResult(True)
    stay = _LongerStay(snapshot, row, now)
    displaced = stay.reservations_broken_by(until)
    maintenance_starts = [start for start in stay.maintenance_starts if start < until]
    if not displaced and not maintenance_starts:
        return WindowCheckResult(True)
    numbers = reason_numbers(
        latest=stay.latest_limit(min([until, *maintenance_starts]), until),
        limit=row.until,
        maintenance=len(maintenance_starts),
        reservations=len(displaced),
        start=min([r.start for r in displaced] + maintenance_starts),
        until=until,
    )
    return WindowCheckResult(False, ReasonCode.MORE_TIME_BLOCKED, numbers)


class _LongerStay:
    """The promises of a pool under the assumption that one running workload exceeds its runtime limit."""

    def __init__(self, snapshot: Snapshot, row: RunningWorkload, now: int) -> None:
        self.snapshot, self.row, self.now = snapshot, row, now
        self.pool = next(p for p in snapshot.pools if p.id == row.pool)
        self.others = tuple(r for r in snapshot.running if r.id != row.id)
        self.timeline_without = self._timeline(self.others)
        self.state = state = self.timeline_without.state
        hosts = {int(state.host_of[state.unit_index[u]]) for u in row.units if u in state.unit_index}
        self.maintenance_starts = sorted(
            start for host, start, end in state.maintenance if host in hosts and end > now
        )

    def _timeline(self, running: tuple[RunningWorkload, ...]) -> PromiseTimeline:
        pool_snapshot = PoolSnapshot(replace(self.snapshot, running=running), self.pool)
        return PromiseTimeline(PoolState(pool_snapshot, self.now))

    def reservations_broken_by(self, limit: int) -> list[ReservationInfo]:
        """Return the reservations that could not be kept if the workload stayed until ``limit``."""
        kept = self._timeline((*self.others, replace(self.row, until=limit))).tentative_units.keys()
        broken = self.timeline_without.tentative_units.keys() - kept
        rows = (self.state.reservation_by_id[reservation] for reservation in broken)
        return sorted(
            (r for r in rows if r.end > self.row.until and r.start < limit), key=lambda r: (r.start, r.id)
        )

    def latest_limit(self, in_service_until: int, until: int) -> int:
        """Return the latest runtime limit that breaks no reservation, at most ``in_service_until``.

        A stay can break a reservation only if it lasts beyond the reservation's start. So only these starts
        and ``in_service_until`` are tried. A longer stay never breaks fewer reservations, so the search is a
        bisection.
        """
        present = self.row.until
        starts = {r.start for r in self.state.reservations if present < r.start < until}
        limits = [time for time in sorted(starts | {in_service_until}) if present < time <= in_service_until]
        low, high = 0, len(limits)
        while low < high:
            middle = (low + high) // 2
            breaks = self.reservations_broken_by(limits[middle])
            low, high = (low, middle) if breaks else (middle + 1, high)
        return limits[low - 1] if low else present
