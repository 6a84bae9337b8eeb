"""Reservations: promises are kept, units are bound at the start and to nobody else, and borrowers are told in time."""

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


def no_stranger_on_bound_units(facts: PlanLookups) -> Iterator[str]:
    """Units bound to a reservation are used by work inside it only, and work inside it uses nothing else."""
    for placement, queued, who in known_placements(facts):
        for unit in placement.units:
            bound = facts.bound.get(unit)
            if queued.reservation is None and bound is not None:
                yield f"{who} is a stranger on unit {unit} of reservation {bound}"
            elif queued.reservation is not None and bound != queued.reservation:
                yield f"{who} is not inside its reservation on unit {unit}"


def work_inside_belongs_there(facts: PlanLookups) -> Iterator[str]:
    """Work starts inside a reservation of its own team and project only, and while it lasts."""
    for _, queued, who in known_placements(facts):
        if queued.reservation is None:
            continue
        reservation = facts.reservations.get(queued.reservation)
        if reservation is None or not reservation.start <= facts.now < reservation.end:
            yield f"{who} started in a reservation that is not on"
        elif (reservation.team, reservation.project) != (queued.team, queued.project):
            yield f"{who} started in a reservation of somebody else"


def promises_stay_possible(facts: PlanLookups) -> Iterator[str]:
    """A reservation that could be kept before the plan can still be kept after it, alone and with its rivals."""
    before: dict[int, int] = {}
    for running in facts.snapshot.running:
        if running.reservation is None:
            before |= dict.fromkeys(running.units, facts.stays_until(running))
    after = dict(before)
    for placement, queued, _ in known_placements(facts):
        policy = facts.pools[queued.pool].policy
        stays = queued.max_runtime_seconds
        if queued.preemptible:
            stays = min(stays, policy.minimum_runtime_seconds + policy.notice_seconds + policy.grace_seconds)
        if queued.reservation is None:
            after |= dict.fromkeys(placement.units, facts.now + stays)
    for pool in sorted(facts.pools):
        promised = sorted(facts.unbound(pool), key=lambda r: (-r.ask.total_units, r.id))
        if not _all_kept(facts, promised, before):
            continue  # perhaps the planner gave one of them up, and it could not keep them all
        for reservation in promised:
            rivals = [r for r in promised if r.start <= reservation.start < r.end]
            if not _can_keep(facts, reservation, after):
                yield f"reservation {reservation.id} could be kept before the plan and can't after it"
            elif _enough(facts, reservation, rivals, before) and not _enough(
                facts, reservation, rivals, after
            ):
                yield f"reservations {[r.id for r in rivals]} can't all be kept after the plan"


def _open_for(facts: PlanLookups, reservation: ReservationInfo, stays: dict[int, int]) -> list[UnitInfo]:
    """Units that nothing known keeps from the reservation for its whole window."""
    start = max(reservation.start, facts.now + facts.lead(reservation.pool))
    found = []
    for unit in facts.units_by_pool.get(reservation.pool, ()):
        rival = facts.reservations.get(facts.bound.get(unit.id, 0))
        if (
            unit.well
            and facts.is_open_from(unit.host, start)
            and stays.get(unit.id, 0) <= start
            and (rival is None or rival.end <= start)
            and not facts.under_maintenance(unit.host, start, reservation.end)
        ):
            found.append(unit)
    return found


def _can_keep(facts: PlanLookups, reservation: ReservationInfo, stays: dict[int, int]) -> bool:
    return facts.fits(reservation.ask, _open_for(facts, reservation, stays), whole=True)


def _all_kept(facts: PlanLookups, promised: list[ReservationInfo], stays: dict[int, int]) -> bool:
    """Found by giving each in turn the first units that serve it: a no may be wrong, a yes is not."""
    given: list[tuple[ReservationInfo, set[int]]] = []
    for reservation in promised:
        taken = {
            u for r, units in given if r.start < reservation.end and reservation.start < r.end for u in units
        }
        units = facts.some_units_that_fit(
            reservation.ask, [u for u in _open_for(facts, reservation, stays) if u.id not in taken]
        )
        if units is None:
            return False
        given.append((reservation, units))
    return True


