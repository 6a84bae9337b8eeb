"""Check the planner's answer to a request for a reservation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from benchmarks.plan_verifier.plan_lookups import PlanLookups
from benchmarks.plan_verifier.reservation_checks import can_all_be_kept, largest_first
from benchmarks.plan_verifier.unit_lookups import serves
from scheduler.core.model.plan import Plan as EmptyPlan
from scheduler.core.model.snapshot import Ask, ReservationInfo, RunningWorkload, Snapshot, UnitInfo
from scheduler.core.promises.reservation_windows import WindowCheckResult


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
    """Return the errors in the answer to a request to reserve ``ask`` from ``start`` to ``end``.

    An acceptance must leave all earlier reservations possible and the guarantees of other teams intact. A
    rejection must have a code with numbers. A rejection may offer other windows: they must be in the future
    and as long as the requested window.
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
        yield f"a rejection with code {answer.code!r} and {len(answer.numbers)} numbers"
    for window in answer.first_windows:
        if window.start < now or window.end - window.start != end - start:
            yield f"the window {window.start} to {window.end} is over or has another length"


def _wrong_acceptance(lookups: PlanLookups, ask: Ask, pool: int, start: int, end: int) -> Iterator[str]:
    obtainable = _obtainable_units(lookups, pool, start, end)
    if not lookups.fits(ask, obtainable, on_empty_hosts=True):
        yield "accepted, but no units are free for the whole window"
    if not can_all_be_kept(lookups, largest_first(lookups.unbound(pool)), lookups.release_times):
        return  # the earlier reservations may already conflict, so a lack of units proves no error
    promised = [
        r
        for r in lookups.unbound(pool)
        if r.start < end and r.end > start and _serves_alike(lookups, r, ask, pool)
    ]
    fitting = sum(serves(u, ask) for u in obtainable)
    for time in sorted({start} | {r.start for r in promised if r.start > start}):
        need = sum(r.ask.total_units for r in promised if r.start <= time < r.end) + ask.total_units
        if need > fitting:
            yield f"accepted, but at {time} {need} units are promised of {fitting}"


def _obtainable_units(lookups: PlanLookups, pool: int, start: int, end: int) -> list[UnitInfo]:
    """Return the units of the pool that are in service and can be free for the whole window."""
    return [
        u
        for u in lookups.units_by_pool.get(pool, ())
        if u.healthy
        and lookups.is_open_from(u.host, start)
        and not lookups.under_maintenance(u.host, start, end)
        and not _is_held_in(lookups, u, start, end)
    ]


def _serves_alike(lookups: PlanLookups, reservation: ReservationInfo, ask: Ask, pool: int) -> bool:
    """Return True if every kind of unit that serves the reservation also serves the ask."""
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
    """Report an acceptance that leaves other teams less than their guarantees.

    An acceptance is right if at least one accepted model causes no violation. Otherwise the violations of all
    models are reported together.
    """
    violated = []
    for model, need in sorted(lookups.least_slots_by_model(ask, pool).items()):
        time = first_violated_guarantee(lookups, model, need, team, pool, (start, end))
        if time is None:
            return
        violated.append(f"{model} at {time}")
    if violated:
        yield f"accepted, but others are left less than they are guaranteed: {', '.join(violated)}"


def _beyond_limits(lookups: PlanLookups, ask: Ask, team: int, pool: int, start: int) -> Iterator[str]:
    """Report an acceptance with which the team exceeds its limit on every accepted model.

    The limit is the team's guarantee plus its borrow limit.
    """
    allowed = []
    for model, need in lookups.least_slots_by_model(ask, pool).items():
        quota = lookups.quotas.get((pool, team, model))
        if quota is not None:
            is_reset = quota.used_up_until is not None and quota.used_up_until <= start
            limit = quota.borrow_limit_after_reset if is_reset else quota.borrow_limit
            allowed.append(
                limit is None or need <= limit + lookups.guaranteed_slots_at((pool, team, model), start)
            )
    if not any(allowed):
        yield "accepted, but its team may not hold this many slots of any model"


def first_violated_guarantee(
    lookups: PlanLookups, model: str, need: int, team: int, pool: int, window: tuple[int, int]
) -> int | None:
    """Return the first time in the window at which the guarantee of another team is violated.

    The team is assumed to hold ``need`` more slots. While these slots are within its own guarantee, the team
    violates no other guarantee. Return None if no guarantee is violated. Only reservations that have units
    now are counted.
    """
    start, end = window
    capacity = _capacity_from(lookups, pool, model, start)
    bound = _bound_reservations(lookups, pool, window)
    quotas = [q for q in lookups.quotas.values() if (q.pool, q.model) == (pool, model)]
    others = {q.team for q in quotas if q.team != team}
    changes = {r.start for r in bound} | {q.used_up_until for q in quotas if q.used_up_until}
    for time in sorted({start, *(at for at in changes if start < at < end)}):
        promised = _promised_slots(lookups, bound, model, time)
        needed_by_others = sum(
            max(lookups.guaranteed_slots_at((pool, t, model), time), promised[t]) for t in others
        )
        own = promised[team] + need
        if own > lookups.guaranteed_slots_at((pool, team, model), time) and own + needed_by_others > capacity:
            return time
    return None


def _capacity_from(lookups: PlanLookups, pool: int, model: str, start: int) -> int:
    """Return the slots of ``model`` on healthy units whose hosts are open from ``start`` on."""
    return sum(
        u.slots
        for u in lookups.units_by_pool[pool]
        if u.model == model and u.healthy and lookups.is_open_from(u.host, start)
    )


def _bound_reservations(lookups: PlanLookups, pool: int, window: tuple[int, int]) -> list[ReservationInfo]:
    """Return the reservations of a pool that have units and overlap the window."""
    start, end = window
    in_pool = [r for r in lookups.snapshot.reservations if r.pool == pool and r.units]
    return [r for r in in_pool if r.start < end and r.end > start]


def _promised_slots(
    lookups: PlanLookups, bound: list[ReservationInfo], model: str, time: int
) -> Counter[int]:
    """Return the slots of ``model`` that each team's bound reservations hold at ``time``."""
    promised: Counter[int] = Counter()
    for reservation in bound:
        if reservation.start <= time < reservation.end:
            promised[reservation.team] += lookups.slots_by_model(reservation.units)[model]
    return promised
