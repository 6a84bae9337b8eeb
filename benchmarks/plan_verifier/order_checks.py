"""Who comes first, as far as a plan shows it.

A plan does not say in which order it was made. But when a workload is told that its units were not there, and those of
another that started would have served it, then the other was looked at first; and some may never be looked at first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from benchmarks.plan_verifier.plan_lookups import PlanLookups, serves
from scheduler.core.model.plan import Placement
from scheduler.core.model.snapshot import QueuedWorkload
from scheduler.core.reasons import ReasonCode

MAX_PAIRS_CHECKED = 40_000  # pairs of a started and a waiting workload: a large pool is looked at in part


def _overtaken_pairs(facts: PlanLookups) -> list[tuple[QueuedWorkload, QueuedWorkload, str]]:
    if facts.overtaken is None:
        facts.overtaken = list(_find_overtaken(facts))
    return facts.overtaken


def _find_overtaken(facts: PlanLookups) -> Iterator[tuple[QueuedWorkload, QueuedWorkload, str]]:
    """(waiting, started, the model it got) of one pool, both in the ordinary lane, where the started one was looked at first."""
    started: dict[int, list[tuple[QueuedWorkload, Placement]]] = defaultdict(list)
    for placement in facts.placements:
        queued = facts.queued[placement.workload]
        if queued.reservation is None and queued.id not in facts.waited_for:
            started[queued.pool].append((queued, placement))
    looked_at = 0
    for refusal in facts.plan.refusals:
        waiting = facts.queued.get(refusal.workload)
        if waiting is None or refusal.code != ReasonCode.WAITS_FOR_UNITS or waiting.reservation is not None:
            continue
        if waiting.id in facts.waited_for or waiting.ask.profile.startswith("share"):
            continue
        if (waiting.pool, waiting.team) in facts.teams_at_their_limit:
            continue
        if waiting.pool in facts.pools_with_earmarks_given_up or facts.is_static(waiting.pool):
            continue
        for queued, placement in started[waiting.pool]:
            looked_at += 1
            if looked_at > MAX_PAIRS_CHECKED:
                return
            units = [facts.units[u] for u in placement.units]
            kinds = facts.kinds_that_fit(waiting.ask, units, gone=(queued.id,))
            if any(facts.limits_allow(waiting, kind, gone=(queued.id,)) for kind in kinds):
                yield waiting, queued, units[0].model


def priority_orders_within_a_team(facts: PlanLookups) -> Iterator[str]:
    """Lower-priority work does not take the units that higher-priority work of its team waits for."""
    for waiting, started, _ in _overtaken_pairs(facts):
        if waiting.team == started.team and waiting.priority > started.priority:
            yield f"workload {started.id} overtakes workload {waiting.id} of its team, which has the higher priority"


def guarantees_come_before_borrowing(facts: PlanLookups) -> Iterator[str]:
    """A borrower does not take the units that work of a team wholly within its guarantee waits for."""
    for waiting, started, model in _overtaken_pairs(facts):
        borrows = facts.held((started.pool, started.team, model)) >= facts.guarantee(
            (started.pool, started.team, model)
        )
        if waiting.team != started.team and borrows and _is_guaranteed_all(facts, waiting):
            yield f"workload {started.id} borrows what workload {waiting.id} waits for within its team's guarantee"


def borrowers_share_fairly(facts: PlanLookups) -> Iterator[str]:
    """Of two teams that borrow, the one with less decayed use by weight, whatever it is given now, comes first."""
    for waiting, started, _ in _overtaken_pairs(facts):
        if waiting.team == started.team or not _only_borrows(facts, started):
            continue
        ahead = _share(facts, waiting.pool, waiting.team) + _given(facts, waiting)
        if ahead < _share(facts, started.pool, started.team):
            yield f"workload {started.id} borrows before workload {waiting.id}, whose team used less"


def _only_borrows(facts: PlanLookups, queued: QueuedWorkload) -> bool:
    """Its team holds its whole guarantee of every model that would serve it before the plan gives it anything."""
    models = facts.most_needed(queued)
    keys = [(queued.pool, queued.team, model) for model in models]
    return all(facts.held(key) >= facts.guarantee(key) for key in keys)


def _is_guaranteed_all(facts: PlanLookups, queued: QueuedWorkload) -> bool:
    """Every model that would do is guaranteed to its team, together with all else it asks for; and so are those for the work of its
    team whose turn may come before its own: what competes with it for a model, be it by others in between. Its turn never comes
    as a borrower's then."""
    team = [
        q for q in facts.snapshot.queued if q.team == queued.team and q.pool == queued.pool and not q.gate
    ]
    sure: set[str] = set()
    for model in {k[0] for k in facts.kinds_by_pool.get(queued.pool, {})}:
        key = (queued.pool, queued.team, model)
        if facts.held(key) + sum(facts.most_needed(q).get(model, 0) for q in team) <= facts.guarantee(key):
            sure.add(model)
    one_line = facts.pools[queued.pool].policy.most_slots_per_user is not None
    return all(
        facts.most_needed(q).keys() <= sure for q in team if one_line or _competes(facts, queued, q, team)
    )


