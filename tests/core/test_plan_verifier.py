"""Test the plan verifier: it finds each planted bug in a plan, for every promise."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from benchmarks.plan_verifier import PROMISES, broken_promises, violations, window_violations
from benchmarks.plan_verifier.refusal_checks import REASON_CHECKS
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    Priority,
    QuotaInfo,
    ReservationInfo,
    Snapshot,
    UnitInfo,
)
from scheduler.core.planner import plan
from scheduler.core.promises.reservation_windows import ReservationWindow, WindowCheckResult
from scheduler.core.reasons import ReasonCode
from tests.core.plan_bugs import (
    BUGS,
    GPU,
    HOUR,
    NOW,
    good_plan,
    queued,
    refusal,
    running,
    sample_pool,
    two_models,
)
from tests.core.scenario import FOLDER, Scenario
from tests.core.scenario import NOW as SCENARIO_NOW


def test_the_plan_without_a_bug_breaks_no_promise_and_has_every_kind_of_row() -> None:
    planned = good_plan()
    assert violations(sample_pool(), planned, NOW) == []
    assert planned.placements and planned.evictions and planned.refusals and planned.bindings


@pytest.mark.parametrize("name", BUGS)
def test_the_verifier_finds_a_plan_that_breaks_a_promise(name: str) -> None:
    bug, message = BUGS[name]
    snapshot, planned = bug(sample_pool(), good_plan())
    found = violations(snapshot, planned, NOW)
    assert any(message in sentence for sentence in found), found


@pytest.mark.parametrize("code", REASON_CHECKS)
def test_the_verifier_finds_a_false_reason(code: ReasonCode) -> None:
    snapshot, planned = refusal(2, code=code, numbers=(("x", 1),))(sample_pool(), good_plan())
    assert f"refusal of workload 2 has reason {code}, which is not true" in violations(snapshot, planned, NOW)


@pytest.mark.parametrize(
    ("scenario", "guaranteed", "borrower"),
    [
        ("borrowers_of_a_model_wait_for_its_guaranteed_work", 2, 1),
        ("borrowing_one_model_does_not_delay_guaranteed_work_of_another", 2, 3),
    ],
)
def test_a_placement_of_a_borrower_before_guaranteed_work_is_found_in_every_queue(
    scenario: str, guaranteed: int, borrower: int
) -> None:
    snapshot = Scenario(FOLDER / f"{scenario}.json").snapshot
    right = plan(snapshot, SCENARIO_NOW)
    placed = next(p for p in right.placements if p.workload == guaranteed)
    refused = next(r for r in right.refusals if r.workload == borrower)
    others = tuple(r for r in right.refusals if r.workload != borrower)
    wrong = replace(
        right,
        placements=(
            replace(placed, workload=borrower, borrowed_slots=4 * GPU, code=ReasonCode.FREE_BORROWED),
        ),
        refusals=tuple(sorted((*others, replace(refused, workload=guaranteed)), key=lambda r: r.workload)),
    )
    promise = "guarantees come before borrowing"
    assert promise not in {broken for broken, _ in broken_promises(snapshot, right, SCENARIO_NOW)}
    assert promise in {broken for broken, _ in broken_promises(snapshot, wrong, SCENARIO_NOW)}


@pytest.mark.parametrize("promise", PROMISES)
def test_a_planted_bug_breaks_the_promise(promise: str) -> None:
    assert promise in promises_broken_by_bugs()


@functools.cache
def promises_broken_by_bugs() -> set[str]:
    """Return the promises that the planted bugs break with the expected messages."""
    found = set()
    for bug, message in [*BUGS.values(), (refusal(2, code=ReasonCode.NO_QUOTA), "not true")]:
        broken = broken_promises(*bug(sample_pool(), good_plan()), NOW)
        found |= {promise for promise, sentence in broken if message in sentence}
    return found


# -- answers to requests for a reservation --------------------------------------------------------------

ACCEPTED, REJECTED = WindowCheckResult(True), WindowCheckResult(False, ReasonCode.WINDOW_FULL, (("need", 1),))
NOT_PREEMPTIBLE = tuple(replace(r, preemptible=False) for r in sample_pool().running)
LATER = NOW + HOUR, NOW + 2 * HOUR
WRONG_ANSWERS: dict[str, tuple[Snapshot, int, WindowCheckResult, str]] = {
    "an acceptance although running work must stay": (
        replace(sample_pool(), running=NOT_PREEMPTIBLE, reservations=()),
        9,
        ACCEPTED,
        "no units are free",
    ),
    "an acceptance for units that are reserved": (
        replace(sample_pool(), running=(), reservations=(ReservationInfo(10, 1, 1, 1, Ask(8), *LATER),)),
        9,
        ACCEPTED,
        "no units are free",
    ),
    "an acceptance although another reservation leaves too few units": (
        replace(
            sample_pool(),
            running=(),
            reservations=(
                ReservationInfo(10, 1, 1, 1, Ask(7), *LATER),
                ReservationInfo(11, 1, 1, 1, Ask(7), *LATER),
            ),
        ),
        8,
        ACCEPTED,
        "units are promised of",
    ),
    "an acceptance on hosts whose disk is full and may still be full when the window begins": (
        replace(
            sample_pool(),
            hosts=tuple(
                replace(host, schedulable=False, closed_code=ReasonCode.HOST_FULL)
                for host in sample_pool().hosts
            ),
            running=(),
            reservations=(),
        ),
        2,
        ACCEPTED,
        "no units are free",
    ),
    "an acceptance that uses the guarantee of others": (
        replace(sample_pool(), running=(), reservations=()),
        8,
        ACCEPTED,
        "less than they are guaranteed",
    ),
    "an acceptance that uses the guarantee of others, whichever of two models it gets": (
        replace(
            two_models(),
            quotas=(
                QuotaInfo(1, 1, "H100", 8 * GPU),
                QuotaInfo(1, 1, "A100", 8 * GPU),
                QuotaInfo(2, 1, "H100", 0),
            ),
        ),
        8,
        ACCEPTED,
        "less than they are guaranteed: A100 at",
    ),
    "an acceptance that uses a guarantee in GPU-hours that others get back before the window": (
        replace(
            sample_pool(),
            running=(),
            reservations=(),
            quotas=(
                QuotaInfo(1, 1, "H100", 0, None, LATER[0] - 60, 100, guaranteed_after_reset=12 * GPU),
                QuotaInfo(2, 1, "H100", 2 * GPU),
            ),
        ),
        8,
        ACCEPTED,
        "less than they are guaranteed",
    ),
    "an acceptance above the borrow limit": (
        replace(
            sample_pool(), running=(), reservations=(), quotas=(QuotaInfo(2, 1, "H100", 2 * GPU, 5 * GPU),)
        ),
        8,
        ACCEPTED,
        "may not hold this many slots",
    ),
    "a rejection without a reason": (sample_pool(), 1, WindowCheckResult(False), "a rejection with code"),
    "a window in the past": (
        sample_pool(),
        1,
        replace(REJECTED, first_windows=(ReservationWindow(NOW - HOUR, NOW),)),
        "over or has another length",
    ),
    "a window of another length": (
        sample_pool(),
        1,
        replace(REJECTED, first_windows=(ReservationWindow(NOW, NOW + 2 * HOUR),)),
        "over or has another length",
    ),
}


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_the_verifier_finds_a_wrong_answer(name: str) -> None:
    """Check answers for team 2, which is guaranteed 2 of the 16 GPUs; team 1 is guaranteed 12."""
    snapshot, units, answer, message = WRONG_ANSWERS[name]
    found = window_violations(snapshot, Ask(units), 2, 1, *LATER, answer, NOW)
    assert any(message in sentence for sentence in found), found


def test_free_slices_earmarked_for_another_workload_do_not_count_as_free() -> None:
    sliced = tuple(
        UnitInfo(unit, 1, unit // 10, "H100", "1g.10gb", GPU // 7, 10_000, 90)
        for unit in (1000, 1001, 1002, *range(1010, 1015))
    )
    four = Ask(4, profile="1g.10gb")
    snapshot = replace(
        sample_pool(),
        pools=sample_pool().pools[:1],
        hosts=(HostInfo(1, "one", 1),),
        units=sliced,
        quotas=(QuotaInfo(1, 1, "H100", GPU), QuotaInfo(2, 1, "H100", 0, borrow_limit=0)),
        queued=(
            queued(1, team=2, ask=four, preemptible=True, earmarked_units=(1000, 1001)),
            queued(2, ask=four),
        ),
        running=(running(50, 2, (1000, 1001), stopping=True, stop_by=NOW + 30, evicted_for_workload=1),),
        reservations=(),
    )
    planned = plan(snapshot, NOW)
    assert [placement.units for placement in planned.placements] == [(1011, 1012, 1013, 1014)]
    assert [refusal.code for refusal in planned.refusals] == [ReasonCode.WAITS_FOR_EVICTION]
    assert violations(snapshot, planned, NOW) == []


def test_free_shares_of_a_gpu_that_another_team_uses_do_not_make_an_eviction_needless() -> None:
    shares = tuple(
        UnitInfo(unit, 1, unit // 10, "H100", "share-1/2", GPU // 2, 80_000, 90)
        for unit in (1000, 1001, 1010, 1011)
    )
    half = Ask(1, profile="share-1/2")
    snapshot = replace(
        sample_pool(),
        pools=sample_pool().pools[:1],
        hosts=(HostInfo(1, "one", 1),),
        units=shares,
        quotas=(QuotaInfo(1, 1, "H100", 2 * GPU), QuotaInfo(2, 1, "H100", GPU)),
        queued=(replace(queued(1, ask=half), priority=Priority.HIGH),),
        running=(running(50, 2, (1000,)), running(51, 1, (1010, 1011), preemptible=True)),
        reservations=(),
    )
    planned = plan(snapshot, NOW)
    assert [eviction.workload for eviction in planned.evictions] == [51]
    assert violations(snapshot, planned, NOW) == []
