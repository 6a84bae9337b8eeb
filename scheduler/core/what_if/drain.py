"""Find the workloads and reservations that would be affected if a host or some units became unavailable.

The causes are a drain of a host (its work is moved to other hosts), maintenance, or a loss of units.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from scheduler.core.model.plan import Placement, Refusal
from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import MaintenanceInfo, ReservationInfo, RunningWorkload, Snapshot
from scheduler.core.planner import plan
from scheduler.core.promises.promise_timeline import PromiseTimeline
from scheduler.core.what_if.requeue import as_requeued, home_storage_of


@dataclass(frozen=True, slots=True)
class DrainedWorkload:
    """A workload on a host that is to be drained.

    If it could start on other hosts now, ``placement`` is set. If it would have to wait, ``refusal`` is set.
    """

    workload: int
    team: int
    preemptible: bool
    placement: Placement | None
    refusal: Refusal | None
    # True if the workload would run on a host on which its checkpoint is not available.
    loses_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class DrainEffect:
    """The workloads, and the ids of the reservations, that a drain of a host would affect.

    For ``moved_reservations`` and ``broken_reservations`` see ``ReservationEffect``.
    """

    workloads: tuple[DrainedWorkload, ...]
    reservations: tuple[int, ...]  # the reservations that have units on this host
    moved_reservations: tuple[int, ...]
    broken_reservations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReservationEffect:
    """The ids of the reservations that a change of a host affects.

    Reservations in ``moved`` would get units of other hosts. Reservations in ``broken`` have enough units
    now, but not after the change. Both can contain reservations that have begun and future reservations.
    """

    moved: tuple[int, ...]
    broken: tuple[int, ...]


def drain_effect(snapshot: Snapshot, host: int, now: int) -> DrainEffect:
    """Return the workloads that a drain would remove from a host, and the reservations that it would affect.

    For each workload, the result says whether it would start on another host now.
    """
    units = {unit.id for unit in snapshot.units if unit.host == host}
    displaced = sorted((row for row in snapshot.running if units & set(row.units)), key=lambda row: row.id)
    displaced_ids = {row.id for row in displaced}
    overlay = replace(
        snapshot,
        hosts=tuple(
            replace(h, schedulable=False, closed_code="drained") if h.id == host else h
            for h in snapshot.hosts
        ),
        running=tuple(row for row in snapshot.running if row.id not in displaced_ids),
        queued=(*snapshot.queued, *(as_requeued(snapshot, row, now) for row in displaced)),
    )
    planned = plan(overlay, now)
    placed = {p.workload: p for p in planned.placements}
    refused = {row.workload: row for row in planned.refusals}
    effect = effect_on_reservations(
        snapshot, replace(overlay, reservations=_without_units(snapshot, units, now)), host, now
    )
    return DrainEffect(
        tuple(
            DrainedWorkload(
                row.id,
                row.team,
                row.preemptible,
                placed.get(row.id),
                refused.get(row.id),
                _loses_checkpoint(overlay, row, placed.get(row.id)),
            )
            for row in displaced
        ),
        tuple(sorted(row.id for row in snapshot.reservations if units & set(row.units) and row.end > now)),
        effect.moved,
        effect.broken,
    )


def _without_units(snapshot: Snapshot, units: set[int], now: int) -> tuple[ReservationInfo, ...]:
    """Return all reservations. A reservation that has one of ``units`` is returned without any units.

    Reservations that have ended are returned unchanged.
    """
    return tuple(
        replace(row, units=()) if units & set(row.units) and row.end > now else row
        for row in snapshot.reservations
    )


def maintenance_effect(snapshot: Snapshot, host: int, start: int, end: int, now: int) -> ReservationEffect:
    """Return the reservations that maintenance of a host would move or break.

    It does not matter whether the snapshot already contains this maintenance.
    """
    window = MaintenanceInfo(host, start, end)
    before = replace(snapshot, maintenance=tuple(row for row in snapshot.maintenance if row != window))
    after = replace(before, maintenance=(*before.maintenance, window))
    return effect_on_reservations(before, after, host, now)


def effect_on_reservations(before: Snapshot, after: Snapshot, host: int, now: int) -> ReservationEffect:
    """Return the reservations that a change of a host moves or breaks.

    ``before`` and ``after`` are the snapshots without and with the change.
    """
    units = {unit.id for unit in before.units if unit.host == host}
    pool = next((h.pool for h in before.hosts if h.id == host), None)
    units_before, units_after = (
        _units_of_reservations(before, pool, now),
        _units_of_reservations(after, pool, now),
    )
    moved = {
        reservation
        for reservation, chosen in units_before.items()
        if units & chosen and not units & units_after.get(reservation, units)
    }
    return ReservationEffect(tuple(sorted(moved)), tuple(sorted(units_before.keys() - units_after.keys())))


def _units_of_reservations(snapshot: Snapshot, pool: int | None, now: int) -> dict[int, frozenset[int]]:
    """Return, for each reservation of a pool, the ids of the units that it has or is expected to get.

    If a reservation has to be moved to other units, the result has its new units. A reservation is left out
    if there are not enough units for it.
    """
    found: dict[int, frozenset[int]] = {}
    for p in snapshot.pools:
        if p.id == pool:
            state = PoolState(PoolSnapshot(snapshot, p), now)
            promises = PromiseTimeline(state)
            found |= {
                row.id: frozenset(row.units)
                for row in state.reservations
                if row.units and row.id not in promises.to_be_bound
            }
            found |= {
                reservation: frozenset(state.units[unit].id for unit in units)
                for reservation, units in promises.tentative_units.items()
            }
    return found


def _loses_checkpoint(overlay: Snapshot, running: RunningWorkload, placement: Placement | None) -> bool:
    """Return True if the workload would certainly run on a host on which its checkpoint is not available.

    If ``placement`` is None, the future hosts of the workload are unknown. The function then examines all
    hosts of the pool that take new work.
    """
    storage = home_storage_of(overlay, running)
    if storage is None:
        return False
    by_host = {unit.id: unit.host for unit in overlay.units}
    host_ids = {by_host[unit] for unit in placement.units} if placement is not None else None
    rows = [
        h
        for h in overlay.hosts
        if (h.pool == running.pool and h.schedulable if host_ids is None else h.id in host_ids)
    ]
    other_storage = [host.home_storage for host in rows]
    return (
        bool(other_storage)
        and None not in other_storage
        and (storage not in other_storage or (host_ids is not None and set(other_storage) != {storage}))
    )


def reservations_broken_without(
    snapshot: Snapshot, pool: int, units: Collection[int], now: int
) -> tuple[int, ...]:
    """Return the ids of the reservations that can be kept now, but not without ``units``.

    Example: the units of a GPU that an operator wants to split.
    """
    overlay = replace(
        snapshot, units=tuple(replace(u, healthy=False) if u.id in units else u for u in snapshot.units)
    )
    return tuple(
        sorted(_keepable_reservations(snapshot, pool, now) - _keepable_reservations(overlay, pool, now))
    )


def _keepable_reservations(snapshot: Snapshot, pool: int | None, now: int) -> set[int]:
    """Return the ids of the reservations of a pool that can be kept until their ends."""
    return set(_units_of_reservations(snapshot, pool, now))