def _enough(
    facts: PlanLookups, reservation: ReservationInfo, rivals: list[ReservationInfo], stays: dict[int, int]
) -> bool:
    """Are there as many units as the rivals need together, of all that serve one of them?"""
    units = [u for u in _open_for(facts, reservation, stays) if any(serves(u, r.ask) for r in rivals)]
    return len(units) >= sum(r.ask.total_units for r in rivals)


# -- at the start --------------------------------------------------------------------------------------------------------


def bindings_are_right(facts: PlanLookups) -> Iterator[str]:
    """Units are bound within the window, as many and such as were promised, free, well, and to one reservation."""
    taken = Counter(u for b in facts.plan.bindings for u in b.units)
    taken.update(u for r in facts.snapshot.reservations if r.end > facts.now for u in r.units)
    for binding in facts.plan.bindings:
        who = f"reservation {binding.reservation}"
        reservation = facts.reservations.get(binding.reservation)
        if reservation is None or reservation.units:
            yield f"{who} is unknown or bound already"
            continue
        if not reservation.start <= facts.now < reservation.end:
            yield f"{who} is bound outside its window"
        units = [facts.units[u] for u in binding.units if u in facts.units]
        ask, per_host = reservation.ask, Counter(u.host for u in units)
        if len(units) != len(binding.units) or not all(serves(u, ask) for u in units):
            yield f"{who} is bound to units it did not ask for"
        if len(per_host) != ask.hosts or set(per_host.values()) != {ask.units}:
            yield f"{who} is bound to {sorted(per_host.values())} units per host"
        elif not facts.fits(ask, units, whole=True):
            yield f"{who} is bound to units of several kinds, without NVLink, or on hosts without a label or the room beside"
        yield from _each_bound_unit(facts, reservation, units, who)
        for unit in binding.units:
            if unit in facts.holder:
                yield f"{who} is bound to unit {unit}, which workload {facts.holder[unit]} still holds"
            if taken[unit] > 1:
                yield f"unit {unit} is bound to two reservations"


def _each_bound_unit(
    facts: PlanLookups, reservation: ReservationInfo, units: list[UnitInfo], who: str
) -> Iterator[str]:
    for unit in units:
        if facts.pool_of(unit) != reservation.pool:
            yield f"{who} is bound to unit {unit.id} of another pool"
        if not facts.is_usable(unit):
            yield f"{who} is bound to unit {unit.id}, which is not in service"


def bindings_leave_others_their_guarantee(facts: PlanLookups) -> Iterator[str]:
    """Of the models that a reservation accepts it is not given one that others are guaranteed, where its team is guaranteed as
    much of another. Looked at where nothing else is promised to the team meanwhile."""
    for binding in facts.plan.bindings:
        row = facts.reservations.get(binding.reservation)
        if row is None or row.may_exceed_guarantee or facts.is_static(row.pool) or not binding.units:
            continue
        own = [
            r
            for r in facts.snapshot.reservations
            if r.id != row.id and (r.pool, r.team) == (row.pool, row.team)
        ]
        needs, start = _needs(facts, row.ask, row.pool), min(facts.now + facts.lead(row.pool), row.end - 1)
        model = facts.units[binding.units[0]].model if binding.units[0] in facts.units else ""
        if model not in needs or any(r.end > facts.now and r.start < row.end for r in own):
            continue
        better = [
            name
            for name, need in sorted(needs.items())
            if name != model
            and facts.held((row.pool, row.team, name)) + need
            <= facts.guarantee_at((row.pool, row.team, name), start)
        ]
        if better and _eaten_at(facts, model, needs[model], row.team, row.pool, (start, row.end)) is not None:
            yield f"reservation {row.id} is bound to {model}, which others are guaranteed, and not to its team's {better[0]}"


