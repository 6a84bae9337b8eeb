"""Check refusals: each has a true reason with numbers, a queue position, and an expected start.

Some refusals must have no expected start, because only a change of the request or a setting can end the wait.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from benchmarks.plan_verifier.plan_lookups import PlanLookups
from benchmarks.plan_verifier.unit_lookups import KindTuple, serves
from scheduler.core.model.plan import Refusal
from scheduler.core.model.snapshot import Ask, Priority, QueuedWorkload, UnitInfo
from scheduler.core.reasons import ReasonCode

CODES_WITHOUT_START = {  # waiting does not help: the request or a setting must change
    ReasonCode.NO_SUCH_HARDWARE,
    ReasonCode.TOO_BIG_FOR_ANY_HOST,
    ReasonCode.NOT_YOUR_POOL,
    ReasonCode.NO_QUOTA,
    ReasonCode.OVER_WORKLOAD_CAP,
    ReasonCode.OVER_RUNTIME_CAP,
    ReasonCode.RESERVATION_OVER,
    ReasonCode.RESERVATION_NOT_YOURS,
}
CODES_WITH_KNOWN_END = {  # the time at which the wait ends is known
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
    CODES_WITHOUT_START
    | CODES_WITH_KNOWN_END
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


def _each(lookups: PlanLookups) -> Iterator[tuple[Refusal, QueuedWorkload, str]]:
    for refusal in lookups.plan.refusals:
        if refusal.workload in lookups.queued:
            yield refusal, lookups.queued[refusal.workload], f"refusal of workload {refusal.workload}"


def refusals_have_a_reason_with_numbers(lookups: PlanLookups) -> Iterator[str]:
    """Report refusals with an unknown code, or with numbers that are missing, unsorted or not valid JSON."""
    for refusal, queued, subject in _each(lookups):
        if refusal.code not in WAIT_CODES and refusal.code != queued.gate:
            yield f"{subject} with code {refusal.code!r}"
        if not refusal.numbers and queued.gate != refusal.code:
            yield f"{subject} ({refusal.code}) without numbers"
        if [name for name, _ in refusal.numbers] != sorted(name for name, _ in refusal.numbers):
            yield f"{subject}: numbers are not sorted"
        try:
            json.dumps(dict(refusal.numbers), allow_nan=False)
        except (TypeError, ValueError) as error:
            yield f"{subject}: numbers are not valid in JSON: {error}"


def gates_are_shown(lookups: PlanLookups) -> Iterator[str]:
    """Report refusals of workloads behind a gate if the refusal does not have the code of the gate.

    A gate is a condition that prevents a start even if units are free, for example a closed budget.
    """
    for refusal, queued, subject in _each(lookups):
        if queued.gate and refusal.code != queued.gate and queued.pool in lookups.pools:
            yield f"{subject} hides its gate {queued.gate}"


def an_expected_start_or_why_there_is_none(lookups: PlanLookups) -> Iterator[str]:
    """Report expected starts that are in the past, missing or impossible.

    A refusal needs an expected start if its code tells when the wait ends. It must have none if only a change
    of the request or a setting can end the wait.
    """
    for refusal, _, subject in _each(lookups):
        start = refusal.expected_start
        if start is not None and start <= lookups.now:
            yield f"{subject} expects a start in the past"
        if start is None and refusal.code in CODES_WITH_KNOWN_END:
            yield f"{subject} ({refusal.code}) without an expected start"
        if start is not None and refusal.code in CODES_WITHOUT_START:
            yield f"{subject} ({refusal.code}) has an expected start, but no known event ends its wait"


def places_count_from_one(lookups: PlanLookups) -> Iterator[str]:
    """Report pools in which the positions of the waiting workloads are not 1, 2, 3, ...

    A workload behind a gate, or with a code of ``CODES_WITHOUT_START``, must have no position. A workload
    that waits for units must have one.
    """
    positions: dict[int, list[int]] = defaultdict(list)
    for refusal, queued, subject in _each(lookups):
        if refusal.position is not None:
            positions[queued.pool].append(refusal.position)
        if refusal.position is not None and (queued.gate or refusal.code in CODES_WITHOUT_START):
            yield f"{subject} ({refusal.code}) has position {refusal.position}"
        if refusal.position is None and not queued.gate and refusal.code in EXPECTED_START_CODES:
            yield f"{subject} ({refusal.code}) has no position"
    for pool, numbers_taken in sorted(positions.items()):
        if sorted(numbers_taken) != list(range(1, len(numbers_taken) + 1)):
            yield f"positions in pool {pool} are {sorted(numbers_taken)}"


def blockers_run(lookups: PlanLookups) -> Iterator[str]:
    """Report blockers that do not run in the workload's pool, or that are listed twice.

    A blocker is a workload that has to end first. A workload that waits for an eviction must have at least
    one blocker.
    """
    for refusal, queued, subject in _each(lookups):
        if refusal.code == ReasonCode.WAITS_FOR_EVICTION and not refusal.blockers:
            yield f"{subject} waits for an eviction, but has no blockers"
        for blocker in refusal.blockers:
            running = lookups.running.get(blocker)
            if running is None or running.pool != queued.pool:
                yield f"{subject} waits for workload {blocker}, which does not run in its pool"
        if tuple(sorted(set(refusal.blockers))) != refusal.blockers:
            yield f"{subject} has duplicate or unsorted blockers"


# -- truth of the reasons ------------------------------------------------------------------------


def reasons_are_true(lookups: PlanLookups) -> Iterator[str]:
    """Report refusals whose reason is not true.

    Example: the reason is that the pool lacks the hardware, although the pool has it.
    """
    cached: dict[tuple[str, int, Ask], bool] = {}
    for refusal, queued, subject in _each(lookups):
        is_reason_true = REASON_CHECKS.get(refusal.code)
        if is_reason_true is None or queued.gate:
            continue
        if refusal.code in REASONS_OF_THE_ASK:
            key = (refusal.code, queued.pool, queued.ask)
            if key not in cached:
                cached[key] = is_reason_true(lookups, queued, dict(refusal.numbers))
            is_true = cached[key]
        else:
            is_true = is_reason_true(lookups, queued, dict(refusal.numbers))
        if not is_true:
            yield f"{subject} has reason {refusal.code}, which is not true"


ReasonCheck = Callable[[PlanLookups, QueuedWorkload, dict[str, object]], bool]


def _no_such_hardware(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return not any(serves(u, queued.ask) for u in lookups.kinds_by_pool.get(queued.pool, {}).values())


def _too_big(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return not lookups.fits(queued.ask, lookups.units_by_pool.get(queued.pool, ()), on_empty_hosts=True)


def _not_your_pool(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    pool = lookups.pools.get(queued.pool)
    return pool is None or (lookups.is_static(pool.id) and pool.team != queued.team)


def _no_quota(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return not any(
        (queued.pool, queued.team, model) in lookups.quotas for model in lookups.slots_needed_by_model(queued)
    )


def _over_workload_cap(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    cap = lookups.pools[queued.pool].policy.max_slots_per_workload
    kinds = [k for k, u in lookups.kinds_by_pool[queued.pool].items() if serves(u, queued.ask)]
    return cap is not None and all(lookups.need(queued.ask, k) > cap for k in kinds)


def _over_runtime_cap(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return queued.max_runtime_seconds > lookups.pools[queued.pool].policy.longest_runtime_seconds


def _backing_off(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return queued.not_before > lookups.now


def _reservation_not_started(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    row = lookups.reservations.get(queued.reservation or 0)
    return row is not None and row.start > lookups.now


def _reservation_over(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    row = lookups.reservations.get(queued.reservation or 0)
    return queued.reservation is not None and (
        row is None or row.end <= lookups.now or row.pool != queued.pool
    )


def _reservation_not_yours(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    row = lookups.reservations.get(queued.reservation or 0)
    return row is not None and (row.team, row.project) != (queued.team, queued.project)


def _over_quota(lookups: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    """Return True if the numbers of the refusal are right and show that the quota is exceeded.

    Held plus needed slots must exceed the stated limit. The stated guarantee must be the team's guarantee,
    and the team must hold at least the stated slots after the plan.
    """
    held, need, limit = numbers.get("held"), numbers.get("need"), numbers.get("limit")
    if queued.reservation is not None or lookups.is_static(queued.pool):
        return False
    if not (isinstance(held, int) and isinstance(need, int) and isinstance(limit, int)):
        return False
    key = (queued.pool, queued.team, str(numbers.get("model")))
    return (
        held + need > limit
        and numbers.get("guaranteed") == lookups.guarantee(key)
        and held <= lookups.held_after[key]
    )


def _over_user_cap(lookups: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    held, need, cap = (
        numbers.get("held"),
        numbers.get("need"),
        lookups.pools[queued.pool].policy.max_slots_per_user,
    )
    return cap is not None and isinstance(held, int) and isinstance(need, int) and held + need > cap


def _gpu_hours_used_up(lookups: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    """Return True if the team has used up its GPU-hours of every model that the workload can use.

    Models without a quota are ignored. The result is False if the workload may borrow instead.
    """
    keys = [(queued.pool, queued.team, model) for model in lookups.slots_needed_by_model(queued)]
    quotas = [lookups.quotas[key] for key in keys if key in lookups.quotas]
    may_borrow = queued.preemptible and queued.may_borrow
    return bool(quotas) and all(
        q.used_up_until is not None and not (may_borrow and q.borrow_limit != 0) for q in quotas
    )


def _host_closed(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    usable = [u for u in lookups.units_by_pool.get(queued.pool, ()) if lookups.is_usable(u)]
    return not any(
        lookups.limits_allow(queued, kind)
        for kind in lookups.kinds_that_fit(queued.ask, usable, on_empty_hosts=True)
    )


def _host_full(lookups: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    """Return True if the full disks of some hosts are the only reason why the workload cannot start.

    Also check ``numbers``: ``full`` must be the number of hosts with full disks, and ``hosts`` may contain
    only names of these hosts.
    """
    units = lookups.units_by_pool.get(queued.pool, ())
    full = {
        h.id: h.name
        for h in lookups.hosts.values()
        if h.pool == queued.pool and h.closed_code == ReasonCode.HOST_FULL
    }
    named = numbers.get("hosts")
    if (
        not isinstance(named, list)
        or not set(named) <= set(full.values())
        or numbers.get("full") != len(full)
    ):
        return False
    open_or_full = [u for u in units if u.healthy and (lookups.hosts[u.host].schedulable or u.host in full)]
    return lookups.fits(queued.ask, open_or_full, on_empty_hosts=True) and _host_closed(
        lookups, queued, numbers
    )


def _held_for_reservation(lookups: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    row = lookups.reservations.get(int(str(numbers.get("reservation", 0))))
    return (
        row is not None
        and row.pool == queued.pool
        and row.end > lookups.now
        and numbers.get("start") == row.start
    )


def _held_for_maintenance(lookups: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    hosts = {u.host for u in lookups.units_by_pool.get(queued.pool, ())}
    starts = {s for h in hosts for s, e in lookups.windows.get(h, ()) if e > lookups.now}
    return numbers.get("start") in starts


def _behind_others(lookups: PlanLookups, queued: QueuedWorkload, _: dict[str, object]) -> bool:
    return any(r.held_units and lookups.queued[r.workload].pool == queued.pool for r, _, _ in _each(lookups))


def _behind_own_team(lookups: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    """Return True if headroom is reserved for the workload that ``numbers`` names.

    The named workload must wait for the quota of the same team, or for the cap on the same user. It must be
    expected to start at ``numbers["start"]`` or earlier.
    """
    workload_ahead, start = numbers.get("workload"), numbers.get("start")
    is_user_cap = numbers.get("of") == "person"
    limit = ReasonCode.OVER_USER_CAP if is_user_cap else ReasonCode.OVER_QUOTA
    refusal_ahead = next(
        (r for r in lookups.plan.refusals if r.workload == workload_ahead and r.code == limit), None
    )
    if refusal_ahead is None or not isinstance(start, int) or refusal_ahead.expected_start is None:
        return False
    row = lookups.queued[refusal_ahead.workload]
    is_same = row.user == queued.user if is_user_cap else row.team == queued.team
    return is_same and row.pool == queued.pool and refusal_ahead.expected_start <= start


def _spare_kept(lookups: PlanLookups, queued: QueuedWorkload, numbers: dict[str, object]) -> bool:
    free, need, spare = numbers.get("free"), numbers.get("need"), numbers.get("spare")
    if not (isinstance(free, int) and isinstance(need, int) and isinstance(spare, int)):
        return False
    policy = lookups.pools[queued.pool].policy
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
# These reasons depend only on the pool and the ask, so the result of one check is reused for equal asks.
REASONS_OF_THE_ASK = {
    ReasonCode.NO_SUCH_HARDWARE,
    ReasonCode.TOO_BIG_FOR_ANY_HOST,
}


def nothing_waits_for_units_that_lie_free(lookups: PlanLookups) -> Iterator[str]:
    """Report workloads that wait for units, but fit on the units that are free after the plan."""
    cached: dict[tuple[int, Ask], list[KindTuple]] = {}
    for refusal, queued, _ in _each(lookups):
        if refusal.code != ReasonCode.WAITS_FOR_UNITS or queued.pool in lookups.pools_with_earmarks_given_up:
            continue
        if queued.ask.profile.startswith("share"):
            continue
        if queued.reservation is not None:
            if lookups.fits(queued.ask, _free_units_inside(lookups, queued.pool, queued.reservation)):
                yield f"workload {queued.id} waits for units that are free in its reservation"
            continue
        if _free_units_may_be_kept_from(lookups, queued):
            continue
        key = (queued.pool, queued.ask)
        if key not in cached:
            cached[key] = list(
                lookups.kinds_that_fit(queued.ask, lookups.free_after_plan.get(queued.pool, ()))
            )
        if any(lookups.limits_allow(queued, kind) for kind in cached[key]):
            yield f"workload {queued.id} waits for units that are free"


def _free_units_inside(lookups: PlanLookups, pool: int, reservation: int) -> list[UnitInfo]:
    """Return the usable units bound to a reservation that no work holds after the plan."""
    return [
        u
        for u in lookups.units_by_pool.get(pool, ())
        if lookups.bound.get(u.id) == reservation
        and u.id not in lookups.holder
        and u.id not in lookups.placed_on
        and lookups.is_usable(u)
    ]


def _free_units_may_be_kept_from(lookups: PlanLookups, queued: QueuedWorkload) -> bool:
    """Return True if the planner may be right to give the workload no free units.

    The planner may be right in three cases: a workload of the pool waits for evictions, an earlier plan
    evicted work for this workload, or headroom is reserved for other work of the team.
    """
    return (
        queued.pool in lookups.pools_with_room_being_made
        or queued.id in lookups.awaiting_evictions
        or (queued.pool, queued.team) in lookups.teams_at_their_limit
    )


def each_workload_gets_one_answer(lookups: PlanLookups) -> Iterator[str]:
    """Report waiting workloads that do not have exactly one answer.

    An answer is a placement or a refusal. Also report answers for workloads that do not wait.
    """
    answers = Counter(
        [p.workload for p in lookups.plan.placements] + [r.workload for r in lookups.plan.refusals]
    )
    for workload in lookups.queued:
        if answers[workload] != 1:
            yield f"workload {workload} waits and has {answers[workload]} answers instead of one"
    for workload in answers:
        if workload not in lookups.queued:
            yield f"workload {workload} has an answer but does not wait"
