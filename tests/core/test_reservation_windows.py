"""Promises on the timeline: which reservations fit, the first windows that do, and what the calendar shows as free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.plan_verifier import window_violations
from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    MaintenanceInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    QuotaInfo,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.planner import plan
from scheduler.core.promises.extensions import check_extension, check_longer_runtime
from scheduler.core.promises.promise_timeline import (
    DISK_CLEANUP_SECONDS,
    PromiseTimeline,
    ReservationRequester,
)
from scheduler.core.promises.reservation_windows import (
    WINDOW_VALID_SECONDS,
    ReservationWindow,
    WindowCheckResult,
    check_reservation_window,
    check_reservation_windows,
    free_units_by_time,
    free_windows,
)
from scheduler.core.reasons import ReasonCode

NOW, HOUR, GPU = 1_000_000 // 900 * 900, 3600, SLOTS_PER_GPU
SOONEST = NOW + WINDOW_VALID_SECONDS  # what is named begins then at the soonest
RED, BLUE = 1, 2


def pool_of(count: int = 2, **rows: Any) -> Snapshot:
    """Hosts of 8 GPUs; red and blue are guaranteed 4 each of the first host's worth."""
    return replace(
        Snapshot(
            epoch=1,
            pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy()),),
            hosts=tuple(HostInfo(h, f"h{h}", 1) for h in range(1, count + 1)),
            units=tuple(
                UnitInfo(h * 10 + g, h, h * 10 + g, "H100", nvlink_group=g // 4)
                for h in range(1, count + 1)
                for g in range(8)
            ),
            teams=(TeamInfo(RED, "red"), TeamInfo(BLUE, "blue")),
            quotas=(QuotaInfo(RED, 1, "H100", 4 * GPU), QuotaInfo(BLUE, 1, "H100", 4 * GPU)),
        ),
        **rows,
    )


def asked(
    snapshot: Snapshot,
    ask: Ask,
    start: int = NOW + HOUR,
    end: int = NOW + 3 * HOUR,
    team: int = RED,
    **more: Any,
) -> WindowCheckResult:
    return check_reservation_window(snapshot, ask, team, 1, start, end, NOW, **more)


def firm(workload: int, units: tuple[int, ...], until: int, **more: Any) -> RunningWorkload:
    return RunningWorkload(workload, BLUE, 1, 1, 1, units, NOW - HOUR, until, until, **more)


def booked(number: int, wanted: int, start: int, end: int, team: int = BLUE, **more: Any) -> ReservationInfo:
    return ReservationInfo(number, team, 1, 1, Ask(wanted), start, end, **more)


def test_a_free_window_fits() -> None:
    assert asked(pool_of(), Ask(8)) == WindowCheckResult(True)


def test_a_window_that_another_reservation_fills_is_refused_with_the_first_that_fit() -> None:
    taken = pool_of(
        1, reservations=(booked(1, 4, NOW + HOUR, NOW + 2 * HOUR), booked(2, 4, NOW + HOUR, NOW + 4 * HOUR))
    )
    answer = asked(taken, Ask(4))
    assert (answer.fits, answer.code) == (False, ReasonCode.WINDOW_FULL)
    assert answer.first_windows == tuple(
        ReservationWindow(NOW + n * HOUR, NOW + (n + 2) * HOUR) for n in (2, 4)
    )


def test_the_first_window_is_found_to_the_minute() -> None:
    taken = pool_of(1, reservations=(booked(1, 8, NOW, NOW + HOUR + 7 * 60 + 1),))
    assert asked(taken, Ask(4)).first_windows[0].start == NOW + HOUR + 8 * 60


def test_a_window_that_is_named_is_still_had_by_whoever_takes_a_moment_to_ask_for_it() -> None:
    """Work that may be evicted is in the way until it could have been told and gone, which is ever later: it
    stays so a minute's notice and grace from now. The first window that fits now would be gone with the next
    second."""
    borrower = firm(1, tuple(range(10, 18)), NOW + 99 * HOUR, preemptible=True)
    busy = pool_of(1, running=(borrower,))
    answer = asked(busy, Ask(4), NOW, NOW + HOUR)
    assert (answer.code, answer.first_windows) == (
        ReasonCode.WINDOW_FULL,
        (ReservationWindow(SOONEST + 60, SOONEST + 60 + HOUR),),
    )
    named = answer.first_windows[0]
    for seconds in range(WINDOW_VALID_SECONDS + 1):
        assert check_reservation_window(busy, Ask(4), RED, 1, named.start, named.end, NOW + seconds).fits, (
            seconds
        )


