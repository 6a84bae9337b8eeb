"""Check that only entitled work starts inside reservations, and that all reservations stay possible."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.plan_verifier.placement_checks import known_placements
from benchmarks.plan_verifier.plan_lookups import PlanLookups
from benchmarks.plan_verifier.unit_lookups import serves
from scheduler.core.model.snapshot import ReservationInfo, UnitInfo


def only_reservation_work_on_bound_units(lookups: PlanLookups) -> Iterator[str]:
    """Report work outside reservations that gets units bound to a reservation.

    Also report work inside a reservation that gets units that are not bound to it.
    """
    for placement, queued, subject in known_placements(lookups):
        for unit in placement.units:
            bound = lookups.bound.get(unit)
            if queued.reservation is None and bound is not None:
                yield f"{subject} is outside reservation {bound} and uses its unit {unit}"
            elif queued.reservation is not None and bound != queued.reservation:
                yield f"{subject} uses unit {unit}, which is not bound to its reservation"


def work_is_entitled_to_its_reservation(lookups: PlanLookups) -> Iterator[str]:
    """Report work that starts in a reservation of another team or project, or outside the reserved time."""
    for _, queued, subject in known_placements(lookups):
        if queued.reservation is None:
            continue
        reservation = lookups.reservations.get(queued.reservation)
        if reservation is None or not reservation.start <= lookups.now < reservation.end:
            yield f"{subject} started in a reservation outside its window"
        elif (reservation.team, reservation.project) != (queued.team, queued.project):
            yield f"{subject} started in a reservation of another team or project"


def reservations_stay_feasible(lookups: PlanLookups) -> Iterator[str]:
    """Report unbound reservations that are feasible before the plan but not after it.

    Each reservation is checked alone, and together with the reservations in force at its start. A pool is
    skipped if no simple assignment serves all its reservations before the plan.
    """
    before, after = lookups.release_times, _release_times_after_plan(lookups)
    for pool in sorted(lookups.pools):
        promised = largest_first(lookups.unbound(pool))
        if not can_all_be_kept(lookups, promised, before):
            continue  # perhaps no plan can keep all these reservations
        for reservation in promised:
            rivals = [r for r in promised if r.start <= reservation.start < r.end]
            if not can_be_kept(lookups, reservation, after):
                yield f"reservation {reservation.id} could be kept before the plan and can't after it"
            elif _enough(lookups, reservation, rivals, before) and not _enough(
                lookups, reservation, rivals, after
            ):
                yield f"reservations {[r.id for r in rivals]} can't all be kept after the plan"


def _release_times_after_plan(lookups: PlanLookups) -> dict[int, int]:
    """Return, for each unit that work holds after the plan, the time at which the work will have released it.

    Only the units of work outside reservations are included. Preemptible work is assumed to be evicted as
    soon as possible.
    """
    after = dict(lookups.release_times)
    for placement, queued, _ in known_placements(lookups):
        stays = queued.max_runtime_seconds
        if queued.preemptible:
            protected = lookups.pools[queued.pool].policy.minimum_runtime_seconds
            stays = min(stays, protected + lookups.eviction_lead(queued.pool))
        if queued.reservation is None:
            after |= dict.fromkeys(placement.units, lookups.now + stays)
    return after


def largest_first(reservations: list[ReservationInfo]) -> list[ReservationInfo]:
    """Return the reservations ordered by their number of units, the largest first."""
    return sorted(reservations, key=lambda r: (-r.ask.total_units, r.id))


def open_units_for(
    lookups: PlanLookups, reservation: ReservationInfo, stays: dict[int, int]
) -> list[UnitInfo]:
    """Return the units that can be free for the reservation during its whole window.

    ``stays`` has the time until which work holds each unit. A unit must be healthy, and no work and no other
    reservation may have it at the start. Its host must be open, and must have no maintenance in the window.
    """
    start = max(reservation.start, lookups.now + lookups.eviction_lead(reservation.pool))
    open_units = []
    for unit in lookups.units_by_pool.get(reservation.pool, ()):
        rival = lookups.reservations.get(lookups.bound.get(unit.id, 0))
        if (
            unit.healthy
            and lookups.is_open_from(unit.host, start)
            and stays.get(unit.id, 0) <= start
            and (rival is None or rival.end <= start)
            and not lookups.under_maintenance(unit.host, start, reservation.end)
        ):
            open_units.append(unit)
    return open_units


def can_be_kept(lookups: PlanLookups, reservation: ReservationInfo, stays: dict[int, int]) -> bool:
    return lookups.fits(reservation.ask, open_units_for(lookups, reservation, stays), on_empty_hosts=True)


def can_all_be_kept(lookups: PlanLookups, promised: list[ReservationInfo], stays: dict[int, int]) -> bool:
    """Return True if units can be assigned to all reservations, one reservation after another.

    False does not prove that the reservations cannot be kept, because a better assignment may exist.
    """
    assigned: list[tuple[ReservationInfo, set[int]]] = []
    for reservation in promised:
        taken = {
            u
            for r, units in assigned
            if r.start < reservation.end and reservation.start < r.end
            for u in units
        }
        units = lookups.some_units_that_fit(
            reservation.ask, [u for u in open_units_for(lookups, reservation, stays) if u.id not in taken]
        )
        if units is None:
            return False
        assigned.append((reservation, units))
    return True


def _enough(
    lookups: PlanLookups, reservation: ReservationInfo, rivals: list[ReservationInfo], stays: dict[int, int]
) -> bool:
    """Return True if enough units are open for ``reservation`` to serve all rivals together.

    Only the number of units is compared. A unit is counted if it serves at least one rival.
    """
    units = [u for u in open_units_for(lookups, reservation, stays) if any(serves(u, r.ask) for r in rivals)]
    return len(units) >= sum(r.ask.total_units for r in rivals)


def non_preemptible_work_leaves_room_for_its_teams_reservation(lookups: PlanLookups) -> Iterator[str]:
    """Report teams that start too much non-preemptible work before their own reservation.

    The reservation and the team's non-preemptible work must fit together into the team's guarantee. A team is
    reported only if they fit before the plan and not after it.
    """
    for row in sole_unbound_reservations(lookups):
        if row.may_exceed_guarantee or lookups.is_static(row.pool):
            continue
        if not can_be_kept(lookups, row, lookups.release_times):
            continue
        model, need = next(iter(lookups.least_slots_by_model(row.ask, row.pool).items()))
        at = max(row.start, lookups.now)
        before = need + _non_preemptible_slots_before_plan(lookups, row, model, at)
        started = _non_preemptible_starts(lookups, row, model, at)
        guaranteed = lookups.guaranteed_slots_at((row.pool, row.team, model), at)
        if before <= guaranteed < before + sum(slots for _, slots in started):
            yield (
                f"{started[-1][0]} and reservation {row.id} are together more than team "
                f"{row.team} is guaranteed"
            )


def _non_preemptible_slots_before_plan(
    lookups: PlanLookups, row: ReservationInfo, model: str, at: int
) -> int:
    """Return the slots of ``model`` that a team holds at time ``at``, without preemptible work.

    They belong to the team's bound reservations, and to its non-preemptible work outside reservations. Work
    that this plan starts is not counted.
    """
    of_team = (row.pool, row.team)
    working = [r for r in lookups.snapshot.running if (r.pool, r.team) == of_team and r.until > at]
    firm = [r for r in working if r.reservation is None and not r.preemptible]
    reserved = [r for r in lookups.snapshot.reservations if (r.pool, r.team) == of_team and r.end > at]
    unit_sets = [*(r.units for r in firm), *(r.units for r in reserved)]
    return sum(lookups.slots_by_model(units)[model] for units in unit_sets)


def _non_preemptible_starts(
    lookups: PlanLookups, row: ReservationInfo, model: str, at: int
) -> list[tuple[str, int]]:
    """Return (name, slots of ``model``) of the team's workloads that the plan starts.

    Only non-preemptible work outside reservations that may still run at ``at`` is included. Work for which an
    earlier plan evicted other work is left out.
    """
    return [
        (subject, lookups.slots_by_model(placement.units)[model])
        for placement, queued, subject in known_placements(lookups)
        if (queued.pool, queued.team) == (row.pool, row.team)
        and queued.reservation is None
        and not queued.preemptible
        and queued.id not in lookups.awaiting_evictions
        and lookups.now + queued.max_runtime_seconds > at
    ]


def sole_unbound_reservations(lookups: PlanLookups) -> Iterator[ReservationInfo]:
    """Yield each unbound reservation that is alone in its pool and can use only one kind of unit.

    With several unbound reservations or several kinds, the planner can choose between several correct plans.
    """
    for pool in sorted(lookups.pools):
        unbound = lookups.unbound(pool)
        kinds = lookups.kinds_by_pool.get(pool, {}).values()
        if len(unbound) == 1 and sum(serves(u, unbound[0].ask) for u in kinds) == 1:
            yield unbound[0]