def _competes(
    facts: PlanLookups, first: QueuedWorkload, second: QueuedWorkload, team: list[QueuedWorkload]
) -> bool:
    """Do two of a team want a model both, or through others that want several?"""
    models = set(facts.most_needed(first))
    before = 0
    while len(models) > before:
        before = len(models)
        for queued in team:
            if models & facts.most_needed(queued).keys():
                models |= facts.most_needed(queued).keys()
    return bool(models & facts.most_needed(second).keys())


def _share(facts: PlanLookups, pool: int, team: int) -> float:
    used = next((u.slot_seconds for u in facts.snapshot.decayed_use if (u.team, u.pool) == (team, pool)), 0.0)
    return used / _weight(facts, team)


def _weight(facts: PlanLookups, team: int) -> int:
    return max(1, facts.teams[team].weight) if team in facts.teams else 1


def _given(facts: PlanLookups, queued: QueuedWorkload) -> float:
    """The most that this plan can have added to the use of a workload's team."""
    given = 0.0
    for placement in facts.placements:
        row = facts.queued[placement.workload]
        if (row.team, row.pool) == (queued.team, queued.pool):
            most = max(facts.most_needed(row).values(), default=0)
            given += most * row.predicted_seconds / _weight(facts, queued.team)
    return given


def the_first_preference_comes_first(facts: PlanLookups) -> Iterator[str]:
    """Who names models in order of preference gets the first of which enough lie free within its team's guarantee."""
    for placement in facts.placements:
        queued = facts.queued[placement.workload]
        if len(queued.ask.models) < 2 or not placement.units or not _shows_what_it_left(facts, queued):
            continue
        if queued.avoids or queued.homes is not None:
            continue  # the place comes first
        got = facts.units[placement.units[0]].model
        better = queued.ask.models[: queued.ask.models.index(got)] if got in queued.ask.models else ()
        free = [u for u in facts.left.get(queued.pool, ()) if u.model in better]
        for kind in facts.kinds_that_fit(queued.ask, free):
            if facts.limits_allow(queued, kind):
                yield f"workload {queued.id} got {got}, while {kind[0]}, which it prefers, lies free"
                break


def a_better_place_comes_first(facts: PlanLookups) -> Iterator[str]:
    """Nothing is put back on a host on which it could not start, nor away from the homes of its checkpoint, while it fits on units
    that lie free elsewhere, or there."""
    for placement in facts.placements:
        queued = facts.queued[placement.workload]
        if not placement.units or not _shows_what_it_left(facts, queued):
            continue
        on = {facts.units[unit].host for unit in placement.units}
        avoided = set(queued.avoids) if facts.now < queued.avoids_until else set()
        near = {
            host.id
            for host in facts.hosts.values()
            if queued.homes is not None and host.homes == queued.homes
        }
        if avoided & on and _fits_on_left(facts, queued, facts.hosts.keys() - avoided):
            yield f"workload {queued.id} is put where it could not start, while it fits elsewhere"
        elif near and on - near and _fits_on_left(facts, queued, near - avoided):
            yield f"workload {queued.id} is put away from the homes of its checkpoint, while it fits there"


