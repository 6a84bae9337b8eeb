"""Check that a plan keeps the promises that docs/scheduling.md lists under "What is checked".

``violations`` returns one sentence for each violation, with the ids of the affected rows. An empty list means
that the plan may be applied.

The verifier is independent of the planner. It shares no rules with the planner; each check is a plain loop
over rows.

``PROMISES`` maps each promise to its check. The checks are in these modules:

- ``placement_checks``: which work starts, and on which units;
- ``quota_checks``: quotas, borrowing, caps and spare capacity;
- ``reservation_checks``: a plan leaves accepted reservations possible;
- ``window_checks``: the answer to a request for a reservation (not in ``PROMISES``);
- ``binding_checks``: reservations get their units at their start, and borrowers are evicted in time;
- ``reservation_victim_checks``: the work from which a reservation takes units;
- ``eviction_checks``: only allowed work is evicted, with enough notice, and only if needed;
- ``refusal_checks``: every refusal has a true reason with numbers and, if possible, an expected start;
- ``order_checks``: the order in which the planner considers workloads, and the limits of backfill.

Sometimes a plan alone cannot show whether a rule was broken. A check then reports nothing.

One promise has no check here because it needs two plans: rows in another order must give the same plan.
``tests/core`` and ``./run bench verify`` test this promise on every example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.plan_verifier import (
    binding_checks,
    eviction_checks,
    order_checks,
    placement_checks,
    quota_checks,
    refusal_checks,
    reservation_checks,
    reservation_victim_checks,
)
from benchmarks.plan_verifier.plan_lookups import PlanLookups
from benchmarks.plan_verifier.window_checks import window_violations
from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import Snapshot

__all__ = ["PROMISES", "broken_promises", "violations", "window_violations"]

Check = Callable[[PlanLookups], Iterator[str]]

_CHECKS: tuple[tuple[str, Check], ...] = (
    (
        "every waiting workload has exactly one placement or refusal",
        refusal_checks.each_workload_gets_one_answer,
    ),
    (
        "a plan has its snapshot's epoch, and its rows are in the order of their ids",
        order_checks.plan_rows_are_in_id_order,
    ),
    # placements
    ("a unit is held by one workload at a time", placement_checks.a_unit_is_held_once),
    ("units freed for a workload are kept for it", placement_checks.freed_units_are_earmarked),
    ("a gang starts on all its units or on none", placement_checks.gangs_start_whole),
    (
        "a request gets the models, memory, labels and pool that it names",
        placement_checks.asks_get_matching_units,
    ),
    ("a request for NVLink gets one island per host", placement_checks.nvlink_is_one_island),
    (
        "nothing starts on a closed host or an unhealthy GPU",
        placement_checks.only_healthy_gpus_on_open_hosts,
    ),
    ("the CPU and memory of each host are sufficient", placement_checks.cpu_and_memory_suffice),
    (
        "nothing starts behind a closed gate, during its back-off or above the runtime cap",
        placement_checks.gates_hold,
    ),
    ("a static pool serves only its team", placement_checks.static_pools_are_their_owners),
    (
        "work ends by its limit, by its reservation's end, and before maintenance",
        placement_checks.work_ends_in_time,
    ),
    ("time-sliced shares of one GPU serve one team", placement_checks.shares_serve_one_team),
    ("slices fill GPUs that are in use first", placement_checks.slices_fill_used_gpus),
    ("the reason of every start is true", placement_checks.placements_have_a_true_reason),
    # limits
    ("no team exceeds its guarantee and borrow limit", quota_checks.quotas_hold),
    ("work that may not be evicted does not borrow", quota_checks.only_what_may_borrow_borrows),
    ("exactly the borrowed units are marked as borrowed", quota_checks.what_is_borrowed_is_marked),
    ("the caps on users and workloads hold", quota_checks.caps_hold),
    ("spare capacity is kept for critical work", quota_checks.spare_capacity_is_kept),
    # reservations
    (
        "only work of the reservation is on its bound units",
        reservation_checks.only_reservation_work_on_bound_units,
    ),
    ("work inside a reservation is entitled to it", reservation_checks.work_is_entitled_to_its_reservation),
    ("a reservation that could be kept stays feasible", reservation_checks.reservations_stay_feasible),
    (
        "work that may not be evicted leaves enough of its team's guarantee for the team's reservation",
        reservation_checks.non_preemptible_work_leaves_room_for_its_teams_reservation,
    ),
    (
        "a reservation is bound at its start to the units that it requested",
        binding_checks.bindings_are_right,
    ),
    (
        "a reservation of several models takes none that is guaranteed to others",
        binding_checks.bindings_leave_others_their_guarantee,
    ),
    (
        "a reservation that has begun without units has a reason",
        binding_checks.unbound_reservations_have_a_reason,
    ),
    (
        "a reservation whose units are free is bound",
        binding_checks.reservations_with_free_units_are_bound,
    ),
    ("borrowers of reserved units get notice in time", binding_checks.borrowers_get_notice_in_time),
    (
        "for a reservation borrowed work is evicted before guaranteed work",
        reservation_victim_checks.borrowers_are_evicted_before_guaranteed_work,
    ),
    (
        "nothing is evicted for a reservation that has enough units",
        binding_checks.no_evictions_for_satisfied_reservations,
    ),
    # evictions
    (
        "a workload is evicted whole, once, for one beneficiary",
        eviction_checks.workloads_are_evicted_whole_and_once,
    ),
    ("only preemptible work is evicted", eviction_checks.only_preemptible_work_is_evicted),
    ("nothing is evicted before the minimum runtime", eviction_checks.the_minimum_runtime_protects),
    ("every evicted workload gets the whole notice", eviction_checks.evictions_give_full_notice),
    ("the reason of every eviction is true", eviction_checks.evictions_have_a_true_reason),
    ("the beneficiary waits for its evictions", eviction_checks.beneficiary_waits_for_its_eviction),
    ("evictions form no cycle", eviction_checks.no_eviction_cycles),
    ("within a team only lower priority is evicted", eviction_checks.within_a_team_by_priority),
    ("across teams work is evicted only for a guarantee", eviction_checks.across_teams_only_for_a_guarantee),
    (
        "across teams only borrowed work is evicted, regardless of priority",
        eviction_checks.across_teams_only_borrowed_work_is_evicted,
    ),
    (
        "work is evicted for a reservation only shortly before its start",
        eviction_checks.for_a_reservation_at_its_start,
    ),
    ("every eviction enables a start", eviction_checks.evictions_enable_the_start),
    (
        "every victim is needed, and nothing is evicted if free units suffice",
        eviction_checks.every_eviction_is_needed,
    ),
    # refusals
    ("every wait has a reason with its numbers", refusal_checks.refusals_have_a_reason_with_numbers),
    ("a workload behind a gate has the gate as its reason", refusal_checks.gates_are_shown),
    (
        "every wait has an expected start or a reason why there is none",
        refusal_checks.an_expected_start_or_why_there_is_none,
    ),
    ("queue positions count from one", refusal_checks.places_count_from_one),
    ("blockers are running workloads", refusal_checks.blockers_run),
    ("the reason of every refusal is true", refusal_checks.reasons_are_true),
    ("nothing waits for units that are free", refusal_checks.nothing_waits_for_units_that_lie_free),
    # order
    ("priority orders within a team", order_checks.priority_orders_within_a_team),
    ("guarantees come before borrowing", order_checks.guarantees_come_before_borrowing),
    ("borrowers take turns by decayed use and weight", order_checks.borrowers_share_fairly),
    ("a request gets the most preferred model that is free", order_checks.the_first_preference_comes_first),
    (
        "hosts to avoid come last, and hosts with the workload's checkpoint come first",
        order_checks.a_better_place_comes_first,
    ),
    ("backfill delays no workload with a promised start", order_checks.backfill_delays_nobody),
)
PROMISES = dict(_CHECKS)


def violations(snapshot: Snapshot, plan: Plan, now: int) -> list[str]:
    """Return one sentence for each violation of a promise. The sentences are for engineers."""
    return [sentence for _, sentence in broken_promises(snapshot, plan, now)]


def broken_promises(snapshot: Snapshot, plan: Plan, now: int) -> list[tuple[str, str]]:
    """Return (promise, sentence) for each violation of a promise."""
    lookups = PlanLookups(snapshot, plan, now)
    return [(promise, sentence) for promise, check in PROMISES.items() for sentence in check(lookups)]