def unbound_reservations_have_a_reason(facts: PlanLookups) -> Iterator[str]:
    """A reservation that has begun is bound, or exactly one reason with its numbers is given."""
    bound = {b.reservation for b in facts.plan.bindings}
    said = Counter(u.reservation for u in facts.plan.unbound)
    for reservation in facts.snapshot.reservations:
        who = f"reservation {reservation.id}"
        begun = reservation.pool in facts.pools and reservation.start <= facts.now < reservation.end
        waits = begun and not reservation.units and reservation.id not in bound
        if waits and said[reservation.id] != 1:
            yield f"{who} has begun without units, and {said[reservation.id]} reasons are given"
        if not waits and said[reservation.id]:
            yield f"{who} does not wait for units, and a reason for that is given"
    for unbound in facts.plan.unbound:
        if unbound.code not in UNBOUND_CODES or not unbound.numbers:
            yield f"reservation {unbound.reservation} waits with code {unbound.code} and {len(unbound.numbers)} numbers"


def firm_work_leaves_room_for_its_teams_reservation(facts: PlanLookups) -> Iterator[str]:
    """Once a reservation has its units its team holds no more than it is guaranteed by that and by what nobody can tell to go, if
    that was so before the plan."""
    stays = {
        unit: facts.stays_until(r)
        for r in facts.snapshot.running
        if r.reservation is None
        for unit in r.units
    }
    for row in _only_claimants(facts):
        if row.may_exceed_guarantee or facts.is_static(row.pool) or not _can_keep(facts, row, stays):
            continue
        (model, need), at = next(iter(_needs(facts, row.ask, row.pool).items())), max(row.start, facts.now)
        before = sum(
            facts.slots_by_model(r.units)[model]
            for r in facts.snapshot.running
            if (r.pool, r.team) == (row.pool, row.team)
            and r.reservation is None
            and not r.preemptible
            and r.until > at
        )
        bound = [
            r for r in facts.snapshot.reservations if (r.pool, r.team) == (row.pool, row.team) and r.end > at
        ]
        before += need + sum(facts.slots_by_model(r.units)[model] for r in bound)
        started = [
            (who, facts.slots_by_model(placement.units)[model])
            for placement, queued, who in known_placements(facts)
            if (queued.pool, queued.team) == (row.pool, row.team)
            and queued.reservation is None
            and not queued.preemptible
            and queued.id not in facts.waited_for
            and facts.now + queued.max_runtime_seconds > at
        ]
        guaranteed = facts.guarantee_at((row.pool, row.team, model), at)
        if before <= guaranteed < before + sum(slots for _, slots in started):
            yield f"{started[-1][0]} and reservation {row.id} are together more than team {row.team} is guaranteed"


def _only_claimants(facts: PlanLookups) -> Iterator[ReservationInfo]:
    """Reservations without units that are the only such one of their pool, and may use one kind of unit."""
    for pool in sorted(facts.pools):
        unbound = facts.unbound(pool)
        kinds = facts.kinds_by_pool.get(pool, {}).values()
        if len(unbound) == 1 and sum(serves(u, unbound[0].ask) for u in kinds) == 1:
            yield unbound[0]


def reservations_with_free_units_are_bound(facts: PlanLookups) -> Iterator[str]:
    """It is bound when it has begun and enough units that it may have lie free."""
    for reservation in _only_claimants(facts):
        free = [
            u
            for u in facts.left.get(reservation.pool, ())
            if not facts.under_maintenance(u.host, facts.now, reservation.end)
        ]
        rivals = any(
            r.units and r.end > facts.now for r in facts.snapshot.reservations if r.pool == reservation.pool
        )
        if reservation.start <= facts.now and not rivals and facts.fits(reservation.ask, free, whole=True):
            yield f"reservation {reservation.id} has begun and is not bound, and units lie free for it"


