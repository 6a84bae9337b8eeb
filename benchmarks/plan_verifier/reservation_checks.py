"""Checks of reservations: promises are kept, units are bound at the start, and borrowers are evicted in
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from benchmarks.plan_verifier.placement_checks import known_placements
from benchmarks.plan_verifier.plan_lookups import PlanLookups, serves
from scheduler.core.model.plan import Plan as EmptyPlan
from scheduler.core.model.snapshot import Ask, ReservationInfo, RunningWorkload, Snapshot, UnitInfo
from scheduler.core.promises.reservation_windows import WindowCheckResult
from scheduler.core.reasons import ReasonCode

UNBOUND_CODES = {ReasonCode.RESERVED_UNITS_MISSING, ReasonCode.RESERVED_UNITS_IN_USE}


def no_stranger_on_bound_units(lookups: PlanLookups) -> Iterator[str]:
    """Bound units are used only by work inside the reservation, and that work uses no other units."""
    for placement, queued, subject in known_placements(lookups):
        for unit in placement.units:
            bound = lookups.bound.get(unit)
            if queued.reservation is None and bound is not None:
                yield f"{subject} is a stranger on unit {unit} of reservation {bound}"
            elif queued.reservation is not None and bound != queued.reservation:
                yield f"{subject} is not inside its reservation on unit {unit}"


def work_inside_belongs_there(lookups: PlanLookups) -> Iterator[str]:
    """Work starts only inside a reservation of its own team and project, during its window."""
    for _, queued, subject in known_placements(lookups):
        if queued.reservation is None:
            continue
        reservation = lookups.reservations.get(queued.reservation)
        if reservation is None or not reservation.start <= lookups.now < reservation.end:
            yield f"{subject} started in a reservation that is not on"
        elif (reservation.team, reservation.project) != (queued.team, queued.project):
            yield f"{subject} started in a reservation of somebody else"


def promises_stay_possible(lookups: PlanLookups) -> Iterator[str]:
    """A reservation that could be kept before the plan can still be kept after it, alone and with its
    rivals.
    """
    before: dict[int, int] = {}
    for running in lookups.snapshot.running:
        if running.reservation is None:
            before |= dict.fromkeys(running.units, lookups.stays_until(running))
    after = dict(before)
    for placement, queued, _ in known_placements(lookups):
        policy = lookups.pools[queued.pool].policy
        stays = queued.max_runtime_seconds
        if queued.preemptible:
            stays = min(stays, policy.minimum_runtime_seconds + policy.notice_seconds + policy.grace_seconds)
        if queued.reservation is None:
            after |= dict.fromkeys(placement.units, lookups.now + stays)
    for pool in sorted(lookups.pools):
        promised = sorted(lookups.unbound(pool), key=lambda r: (-r.ask.total_units, r.id))
        if not _all_kept(lookups, promised, before):
            continue  # The planner could possibly not keep all of them.
        for reservation in promised:
            rivals = [r for r in promised if r.start <= reservation.start < r.end]
            if not _can_keep(lookups, reservation, after):
                yield f"reservation {reservation.id} could be kept before the plan and can't after it"
            elif _enough(lookups, reservation, rivals, before) and not _enough(
                lookups, reservation, rivals, after
            ):
                yield f"reservations {[r.id for r in rivals]} can't all be kept after the plan"


def _open_for(lookups: PlanLookups, reservation: ReservationInfo, stays: dict[int, int]) -> list[UnitInfo]:
    """Return the units that nothing known keeps from the reservation in its whole window."""
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


def _can_keep(lookups: PlanLookups, reservation: ReservationInfo, stays: dict[int, int]) -> bool:
    return lookups.fits(reservation.ask, _open_for(lookups, reservation, stays), on_empty_hosts=True)


def _all_kept(lookups: PlanLookups, promised: list[ReservationInfo], stays: dict[int, int]) -> bool:
    """Return True if each can be assigned the first units that serve it. False may be wrong, True is not."""
    assigned: list[tuple[ReservationInfo, set[int]]] = []
    for reservation in promised:
        taken = {
            u
            for r, units in assigned
            if r.start < reservation.end and reservation.start < r.end
            for u in units
        }
        units = lookups.some_units_that_fit(
            reservation.ask, [u for u in _open_for(lookups, reservation, stays) if u.id not in taken]
        )
        if units is None:
            return False
        assigned.append((reservation, units))
    return True


def _enough(
    lookups: PlanLookups, reservation: ReservationInfo, rivals: list[ReservationInfo], stays: dict[int, int]
) -> bool:
    """Return True if there are as many units as the rivals need together, of all that serve one of them."""
    units = [u for u in _open_for(lookups, reservation, stays) if any(serves(u, r.ask) for r in rivals)]
    return len(units) >= sum(r.ask.total_units for r in rivals)


# -- at the start
# ---------------------------------------------------------------------------------------------


def bindings_are_right(lookups: PlanLookups) -> Iterator[str]:
    """Units are bound within the window: as requested, free, healthy, and to one reservation."""
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
        ask, per_host = reservation.ask, Counter(u.host for u in units)
        if len(units) != len(binding.units) or not all(serves(u, ask) for u in units):
            yield f"{subject} is bound to units it did not ask for"
        if len(per_host) != ask.hosts or set(per_host.values()) != {ask.units}:
            yield f"{subject} is bound to {sorted(per_host.values())} units per host"
        elif not lookups.fits(ask, units, on_empty_hosts=True):
            yield (
                f"{subject} is bound to units of several kinds, without NVLink, or on hosts "
                "without a label or the room beside"
            )
        yield from _each_bound_unit(lookups, reservation, units, subject)
        for unit in binding.units:
            if unit in lookups.holder:
                yield f"{subject} is bound to unit {unit}, which workload {lookups.holder[unit]} still holds"
            if taken[unit] > 1:
                yield f"unit {unit} is bound to two reservations"


def _each_bound_unit(
    lookups: PlanLookups, reservation: ReservationInfo, units: list[UnitInfo], subject: str
) -> Iterator[str]:
    for unit in units:
        if lookups.pool_of(unit) != reservation.pool:
            yield f"{subject} is bound to unit {unit.id} of another pool"
        if not lookups.is_usable(unit):
            yield f"{subject} is bound to unit {unit.id}, which is not in service"


def bindings_leave_others_their_guarantee(lookups: PlanLookups) -> Iterator[str]:
    """A reservation is not bound to a model that others are guaranteed if its team is guaranteed enough of
    another one.

    Checked only if the team has no other reservation in the window.
    """
    for binding in lookups.plan.bindings:
        row = lookups.reservations.get(binding.reservation)
        if row is None or row.may_exceed_guarantee or lookups.is_static(row.pool) or not binding.units:
            continue
        own = [
            r
            for r in lookups.snapshot.reservations
            if r.id != row.id and (r.pool, r.team) == (row.pool, row.team)
        ]
        needs, start = (
            _needs(lookups, row.ask, row.pool),
            min(lookups.now + lookups.eviction_lead(row.pool), row.end - 1),
        )
        model = lookups.units[binding.units[0]].model if binding.units[0] in lookups.units else ""
        if model not in needs or any(r.end > lookups.now and r.start < row.end for r in own):
            continue
        own_models = [
            name
            for name, need in sorted(needs.items())
            if name != model
            and lookups.held((row.pool, row.team, name)) + need
            <= lookups.guaranteed_slots_at((row.pool, row.team, name), start)
        ]
        if (
            own_models
            and _violated_at(lookups, model, needs[model], row.team, row.pool, (start, row.end)) is not None
        ):
            yield (
                f"reservation {row.id} is bound to {model}, which others are guaranteed, and "
                f"not to its team's {own_models[0]}"
            )


def unbound_reservations_have_a_reason(lookups: PlanLookups) -> Iterator[str]:
    """A reservation that has begun is bound, or has exactly one reason with numbers."""
    bound = {b.reservation for b in lookups.plan.bindings}
    reason_counts = Counter(u.reservation for u in lookups.plan.unbound)
    for reservation in lookups.snapshot.reservations:
        subject = f"reservation {reservation.id}"
        begun = reservation.pool in lookups.pools and reservation.start <= lookups.now < reservation.end
        waits = begun and not reservation.units and reservation.id not in bound
        if waits and reason_counts[reservation.id] != 1:
            yield f"{subject} has begun without units, and {reason_counts[reservation.id]} reasons are given"
        if not waits and reason_counts[reservation.id]:
            yield f"{subject} does not wait for units, and a reason for that is given"
    for unbound in lookups.plan.unbound:
        if unbound.code not in UNBOUND_CODES or not unbound.numbers:
            yield (
                f"reservation {unbound.reservation} waits with code {unbound.code} and "
                f"{len(unbound.numbers)} numbers"
            )


def firm_work_leaves_room_for_its_teams_reservation(lookups: PlanLookups) -> Iterator[str]:
    """A team's reservation and its work that is not preemptible stay within its guarantee, if they did
    before the plan.
    """
    stays = {
        unit: lookups.stays_until(r)
        for r in lookups.snapshot.running
        if r.reservation is None
        for unit in r.units
    }
    for row in _only_claimants(lookups):
        if row.may_exceed_guarantee or lookups.is_static(row.pool) or not _can_keep(lookups, row, stays):
            continue
        (model, need), at = (
            next(iter(_needs(lookups, row.ask, row.pool).items())),
            max(row.start, lookups.now),
        )
        before = sum(
            lookups.slots_by_model(r.units)[model]
            for r in lookups.snapshot.running
            if (r.pool, r.team) == (row.pool, row.team)
            and r.reservation is None
            and not r.preemptible
            and r.until > at
        )
        bound = [
            r
            for r in lookups.snapshot.reservations
            if (r.pool, r.team) == (row.pool, row.team) and r.end > at
        ]
        before += need + sum(lookups.slots_by_model(r.units)[model] for r in bound)
        started = [
            (subject, lookups.slots_by_model(placement.units)[model])
            for placement, queued, subject in known_placements(lookups)
            if (queued.pool, queued.team) == (row.pool, row.team)
            and queued.reservation is None
            and not queued.preemptible
            and queued.id not in lookups.awaiting_evictions
            and lookups.now + queued.max_runtime_seconds > at
        ]
        guaranteed = lookups.guaranteed_slots_at((row.pool, row.team, model), at)
        if before <= guaranteed < before + sum(slots for _, slots in started):
            yield (
                f"{started[-1][0]} and reservation {row.id} are together more than team "
                f"{row.team} is guaranteed"
            )


def _only_claimants(lookups: PlanLookups) -> Iterator[ReservationInfo]:
    """Yield reservations that are the only unbound one of their pool, and can use only one kind of unit."""
    for pool in sorted(lookups.pools):
        unbound = lookups.unbound(pool)
        kinds = lookups.kinds_by_pool.get(pool, {}).values()
        if len(unbound) == 1 and sum(serves(u, unbound[0].ask) for u in kinds) == 1:
            yield unbound[0]


def reservations_with_free_units_are_bound(lookups: PlanLookups) -> Iterator[str]:
    """A reservation that has begun is bound if enough units that it may use are free."""
    for reservation in _only_claimants(lookups):
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
            yield f"reservation {reservation.id} has begun and is not bound, and units lie free for it"


def borrowers_get_notice_in_time(lookups: PlanLookups) -> Iterator[str]:
    """From notice and grace before its start on, work on the units that a reservation needs is evicted."""
    for reservation in _only_claimants(lookups):
        soonest = lookups.now + lookups.eviction_lead(reservation.pool)
        if reservation.start > soonest:
            continue
        victims = {e.workload for e in lookups.evictions}
        obtainable, freed_in_time = [], []
        for unit in lookups.units_by_pool.get(reservation.pool, ()):
            if not unit.healthy or not lookups.hosts[unit.host].schedulable or unit.id in lookups.bound:
                continue
            if lookups.under_maintenance(unit.host, lookups.now, reservation.end):
                continue
            holder = lookups.running.get(lookups.holder.get(unit.id, 0))
            if holder is None or lookups.stays_until(holder) <= soonest:
                obtainable.append(unit)
                if holder is None or holder.id in victims or holder.stopping or holder.until <= soonest:
                    freed_in_time.append(unit)
        if lookups.fits(reservation.ask, obtainable, on_empty_hosts=True) and not lookups.fits(
            reservation.ask, freed_in_time, on_empty_hosts=True
        ):
            yield (
                f"reservation {reservation.id} starts at {reservation.start} and nobody is told "
                "to leave its units"
            )


def no_evictions_for_satisfied_reservations(lookups: PlanLookups) -> Iterator[str]:
    """Each victim for a reservation holds units without which the reservation would not have enough."""
    for reservation in _only_claimants(lookups):
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


# -- when it is requested
# -------------------------------------------------------------------------------------


def window_violations(
    snapshot: Snapshot,
    ask: Ask,
    team: int,
    pool: int,
    start: int,
    end: int,
    answer: WindowCheckResult,
    now: int,
    may_exceed_guarantee: bool = False,
) -> list[str]:
    """Return what is wrong with the answer to the question whether ``ask`` can be reserved for ``[start,
    end)``.

    An acceptance must leave every promise possible and the guarantees of others intact. A rejection must have
    a code with numbers, and the windows it names must be in the future and of the same length.
    """
    lookups = PlanLookups(snapshot, EmptyPlan(snapshot.epoch), now)
    if not answer.fits:
        return list(_wrong_rejection(answer, start, end, now))
    wrong = list(_wrong_acceptance(lookups, ask, pool, start, end))
    if not may_exceed_guarantee and not lookups.is_static(pool):
        wrong += _violated_guarantees(lookups, ask, team, pool, start, end)
        wrong += _beyond_limits(lookups, ask, team, pool, start)
    return wrong


def _wrong_rejection(answer: WindowCheckResult, start: int, end: int, now: int) -> Iterator[str]:
    if not answer.code or not answer.numbers:
        yield f"a no with code {answer.code!r} and {len(answer.numbers)} numbers"
    for window in answer.first_windows:
        if window.start < now or window.end - window.start != end - start:
            yield f"the window {window.start} to {window.end} is over or has another length"


def _wrong_acceptance(lookups: PlanLookups, ask: Ask, pool: int, start: int, end: int) -> Iterator[str]:
    obtainable = [
        u
        for u in lookups.units_by_pool.get(pool, ())
        if u.healthy
        and lookups.is_open_from(u.host, start)
        and not lookups.under_maintenance(u.host, start, end)
        and not _is_held_in(lookups, u, start, end)
    ]
    if not lookups.fits(ask, obtainable, on_empty_hosts=True):
        yield "a yes, and no units are there for all of the window"
    promised = [
        r
        for r in lookups.unbound(pool)
        if r.start < end and r.end > start and _serves_alike(lookups, r, ask, pool)
    ]
    stays = {
        unit: lookups.stays_until(r)
        for r in lookups.snapshot.running
        if r.reservation is None
        for unit in r.units
    }
    if not _all_kept(lookups, sorted(lookups.unbound(pool), key=lambda r: (-r.ask.total_units, r.id)), stays):
        return  # one that can't be kept anyway takes nothing from others
    fitting = [u for u in obtainable if serves(u, ask)]
    for time in sorted({start} | {r.start for r in promised if r.start > start}):
        need = sum(r.ask.total_units for r in promised if r.start <= time < r.end) + ask.total_units
        if need > len(fitting):
            yield f"a yes, and at {time} {need} units are promised of {len(fitting)}"


def _serves_alike(lookups: PlanLookups, reservation: ReservationInfo, ask: Ask, pool: int) -> bool:
    """Return True if the reservation can only use units that the ask could also use."""
    units = lookups.kinds_by_pool.get(pool, {}).values()
    return all(serves(u, ask) for u in units if serves(u, reservation.ask))


def _is_held_in(lookups: PlanLookups, unit: UnitInfo, start: int, end: int) -> bool:
    rival = lookups.reservations.get(lookups.bound.get(unit.id, 0))
    if rival is not None and rival.end > start:
        return True
    holder: RunningWorkload | None = lookups.running.get(lookups.holder.get(unit.id, 0))
    return (
        holder is not None
        and holder.reservation is None
        and lookups.stays_until(holder) > start
        and end > lookups.now
    )


def _violated_guarantees(
    lookups: PlanLookups, ask: Ask, team: int, pool: int, start: int, end: int
) -> Iterator[str]:
    """For at least one accepted model, others can still have their guarantees at every time in the window."""
    violated = []
    for model, need in sorted(_needs(lookups, ask, pool).items()):
        time = _violated_at(lookups, model, need, team, pool, (start, end))
        if time is None:
            return
        violated.append(f"{model} at {time}")
    if violated:
        yield f"a yes, and others are left less than they are guaranteed: {', '.join(violated)}"


def _beyond_limits(lookups: PlanLookups, ask: Ask, team: int, pool: int, start: int) -> Iterator[str]:
    """For at least one accepted model, the reservation is within what its team may hold."""
    allowed = []
    for model, need in _needs(lookups, ask, pool).items():
        quota = lookups.quotas.get((pool, team, model))
        if quota is not None:
            is_reset = quota.used_up_until is not None and quota.used_up_until <= start
            limit = quota.borrow_limit_after_reset if is_reset else quota.borrow_limit
            allowed.append(
                limit is None or need <= limit + lookups.guaranteed_slots_at((pool, team, model), start)
            )
    if not any(allowed):
        yield "a yes, and its team may not hold so much of any model"


def _needs(lookups: PlanLookups, ask: Ask, pool: int) -> dict[str, int]:
    """Return the least slots that the ask takes of each model that serves it."""
    needs: dict[str, int] = {}
    for unit in lookups.kinds_by_pool.get(pool, {}).values():
        if serves(unit, ask):
            need = ask.total_units * unit.slots
            needs[unit.model] = min(needs.get(unit.model, need), need)
    return needs


def _violated_at(
    lookups: PlanLookups, model: str, need: int, team: int, pool: int, window: tuple[int, int]
) -> int | None:
    """Return the first time at which ``need`` more slots leave others less than their guarantees, or None.

    Only the reservations that are bound now are counted as promised.
    """
    start, end = window
    capacity = sum(
        u.slots
        for u in lookups.units_by_pool[pool]
        if u.model == model and u.healthy and lookups.is_open_from(u.host, start)
    )
    bound = [
        r
        for r in lookups.snapshot.reservations
        if r.pool == pool and r.units and r.start < end and r.end > start
    ]
    others = {t for (p, t, m) in lookups.quotas if p == pool and m == model and t != team}
    resets = {
        q.used_up_until
        for (p, _, m), q in lookups.quotas.items()
        if (p, m) == (pool, model) and q.used_up_until
    }
    for time in sorted({start, *(at for at in {r.start for r in bound} | resets if start < at < end)}):
        promised: Counter[int] = Counter()
        for reservation in bound:
            if reservation.start <= time < reservation.end:
                promised[reservation.team] += lookups.slots_by_model(reservation.units)[model]
        needed_by_others = sum(
            max(lookups.guaranteed_slots_at((pool, t, model), time), promised[t]) for t in others
        )
        own = promised[team] + need
        if own > lookups.guaranteed_slots_at((pool, team, model), time) and own + needed_by_others > capacity:
            return time
    return None
