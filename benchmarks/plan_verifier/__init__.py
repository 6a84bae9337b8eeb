"""Check that a plan keeps every promise. Written independently of the planner: plain loops over rows, no
shared rules.

``violations`` returns one sentence for each broken promise, naming the rows. An empty list means that the
plan may be applied.

``PROMISES`` lists the promises of docs/scheduling.md and of the architecture's invariants, each with its
check:
- ``placement_checks``: what starts, and where;
- ``quota_checks``: quotas, borrowing, caps, spare capacity;
- ``reservation_checks``: reservations are kept and bound, borrowers evicted in time (``window_violations``
  checks the answer to a request);
- ``eviction_checks``: who is evicted, for whom, in good time, and only if needed;
- ``refusal_checks``: every refusal has a true reason with numbers, a position, and an expected start or why
  there is none;
- ``order_checks``: who comes first, and what backfill may not delay.

A check reports nothing if a plan alone cannot show that a rule was broken. That rows in another order give
the same plan needs two plans, and is checked by ``tests/core`` and ``./run bench verify`` on every example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.plan_verifier import (
    eviction_checks,
    order_checks,
    placement_checks,
    quota_checks,
    refusal_checks,
    reservation_checks,
)
from benchmarks.plan_verifier.plan_lookups import PlanLookups
from benchmarks.plan_verifier.reservation_checks import window_violations
from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import Snapshot

__all__ = ["PROMISES", "broken_promises", "violations", "window_violations"]

Check = Callable[[PlanLookups], Iterator[str]]

_CHECKS: tuple[tuple[str, Check], ...] = (
    ("every waiting workload gets exactly one answer", refusal_checks.each_workload_gets_one_answer),
    (
        "a plan is of its snapshot's epoch, and its rows come in the order of their ids",
        order_checks.plan_rows_are_in_id_order,
    ),
    # what starts
    ("a unit is held by one workload at a time", placement_checks.a_unit_is_held_once),
    ("units freed for a workload are kept for it", placement_checks.freed_units_are_earmarked),
    ("a gang starts on all its units or on none", placement_checks.gangs_start_whole),
    ("an ask gets the models, memory, labels and pool it names", placement_checks.asks_get_matching_units),
    ("who asks for NVLink gets one island per host", placement_checks.nvlink_is_one_island),
    (
        "nothing starts on a closed host or a GPU that is not well",
        placement_checks.only_healthy_gpus_on_open_hosts,
    ),
    ("CPU and memory beside the GPUs suffice", placement_checks.cpu_and_memory_suffice),
    ("nothing starts behind a gate, in its back-off or for too long", placement_checks.gates_hold),
    ("a static pool is its owner's", placement_checks.static_pools_are_their_owners),
    ("work ends with its limit, its reservation, and before maintenance", placement_checks.work_ends_in_time),
    ("time-sliced shares of one GPU serve one team", placement_checks.shares_serve_one_team),
    ("slices fill GPUs that are in use first", placement_checks.slices_fill_used_gpus),
    ("every start says truly why", placement_checks.placements_have_a_true_reason),
    # how much
    ("nobody holds more than guarantee and borrow limit allow", quota_checks.quotas_hold),
    ("what may not be evicted does not borrow", quota_checks.only_what_may_borrow_borrows),
    ("what is borrowed is marked as borrowed, and nothing else", quota_checks.what_is_borrowed_is_marked),
    ("the caps on users and workloads hold", quota_checks.caps_hold),
    ("spare capacity is kept for critical work", quota_checks.spare_capacity_is_kept),
    # reservations
    ("no stranger is on bound units", reservation_checks.no_stranger_on_bound_units),
    ("work inside a reservation belongs there", reservation_checks.work_inside_belongs_there),
    ("a promise that could be kept stays possible", reservation_checks.promises_stay_possible),
    (
        "firm work leaves its team's reservation its guarantee",
        reservation_checks.firm_work_leaves_room_for_its_teams_reservation,
    ),
    ("a reservation is bound at its time to the units it asked for", reservation_checks.bindings_are_right),
    (
        "a reservation of several models takes none that others are guaranteed",
        reservation_checks.bindings_leave_others_their_guarantee,
    ),
    (
        "a reservation that has begun without units says why",
        reservation_checks.unbound_reservations_have_a_reason,
    ),
    ("a reservation whose units lie free begins", reservation_checks.reservations_with_free_units_are_bound),
    ("borrowers of reserved units are told in time", reservation_checks.borrowers_get_notice_in_time),
    (
        "nobody leaves for a reservation that has enough",
        reservation_checks.no_evictions_for_satisfied_reservations,
    ),
    # who goes
    (
        "a whole workload goes, once, for one beneficiary",
        eviction_checks.workloads_are_evicted_whole_and_once,
    ),
    ("only preemptible work is evicted", eviction_checks.only_preemptible_work_is_evicted),
    ("the minimum runtime protects", eviction_checks.the_minimum_runtime_protects),
    ("nobody stops without the whole notice", eviction_checks.evictions_give_full_notice),
    ("every eviction says truly why", eviction_checks.evictions_have_a_true_reason),
    ("whoever others make room for waits for them", eviction_checks.beneficiary_waits_for_its_eviction),
    ("evictions never go in a circle", eviction_checks.no_eviction_cycles),
    ("within a team only lower priority is evicted", eviction_checks.within_a_team_by_priority),
    ("across teams work is evicted only for a guarantee", eviction_checks.across_teams_only_for_a_guarantee),
    (
        "across teams only borrowed work is evicted, whatever its priority",
        eviction_checks.across_teams_only_borrowed_work_is_evicted,
    ),
    ("for a reservation work goes at its start, not before", eviction_checks.for_a_reservation_at_its_start),
    ("nobody goes in vain", eviction_checks.evictions_enable_the_start),
    (
        "every victim is needed, and nobody goes while free units would do",
        eviction_checks.every_eviction_is_needed,
    ),
    # what waits
    ("every wait has a reason with its numbers", refusal_checks.refusals_have_a_reason_with_numbers),
    ("who waits behind a gate is told so", refusal_checks.gates_are_shown),
    (
        "every wait has an expected start or a reason why there is none",
        refusal_checks.an_expected_start_or_why_there_is_none,
    ),
    ("places in the line count from one", refusal_checks.places_count_from_one),
    ("those waited for run", refusal_checks.blockers_run),
    ("the reason given is true", refusal_checks.reasons_are_true),
    ("nothing waits for units that lie free", refusal_checks.nothing_waits_for_units_that_lie_free),
    # who comes first
    ("priority orders within a team", order_checks.priority_orders_within_a_team),
    ("guarantees come before borrowing", order_checks.guarantees_come_before_borrowing),
    ("borrowers take their turn by decayed use and weight", order_checks.borrowers_share_fairly),
    ("the first preference comes first", order_checks.the_first_preference_comes_first),
    ("a better place comes first", order_checks.a_better_place_comes_first),
    ("backfill delays nobody who was promised a start", order_checks.backfill_delays_nobody),
)
PROMISES = dict(_CHECKS)


def violations(snapshot: Snapshot, plan: Plan, now: int) -> list[str]:
    """Return every broken promise as a sentence for engineers."""
    return [sentence for _, sentence in broken_promises(snapshot, plan, now)]


def broken_promises(snapshot: Snapshot, plan: Plan, now: int) -> list[tuple[str, str]]:
    """Return (promise, sentence) for every violation."""
    lookups = PlanLookups(snapshot, plan, now)
    return [(promise, sentence) for promise, check in PROMISES.items() for sentence in check(lookups)]