def borrowers_get_notice_in_time(facts: PlanLookups) -> Iterator[str]:
    """From notice and grace before its start on, those who are on the units that a reservation needs are told to go."""
    for reservation in _only_claimants(facts):
        soonest = facts.now + facts.lead(reservation.pool)
        if reservation.start > soonest:
            continue
        going = {e.workload for e in facts.evictions}
        open_, told = [], []
        for unit in facts.units_by_pool.get(reservation.pool, ()):
            if not unit.well or not facts.hosts[unit.host].accepts or unit.id in facts.bound:
                continue
            if facts.under_maintenance(unit.host, facts.now, reservation.end):
                continue
            holder = facts.running.get(facts.holder.get(unit.id, 0))
            if holder is None or facts.stays_until(holder) <= soonest:
                open_.append(unit)
                if holder is None or holder.id in going or holder.stopping or holder.until <= soonest:
                    told.append(unit)
        if facts.fits(reservation.ask, open_, whole=True) and not facts.fits(
            reservation.ask, told, whole=True
        ):
            yield f"reservation {reservation.id} starts at {reservation.start} and nobody is told to leave its units"


def no_evictions_for_satisfied_reservations(facts: PlanLookups) -> Iterator[str]:
    """Whoever is told to go for a reservation is on units without which it would not have enough."""
    for reservation in _only_claimants(facts):
        going = [e.workload for e in facts.evictions if e.for_reservation == reservation.id]
        free = [
            u
            for u in facts.free_before_plan.get(reservation.pool, ())
            if u.id not in facts.placed_on
            and u.id not in facts.earmark
            and u.id not in facts.given_up_units
            and not facts.under_maintenance(u.host, facts.now, reservation.end)
        ]
        for victim in going:
            freed = [
                facts.units[u]
                for v in going
                if v != victim
                for u in facts.running[v].units
                if u in facts.units
            ]
            if facts.fits(reservation.ask, [*free, *(u for u in freed if u.well)], whole=True):
                yield f"eviction of workload {victim}: reservation {reservation.id} has enough units without it"


# -- when it is asked for ------------------------------------------------------------------------------------------------


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
    """What is wrong with the answer to "may ``ask`` be reserved for ``[start, end)``?", given by the timeline.

    A yes has to leave every promise possible and the guarantees of others whole; a no has a code with numbers, and the
    windows it names instead are to come and as long.
    """
    facts = PlanLookups(snapshot, EmptyPlan(snapshot.epoch), now)
    if not answer.fits:
        return list(_wrong_rejection(answer, start, end, now))
    wrong = list(_wrong_acceptance(facts, ask, pool, start, end))
    if not may_exceed_guarantee and not facts.is_static(pool):
        wrong += _eaten_guarantees(facts, ask, team, pool, start, end)
        wrong += _beyond_limits(facts, ask, team, pool, start)
    return wrong


def _wrong_rejection(answer: WindowCheckResult, start: int, end: int, now: int) -> Iterator[str]:
    if not answer.code or not answer.numbers:
        yield f"a no with code {answer.code!r} and {len(answer.numbers)} numbers"
    for window in answer.first_windows:
        if window.start < now or window.end - window.start != end - start:
            yield f"the window {window.start} to {window.end} is over or has another length"


def _wrong_acceptance(facts: PlanLookups, ask: Ask, pool: int, start: int, end: int) -> Iterator[str]:
    open_ = [
        u
        for u in facts.units_by_pool.get(pool, ())
        if u.well
        and facts.is_open_from(u.host, start)
        and not facts.under_maintenance(u.host, start, end)
        and not _is_held_in(facts, u, start, end)
    ]
    if not facts.fits(ask, open_, whole=True):
        yield "a yes, and no units are there for all of the window"
    promised = [
        r
        for r in facts.unbound(pool)
        if r.start < end and r.end > start and _serves_alike(facts, r, ask, pool)
    ]
    stays = {
        unit: facts.stays_until(r)
        for r in facts.snapshot.running
        if r.reservation is None
        for unit in r.units
    }
    if not _all_kept(facts, sorted(facts.unbound(pool), key=lambda r: (-r.ask.total_units, r.id)), stays):
        return  # one that can't be kept anyway takes nothing from others
    fitting = [u for u in open_ if serves(u, ask)]
    for moment in sorted({start} | {r.start for r in promised if r.start > start}):
        need = sum(r.ask.total_units for r in promised if r.start <= moment < r.end) + ask.total_units
        if need > len(fitting):
            yield f"a yes, and at {moment} {need} units are promised of {len(fitting)}"


