"""Check whether a reservation may be extended, and whether running work may stay beyond its runtime limit."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.model.pool_snapshot import PoolSnapshot
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
    """Check whether a reservation with bound units may keep them until ``end``, which is later than its
    present end.

    It keeps the same units. No maintenance may touch them until then, every other reservation that can be
    kept now must still be kept, and the guarantees of others apply to the added time. If not: why, and the
    first windows for the added time, from its present end on.
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
    reservations_extended = tuple(
        replace(r, end=end) if r.id == reservation else r for r in snapshot.reservations
    )
    timeline_extended = PromiseTimeline(
        PoolState(PoolSnapshot(replace(snapshot, reservations=reservations_extended), state.pool), now)
    )
    displaced = sorted(timeline.tentative_units.keys() - timeline_extended.tentative_units.keys())
    own_units = {state.unit_index[u] for u in row.units if u in state.unit_index}
    units_in_maintenance = {
        s.unit
        for s in timeline.promised_intervals
        if s.team is None and s.unit in own_units and s.start < end and s.end > now
    }
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


def _extension_quota_violation(
    timeline: PromiseTimeline,
    row: ReservationInfo,
    own_units: set[int],
    requester: ReservationRequester,
    end: int,
) -> Reason:
    """Return why quotas or the user cap exclude the added time; an empty code if they do not."""
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
    """Check whether running work that is not preemptible may stay until ``until``, which is later than its
    runtime limit.

    Every reservation that could be kept without this workload must still be kept, and no maintenance of its
    hosts may begin before. If not, ``latest`` among the numbers is the longest limit that fits, or its
    present limit. Preemptible work and work inside a reservation are never blocked.
    """
    row = next((r for r in snapshot.running if r.id == workload), None)
    if row is None or row.preemptible or row.stopping or row.reservation is not None:
        return WindowCheckResult(True)
    pool = next(p for p in snapshot.pools if p.id == row.pool)
    others = tuple(r for r in snapshot.running if r.id != workload)
    timeline_without = PromiseTimeline(PoolState(PoolSnapshot(replace(snapshot, running=others), pool), now))
    state = timeline_without.state
    hosts = {int(state.host_of[state.unit_index[u]]) for u in row.units if u in state.unit_index}
    maintenance_starts = sorted(
        start for host, start, end in state.maintenance if host in hosts and end > now
    )

    def reservations_broken_by(limit: int) -> list[ReservationInfo]:
        """Return the reservations that would be broken if it stayed until ``limit``."""
        running = (*others, replace(row, until=limit))
        kept_reservations = PromiseTimeline(
            PoolState(PoolSnapshot(replace(snapshot, running=running), pool), now)
        ).tentative_units.keys()
        broken_rows = (
            state.reservation_by_id[r]
            for r in sorted(timeline_without.tentative_units.keys() - kept_reservations)
        )
        return sorted(
            (r for r in broken_rows if r.end > row.until and r.start < limit), key=lambda r: (r.start, r.id)
        )

    displaced, in_service_until = reservations_broken_by(until), min([until, *maintenance_starts])
    if not displaced and in_service_until == until:
        return WindowCheckResult(True)
    # A longer stay never keeps more reservations, and the next one breaks only if the stay exceeds its start.
    # So the latest limit is found by bisection.
    candidates = sorted(
        {r.start for r in state.reservations if row.until < r.start < until} | {in_service_until}
    )
    fitting_limits = [time for time in candidates if row.until < time <= in_service_until]
    low, high = 0, len(fitting_limits)
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high) if not reservations_broken_by(fitting_limits[middle]) else (low, middle)
        )
    latest = fitting_limits[low - 1] if low else row.until
    numbers = reason_numbers(
        latest=latest,
        limit=row.until,
        maintenance=sum(start < until for start in maintenance_starts),
        reservations=len(displaced),
        start=min([r.start for r in displaced] + [start for start in maintenance_starts if start < until]),
        until=until,
    )
    return WindowCheckResult(False, ReasonCode.MORE_TIME_BLOCKED, numbers)