def test_no_window_is_named_that_only_a_moment_of_asking_takes_away() -> None:
    """From when the work can have gone to the maintenance it is an hour now, and less in a minute."""
    borrower = firm(1, tuple(range(10, 18)), NOW + 99 * HOUR, preemptible=True)
    until = NOW + 60 + HOUR
    busy = pool_of(1, running=(borrower,), maintenance=(MaintenanceInfo(1, until, NOW + 5 * HOUR),))
    assert asked(busy, Ask(4), NOW + 60, until).fits
    assert asked(busy, Ask(4), NOW, NOW + HOUR).first_windows == (
        ReservationWindow(NOW + 5 * HOUR, NOW + 6 * HOUR),
    )


def test_windows_that_only_touch_do_not_overlap() -> None:
    taken = pool_of(
        1, reservations=(booked(1, 8, NOW, NOW + HOUR), booked(2, 8, NOW + 3 * HOUR, NOW + 4 * HOUR))
    )
    assert asked(taken, Ask(4)).fits


def test_units_are_promised_host_by_host() -> None:
    """Twelve units are free, but not eight on one host."""
    taken = pool_of(2, running=(firm(1, (10, 11), NOW + 9 * HOUR), firm(2, (20, 21), NOW + 9 * HOUR)))
    assert asked(taken, Ask(8)).code == ReasonCode.WINDOW_FULL
    assert asked(taken, Ask(6, hosts=2), may_exceed_guarantee=True).fits


@pytest.mark.parametrize(("until", "fits"), [(NOW + HOUR, True), (NOW + HOUR + 1, False)])
def test_work_that_may_not_be_evicted_is_in_the_way_until_its_limit(until: int, fits: bool) -> None:
    busy = pool_of(1, running=(firm(1, tuple(range(10, 15)), until),))
    assert asked(busy, Ask(4)).fits is fits


def test_preemptible_work_is_not_in_the_way_once_it_can_be_gone() -> None:
    borrower = firm(1, tuple(range(10, 18)), NOW + 99 * HOUR, preemptible=True)
    assert asked(pool_of(1, running=(borrower,)), Ask(4)).fits
    just_started = replace(borrower, started=NOW)
    assert (
        asked(pool_of(1, running=(just_started,)), Ask(4), NOW + 359, NOW + HOUR).code
        == ReasonCode.WINDOW_FULL
    )
    assert asked(pool_of(1, running=(just_started,)), Ask(4), NOW + 360, NOW + HOUR).fits


def test_maintenance_and_closed_hosts_are_in_the_way() -> None:
    serviced = pool_of(1, maintenance=(MaintenanceInfo(1, NOW + 3 * HOUR, NOW + 4 * HOUR),))
    answer = asked(serviced, Ask(1), NOW + 2 * HOUR, NOW + 4 * HOUR)
    assert answer.code == ReasonCode.WINDOW_FULL
    assert answer.first_windows[0] == ReservationWindow(SOONEST, SOONEST + 2 * HOUR)
    closed = pool_of(1, hosts=(HostInfo(1, "h1", 1, schedulable=False, closed_code="drained"),))
    assert asked(closed, Ask(1)).code == ReasonCode.WINDOW_FULL


FULL = HostInfo(1, "h1", 1, schedulable=False, closed_code=ReasonCode.HOST_FULL)
EMPTIED = NOW + 60 + DISK_CLEANUP_SECONDS  # notice and grace are 30 s each