def _serves_alike(facts: PlanLookups, reservation: ReservationInfo, ask: Ask, pool: int) -> bool:
    """Can the reservation only use units that the ask could use, too?"""
    units = facts.kinds_by_pool.get(pool, {}).values()
    return all(serves(u, ask) for u in units if serves(u, reservation.ask))


def _is_held_in(facts: PlanLookups, unit: UnitInfo, start: int, end: int) -> bool:
    rival = facts.reservations.get(facts.bound.get(unit.id, 0))
    if rival is not None and rival.end > start:
        return True
    holder: RunningWorkload | None = facts.running.get(facts.holder.get(unit.id, 0))
    return (
        holder is not None
        and holder.reservation is None
        and facts.stays_until(holder) > start
        and end > facts.now
    )


def _eaten_guarantees(
    facts: PlanLookups, ask: Ask, team: int, pool: int, start: int, end: int
) -> Iterator[str]:
    """Of one model at least that it accepts: at every moment others could still have what they are guaranteed."""
    eaten = []
    for model, need in sorted(_needs(facts, ask, pool).items()):
        moment = _eaten_at(facts, model, need, team, pool, (start, end))
        if moment is None:
            return
        eaten.append(f"{model} at {moment}")
    if eaten:
        yield f"a yes, and others are left less than they are guaranteed: {', '.join(eaten)}"


def _beyond_limits(facts: PlanLookups, ask: Ask, team: int, pool: int, start: int) -> Iterator[str]:
    """Of one model at least it is within what its team may hold."""
    allowed = []
    for model, need in _needs(facts, ask, pool).items():
        quota = facts.quotas.get((pool, team, model))
        if quota is not None:
            again = quota.used_up_until is not None and quota.used_up_until <= start
            limit = quota.borrow_limit_again if again else quota.borrow_limit
            allowed.append(limit is None or need <= limit + facts.guarantee_at((pool, team, model), start))
    if not any(allowed):
        yield "a yes, and its team may not hold so much of any model"


def _needs(facts: PlanLookups, ask: Ask, pool: int) -> dict[str, int]:
    """The slots that an ask takes of each model that serves it, at least."""
    found: dict[str, int] = {}
    for unit in facts.kinds_by_pool.get(pool, {}).values():
        if serves(unit, ask):
            need = ask.total_units * unit.slots
            found[unit.model] = min(found.get(unit.model, need), need)
    return found


def _eaten_at(
    facts: PlanLookups, model: str, need: int, team: int, pool: int, window: tuple[int, int]
) -> int | None:
    """The first moment at which ``need`` more slots of a model leave others less than they are guaranteed, if only what is
    bound now were promised."""
    start, end = window
    capacity = sum(
        u.slots
        for u in facts.units_by_pool[pool]
        if u.model == model and u.well and facts.is_open_from(u.host, start)
    )
    bound = [
        r
        for r in facts.snapshot.reservations
        if r.pool == pool and r.units and r.start < end and r.end > start
    ]
    others = {t for (p, t, m) in facts.quotas if p == pool and m == model and t != team}
    returns = {
        q.used_up_until
        for (p, _, m), q in facts.quotas.items()
        if (p, m) == (pool, model) and q.used_up_until
    }
    for moment in sorted({start, *(at for at in {r.start for r in bound} | returns if start < at < end)}):
        promised: Counter[int] = Counter()
        for reservation in bound:
            if reservation.start <= moment < reservation.end:
                promised[reservation.team] += facts.slots_by_model(reservation.units)[model]
        rest = sum(max(facts.guarantee_at((pool, t, model), moment), promised[t]) for t in others)
        own = promised[team] + need
        if own > facts.guarantee_at((pool, team, model), moment) and own + rest > capacity:
            return moment
    return None
