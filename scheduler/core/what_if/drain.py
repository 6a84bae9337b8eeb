from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from scheduler.core.model.plan import Placement, Refusal
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import RunningWorkload, Snapshot
from scheduler.core.planner import plan
from scheduler.core.promises.promise_timeline import PromiseTimeline
from scheduler.core.what_if.requeue import as_requeued, home_storage_of


@dataclass(frozen=True, slots=True)
class DrainedWorkload:
    """A workload that runs on a host that would be drained: it would start elsewhere now, or wait as refused."""

    workload: int
    team: int
    preemptible: bool
    placement: Placement | None
    refusal: Refusal | None
    begins_anew: bool = (
        False  # there are other homes where it would go: it does not find the checkpoint that it leaves
    )


@dataclass(frozen=True, slots=True)
class DrainEffect:
    """What draining a host would touch."""

    moved: tuple[DrainedWorkload, ...]
    reservations: tuple[int, ...]  # that are bound to units of this host
    unkept: tuple[int, ...]  # to come, that could be kept now and could not be without this host


def drain_effect(snapshot: Snapshot, host: int, now: int) -> DrainEffect:
    """Who would have to leave a host, where each would fit now, and which reservations it would break."""
    units = {unit.id for unit in snapshot.units if unit.host == host}
    leaving = sorted((r for r in snapshot.running if units & set(r.units)), key=lambda r: r.id)
    gone = {r.id for r in leaving}
    overlay = replace(
        snapshot,
        hosts=tuple(
            replace(h, accepts=False, closed_code="drained") if h.id == host else h for h in snapshot.hosts
        ),
        running=tuple(r for r in snapshot.running if r.id not in gone),
        queued=(*snapshot.queued, *(as_requeued(snapshot, r, now) for r in leaving)),
    )
    planned = plan(overlay, now)
    placed = {p.workload: p for p in planned.placements}
    refused = {r.workload: r for r in planned.refusals}
    pool = next((h.pool for h in snapshot.hosts if h.id == host), None)
    return DrainEffect(
        tuple(
            DrainedWorkload(
                r.id,
                r.team,
                r.preemptible,
                placed.get(r.id),
                refused.get(r.id),
                _loses_checkpoint(overlay, r, placed.get(r.id)),
            )
            for r in leaving
        ),
        tuple(sorted(r.id for r in snapshot.reservations if units & set(r.units) and r.end > now)),
        tuple(
            sorted(_keepable_reservations(snapshot, pool, now) - _keepable_reservations(overlay, pool, now))
        ),
    )


def _loses_checkpoint(overlay: Snapshot, running: RunningWorkload, placement: Placement | None) -> bool:
    """Are the homes surely other ones where it goes, or where it waits, wherever it may go?"""
    homes = home_storage_of(overlay, running)
    if homes is None:
        return False
    by_host = {unit.id: unit.host for unit in overlay.units}
    there = {by_host[unit] for unit in placement.units} if placement is not None else None
    rows = [
        h for h in overlay.hosts if (h.pool == running.pool and h.accepts if there is None else h.id in there)
    ]
    others = [host.homes for host in rows]
    return (
        bool(others)
        and None not in others
        and (homes not in others or (there is not None and set(others) != {homes}))
    )


def reservations_broken_without(
    snapshot: Snapshot, pool: int, units: Collection[int], now: int
) -> tuple[int, ...]:
    """Reservations to come that could be kept now and could not be without these units, such as a GPU's that is split otherwise."""
    overlay = replace(
        snapshot, units=tuple(replace(u, well=False) if u.id in units else u for u in snapshot.units)
    )
    return tuple(
        sorted(_keepable_reservations(snapshot, pool, now) - _keepable_reservations(overlay, pool, now))
    )


def _keepable_reservations(snapshot: Snapshot, pool: int | None, now: int) -> set[int]:
    """Reservations of a pool for which there is room in their windows."""
    return {
        kept
        for p in snapshot.pools
        if p.id == pool
        for kept in PromiseTimeline(PoolState(snapshot, p, now)).tentative_units
    }
