"""What waits: every "no" is a true reason with its numbers, a place, and an expected start or the reason there is none."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from benchmarks.plan_verifier.plan_lookups import KindTuple, PlanLookups, serves
from scheduler.core.model.plan import Refusal
from scheduler.core.model.snapshot import Ask, Priority, QueuedWorkload
from scheduler.core.reasons import ReasonCode

NO_EXPECTED_START = {  # until somebody changes something: no start can be expected
    ReasonCode.NO_SUCH_HARDWARE,
    ReasonCode.TOO_BIG_FOR_ANY_HOST,
    ReasonCode.NOT_YOUR_POOL,
    ReasonCode.NO_QUOTA,
    ReasonCode.OVER_WORKLOAD_CAP,
    ReasonCode.OVER_RUNTIME_CAP,
    ReasonCode.RESERVATION_OVER,
    ReasonCode.RESERVATION_NOT_YOURS,
}
END_IS_KNOWN = {  # its end is known
    ReasonCode.BACKING_OFF,
    ReasonCode.RESERVATION_NOT_STARTED,
    ReasonCode.WAITS_FOR_EVICTION,
    ReasonCode.GPU_HOURS_USED_UP,
}
EXPECTED_START_CODES = {
    ReasonCode.WAITS_FOR_UNITS,
    ReasonCode.WAITS_FOR_EVICTION,
    ReasonCode.HELD_FOR_RESERVATION,
    ReasonCode.HELD_FOR_MAINTENANCE,
    ReasonCode.BEHIND_OTHERS,
    ReasonCode.BEHIND_OWN_TEAM,
    ReasonCode.SPARE_CAPACITY_KEPT,
}
WAIT_CODES = (
    NO_EXPECTED_START
    | END_IS_KNOWN
    | EXPECTED_START_CODES
    | {
        ReasonCode.OVER_QUOTA,
        ReasonCode.OVER_USER_CAP,
        ReasonCode.BUDGET_CLOSED,
        ReasonCode.DEPENDENCY,
        ReasonCode.HOST_CLOSED,
        ReasonCode.HOST_FULL,
    }
)


def _each(facts: PlanLookups) -> Iterator[tuple[Refusal, QueuedWorkload, str]]:
    for refusal in facts.plan.refusals:
        if refusal.workload in facts.queued:
            yield refusal, facts.queued[refusal.workload], f"refusal of workload {refusal.workload}"


def refusals_have_a_reason_with_numbers(facts: PlanLookups) -> Iterator[str]:
    """Every refusal has a code of the closed list and the numbers it is made of, by name, as JSON can carry them."""
    for refusal, queued, who in _each(facts):
        if refusal.code not in WAIT_CODES and refusal.code != queued.gate:
            yield f"{who} with code {refusal.code!r}"
        if not refusal.numbers and queued.gate != refusal.code:
            yield f"{who} ({refusal.code}) without numbers"
        if [name for name, _ in refusal.numbers] != sorted(name for name, _ in refusal.numbers):
            yield f"{who}: numbers are not sorted"
        try:
            json.dumps(dict(refusal.numbers), allow_nan=False)
        except (TypeError, ValueError) as error:
            yield f"{who}: numbers that JSON can't carry: {error}"


def gates_are_shown(facts: PlanLookups) -> Iterator[str]:
    """Who waits behind a gate is told of that gate and of nothing else."""
    for refusal, queued, who in _each(facts):
        if queued.gate and refusal.code != queued.gate and queued.pool in facts.pools:
            yield f"{who} hides its gate {queued.gate}"


def an_expected_start_or_why_there_is_none(facts: PlanLookups) -> Iterator[str]:
    """An expected start lies ahead; it is missing only where nothing known would end the wait, and never where the end is known."""
    for refusal, _, who in _each(facts):
        start = refusal.expected_start
        if start is not None and start <= facts.now:
            yield f"{who} expects a start in the past"
        if start is None and refusal.code in END_IS_KNOWN:
            yield f"{who} ({refusal.code}) without an expected start"
        if start is not None and refusal.code in NO_EXPECTED_START:
            yield f"{who} ({refusal.code}) expects a start, and would wait for ever"


def places_count_from_one(facts: PlanLookups) -> Iterator[str]:
    """Those that stand in a pool's line have the places 1, 2, 3, ...; who can't start whatever is free has none."""
    positions: dict[int, list[int]] = defaultdict(list)
    for refusal, queued, who in _each(facts):
        if refusal.position is not None:
            positions[queued.pool].append(refusal.position)
        if refusal.position is not None and (queued.gate or refusal.code in NO_EXPECTED_START):
            yield f"{who} ({refusal.code}) has place {refusal.position} in the line"
        if refusal.position is None and not queued.gate and refusal.code in EXPECTED_START_CODES:
            yield f"{who} ({refusal.code}) has no place in the line"
    for pool, taken in sorted(positions.items()):
        if sorted(taken) != list(range(1, len(taken) + 1)):
            yield f"positions in pool {pool} are {sorted(taken)}"


def blockers_run(facts: PlanLookups) -> Iterator[str]:
    """Whom a workload is said to wait for runs in its pool, each named once; who waits for an eviction names somebody."""
    for refusal, queued, who in _each(facts):
        if refusal.code == ReasonCode.WAITS_FOR_EVICTION and not refusal.blockers:
            yield f"{who} waits for an eviction of nobody"
        for blocker in refusal.blockers:
            running = facts.running.get(blocker)
            if running is None or running.pool != queued.pool:
                yield f"{who} waits for workload {blocker}, which does not run in its pool"
        if tuple(sorted(set(refusal.blockers))) != refusal.blockers:
            yield f"{who} names those it waits for twice or out of order"


# -- is it true? -----------------------------------------------------------------------------------------------------------


def reasons_are_true(facts: PlanLookups) -> Iterator[str]:
    """What a refusal says is so: the hardware is missing, the numbers are above the limit, the promise is there."""
    known: dict[tuple[str, int, Ask], bool] = {}
    for refusal, queued, who in _each(facts):
        says = REASON_CHECKS.get(refusal.code)
        if says is None or queued.gate:
            continue
        if refusal.code in REASONS_OF_THE_ASK:
            key = (refusal.code, queued.pool, queued.ask)
            if key not in known:
                known[key] = says(facts, queued, dict(refusal.numbers))
            is_true = known[key]
        else:
            is_true = says(facts, queued, dict(refusal.numbers))
        if not is_true:
            yield f"{who} says {refusal.code}, which is not so"


ReasonCheck = Callable[[PlanLookups, QueuedWorkload, dict[str, object]], bool]


def _no_such_hardware(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return not any(serves(u, queued.ask) for u in facts.kinds_by_pool.get(queued.pool, {}).values())


def _too_big(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return not facts.fits(queued.ask, facts.units_by_pool.get(queued.pool, ()), whole=True)


def _not_your_pool(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    pool = facts.pools.get(queued.pool)
    return pool is None or (facts.is_static(pool.id) and pool.team != queued.team)


def _no_quota(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return not any((queued.pool, queued.team, model) in facts.quotas for model in facts.most_needed(queued))


def _over_workload_cap(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    cap = facts.pools[queued.pool].policy.most_slots_per_workload
    kinds = [k for k, u in facts.kinds_by_pool[queued.pool].items() if serves(u, queued.ask)]
    return cap is not None and all(facts.need(queued.ask, k) > cap for k in kinds)


def _over_runtime_cap(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return queued.max_runtime_seconds > facts.pools[queued.pool].policy.longest_runtime_seconds


def _backing_off(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return queued.not_before > facts.now


def _reservation_not_started(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    row = facts.reservations.get(queued.reservation or 0)
    return row is not None and row.start > facts.now


def _reservation_over(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    row = facts.reservations.get(queued.reservation or 0)
    return queued.reservation is not None and (row is None or row.end <= facts.now or row.pool != queued.pool)


def _reservation_not_yours(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    row = facts.reservations.get(queued.reservation or 0)
    return row is not None and (row.team, row.project) != (queued.team, queued.project)


def _over_quota(facts: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    """The numbers are above the limit they name, and the guarantee they name is the team's."""
    held, need, limit = numbers.get("held"), numbers.get("need"), numbers.get("limit")
    if queued.reservation is not None or facts.is_static(queued.pool):
        return False
    if not (isinstance(held, int) and isinstance(need, int) and isinstance(limit, int)):
        return False
    key = (queued.pool, queued.team, str(numbers.get("model")))
    return (
        held + need > limit
        and numbers.get("guaranteed") == facts.guarantee(key)
        and held <= facts.held_after[key]
    )


