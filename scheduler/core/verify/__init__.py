"""Does a plan keep every promise? Written apart from the planner: plain loops over the rows, no shared rule.

``violations`` returns one sentence per broken promise, naming the rows; an empty list means the plan may be applied.

``PROMISES`` lists what is promised in ARCHITECTURE's invariants and docs/scheduling.md, in words, each with its check:

- ``placements``: what starts, where, and may it;
- ``limits``: quotas, borrowing, caps, spare capacity;
- ``reservations``: kept, bound, and their borrowers told in time (``window_violations`` looks at the answer to who asks for one);
- ``evictions``: who goes, for whom, in good time, and nobody for nothing;
- ``waiting``: every "no" is a true reason with numbers, a place, and an expected start or why there is none;
- ``order``: who comes first, and what backfill may not delay.

A check says nothing where a plan alone can't show that a rule was broken. That the same rows in another order give the same
plan takes two plans, and is tried by ``tests/core`` and ``./run bench verify`` on every example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scheduler.core.model import Plan, Snapshot
from scheduler.core.verify import evictions, limits, order, placements, reservations, waiting
from scheduler.core.verify.facts import Facts
from scheduler.core.verify.reservations import window_violations

__all__ = ["PROMISES", "broken_promises", "violations", "window_violations"]

Check = Callable[[Facts], Iterator[str]]

PROMISES: dict[str, Check] = {
    "every waiting workload gets exactly one answer": waiting.one_answer_each,
    "a plan is of its snapshot's epoch, and its rows come in the order of their ids": order.equal_plans_are_equal_bytes,
    # what starts
    "a unit is held by one workload at a time": placements.a_unit_is_held_once,
    "units freed for a workload are kept for it": placements.what_was_freed_is_kept,
    "a gang starts on all its units or on none": placements.gangs_start_whole,
    "an ask gets the models, memory, labels and pool it names": placements.an_ask_gets_what_it_names,
    "who asks for NVLink gets one island per host": placements.nvlink_is_one_island,
    "nothing starts on a closed host or a GPU that is not well": placements.only_hosts_and_gpus_in_order,
    "CPU and memory beside the GPUs suffice": placements.cpu_and_memory_suffice,
    "nothing starts behind a gate, in its back-off or for too long": placements.gates_hold,
    "a static pool is its owner's": placements.static_pools_are_their_owners,
    "work ends with its limit, its reservation, and before maintenance": placements.work_ends_in_time,
    "time-sliced shares of one GPU serve one team": placements.shares_serve_one_team,
    "slices fill GPUs that are in use first": placements.slices_fill_used_gpus,
    "every start says truly why": placements.starts_say_why,
    # how much
    "nobody holds more than guarantee and borrow limit allow": limits.quotas_hold,
    "what may not be evicted does not borrow": limits.only_what_may_borrow_borrows,
    "what is borrowed is marked as borrowed, and nothing else": limits.what_is_borrowed_is_marked,
    "the caps on users and workloads hold": limits.caps_hold,
    "spare capacity is kept for critical work": limits.spare_capacity_is_kept,
    # reservations
    "no stranger is on bound units": reservations.no_stranger_on_bound_units,
    "work inside a reservation belongs there": reservations.work_inside_belongs_there,
    "a promise that could be kept stays possible": reservations.promises_stay_possible,
    "firm work leaves its team's reservation its guarantee": reservations.firm_work_leaves_room_for_its_teams_reservation,
    "a reservation is bound at its time to the units it asked for": reservations.bindings_are_right,
    "a reservation of several models takes none that others are guaranteed": reservations.bindings_leave_others_their_guarantee,
    "a reservation that has begun without units says why": reservations.who_waits_for_units_is_told_why,
    "a reservation whose units lie free begins": reservations.a_reservation_that_can_begin_begins,
    "borrowers of reserved units are told in time": reservations.borrowers_are_told_in_time,
    "nobody leaves for a reservation that has enough": reservations.nobody_leaves_a_reservation_that_needs_nothing,
    # who goes
    "a whole workload goes, once, for one beneficiary": evictions.a_whole_workload_goes_once,
    "only preemptible work is evicted": evictions.only_preemptible_work_goes,
    "the minimum runtime protects": evictions.the_minimum_runtime_protects,
    "nobody stops without the whole notice": evictions.notice_comes_first,
    "every eviction says truly why": evictions.goings_say_why,
    "whoever others make room for waits for them": evictions.the_beneficiary_waits_for_it,
    "evictions never go in a circle": evictions.never_in_a_circle,
    "within a team only lower priority is evicted": evictions.within_a_team_by_priority,
    "across teams work is evicted only for a guarantee": evictions.across_teams_only_for_a_guarantee,
    "across teams only borrowed work is evicted, whatever its priority": evictions.across_teams_only_what_is_borrowed,
    "for a reservation work goes at its start, not before": evictions.for_a_reservation_at_its_start,
    "nobody goes in vain": evictions.nobody_goes_in_vain,
    "every victim is needed, and nobody goes while free units would do": evictions.every_victim_is_needed,
    # what waits
    "every wait has a reason with its numbers": waiting.a_reason_with_numbers,
    "who waits behind a gate is told so": waiting.gates_are_shown,
    "every wait has an expected start or a reason why there is none": waiting.an_expected_start_or_why_there_is_none,
    "places in the line count from one": waiting.places_count_from_one,
    "those waited for run": waiting.blockers_run,
    "the reason given is true": waiting.reasons_are_true,
    "nothing waits for units that lie free": waiting.nothing_waits_for_units_that_lie_free,
    # who comes first
    "priority orders within a team": order.priority_orders_within_a_team,
    "guarantees come before borrowing": order.guarantees_come_before_borrowing,
    "borrowers take their turn by decayed use and weight": order.borrowers_share_fairly,
    "the first preference comes first": order.the_first_preference_comes_first,
    "a better place comes first": order.a_better_place_comes_first,
    "backfill delays nobody who was promised a start": order.backfill_delays_nobody,
}


def violations(snapshot: Snapshot, plan: Plan, now: int) -> list[str]:
    """Every promise the plan breaks, in words for engineers."""
    return [sentence for _, sentence in broken_promises(snapshot, plan, now)]


def broken_promises(snapshot: Snapshot, plan: Plan, now: int) -> list[tuple[str, str]]:
    """(the promise, how it is broken) for everything that ``violations`` finds."""
    facts = Facts(snapshot, plan, now)
    return [(promise, sentence) for promise, check in PROMISES.items() for sentence in check(facts)]
