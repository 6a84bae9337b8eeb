"""Check the order in which the planner considers workloads, as far as a plan shows this order.

The planner considers one workload at a time. The plan does not contain the order, but a part of it can be
inferred. Suppose that workload A was refused for missing units, and workload B started on units that would
have served A. Then the planner considered B before A: B overtook A. The checks report overtaking that a rule
forbids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from benchmarks.plan_verifier.plan_lookups import PlanLookups
from benchmarks.plan_verifier.unit_lookups import serves
from scheduler.core.model.plan import Placement
from scheduler.core.model.snapshot import QueuedWorkload
from scheduler.core.reasons import ReasonCode

# A pair is a waiting workload and a started workload. The limit keeps the check short in a large pool.
MAX_PAIRS_CHECKED = 40_000


def _overtaken_pairs(lookups: PlanLookups) -> list[tuple[QueuedWorkload, QueuedWorkload, str]]:
    if lookups.overtaken_pairs is None:
        lookups.overtaken_pairs = list(_find_overtaken(lookups))
    return lookups.overtaken_pairs


def _find_overtaken(lookups: PlanLookups) -> Iterator[tuple[QueuedWorkload, QueuedWorkload, str]]:
    """Yield (waiting, started, model) for each waiting workload that a started workload overtook.

    ``model`` is the model of the started workload's units. Workloads of different pools are not compared. A
    workload is left out if rules other than the queue order decide which free units it gets.
    """
    started = _started_by_pool(lookups)
    pairs_checked = 0
    for refusal in lookups.plan.refusals:
        waiting = lookups.queued.get(refusal.workload)
        if waiting is None or refusal.code != ReasonCode.WAITS_FOR_UNITS:
            continue
        if not _waits_in_ordinary_lane(lookups, waiting):
            continue
        for queued, placement in started[waiting.pool]:
            pairs_checked += 1
            if pairs_checked > MAX_PAIRS_CHECKED:
                return
            units = [lookups.units[u] for u in placement.units]
            kinds = lookups.kinds_that_fit(waiting.ask, units, stopped=(queued.id,))
            if any(lookups.limits_allow(waiting, kind, stopped=(queued.id,)) for kind in kinds):
                yield waiting, queued, units[0].model


def _started_by_pool(lookups: PlanLookups) -> dict[int, list[tuple[QueuedWorkload, Placement]]]:
    """Return the placements outside reservations by pool, each with its workload.

    Workloads for which an earlier plan evicted work are left out. They get the freed units regardless of the
    queue order.
    """
    started: dict[int, list[tuple[QueuedWorkload, Placement]]] = defaultdict(list)
    for placement in lookups.placements:
        queued = lookups.queued[placement.workload]
        if queued.reservation is None and queued.id not in lookups.awaiting_evictions:
            started[queued.pool].append((queued, placement))
    return started


def _waits_in_ordinary_lane(lookups: PlanLookups, waiting: QueuedWorkload) -> bool:
    """Return True if the queue order alone decides which free units the workload gets.

    The result is False for work inside a reservation, for time-sliced shares, and in a static pool. It is
    also False if an earlier plan evicted work for the workload, if a workload of its team is refused because
    of the quota, or if a workload of the pool gives up earmarked units.
    """
    return not (
        waiting.reservation is not None
        or waiting.id in lookups.awaiting_evictions
        or waiting.ask.profile.startswith("share")
        or (waiting.pool, waiting.team) in lookups.teams_at_their_limit
        or waiting.pool in lookups.pools_with_earmarks_given_up
        or lookups.is_static(waiting.pool)
    )


def priority_orders_within_a_team(lookups: PlanLookups) -> Iterator[str]:
    """Report work that overtakes waiting work of its own team with higher priority."""
    for waiting, started, _ in _overtaken_pairs(lookups):
        if waiting.team == started.team and waiting.priority > started.priority:
            yield (
                f"workload {started.id} overtakes workload {waiting.id} of its team, which has "
                "the higher priority"
            )


def guarantees_come_before_borrowing(lookups: PlanLookups) -> Iterator[str]:
    """Report borrowers that overtake guaranteed work of another team.

    Waiting work is guaranteed if its team's guarantee certainly covers it.
    """
    for waiting, started, model in _overtaken_pairs(lookups):
        borrows = lookups.held((started.pool, started.team, model)) >= lookups.guarantee(
            (started.pool, started.team, model)
        )
        if waiting.team != started.team and borrows and _is_guaranteed_all(lookups, waiting):
            yield (
                f"workload {started.id} borrows units for which workload {waiting.id} waits within its "
                "team's guarantee"
            )


def borrowers_share_fairly(lookups: PlanLookups) -> Iterator[str]:
    """Report borrowers that overtake work of a team with less use.

    The use of a team is its decayed use divided by its weight. The use of the overtaken team includes the use
    that this plan adds.
    """
    for waiting, started, _ in _overtaken_pairs(lookups):
        if waiting.team == started.team or not _only_borrows(lookups, started):
            continue
        ahead = _share(lookups, waiting.pool, waiting.team) + _added_use(lookups, waiting)
        if ahead < _share(lookups, started.pool, started.team):
            yield f"workload {started.id} borrows before workload {waiting.id}, whose team used less"


def _only_borrows(lookups: PlanLookups, queued: QueuedWorkload) -> bool:
    """Return True if the workload can start only as a borrower.

    Such a workload belongs to a team that already holds its whole guarantee before the plan, on every model
    that serves the workload.
    """
    models = lookups.slots_needed_by_model(queued)
    keys = [(queued.pool, queued.team, model) for model in models]
    return all(lookups.held(key) >= lookups.guarantee(key) for key in keys)


def _is_guaranteed_all(lookups: PlanLookups, queued: QueuedWorkload) -> bool:
    """Return True if the workload certainly starts within its team's guarantee, and never as a borrower.

    A model is covered if the team's guarantee of the model is enough for all held and waiting work of the
    team. The result is True if this holds for every model that serves the workload or a competing workload of
    the team. If the pool has a cap on users, all waiting work of the team counts as competing.
    """
    team = [
        q for q in lookups.snapshot.queued if q.team == queued.team and q.pool == queued.pool and not q.gate
    ]
    guaranteed_models: set[str] = set()
    for model in {k[0] for k in lookups.kinds_by_pool.get(queued.pool, {})}:
        key = (queued.pool, queued.team, model)
        if lookups.held(key) + sum(
            lookups.slots_needed_by_model(q).get(model, 0) for q in team
        ) <= lookups.guarantee(key):
            guaranteed_models.add(model)
    has_one_queue = lookups.pools[queued.pool].policy.max_slots_per_user is not None
    return all(
        lookups.slots_needed_by_model(q).keys() <= guaranteed_models
        for q in team
        if has_one_queue or _competes(lookups, queued, q, team)
    )


def _competes(
    lookups: PlanLookups, first: QueuedWorkload, second: QueuedWorkload, team: list[QueuedWorkload]
) -> bool:
    """Return True if two workloads of a team compete for a model, directly or through other workloads.

    Example: the first accepts only H100, the second only A100. They compete if a third workload of the team
    accepts both models.
    """
    models = set(lookups.slots_needed_by_model(first))
    before = 0
    while len(models) > before:
        before = len(models)
        for queued in team:
            if models & lookups.slots_needed_by_model(queued).keys():
                models |= lookups.slots_needed_by_model(queued).keys()
    return bool(models & lookups.slots_needed_by_model(second).keys())


def _share(lookups: PlanLookups, pool: int, team: int) -> float:
    used = next(
        (u.slot_seconds for u in lookups.snapshot.decayed_use if (u.team, u.pool) == (team, pool)), 0.0
    )
    return used / _weight(lookups, team)


def _weight(lookups: PlanLookups, team: int) -> int:
    return max(1, lookups.teams[team].weight) if team in lookups.teams else 1


def _added_use(lookups: PlanLookups, queued: QueuedWorkload) -> float:
    """Return the most use that this plan can add to the workload's team.

    The unit is slot-seconds, divided by the team's weight.
    """
    added = 0.0
    for placement in lookups.placements:
        row = lookups.queued[placement.workload]
        if (row.team, row.pool) == (queued.team, queued.pool):
            max_slots = max(lookups.slots_needed_by_model(row).values(), default=0)
            added += max_slots * row.predicted_seconds / _weight(lookups, queued.team)
    return added


def the_first_preference_comes_first(lookups: PlanLookups) -> Iterator[str]:
    """Report workloads that got a less preferred model, although a preferred model was free and allowed."""
    for placement in lookups.placements:
        queued = lookups.queued[placement.workload]
        if (
            len(queued.ask.models) < 2
            or not placement.units
            or not _free_units_are_conclusive(lookups, queued)
        ):
            continue
        if queued.avoids or queued.checkpoint_storage is not None:
            continue  # For the planner, a better host is more important than a preferred model.
        got = lookups.units[placement.units[0]].model
        preferred = queued.ask.models[: queued.ask.models.index(got)] if got in queued.ask.models else ()
        free = [u for u in lookups.free_after_plan.get(queued.pool, ()) if u.model in preferred]
        for kind in lookups.kinds_that_fit(queued.ask, free):
            if lookups.limits_allow(queued, kind):
                yield f"workload {queued.id} got {got}, while {kind[0]}, which it prefers, is free"
                break


def a_better_place_comes_first(lookups: PlanLookups) -> Iterator[str]:
    """Report workloads that got a worse host although they fit on a better host.

    A host is worse if the workload recently could not start on it, or if it lacks the storage with the
    workload's checkpoint.
    """
    for placement in lookups.placements:
        queued = lookups.queued[placement.workload]
        if not placement.units or not _free_units_are_conclusive(lookups, queued):
            continue
        placed_hosts = {lookups.units[unit].host for unit in placement.units}
        avoided = set(queued.avoids) if lookups.now < queued.avoids_until else set()
        same_storage = {
            host.id
            for host in lookups.hosts.values()
            if queued.checkpoint_storage is not None and host.home_storage == queued.checkpoint_storage
        }
        if avoided & placed_hosts and _fits_on_free_units(lookups, queued, lookups.hosts.keys() - avoided):
            yield f"workload {queued.id} is on a host on which it could not start, while it fits elsewhere"
        elif (
            same_storage
            and placed_hosts - same_storage
            and _fits_on_free_units(lookups, queued, same_storage - avoided)
        ):
            yield f"workload {queued.id} is away from its checkpoint's storage, while it fits there"


def _fits_on_free_units(lookups: PlanLookups, queued: QueuedWorkload, hosts: Collection[int]) -> bool:
    free = [u for u in lookups.free_after_plan.get(queued.pool, ()) if u.host in hosts]
    return any(lookups.limits_allow(queued, kind) for kind in lookups.kinds_that_fit(queued.ask, free))


def _free_units_are_conclusive(lookups: PlanLookups, queued: QueuedWorkload) -> bool:
    """Return True if the units that are free after the plan were certainly available to this workload.

    Otherwise the planner may have kept them for another purpose, for example as spare capacity or for a
    reservation.
    """
    pool = queued.pool
    is_uncertain = (
        lookups.pools[pool].policy.spare_slots
        or lookups.unbound(pool)
        or lookups.held_units
        or lookups.snapshot.maintenance
        or pool in lookups.pools_with_room_being_made
        or pool in lookups.pools_with_earmarks_given_up
        or queued.ask.profile.startswith("share")
        or lookups.is_static(pool)
        or queued.id in lookups.awaiting_evictions
        or (pool, queued.team) in lookups.teams_at_their_limit
        or queued.reservation is not None
    )
    return not is_uncertain


def backfill_delays_nobody(lookups: PlanLookups) -> Iterator[str]:
    """Report work on held units that can delay the workload for which the units are held.

    A held unit must serve the waiting workload. At the expected start of this workload, no reservation may
    have the unit, and other work on the unit must be expected to have ended. The expected runtime counts
    twice for work that starts now, belongs to the waiting workload's team and has a lower priority.
    """
    for refusal in lookups.plan.refusals:
        waiting = lookups.queued.get(refusal.workload)
        if waiting is None or not refusal.held_units:
            continue
        start = refusal.expected_start
        if start is None:
            yield f"units are held for workload {waiting.id}, which has no expected start"
            continue
        for unit in refusal.held_units:
            row = lookups.units.get(unit)
            if row is None or not serves(row, waiting.ask) or lookups.pool_of(row) != waiting.pool:
                yield f"unit {unit} is held for workload {waiting.id}, which it does not serve"
            elif (
                lookups.bound.get(unit) is not None and lookups.reservations[lookups.bound[unit]].end > start
            ):
                yield (
                    f"unit {unit} is held for workload {waiting.id} in a window of "
                    f"reservation {lookups.bound[unit]}"
                )
        yield from _delays_by_placements(lookups, waiting, set(refusal.held_units), start)
        yield from _delays_by_running_work(lookups, waiting, set(refusal.held_units), start)


def _delays_by_placements(
    lookups: PlanLookups, waiting: QueuedWorkload, held: set[int], start: int
) -> Iterator[str]:
    for placement in lookups.placements:
        queued = lookups.queued[placement.workload]
        if not held & set(placement.units) or queued.reservation is not None:
            continue
        is_first = (
            queued.id in lookups.awaiting_evictions
            or queued.team != waiting.team
            or queued.priority >= waiting.priority
        )
        expected = queued.predicted_seconds if is_first else 2 * queued.predicted_seconds
        if lookups.now + min(queued.max_runtime_seconds, expected) > start:
            yield f"workload {queued.id} delays workload {waiting.id}, for which its units are held"


def _delays_by_running_work(
    lookups: PlanLookups, waiting: QueuedWorkload, held: set[int], start: int
) -> Iterator[str]:
    going = {e.workload for e in lookups.evictions}
    for holder in sorted({lookups.holder[u] for u in held if u in lookups.holder}):
        running = lookups.running[holder]
        if not running.stopping and holder not in going and running.predicted_end > start:
            yield f"workload {holder} is expected on units held for workload {waiting.id} after its start"


def plan_rows_are_in_id_order(lookups: PlanLookups) -> Iterator[str]:
    """Report a plan whose epoch differs from the epoch of its snapshot.

    Also report rows or units that are not sorted by id.
    """
    plan = lookups.plan
    if plan.epoch != lookups.snapshot.epoch:
        yield f"plan of epoch {plan.epoch} for a snapshot of epoch {lookups.snapshot.epoch}"
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
    for owner, units in units_of:
        if units != tuple(sorted(units)):
            yield f"units of {owner} are not sorted"
