"""Check that a reservation takes the units of borrowed work before the units of guaranteed work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from benchmarks.plan_verifier.plan_lookups import PlanLookups
from benchmarks.plan_verifier.reservation_checks import sole_unbound_reservations
from benchmarks.plan_verifier.unit_lookups import serves
from scheduler.core.model.snapshot import ReservationInfo, RunningWorkload, UnitInfo

SECONDS_PER_PAST_EVICTION = 1800


def borrowers_are_evicted_before_guaranteed_work(lookups: PlanLookups) -> Iterator[str]:
    """Report guaranteed work that is evicted for a reservation without need.

    There is no need if free units and the units of borrowed work suffice for the reservation.
    """
    if lookups.plan.bindings:
        return  # New bindings use up slots of guarantees, and the snapshot does not contain these bindings.
    for reservation in sole_unbound_reservations(lookups):
        soonest = lookups.now + lookups.eviction_lead(reservation.pool)
        if not reservation.start <= soonest < reservation.end or lookups.is_static(reservation.pool):
            continue
        planned = {e.workload for e in lookups.evictions if e.for_reservation == reservation.id}
        victims = [lookups.running[workload] for workload in sorted(planned)]
        if _guaranteed_work(lookups, reservation, victims) and _borrowed_work_suffices(lookups, reservation):
            yield (
                f"workloads {sorted(planned)} are evicted for reservation {reservation.id}: some are within "
                "their team's guarantee, although borrowed work suffices"
            )


def _borrowed_work_suffices(lookups: PlanLookups, reservation: ReservationInfo) -> bool:
    obtainable = list(_obtainable_units(lookups, reservation))
    held_by = {u.id: lookups.holder[u.id] for u in obtainable if u.id in lookups.holder}
    holders = [lookups.running[workload] for workload in sorted(set(held_by.values()))]
    evictable = [holder for holder in holders if _would_be_evicted(lookups, holder, reservation.start)]
    guaranteed = _guaranteed_work(lookups, reservation, evictable)
    harmless = [u for u in obtainable if held_by.get(u.id) not in guaranteed]
    return lookups.fits(reservation.ask, harmless, on_empty_hosts=True)


def _obtainable_units(lookups: PlanLookups, reservation: ReservationInfo) -> Iterator[UnitInfo]:
    """Yield the units that serve the reservation and can be free for it within notice plus grace."""
    soonest = lookups.now + lookups.eviction_lead(reservation.pool)
    for unit in lookups.units_by_pool.get(reservation.pool, ()):
        is_open = unit.healthy and lookups.hosts[unit.host].schedulable and unit.id not in lookups.bound
        if not is_open or not serves(unit, reservation.ask):
            continue
        if lookups.under_maintenance(unit.host, soonest, reservation.end):
            continue
        holder = lookups.running.get(lookups.holder.get(unit.id, 0))
        if holder is None or lookups.stays_until(holder) <= soonest:
            yield unit


def _would_be_evicted(lookups: PlanLookups, running: RunningWorkload, start: int) -> bool:
    """Return True if the work may be evicted for a reservation and would otherwise still run at ``start``."""
    may_be_evicted = running.preemptible and not running.stopping and not lookups.is_young(running)
    return may_be_evicted and running.reservation is None and running.until > start


def _guaranteed_work(
    lookups: PlanLookups, reservation: ReservationInfo, victims: list[RunningWorkload]
) -> set[int]:
    """Return the ids of the victims whose eviction takes slots from a team's guarantee.

    The victims of each team are counted in the order of their eviction cost, the cheapest first. The first
    victims are borrowed work, as long as their slots do not exceed the slots that the team has borrowed. All
    further victims are guaranteed work. For the team that owns the reservation, the limit is higher by the
    slots that the reservation needs.
    """
    pool = reservation.pool
    model, need = next(iter(lookups.least_slots_by_model(reservation.ask, pool).items()))
    lost: Counter[int] = Counter()
    guaranteed = set()
    for victim in sorted(victims, key=lambda v: (_eviction_cost(lookups, v), v.id)):
        lost[victim.team] += lookups.slots_by_model(victim.units)[model]
        own_need = need if victim.team == reservation.team else 0
        if lost[victim.team] > _borrowed_slots(lookups, pool, victim.team, model) + own_need:
            guaranteed.add(victim.id)
    return guaranteed


def _borrowed_slots(lookups: PlanLookups, pool: int, team: int, model: str) -> int:
    """Return the slots that a team holds above its guarantee; negative if it holds less.

    Work that is already stopping is not counted.
    """
    stopping = sum(
        lookups.slots_by_model(running.units)[model]
        for running in lookups.snapshot.running
        if (running.pool, running.team) == (pool, team) and running.stopping and running.reservation is None
    )
    key = (pool, team, model)
    return lookups.held(key) - stopping - lookups.guarantee(key)


def _eviction_cost(lookups: PlanLookups, running: RunningWorkload) -> int:
    """Return the work that an eviction loses, in slot-seconds.

    The lost seconds are counted from the last checkpoint, or from the start if there is no checkpoint. Each
    past eviction adds half an hour to the lost seconds.
    """
    saved = max(running.started, running.checkpoint_at or running.started)
    unsaved = max(0, lookups.now - saved)
    return lookups.slots(running.units) * (unsaved + running.evictions * SECONDS_PER_PAST_EVICTION)
