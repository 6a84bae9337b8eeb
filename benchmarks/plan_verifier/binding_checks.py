"""Check the bindings of a plan.

A binding gives particular units to a reservation at its start. Work that has borrowed these units must be
evicted in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from benchmarks.plan_verifier.plan_lookups import PlanLookups
from benchmarks.plan_verifier.reservation_checks import sole_unbound_reservations
from benchmarks.plan_verifier.unit_lookups import serves
from benchmarks.plan_verifier.window_checks import first_violated_guarantee
from scheduler.core.model.plan import ReservationBinding
from scheduler.core.model.snapshot import ReservationInfo, UnitInfo
from scheduler.core.reasons import ReasonCode

UNBOUND_CODES = {ReasonCode.RESERVED_UNITS_MISSING, ReasonCode.RESERVED_UNITS_IN_USE}


def bindings_are_right(lookups: PlanLookups) -> Iterator[str]:
    """Report bindings at a time outside the reservation's window, and bindings to wrong units.

    A unit is wrong if the reservation did not request it, if work still holds it, if it is not in service, or
    if it is bound to two reservations.
    """
    taken = Counter(u for b in lookups.plan.bindings for u in b.units)
    taken.update(u for r in lookups.snapshot.reservations if r.end > lookups.now for u in r.units)
    for binding in lookups.plan.bindings:
        subject = f"reservation {binding.reservation}"
        reservation = lookups.reservations.get(binding.reservation)
        if reservation is None or reservation.units:
            yield f"{subject} is unknown or bound already"
            continue
        if not reservation.start <= lookups.now < reservation.end:
            yield f"{subject} is bound outside its window"
        units = [lookups.units[u] for u in binding.units if u in lookups.units]
        yield from _not_as_requested(lookups, reservation, binding, units)
        yield from _not_in_service(lookups, reservation, units)
        for unit in binding.units:
            if unit in lookups.holder:
                yield f"{subject} is bound to unit {unit}, which workload {lookups.holder[unit]} still holds"
            if taken[unit] > 1:
                yield f"unit {unit} is bound to two reservations"


def _not_as_requested(
    lookups: PlanLookups, reservation: ReservationInfo, binding: ReservationBinding, units: list[UnitInfo]
) -> Iterator[str]:
    subject, ask = f"reservation {reservation.id}", reservation.ask
    per_host = Counter(u.host for u in units)
    if len(units) != len(binding.units) or not all(serves(u, ask) for u in units):
        yield f"{subject} is bound to units it did not ask for"
    if len(per_host) != ask.hosts or set(per_host.values()) != {ask.units}:
        yield f"{subject} is bound to {sorted(per_host.values())} units per host"
    elif not lookups.fits(ask, units, on_empty_hosts=True):
        yield (
            f"{subject} is bound to units of several kinds, without NVLink, or on hosts "
            "without a required label or enough CPU and memory"
        )


def _not_in_service(
    lookups: PlanLookups, reservation: ReservationInfo, units: list[UnitInfo]
) -> Iterator[str]:
    for unit in units:
        if lookups.pool_of(unit) != reservation.pool:
            yield f"reservation {reservation.id} is bound to unit {unit.id} of another pool"
        if not lookups.is_usable(unit):
            yield f"reservation {reservation.id} is bound to unit {unit.id}, which is not in service"


def bindings_leave_others_their_guarantee(lookups: PlanLookups) -> Iterator[str]:
    """Report bindings that violate the guarantee of another team, although another model was possible.

    Another model was possible if the reservation accepts it, and if the guarantee of the reservation's team
    covers it on that model. A reservation is not checked if its team has another reservation at that time.
    """
    for binding in lookups.plan.bindings:
        row = lookups.reservations.get(binding.reservation)
        if row is None or row.may_exceed_guarantee or lookups.is_static(row.pool) or not binding.units:
            continue
        needs = lookups.least_slots_by_model(row.ask, row.pool)
        model = lookups.units[binding.units[0]].model if binding.units[0] in lookups.units else ""
        if model not in needs or _has_rival_of_own_team(lookups, row):
            continue
        start = min(lookups.now + lookups.eviction_lead(row.pool), row.end - 1)
        alternative = _other_model_within_guarantee(lookups, row, model, needs, start)
        if alternative is None:
            continue
        window = (start, row.end)
        if first_violated_guarantee(lookups, model, needs[model], row.team, row.pool, window) is not None:
            yield (
                f"reservation {row.id} is bound to {model}, which other teams are guaranteed, "
                f"although its own team is guaranteed {alternative}"
            )


def _has_rival_of_own_team(lookups: PlanLookups, row: ReservationInfo) -> bool:
    """Return True if the team has another reservation in this pool between now and the end of ``row``."""
    return any(
        r.id != row.id
        and (r.pool, r.team) == (row.pool, row.team)
        and r.end > lookups.now
        and r.start < row.end
        for r in lookups.snapshot.reservations
    )


def _other_model_within_guarantee(
    lookups: PlanLookups, row: ReservationInfo, model: str, needs: dict[str, int], start: int
) -> str | None:
    """Return an accepted model, other than ``model``, on which the team's guarantee covers the reservation.

    ``needs`` has the slots that the reservation needs on each accepted model. Return None if there is no such
    model.
    """
    for name, need in sorted(needs.items()):
        key = (row.pool, row.team, name)
        if name != model and lookups.held(key) + need <= lookups.guaranteed_slots_at(key, start):
            return name
    return None


def unbound_reservations_have_a_reason(lookups: PlanLookups) -> Iterator[str]:
    """Report reservations that wait for units, and for which the plan does not give exactly one reason.

    Also report reasons with a wrong code or without numbers, and reasons for reservations that do not wait.
    """
    bound = {b.reservation for b in lookups.plan.bindings}
    reason_counts = Counter(u.reservation for u in lookups.plan.unbound)
    for reservation in lookups.snapshot.reservations:
        subject, reasons = f"reservation {reservation.id}", reason_counts[reservation.id]
        waits = _has_begun(lookups, reservation) and not reservation.units and reservation.id not in bound
        if waits and reasons != 1:
            yield f"{subject} has begun without units, and {reasons} reasons are given"
        if not waits and reasons:
            yield f"{subject} does not wait for units, but has a reason for waiting"
    for unbound in lookups.plan.unbound:
        if unbound.code not in UNBOUND_CODES or not unbound.numbers:
            yield (
                f"reservation {unbound.reservation} waits with code {unbound.code} and "
                f"{len(unbound.numbers)} numbers"
            )


def _has_begun(lookups: PlanLookups, reservation: ReservationInfo) -> bool:
    return reservation.pool in lookups.pools and reservation.start <= lookups.now < reservation.end


def reservations_with_free_units_are_bound(lookups: PlanLookups) -> Iterator[str]:
    """Report reservations that have begun and are not bound, although enough units for them are free."""
    for reservation in sole_unbound_reservations(lookups):
        free = [
            u
            for u in lookups.free_after_plan.get(reservation.pool, ())
            if not lookups.under_maintenance(u.host, lookups.now, reservation.end)
        ]
        rivals = any(
            r.units and r.end > lookups.now
            for r in lookups.snapshot.reservations
            if r.pool == reservation.pool
        )
        if (
            reservation.start <= lookups.now
            and not rivals
            and lookups.fits(reservation.ask, free, on_empty_hosts=True)
        ):
            yield f"reservation {reservation.id} has begun and is not bound, although enough units are free"


def borrowers_get_notice_in_time(lookups: PlanLookups) -> Iterator[str]:
    """Report reservations that start soon and for which the plan evicts too little work.

    "Soon" means within notice plus grace. A reservation is reported if too few of its units will be free in
    time, although evictions could free enough units.
    """
    victims = {e.workload for e in lookups.evictions}
    for reservation in sole_unbound_reservations(lookups):
        soonest = lookups.now + lookups.eviction_lead(reservation.pool)
        if reservation.start > soonest:
            continue
        obtainable, freed_in_time = [], []
        for unit in _units_in_service_for(lookups, reservation):
            holder = lookups.running.get(lookups.holder.get(unit.id, 0))
            if holder is None or lookups.stays_until(holder) <= soonest:
                obtainable.append(unit)
                if holder is None or holder.id in victims or holder.stopping or holder.until <= soonest:
                    freed_in_time.append(unit)
        if lookups.fits(reservation.ask, obtainable, on_empty_hosts=True) and not lookups.fits(
            reservation.ask, freed_in_time, on_empty_hosts=True
        ):
            yield (
                f"reservation {reservation.id} starts at {reservation.start} and no work on its units "
                "is evicted in time"
            )


def _units_in_service_for(lookups: PlanLookups, reservation: ReservationInfo) -> Iterator[UnitInfo]:
    """Yield the healthy units of the reservation's pool that are not bound.

    Their hosts are open and have no maintenance before the end of the reservation.
    """
    for unit in lookups.units_by_pool.get(reservation.pool, ()):
        is_open = unit.healthy and lookups.hosts[unit.host].schedulable and unit.id not in lookups.bound
        if is_open and not lookups.under_maintenance(unit.host, lookups.now, reservation.end):
            yield unit


def no_evictions_for_satisfied_reservations(lookups: PlanLookups) -> Iterator[str]:
    """Report each eviction for a reservation that has enough units without this eviction."""
    for reservation in sole_unbound_reservations(lookups):
        victims = [e.workload for e in lookups.evictions if e.for_reservation == reservation.id]
        free = [
            u
            for u in lookups.free_before_plan.get(reservation.pool, ())
            if u.id not in lookups.placed_on
            and u.id not in lookups.earmark
            and u.id not in lookups.abandoned_units
            and not lookups.under_maintenance(u.host, lookups.now, reservation.end)
        ]
        for victim in victims:
            freed = [
                lookups.units[u]
                for v in victims
                if v != victim
                for u in lookups.running[v].units
                if u in lookups.units
            ]
            if lookups.fits(reservation.ask, [*free, *(u for u in freed if u.healthy)], on_empty_hosts=True):
                yield (
                    f"eviction of workload {victim}: reservation {reservation.id} has enough units without it"
                )