def test_a_full_disk_of_today_is_in_the_way_of_what_begins_soon_and_of_nothing_later() -> None:
    full = pool_of(1, hosts=(FULL,))
    for start, fits in ((NOW, False), (EMPTIED - 1, False), (EMPTIED, True), (NOW + 30 * 24 * HOUR, True)):
        answer = asked(full, Ask(4), start, start + HOUR)
        assert answer.fits is fits, start - NOW
        assert window_violations(full, Ask(4), RED, 1, start, start + HOUR, answer, NOW) == []
    to_the_minute = -(-(EMPTIED + WINDOW_VALID_SECONDS) // 60) * 60
    assert asked(full, Ask(4), NOW, NOW + HOUR).first_windows == (
        ReservationWindow(to_the_minute, to_the_minute + HOUR),
    )


def test_what_is_guaranteed_on_full_disks_counts_once_they_may_be_emptied() -> None:
    """Red is guaranteed 4, and asks for 8 of 16: blue has to keep its 4.

    With one host's disk full 8 would leave none.
    """
    full = pool_of(2, hosts=(FULL, HostInfo(2, "h2", 1)))
    assert asked(full, Ask(8), NOW, NOW + HOUR).code == ReasonCode.WINDOW_EATS_GUARANTEES
    answer = asked(full, Ask(8), EMPTIED, EMPTIED + HOUR)
    assert answer.fits
    assert window_violations(full, Ask(8), RED, 1, EMPTIED, EMPTIED + HOUR, answer, NOW) == []


def test_the_calendar_shows_full_disks_as_free_again() -> None:
    full = pool_of(2, hosts=(FULL, HostInfo(2, "h2", 1)))
    day = 24 * HOUR
    assert free_units_by_time(full, 1, "H100", "", NOW, NOW + 2 * day, day, NOW) == [
        (NOW, 8),
        (NOW + day, 16),
    ]


def test_a_reservation_is_kept_possible_on_a_full_disk_until_it_comes_near() -> None:
    def kept(start: int) -> bool:
        promised = pool_of(1, hosts=(FULL,), reservations=(booked(1, 8, start, start + HOUR),))
        return 1 in PromiseTimeline(PoolState(PoolSnapshot(promised, promised.pools[0]), NOW)).tentative_units

    assert [kept(EMPTIED), kept(EMPTIED - 60), kept(NOW)] == [True, False, False]


def test_the_excess_over_the_own_guarantee_may_not_eat_that_of_others() -> None:
    answer = asked(pool_of(1), Ask(5))
    assert answer.code == ReasonCode.WINDOW_EATS_GUARANTEES
    assert dict(answer.numbers) == {
        "at": NOW + HOUR,
        "capacity": 8 * GPU,
        "guaranteed": 4 * GPU,
        "left": 4 * GPU,
        "model": "H100",
        "need": 5 * GPU,
        "others": 4 * GPU,
    }
    assert asked(pool_of(1), Ask(4)).fits
    assert asked(pool_of(1), Ask(8), may_exceed_guarantee=True).fits
    assert asked(pool_of(2), Ask(8)).fits  # the second host is guaranteed to nobody


def test_two_reservations_of_one_team_share_its_guarantee() -> None:
    booked_already = pool_of(1, reservations=(booked(1, 3, NOW + HOUR, NOW + 2 * HOUR, team=RED),))
    assert asked(booked_already, Ask(1)).fits
    assert asked(booked_already, Ask(2)).code == ReasonCode.WINDOW_EATS_GUARANTEES
    assert asked(booked_already, Ask(2), NOW + 2 * HOUR, NOW + 3 * HOUR).fits


def test_a_reservation_that_is_moved_is_not_in_its_own_way() -> None:
    one = pool_of(1, reservations=(booked(7, 4, NOW + HOUR, NOW + 3 * HOUR, team=RED),))
    assert not asked(one, Ask(4), NOW + 2 * HOUR, NOW + 4 * HOUR).fits
    assert asked(one, Ask(4), NOW + 2 * HOUR, NOW + 4 * HOUR, exclude_reservation=7).fits


def test_a_reservation_that_has_its_units_is_in_the_way_on_these() -> None:
    bound = pool_of(1, reservations=(booked(1, 4, NOW - HOUR, NOW + 2 * HOUR, units=(10, 11, 14, 15)),))
    assert asked(bound, Ask(4)).fits
    assert asked(bound, Ask(4, nvlink=True)).code == ReasonCode.WINDOW_FULL
    assert asked(bound, Ask(4, nvlink=True), NOW + 2 * HOUR, NOW + 3 * HOUR).fits


@pytest.mark.parametrize(
    ("change", "team", "code"),
    [
        ({}, 3, ReasonCode.NO_QUOTA),
        (
            {"pools": (PoolInfo(1, "own", PoolKind.STATIC, BLUE, PoolPolicy()),)},
            RED,
            ReasonCode.NOT_YOUR_POOL,
        ),
        ({"pools": ()}, RED, ReasonCode.NOT_YOUR_POOL),
        ({"units": ()}, RED, ReasonCode.NO_SUCH_HARDWARE),
    ],
)
def test_what_can_never_fit_says_why_and_names_no_windows(
    change: dict[str, Any], team: int, code: ReasonCode
) -> None:
    answer = asked(pool_of(1, **change), Ask(1), team=team)
    assert (answer.fits, answer.code, answer.first_windows) == (False, code, ())
    assert answer.numbers


def test_an_ask_larger_than_any_host_says_so() -> None:
    assert asked(pool_of(2), Ask(9)).code == ReasonCode.TOO_BIG_FOR_ANY_HOST


def test_the_search_for_windows_ends_at_the_horizon() -> None:
    full = pool_of(1, reservations=(booked(1, 8, NOW, NOW + 50 * HOUR),))
    assert asked(full, Ask(4), horizon=49 * HOUR).first_windows == ()
    assert asked(full, Ask(4), horizon=50 * HOUR).first_windows == (
        ReservationWindow(NOW + 50 * HOUR, NOW + 52 * HOUR),
    )


def test_the_calendar_counts_what_can_still_be_promised() -> None:
    snapshot = pool_of(
        1,
        reservations=(booked(1, 4, NOW + HOUR, NOW + 2 * HOUR),),
        running=(firm(1, (10, 11), NOW + 90 * 60),),
        maintenance=(MaintenanceInfo(1, NOW + 4 * HOUR, NOW + 5 * HOUR),),
    )
    shown = free_units_by_time(snapshot, 1, "H100", "", NOW, NOW + 6 * HOUR, HOUR, NOW)
    assert shown == [(NOW + n * HOUR, free) for n, free in enumerate((6, 2, 8, 8, 0, 8))]


# -- what is changed once it is promised
# ----------------------------------------------------------------------------------

HELD = tuple(range(10, 14))


def longer(snapshot: Snapshot, end: int = NOW + 4 * HOUR) -> WindowCheckResult:
    return check_extension(snapshot, 1, end, NOW)


def begun(*others: ReservationInfo, **rows: Any) -> Snapshot:
    """Red holds four of eight GPUs by a reservation for two hours more."""
    mine = booked(1, 4, NOW - HOUR, NOW + 2 * HOUR, team=RED, units=HELD)
    return pool_of(1, reservations=(mine, *others), **rows)


def test_a_running_reservation_keeps_its_units_for_longer_when_nobody_was_promised_them() -> None:
    inside = RunningWorkload(5, RED, 1, 1, 1, HELD, NOW - HOUR, NOW + 2 * HOUR, NOW + 2 * HOUR, reservation=1)
    assert longer(begun(running=(inside,))).fits
    assert longer(begun(booked(2, 4, NOW + 2 * HOUR, NOW + 6 * HOUR))).fits  # the other four do for that one


def test_a_running_reservation_is_not_extended_over_a_promise_that_needs_its_units() -> None:
    answer = longer(begun(booked(2, 8, NOW + 3 * HOUR, NOW + 5 * HOUR, may_exceed_guarantee=True)))
    assert (answer.fits, answer.code) == (False, ReasonCode.EXTENSION_BLOCKED)
    assert dict(answer.numbers) == {"end": NOW + 2 * HOUR, "maintenance": 0, "need": 4, "reservations": 1}
    assert answer.first_windows == (ReservationWindow(NOW + 5 * HOUR, NOW + 7 * HOUR),)


def test_a_running_reservation_is_not_extended_into_maintenance_or_the_guarantees_of_others() -> None:
    answer = longer(begun(maintenance=(MaintenanceInfo(1, NOW + 3 * HOUR, NOW + 5 * HOUR),)))
    assert (answer.code, dict(answer.numbers)["maintenance"]) == (ReasonCode.EXTENSION_BLOCKED, 4)
    assert answer.first_windows == (ReservationWindow(NOW + 5 * HOUR, NOW + 7 * HOUR),)
    one_more = booked(3, 1, NOW + 2 * HOUR, NOW + 9 * HOUR, team=RED)
    assert longer(begun(one_more)).code == ReasonCode.WINDOW_EATS_GUARANTEES


def test_of_several_windows_each_is_judged_and_the_first_that_does_not_fit_names_others() -> None:
    day = 24 * HOUR
    taken = pool_of(
        1,
        reservations=(booked(1, 8, NOW + day, NOW + day + HOUR), booked(2, 8, NOW + 2 * day, NOW + 3 * day)),
    )
    windows = [(NOW + n * day, NOW + n * day + 2 * HOUR) for n in range(3)]
    answers = check_reservation_windows(taken, Ask(4), RED, 1, windows, NOW)
    assert [answer.fits for answer in answers] == [True, False, False]
    assert answers[1].first_windows[0] == ReservationWindow(NOW + day + HOUR, NOW + day + 3 * HOUR)
    assert answers[2].first_windows == ()


# -- what runs and would run for longer
# ------------------------------------------------------------------------------------


def may_stay(snapshot: Snapshot, until: int, workload: int = 5) -> WindowCheckResult:
    return check_longer_runtime(snapshot, workload, until, NOW)


def staying(
    preemptible: bool = False, units: tuple[int, ...] = (10, 11), until: int = NOW + HOUR
) -> RunningWorkload:
    return RunningWorkload(5, RED, 1, 1, 1, units, NOW - HOUR, until, until, preemptible=preemptible)


def test_what_nobody_can_tell_to_go_stays_as_long_as_every_promise_is_kept() -> None:
    alone = pool_of(1, running=(staying(),))
    assert may_stay(alone, NOW + 9 * HOUR).fits
    beside = replace(alone, reservations=(booked(1, 6, NOW + 2 * HOUR, NOW + 3 * HOUR),))
    assert may_stay(beside, NOW + 9 * HOUR).fits, "the other six do for it"
    whole = replace(
        alone,
        reservations=(
            booked(1, 6, NOW + 2 * HOUR, NOW + 3 * HOUR),
            booked(2, 8, NOW + 4 * HOUR, NOW + 5 * HOUR),
            booked(3, 8, NOW + 6 * HOUR, NOW + 7 * HOUR),
        ),
    )
    assert may_stay(whole, NOW + 4 * HOUR).fits, "it is over when that begins"
    answer = may_stay(whole, NOW + 9 * HOUR)
    assert (answer.fits, answer.code) == (False, ReasonCode.MORE_TIME_BLOCKED)
    assert dict(answer.numbers) == {
        "latest": NOW + 4 * HOUR,
        "limit": NOW + HOUR,
        "maintenance": 0,
        "reservations": 2,
        "start": NOW + 4 * HOUR,
        "until": NOW + 9 * HOUR,
    }


def test_what_nobody_can_tell_to_go_stays_until_the_maintenance_of_its_host_and_no_longer() -> None:
    serviced = pool_of(
        2, running=(staying(),), maintenance=(MaintenanceInfo(1, NOW + 3 * HOUR, NOW + 4 * HOUR),)
    )
    assert may_stay(serviced, NOW + 3 * HOUR).fits
    numbers = dict(may_stay(serviced, NOW + 5 * HOUR).numbers)
    assert (numbers["latest"], numbers["maintenance"], numbers["start"]) == (
        NOW + 3 * HOUR,
        1,
        NOW + 3 * HOUR,
    )
    elsewhere = replace(serviced, maintenance=(MaintenanceInfo(2, NOW + 3 * HOUR, NOW + 4 * HOUR),))
    assert may_stay(elsewhere, NOW + 5 * HOUR).fits


def test_what_a_reservation_waits_for_since_it_has_begun_is_not_extended() -> None:
    waited_for = pool_of(1, running=(staying(),), reservations=(booked(1, 8, NOW - HOUR, NOW + 5 * HOUR),))
    numbers = dict(may_stay(waited_for, NOW + 2 * HOUR).numbers)
    assert numbers["latest"] == numbers["limit"] == NOW + HOUR


def test_what_can_be_told_to_go_lends_the_promised_units_however_long_it_may_run() -> None:
    lent = pool_of(
        1, running=(staying(preemptible=True),), reservations=(booked(1, 8, NOW + 2 * HOUR, NOW + 3 * HOUR),)
    )
    assert may_stay(lent, NOW + 9 * HOUR).fits
    longer_now = replace(lent, running=(staying(preemptible=True, until=NOW + 9 * HOUR),))
    assert 1 in PromiseTimeline(PoolState(PoolSnapshot(longer_now, longer_now.pools[0]), NOW)).tentative_units
    at = NOW + 2 * HOUR - 60
    assert [e.workload for e in plan(longer_now, at).evictions] == [5], "it is told to go when the time comes"


# -- several models, and GPU-hours that are used up
# ------------------------------------------------------------------------


def two_models(**rows: Any) -> Snapshot:
    """Four H100, guaranteed to blue, and four A100, guaranteed to red."""
    return replace(
        pool_of(2),
        units=tuple(
            UnitInfo(h * 10 + g, h, h * 10 + g, m) for h, m in ((1, "H100"), (2, "A100")) for g in range(4)
        ),
        quotas=(
            QuotaInfo(RED, 1, "H100", 0),
            QuotaInfo(RED, 1, "A100", 4 * GPU),
            QuotaInfo(BLUE, 1, "H100", 4 * GPU),
        ),
        **rows,
    )


EITHER = Ask(4, models=("H100", "A100"))


def witness_of(snapshot: Snapshot, now: int = NOW) -> dict[int, list[int]]:
    state = PoolState(PoolSnapshot(snapshot, snapshot.pools[0]), now)
    return {
        r: [state.units[u].id for u in units] for r, units in PromiseTimeline(state).tentative_units.items()
    }


def test_a_reservation_of_several_models_counts_on_the_one_that_its_check_allowed() -> None:
    assert asked(two_models(), EITHER).fits
    assert asked(two_models(), Ask(4, models=("H100",))).code == ReasonCode.WINDOW_EATS_GUARANTEES
    mine = ReservationInfo(1, RED, 1, 1, EITHER, NOW + HOUR, NOW + 2 * HOUR)
    assert witness_of(two_models(reservations=(mine,))) == {1: [20, 21, 22, 23]}
    assert witness_of(two_models(reservations=(replace(mine, may_exceed_guarantee=True),))) == {
        1: [10, 11, 12, 13]
    }


def test_a_promise_of_several_models_is_kept_when_the_guarantees_have_changed_since() -> None:
    mine = ReservationInfo(1, RED, 1, 1, EITHER, NOW + HOUR, NOW + 2 * HOUR)
    all_blue = (
        QuotaInfo(BLUE, 1, "H100", 4 * GPU),
        QuotaInfo(BLUE, 1, "A100", 4 * GPU),
        QuotaInfo(RED, 1, "A100", 0),
    )
    assert witness_of(replace(two_models(reservations=(mine,)), quotas=all_blue)) == {1: [10, 11, 12, 13]}


def used_up(team: int, until: int, again: int) -> QuotaInfo:
    return QuotaInfo(team, 1, "H100", 0, None, until, 100, guaranteed_after_reset=again * GPU)


def test_a_guarantee_whose_hours_are_used_up_holds_again_in_the_next_period() -> None:
    tomorrow = {"start": NOW + 24 * HOUR, "end": NOW + 30 * HOUR}
    blues = replace(pool_of(1), quotas=(QuotaInfo(RED, 1, "H100", 0), used_up(BLUE, NOW + 2 * HOUR, 8)))
    assert asked(blues, Ask(8)).code == ReasonCode.WINDOW_EATS_GUARANTEES, (
        "it comes back while that window lasts"
    )
    assert asked(blues, Ask(8), end=NOW + 2 * HOUR).fits
    assert asked(blues, Ask(8), **tomorrow).code == ReasonCode.WINDOW_EATS_GUARANTEES
    own = replace(pool_of(1), quotas=(used_up(RED, NOW + 2 * HOUR, 4), QuotaInfo(BLUE, 1, "H100", 4 * GPU)))
    everything_of_blues = (booked(1, 4, NOW + 23 * HOUR, NOW + 31 * HOUR),)
    assert asked(replace(own, reservations=everything_of_blues), Ask(4), **tomorrow).fits
    assert asked(own, Ask(5), **tomorrow).code == ReasonCode.WINDOW_EATS_GUARANTEES


# -- limits of the team and of its owner
# -----------------------------------------------------------------------------------


def test_a_reservation_borrows_no_more_than_its_team_may() -> None:
    limited = replace(
        pool_of(2), quotas=(QuotaInfo(RED, 1, "H100", 2 * GPU, 2 * GPU), QuotaInfo(BLUE, 1, "H100", 4 * GPU))
    )
    assert asked(limited, Ask(4)).fits
    answer = asked(limited, Ask(5))
    assert (answer.code, dict(answer.numbers)["limit"], dict(answer.numbers)["held"]) == (
        ReasonCode.OVER_QUOTA,
        4 * GPU,
        0,
    )
    others = replace(limited, reservations=(booked(1, 1, SOONEST + 2 * HOUR, NOW + 4 * HOUR, team=RED),))
    answer = asked(others, Ask(4))
    assert (dict(answer.numbers)["at"], dict(answer.numbers)["held"]) == (SOONEST + 2 * HOUR, GPU)
    assert answer.first_windows[0].start == SOONEST, "it is over when the other one begins"
    assert asked(limited, Ask(5), may_exceed_guarantee=True).fits
    assert asked(limited, Ask(3), borrows_again_from=NOW + 9 * HOUR).code == ReasonCode.OVER_QUOTA
    assert asked(limited, Ask(2), borrows_again_from=NOW + 9 * HOUR).fits


def test_a_team_borrows_again_from_when_its_budget_opens() -> None:
    """Red is guaranteed 4, may borrow as much as is left, and not before three hours from now."""
    opens = NOW + 3 * HOUR
    two = pool_of(2)
    answer = asked(two, Ask(5), borrows_again_from=opens)
    assert (answer.code, dict(answer.numbers)["may_borrow"], dict(answer.numbers)["limit"]) == (
        ReasonCode.OVER_QUOTA,
        False,
        4 * GPU,
    )
    assert answer.first_windows == (ReservationWindow(opens, opens + 2 * HOUR),)
    assert (
        asked(two, Ask(5), opens - 60, opens + HOUR, borrows_again_from=opens).code == ReasonCode.OVER_QUOTA
    )
    assert asked(two, Ask(5), opens, opens + HOUR, borrows_again_from=opens).fits
    claimant = ReservationRequester(RED, borrows_again_from=opens)
    assert free_windows(two, Ask(5), claimant, 1, HOUR, NOW, NOW, 9 * HOUR) == (
        ReservationWindow(opens, opens + HOUR),
    )
    assert free_windows(two, Ask(5), claimant, 1, HOUR, NOW, NOW, 2 * HOUR) == ()


def test_a_window_across_the_opening_of_a_budget_borrows_only_after_it() -> None:
    """What is within the guarantee until then may be above it later, when another reservation of the team begins."""
    opens = NOW + 3 * HOUR
    later = pool_of(2, reservations=(booked(1, 2, opens, opens + 2 * HOUR, team=RED),))
    assert asked(later, Ask(4), NOW + HOUR, opens + HOUR, borrows_again_from=opens).fits
    answer = asked(later, Ask(4), NOW + HOUR, opens + HOUR, borrows_again_from=opens + 60)
    assert (answer.code, dict(answer.numbers)["at"]) == (ReasonCode.OVER_QUOTA, opens)


def test_a_limit_on_borrowing_stays_when_the_budget_opens() -> None:
    quotas = (QuotaInfo(RED, 1, "H100", 2 * GPU, 2 * GPU), QuotaInfo(BLUE, 1, "H100", 4 * GPU))
    answer = asked(replace(pool_of(2), quotas=quotas), Ask(5), borrows_again_from=NOW)
    assert (answer.code, dict(answer.numbers)["limit"], dict(answer.numbers)["may_borrow"]) == (
        ReasonCode.OVER_QUOTA,
        4 * GPU,
        True,
    )


def test_who_would_stay_longer_is_told_from_when_on_its_team_borrows_again() -> None:
    opens = NOW + 5 * HOUR
    above = replace(begun(), quotas=(QuotaInfo(RED, 1, "H100", 2 * GPU), QuotaInfo(BLUE, 1, "H100", 4 * GPU)))
    answer = check_extension(above, 1, NOW + 4 * HOUR, NOW, borrows_again_from=opens)
    assert (answer.code, answer.first_windows) == (
        ReasonCode.OVER_QUOTA,
        (ReservationWindow(opens, opens + 2 * HOUR),),
    )
    assert check_extension(above, 1, NOW + 4 * HOUR, NOW, borrows_again_from=NOW + 2 * HOUR).fits


def test_the_windows_that_are_named_begin_no_sooner_than_asked_for() -> None:
    full = pool_of(1, reservations=(booked(1, 8, NOW + HOUR, NOW + 2 * HOUR),))
    assert (
        asked(full, Ask(4), end=NOW + 2 * HOUR, earliest=NOW + 5 * HOUR).first_windows[0].start
        == NOW + 5 * HOUR
    )
    windows = [(NOW + HOUR, NOW + 2 * HOUR), (NOW + 3 * HOUR, NOW + 4 * HOUR)]
    assert (
        check_reservation_windows(full, Ask(4), RED, 1, windows, NOW, earliest=NOW)[0].first_windows[0].start
        == NOW + 2 * HOUR
    )


def test_a_model_without_a_quota_is_not_reserved() -> None:
    assert asked(two_models(), Ask(1, models=("A100",)), team=BLUE).code == ReasonCode.NO_QUOTA


def test_what_a_team_may_borrow_again_in_the_next_period_counts_from_then_on() -> None:
    refused_until = QuotaInfo(RED, 1, "H100", 0, 0, NOW + 2 * HOUR, 100, 4 * GPU, None)
    free = replace(pool_of(1), quotas=(refused_until, QuotaInfo(BLUE, 1, "H100", 0)))
    assert asked(free, Ask(6)).code == ReasonCode.OVER_QUOTA
    assert asked(free, Ask(6), NOW + 2 * HOUR, NOW + 4 * HOUR).fits


def test_a_window_is_found_at_the_moment_from_which_the_teams_gpu_hours_count_anew() -> None:
    """Nothing that is promised ends then, or at all."""
    own = replace(
        pool_of(1),
        quotas=(replace(used_up(RED, NOW + 2 * HOUR, 4), borrow_limit=0), QuotaInfo(BLUE, 1, "H100", 0)),
    )
    answer = asked(own, Ask(4))
    assert (answer.code, answer.first_windows) == (
        ReasonCode.OVER_QUOTA,
        (ReservationWindow(NOW + 2 * HOUR, NOW + 4 * HOUR),),
    )
    assert free_windows(own, Ask(4), ReservationRequester(RED), 1, HOUR, NOW, NOW, 9 * HOUR) == (
        ReservationWindow(NOW + 2 * HOUR, NOW + 3 * HOUR),
    )
    assert free_windows(own, Ask(4), ReservationRequester(RED), 1, HOUR, NOW, NOW, HOUR) == (), (
        "not within the horizon"
    )


def test_who_would_stay_longer_is_told_from_when_on_its_teams_gpu_hours_count_anew() -> None:
    until = NOW + 5 * HOUR
    none_left = (replace(used_up(RED, until, 4), borrow_limit=0), QuotaInfo(BLUE, 1, "H100", 0))
    answer = longer(replace(begun(), quotas=none_left))
    assert (answer.code, answer.first_windows) == (
        ReasonCode.OVER_QUOTA,
        (ReservationWindow(until, until + 2 * HOUR),),
    )


def test_one_persons_reservations_are_no_more_than_one_person_may_hold() -> None:
    capped = replace(
        pool_of(2),
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy(max_slots_per_user=4 * GPU)),),
    )
    assert asked(capped, Ask(4), user=7).fits
    assert asked(capped, Ask(5), user=7).code == ReasonCode.OVER_USER_CAP
    assert asked(capped, Ask(5), user=7, may_exceed_guarantee=True).fits
    mine = replace(capped, reservations=(booked(1, 2, NOW + 2 * HOUR, NOW + 4 * HOUR, team=RED, user=7),))
    answer = asked(mine, Ask(3), user=7)
    assert dict(answer.numbers) == {"at": NOW + 2 * HOUR, "cap": 4 * GPU, "held": 2 * GPU, "need": 3 * GPU}
    assert asked(mine, Ask(3), user=8).fits
    assert asked(mine, Ask(3), user=7, exclude_reservation=1).fits


def test_a_window_is_found_after_a_reservation_of_the_same_person_that_can_not_be_kept_at_present() -> None:
    """It has no units, and counts against what one person may hold all the same."""
    serviced = (MaintenanceInfo(1, NOW + HOUR, NOW + 90 * 60),)
    unkept = pool_of(
        1,
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy(max_slots_per_user=4 * GPU)),),
        maintenance=serviced,
        reservations=(booked(1, 4, NOW + HOUR, NOW + 4 * HOUR, team=RED, user=7),),
    )
    answer = asked(unkept, Ask(4), NOW + 2 * HOUR, NOW + 4 * HOUR, user=7)
    assert (answer.code, answer.first_windows) == (
        ReasonCode.OVER_USER_CAP,
        (ReservationWindow(NOW + 4 * HOUR, NOW + 6 * HOUR),),
    )