def _over_user_cap(facts: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    held, need, cap = (
        numbers.get("held"),
        numbers.get("need"),
        facts.pools[queued.pool].policy.most_slots_per_user,
    )
    return cap is not None and isinstance(held, int) and isinstance(need, int) and held + need > cap


def _gpu_hours_used_up(facts: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    """Of every model it accepts and has a quota of they are used up, and it may borrow of none of these."""
    keys = [(queued.pool, queued.team, model) for model in facts.most_needed(queued)]
    mine = [facts.quotas[key] for key in keys if key in facts.quotas]
    lends = queued.preemptible and queued.may_borrow
    return bool(mine) and all(
        q.used_up_until is not None and not (lends and q.borrow_limit != 0) for q in mine
    )


def _host_closed(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    open_ = [u for u in facts.units_by_pool.get(queued.pool, ()) if facts.is_usable(u)]
    return not any(
        facts.limits_allow(queued, kind) for kind in facts.kinds_that_fit(queued.ask, open_, whole=True)
    )


def _host_full(facts: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    """It fits on no host that takes work, and would with those whose disk is full; some of these are named."""
    units = facts.units_by_pool.get(queued.pool, ())
    full = {
        h.id: h.name
        for h in facts.hosts.values()
        if h.pool == queued.pool and h.closed_code == ReasonCode.HOST_FULL
    }
    named = numbers.get("hosts")
    if (
        not isinstance(named, list)
        or not set(named) <= set(full.values())
        or numbers.get("full") != len(full)
    ):
        return False
    or_full = [u for u in units if u.well and (facts.hosts[u.host].accepts or u.host in full)]
    return facts.fits(queued.ask, or_full, whole=True) and _host_closed(facts, queued, numbers)


def _held_for_reservation(facts: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    row = facts.reservations.get(int(str(numbers.get("reservation", 0))))
    return (
        row is not None
        and row.pool == queued.pool
        and row.end > facts.now
        and numbers.get("start") == row.start
    )


def _held_for_maintenance(facts: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    hosts = {u.host for u in facts.units_by_pool.get(queued.pool, ())}
    starts = {s for h in hosts for s, e in facts.windows.get(h, ()) if e > facts.now}
    return numbers.get("start") in starts


def _behind_others(facts: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return any(r.held_units and facts.queued[r.workload].pool == queued.pool for r, _, _ in _each(facts))


def _behind_own_team(facts: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    """The one in front is of its team (or its owner), waits for room within the team's limit (or what one person may hold), and is
    expected when the numbers say."""
    front, start = numbers.get("workload"), numbers.get("start")
    of_owner = numbers.get("of") == "person"
    limit = ReasonCode.OVER_USER_CAP if of_owner else ReasonCode.OVER_QUOTA
    ahead = next((r for r in facts.plan.refusals if r.workload == front and r.code == limit), None)
    if ahead is None or not isinstance(start, int) or ahead.expected_start is None:
        return False
    row = facts.queued[ahead.workload]
    same = row.user == queued.user if of_owner else row.team == queued.team
    return same and row.pool == queued.pool and ahead.expected_start <= start


def _spare_kept(facts: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    free, need, spare = numbers.get("free"), numbers.get("need"), numbers.get("spare")
    if not (isinstance(free, int) and isinstance(need, int) and isinstance(spare, int)):
        return False
    policy = facts.pools[queued.pool].policy
    return queued.priority is not Priority.CRITICAL and spare == policy.spare_slots and free - need < spare


REASON_CHECKS: dict[str, ReasonCheck] = {
    ReasonCode.NO_SUCH_HARDWARE: _no_such_hardware,
    ReasonCode.TOO_BIG_FOR_ANY_HOST: _too_big,
    ReasonCode.NOT_YOUR_POOL: _not_your_pool,
    ReasonCode.NO_QUOTA: _no_quota,
    ReasonCode.OVER_WORKLOAD_CAP: _over_workload_cap,
    ReasonCode.OVER_RUNTIME_CAP: _over_runtime_cap,
    ReasonCode.BACKING_OFF: _backing_off,
    ReasonCode.RESERVATION_NOT_STARTED: _reservation_not_started,
    ReasonCode.RESERVATION_OVER: _reservation_over,
    ReasonCode.RESERVATION_NOT_YOURS: _reservation_not_yours,
    ReasonCode.OVER_QUOTA: _over_quota,
    ReasonCode.OVER_USER_CAP: _over_user_cap,
    ReasonCode.GPU_HOURS_USED_UP: _gpu_hours_used_up,
    ReasonCode.HOST_CLOSED: _host_closed,
    ReasonCode.HOST_FULL: _host_full,
    ReasonCode.HELD_FOR_RESERVATION: _held_for_reservation,
    ReasonCode.HELD_FOR_MAINTENANCE: _held_for_maintenance,
    ReasonCode.BEHIND_OTHERS: _behind_others,
    ReasonCode.BEHIND_OWN_TEAM: _behind_own_team,
    ReasonCode.SPARE_CAPACITY_KEPT: _spare_kept,
}
REASONS_OF_THE_ASK = {
    ReasonCode.NO_SUCH_HARDWARE,
    ReasonCode.TOO_BIG_FOR_ANY_HOST,
}  # the same for equal asks of a pool


def nothing_waits_for_units_that_lie_free(facts: PlanLookups) -> Iterator[str]:
    """Who is told to wait for units does not fit on those that are left once the plan is carried out."""
    known: dict[tuple[int, Ask], list[KindTuple]] = {}
    for refusal, queued, _ in _each(facts):
        if refusal.code != ReasonCode.WAITS_FOR_UNITS or queued.pool in facts.pools_with_earmarks_given_up:
            continue
        if queued.reservation is not None:
            inside = [
                u
                for u in facts.units_by_pool.get(queued.pool, ())
                if facts.bound.get(u.id) == queued.reservation
                and u.id not in facts.holder
                and u.id not in facts.placed_on
                and facts.is_usable(u)
            ]
            if not queued.ask.profile.startswith("share") and facts.fits(queued.ask, inside):
                yield f"workload {queued.id} waits for units that lie free in its reservation"
            continue
        if queued.pool in facts.pools_with_room_being_made or queued.ask.profile.startswith("share"):
            continue
        if queued.id in facts.waited_for or (queued.pool, queued.team) in facts.teams_at_their_limit:
            continue
        key = (queued.pool, queued.ask)
        if key not in known:
            known[key] = list(facts.kinds_that_fit(queued.ask, facts.left.get(queued.pool, ())))
        if any(facts.limits_allow(queued, kind) for kind in known[key]):
            yield f"workload {queued.id} waits for units that lie free"


def each_workload_gets_one_answer(facts: PlanLookups) -> Iterator[str]:
    """Every waiting workload is started or refused, once; and nobody else is."""
    answers = Counter([p.workload for p in facts.plan.placements] + [r.workload for r in facts.plan.refusals])
    for workload in facts.queued:
        if answers[workload] != 1:
            yield f"workload {workload} waits and has {answers[workload]} answers instead of one"
    for workload in answers:
        if workload not in facts.queued:
            yield f"workload {workload} has an answer but does not wait"