def _fits_on_left(facts: PlanLookups, queued: QueuedWorkload, hosts: Collection[int]) -> bool:
    free = [u for u in facts.left.get(queued.pool, ()) if u.host in hosts]
    return any(facts.limits_allow(queued, kind) for kind in facts.kinds_that_fit(queued.ask, free))


def _shows_what_it_left(facts: PlanLookups, queued: QueuedWorkload) -> bool:
    """Do the units that are free once the plan is carried out tell what was free to this workload when it was placed?"""
    pool = queued.pool
    hidden = (
        facts.pools[pool].policy.spare_slots
        or facts.unbound(pool)
        or facts.set_aside
        or facts.snapshot.maintenance
        or pool in facts.pools_with_room_being_made
        or pool in facts.pools_with_earmarks_given_up
        or queued.ask.profile.startswith("share")
        or facts.is_static(pool)
        or queued.id in facts.waited_for
        or (pool, queued.team) in facts.teams_at_their_limit
        or queued.reservation is not None
    )
    return not hidden


def backfill_delays_nobody(facts: PlanLookups) -> Iterator[str]:
    """Units set aside for who waits in front serve that ask, are expected to be free by its start, and nobody is put on them
    who is expected to be there still: lower-priority work of the same team not even if it takes twice as long as predicted."""
    for refusal in facts.plan.refusals:
        waiting = facts.queued.get(refusal.workload)
        if waiting is None or not refusal.held_units:
            continue
        start = refusal.expected_start
        if start is None:
            yield f"units are set aside for workload {waiting.id}, which expects no start"
            continue
        for unit in refusal.held_units:
            row = facts.units.get(unit)
            if row is None or not serves(row, waiting.ask) or facts.pool_of(row) != waiting.pool:
                yield f"unit {unit} is set aside for workload {waiting.id}, which it does not serve"
            elif facts.bound.get(unit) is not None and facts.reservations[facts.bound[unit]].end > start:
                yield f"unit {unit} is set aside for workload {waiting.id} in a window of reservation {facts.bound[unit]}"
        yield from _delays(facts, waiting, set(refusal.held_units), start)


def _delays(facts: PlanLookups, waiting: QueuedWorkload, held: set[int], start: int) -> Iterator[str]:
    for placement in facts.placements:
        queued = facts.queued[placement.workload]
        if not held & set(placement.units) or queued.reservation is not None:
            continue
        first = (
            queued.id in facts.waited_for
            or queued.team != waiting.team
            or queued.priority >= waiting.priority
        )
        expected = queued.predicted_seconds if first else 2 * queued.predicted_seconds
        if facts.now + min(queued.max_runtime_seconds, expected) > start:
            yield f"workload {queued.id} delays workload {waiting.id}, for which its units are set aside"
    going = {e.workload for e in facts.evictions}
    for holder in sorted({facts.holder[u] for u in held if u in facts.holder}):
        running = facts.running[holder]
        if not running.stopping and holder not in going and running.predicted_until > start:
            yield f"workload {holder} is expected on units set aside for workload {waiting.id} after its start"


def plan_rows_are_in_id_order(facts: PlanLookups) -> Iterator[str]:
    """A plan is of its snapshot's epoch, and its rows and units come in the order of their ids."""
    plan = facts.plan
    if plan.epoch != facts.snapshot.epoch:
        yield f"plan of epoch {plan.epoch} for a snapshot of epoch {facts.snapshot.epoch}"
    rows = {
        "placements": [p.workload for p in plan.placements],
        "evictions": [e.workload for e in plan.evictions],
        "refusals": [r.workload for r in plan.refusals],
        "bindings": [b.reservation for b in plan.bindings],
        "unbound": [u.reservation for u in plan.unbound],
    }
    for name, ids in rows.items():
        if ids != sorted(ids):
            yield f"{name} are not sorted"
    units_of = [(p.workload, p.units) for p in plan.placements] + [
        (b.reservation, b.units) for b in plan.bindings
    ]
    for who, units in units_of:
        if units != tuple(sorted(units)):
            yield f"units of {who} are not sorted"
