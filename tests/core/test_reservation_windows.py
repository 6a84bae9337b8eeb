"""Test reservation windows: which windows fit, and which windows are proposed."""

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
from scheduler.core.promises.unserved import unserved_reservations
from scheduler.core.reasons import ReasonCode

NOW, HOUR, GPU = 1_000_000 // 900 * 900, 3600, SLOTS_PER_GPU
SOONEST = NOW + WINDOW_VALID_SECONDS  # earliest start of a proposed window
RED, BLUE = 1, 2


def pool_of(count: int = 2, **rows: Any) -> Snapshot:
    """Return hosts of 8 GPUs; red and blue are guaranteed 4 GPUs each."""
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


def check(
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


def booked(
    number: int, unit_count: int, start: int, end: int, team: int = BLUE, **more: Any
) -> ReservationInfo:
    return ReservationInfo(number, team, 1, 1, Ask(unit_count), start, end, **more)


def test_a_free_window_fits() -> None:
    assert check(pool_of(), Ask(8)) == WindowCheckResult(True)


def test_a_full_window_is_refused_and_the_first_free_windows_are_proposed() -> None:
    taken = pool_of(
        1, reservations=(booked(1, 4, NOW + HOUR, NOW + 2 * HOUR), booked(2, 4, NOW + HOUR, NOW + 4 * HOUR))
    )
    answer = check(taken, Ask(4))
    assert (answer.fits, answer.code) == (False, ReasonCode.WINDOW_FULL)
    assert answer.first_windows == tuple(
        ReservationWindow(NOW + n * HOUR, NOW + (n + 2) * HOUR) for n in (2, 4)
    )


def test_the_first_window_is_found_to_the_minute() -> None:
    taken = pool_of(1, reservations=(booked(1, 8, NOW, NOW + HOUR + 7 * 60 + 1),))
    assert check(taken, Ask(4)).first_windows[0].start == NOW + HOUR + 8 * 60


def test_a_proposed_window_stays_available_for_a_while() -> None:
    """Check that a proposed window starts later than the first window that fits now.

    Preemptible work blocks a window for a minute of notice and grace, counted from the time of the request.
    So the first window that fits now would not fit a second later.
    """
    borrower = firm(1, tuple(range(10, 18)), NOW + 99 * HOUR, preemptible=True)
    busy = pool_of(1, running=(borrower,))
    answer = check(busy, Ask(4), NOW, NOW + HOUR)
    assert (answer.code, answer.first_windows) == (
        ReasonCode.WINDOW_FULL,
        (ReservationWindow(SOONEST + 60, SOONEST + 60 + HOUR),),
    )
    proposed = answer.first_windows[0]
    for seconds in range(WINDOW_VALID_SECONDS + 1):
        assert check_reservation_window(
            busy, Ask(4), RED, 1, proposed.start, proposed.end, NOW + seconds
        ).fits, seconds


def test_a_window_that_would_soon_be_too_short_is_not_proposed() -> None:
    """Leave exactly one hour between the end of an eviction that begins now and a maintenance.

    If the eviction begins a minute later, less than an hour remains.
    """
    borrower = firm(1, tuple(range(10, 18)), NOW + 99 * HOUR, preemptible=True)
    until = NOW + 60 + HOUR
    busy = pool_of(1, running=(borrower,), maintenance=(MaintenanceInfo(1, until, NOW + 5 * HOUR),))
    assert check(busy, Ask(4), NOW + 60, until).fits
    assert check(busy, Ask(4), NOW, NOW + HOUR).first_windows == (
        ReservationWindow(NOW + 5 * HOUR, NOW + 6 * HOUR),
    )


def test_adjacent_windows_do_not_overlap() -> None:
    taken = pool_of(
        1, reservations=(booked(1, 8, NOW, NOW + HOUR), booked(2, 8, NOW + 3 * HOUR, NOW + 4 * HOUR))
    )
    assert check(taken, Ask(4)).fits


def test_the_units_of_a_reservation_on_one_host_must_be_free_on_one_host() -> None:
    """Leave twelve units free, but fewer than eight on each host."""
    taken = pool_of(2, running=(firm(1, (10, 11), NOW + 9 * HOUR), firm(2, (20, 21), NOW + 9 * HOUR)))
    assert check(taken, Ask(8)).code == ReasonCode.WINDOW_FULL
    assert check(taken, Ask(6, hosts=2), may_exceed_guarantee=True).fits


@pytest.mark.parametrize(("until", "fits"), [(NOW + HOUR, True), (NOW + HOUR + 1, False)])
def test_work_that_is_not_preemptible_blocks_a_window_until_its_limit(until: int, fits: bool) -> None:
    busy = pool_of(1, running=(firm(1, tuple(range(10, 15)), until),))
    assert check(busy, Ask(4)).fits is fits


def test_preemptible_work_blocks_a_window_until_it_can_be_evicted() -> None:
    borrower = firm(1, tuple(range(10, 18)), NOW + 99 * HOUR, preemptible=True)
    assert check(pool_of(1, running=(borrower,)), Ask(4)).fits
    just_started = replace(borrower, started=NOW)
    assert (
        check(pool_of(1, running=(just_started,)), Ask(4), NOW + 359, NOW + HOUR).code
        == ReasonCode.WINDOW_FULL
    )
    assert check(pool_of(1, running=(just_started,)), Ask(4), NOW + 360, NOW + HOUR).fits


def test_maintenance_and_closed_hosts_block_a_window() -> None:
    serviced = pool_of(1, maintenance=(MaintenanceInfo(1, NOW + 3 * HOUR, NOW + 4 * HOUR),))
    answer = check(serviced, Ask(1), NOW + 2 * HOUR, NOW + 4 * HOUR)
    assert answer.code == ReasonCode.WINDOW_FULL
    assert answer.first_windows[0] == ReservationWindow(SOONEST, SOONEST + 2 * HOUR)
    closed = pool_of(1, hosts=(HostInfo(1, "h1", 1, schedulable=False, closed_code="drained"),))
    assert check(closed, Ask(1)).code == ReasonCode.WINDOW_FULL


def test_a_bound_reservation_keeps_its_units_if_maintenance_leaves_it_no_others() -> None:
    both_hosts = Ask(8, hosts=2)
    units = tuple(h * 10 + g for h in (1, 2) for g in range(8))
    bound = ReservationInfo(7, RED, 1, 1, both_hosts, NOW - HOUR, NOW + 4 * HOUR, units)
    for begins in (NOW - HOUR, NOW + HOUR):
        pool = pool_of(2, reservations=(bound,), maintenance=(MaintenanceInfo(2, begins, NOW + 8 * HOUR),))
        answer = check(pool, Ask(1), NOW + HOUR, NOW + 2 * HOUR)
        assert answer.code == ReasonCode.WINDOW_FULL
        assert answer.first_windows[0].start == NOW + 4 * HOUR
        assert window_violations(pool, Ask(1), RED, 1, NOW + HOUR, NOW + 2 * HOUR, answer, NOW) == []
        assert [row.reservation for row in unserved_reservations(pool, 1, NOW)] == [7]


FULL = HostInfo(1, "h1", 1, schedulable=False, closed_code=ReasonCode.HOST_FULL)
DISK_USABLE_FROM = NOW + 60 + DISK_CLEANUP_SECONDS  # notice and grace are 30 s each


def test_a_full_disk_blocks_only_windows_that_start_soon() -> None:
    full = pool_of(1, hosts=(FULL,))
    for start, fits in (
        (NOW, False),
        (DISK_USABLE_FROM - 1, False),
        (DISK_USABLE_FROM, True),
        (NOW + 30 * 24 * HOUR, True),
    ):
        answer = check(full, Ask(4), start, start + HOUR)
        assert answer.fits is fits, start - NOW
        assert window_violations(full, Ask(4), RED, 1, start, start + HOUR, answer, NOW) == []
    to_the_minute = -(-(DISK_USABLE_FROM + WINDOW_VALID_SECONDS) // 60) * 60
    assert check(full, Ask(4), NOW, NOW + HOUR).first_windows == (
        ReservationWindow(to_the_minute, to_the_minute + HOUR),
    )


def test_hosts_with_full_disks_count_for_guarantees_in_later_windows() -> None:
    """Request 8 of 16 GPUs for red. While one disk is full, none would be left for the guarantee of blue."""
    full = pool_of(2, hosts=(FULL, HostInfo(2, "h2", 1)))
    assert check(full, Ask(8), NOW, NOW + HOUR).code == ReasonCode.WINDOW_EATS_GUARANTEES
    answer = check(full, Ask(8), DISK_USABLE_FROM, DISK_USABLE_FROM + HOUR)
    assert answer.fits
    assert (
        window_violations(full, Ask(8), RED, 1, DISK_USABLE_FROM, DISK_USABLE_FROM + HOUR, answer, NOW) == []
    )


def test_the_calendar_shows_hosts_with_full_disks_as_free_later() -> None:
    full = pool_of(2, hosts=(FULL, HostInfo(2, "h2", 1)))
    day = 24 * HOUR
    assert free_units_by_time(full, 1, "H100", "", NOW, NOW + 2 * day, day, NOW) == [
        (NOW, 8),
        (NOW + day, 16),
    ]


def test_a_reservation_may_use_a_host_with_a_full_disk_until_shortly_before_its_start() -> None:
    def kept(start: int) -> bool:
        promised = pool_of(1, hosts=(FULL,), reservations=(booked(1, 8, start, start + HOUR),))
        return 1 in PromiseTimeline(PoolState(PoolSnapshot(promised, promised.pools[0]), NOW)).tentative_units

    assert [kept(DISK_USABLE_FROM), kept(DISK_USABLE_FROM - 60), kept(NOW)] == [True, False, False]


def test_a_reservation_above_its_teams_guarantee_is_refused_if_it_takes_the_guarantee_of_others() -> None:
    answer = check(pool_of(1), Ask(5))
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
    assert check(pool_of(1), Ask(4)).fits
    assert check(pool_of(1), Ask(8), may_exceed_guarantee=True).fits
    assert check(pool_of(2), Ask(8)).fits  # the second host is not guaranteed to any team


def test_two_reservations_of_one_team_share_its_guarantee() -> None:
    booked_already = pool_of(1, reservations=(booked(1, 3, NOW + HOUR, NOW + 2 * HOUR, team=RED),))
    assert check(booked_already, Ask(1)).fits
    assert check(booked_already, Ask(2)).code == ReasonCode.WINDOW_EATS_GUARANTEES
    assert check(booked_already, Ask(2), NOW + 2 * HOUR, NOW + 3 * HOUR).fits


def test_a_moved_reservation_does_not_block_itself() -> None:
    one = pool_of(1, reservations=(booked(7, 4, NOW + HOUR, NOW + 3 * HOUR, team=RED),))
    assert not check(one, Ask(4), NOW + 2 * HOUR, NOW + 4 * HOUR).fits
    assert check(one, Ask(4), NOW + 2 * HOUR, NOW + 4 * HOUR, exclude_reservation=7).fits


def test_a_bound_reservation_blocks_its_own_units_only() -> None:
    bound = pool_of(1, reservations=(booked(1, 4, NOW - HOUR, NOW + 2 * HOUR, units=(10, 11, 14, 15)),))
    assert check(bound, Ask(4)).fits
    assert check(bound, Ask(4, nvlink=True)).code == ReasonCode.WINDOW_FULL
    assert check(bound, Ask(4, nvlink=True), NOW + 2 * HOUR, NOW + 3 * HOUR).fits


@pytest.mark.parametrize(
    ("change", "team", "code"),
    [
        ({}, 3, ReasonCode.NO_QUOTA),
        (
            {"pools": (PoolInfo(1, "hours_of_red", PoolKind.STATIC, BLUE, PoolPolicy()),)},
            RED,
            ReasonCode.NOT_YOUR_POOL,
        ),
        ({"pools": ()}, RED, ReasonCode.NOT_YOUR_POOL),
        ({"units": ()}, RED, ReasonCode.NO_SUCH_HARDWARE),
    ],
)
def test_an_impossible_reservation_has_a_reason_and_no_proposed_windows(
    change: dict[str, Any], team: int, code: ReasonCode
) -> None:
    answer = check(pool_of(1, **change), Ask(1), team=team)
    assert (answer.fits, answer.code, answer.first_windows) == (False, code, ())
    assert answer.numbers


def test_a_request_larger_than_any_host_is_refused_with_the_reason() -> None:
    assert check(pool_of(2), Ask(9)).code == ReasonCode.TOO_BIG_FOR_ANY_HOST


def test_the_search_for_windows_ends_at_the_horizon() -> None:
    full = pool_of(1, reservations=(booked(1, 8, NOW, NOW + 50 * HOUR),))
    assert check(full, Ask(4), horizon=49 * HOUR).first_windows == ()
    assert check(full, Ask(4), horizon=50 * HOUR).first_windows == (
        ReservationWindow(NOW + 50 * HOUR, NOW + 52 * HOUR),
    )


def test_the_calendar_counts_units_that_can_be_reserved() -> None:
    snapshot = pool_of(
        1,
        reservations=(booked(1, 4, NOW + HOUR, NOW + 2 * HOUR),),
        running=(firm(1, (10, 11), NOW + 90 * 60),),
        maintenance=(MaintenanceInfo(1, NOW + 4 * HOUR, NOW + 5 * HOUR),),
    )
    shown = free_units_by_time(snapshot, 1, "H100", "", NOW, NOW + 6 * HOUR, HOUR, NOW)
    assert shown == [(NOW + n * HOUR, free) for n, free in enumerate((6, 2, 8, 8, 0, 8))]


# -- changes of reservations -------------------------------------------------------------------------

HELD = tuple(range(10, 14))


def extend(snapshot: Snapshot, end: int = NOW + 4 * HOUR) -> WindowCheckResult:
    return check_extension(snapshot, 1, end, NOW)


def with_running_reservation(*others: ReservationInfo, **rows: Any) -> Snapshot:
    """Return a pool in which red has reserved four of eight GPUs for two more hours."""
    mine = booked(1, 4, NOW - HOUR, NOW + 2 * HOUR, team=RED, units=HELD)
    return pool_of(1, reservations=(mine, *others), **rows)


def test_a_running_reservation_is_extended_if_its_units_are_not_reserved() -> None:
    inside = RunningWorkload(5, RED, 1, 1, 1, HELD, NOW - HOUR, NOW + 2 * HOUR, NOW + 2 * HOUR, reservation=1)
    assert extend(with_running_reservation(running=(inside,))).fits
    assert extend(
        with_running_reservation(booked(2, 4, NOW + 2 * HOUR, NOW + 6 * HOUR))
    ).fits  # the other four GPUs serve that reservation


def test_a_running_reservation_is_not_extended_into_another_that_needs_its_units() -> None:
    answer = extend(
        with_running_reservation(booked(2, 8, NOW + 3 * HOUR, NOW + 5 * HOUR, may_exceed_guarantee=True))
    )
    assert (answer.fits, answer.code) == (False, ReasonCode.EXTENSION_BLOCKED)
    assert dict(answer.numbers) == {"end": NOW + 2 * HOUR, "maintenance": 0, "need": 4, "reservations": 1}
    assert answer.first_windows == (ReservationWindow(NOW + 5 * HOUR, NOW + 7 * HOUR),)


def test_a_running_reservation_is_not_extended_into_maintenance_or_the_guarantees_of_others() -> None:
    answer = extend(
        with_running_reservation(maintenance=(MaintenanceInfo(1, NOW + 3 * HOUR, NOW + 5 * HOUR),))
    )
    assert (answer.code, dict(answer.numbers)["maintenance"]) == (ReasonCode.EXTENSION_BLOCKED, 4)
    assert answer.first_windows == (ReservationWindow(NOW + 5 * HOUR, NOW + 7 * HOUR),)
    one_more = booked(3, 1, NOW + 2 * HOUR, NOW + 9 * HOUR, team=RED)
    assert extend(with_running_reservation(one_more)).code == ReasonCode.WINDOW_EATS_GUARANTEES


def test_each_of_several_windows_is_checked_and_the_first_refused_window_has_proposals() -> None:
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


# -- longer runtimes of running work -----------------------------------------------------------------


def may_stay(snapshot: Snapshot, until: int, workload: int = 5) -> WindowCheckResult:
    return check_longer_runtime(snapshot, workload, until, NOW)


def staying(
    preemptible: bool = False, units: tuple[int, ...] = (10, 11), until: int = NOW + HOUR
) -> RunningWorkload:
    return RunningWorkload(5, RED, 1, 1, 1, units, NOW - HOUR, until, until, preemptible=preemptible)


def test_firm_work_may_run_longer_if_every_reservation_can_be_kept() -> None:
    alone = pool_of(1, running=(staying(),))
    assert may_stay(alone, NOW + 9 * HOUR).fits
    with_reservation = replace(alone, reservations=(booked(1, 6, NOW + 2 * HOUR, NOW + 3 * HOUR),))
    assert may_stay(with_reservation, NOW + 9 * HOUR).fits, "the other six GPUs serve the reservation"
    with_more_reservations = replace(
        alone,
        reservations=(
            booked(1, 6, NOW + 2 * HOUR, NOW + 3 * HOUR),
            booked(2, 8, NOW + 4 * HOUR, NOW + 5 * HOUR),
            booked(3, 8, NOW + 6 * HOUR, NOW + 7 * HOUR),
        ),
    )
    assert may_stay(with_more_reservations, NOW + 4 * HOUR).fits, "it ends when that reservation starts"
    answer = may_stay(with_more_reservations, NOW + 9 * HOUR)
    assert (answer.fits, answer.code) == (False, ReasonCode.MORE_TIME_BLOCKED)
    assert dict(answer.numbers) == {
        "latest": NOW + 4 * HOUR,
        "limit": NOW + HOUR,
        "maintenance": 0,
        "reservations": 2,
        "start": NOW + 4 * HOUR,
        "until": NOW + 9 * HOUR,
    }


def test_firm_work_may_run_until_the_maintenance_of_its_host() -> None:
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


def test_work_on_units_of_a_started_reservation_may_not_run_longer() -> None:
    waited_for = pool_of(1, running=(staying(),), reservations=(booked(1, 8, NOW - HOUR, NOW + 5 * HOUR),))
    numbers = dict(may_stay(waited_for, NOW + 2 * HOUR).numbers)
    assert numbers["latest"] == numbers["limit"] == NOW + HOUR


def test_preemptible_work_may_run_longer_on_reserved_units() -> None:
    lending = pool_of(
        1, running=(staying(preemptible=True),), reservations=(booked(1, 8, NOW + 2 * HOUR, NOW + 3 * HOUR),)
    )
    assert may_stay(lending, NOW + 9 * HOUR).fits
    extended = replace(lending, running=(staying(preemptible=True, until=NOW + 9 * HOUR),))
    assert 1 in PromiseTimeline(PoolState(PoolSnapshot(extended, extended.pools[0]), NOW)).tentative_units
    at = NOW + 2 * HOUR - 60
    assert [e.workload for e in plan(extended, at).evictions] == [5], "it is evicted in time"


# -- several models, and used-up GPU-hours -----------------------------------------------------------


def two_models(**rows: Any) -> Snapshot:
    """Return four H100 guaranteed to blue and four A100 guaranteed to red."""
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


def tentative_units_of(snapshot: Snapshot, now: int = NOW) -> dict[int, list[int]]:
    state = PoolState(PoolSnapshot(snapshot, snapshot.pools[0]), now)
    return {
        r: [state.units[u].id for u in units] for r, units in PromiseTimeline(state).tentative_units.items()
    }


def test_a_reservation_of_several_models_uses_the_model_that_its_check_allowed() -> None:
    assert check(two_models(), EITHER).fits
    assert check(two_models(), Ask(4, models=("H100",))).code == ReasonCode.WINDOW_EATS_GUARANTEES
    mine = ReservationInfo(1, RED, 1, 1, EITHER, NOW + HOUR, NOW + 2 * HOUR)
    assert tentative_units_of(two_models(reservations=(mine,))) == {1: [20, 21, 22, 23]}
    assert tentative_units_of(two_models(reservations=(replace(mine, may_exceed_guarantee=True),))) == {
        1: [10, 11, 12, 13]
    }


def test_a_reservation_of_several_models_is_kept_when_guarantees_change() -> None:
    mine = ReservationInfo(1, RED, 1, 1, EITHER, NOW + HOUR, NOW + 2 * HOUR)
    all_blue = (
        QuotaInfo(BLUE, 1, "H100", 4 * GPU),
        QuotaInfo(BLUE, 1, "A100", 4 * GPU),
        QuotaInfo(RED, 1, "A100", 0),
    )
    assert tentative_units_of(replace(two_models(reservations=(mine,)), quotas=all_blue)) == {
        1: [10, 11, 12, 13]
    }


def used_up(team: int, until: int, after_reset: int) -> QuotaInfo:
    return QuotaInfo(team, 1, "H100", 0, None, until, 100, guaranteed_after_reset=after_reset * GPU)


def test_a_guarantee_with_used_up_gpu_hours_applies_in_the_next_period() -> None:
    tomorrow = {"start": NOW + 24 * HOUR, "end": NOW + 30 * HOUR}
    hours_of_blue = replace(
        pool_of(1), quotas=(QuotaInfo(RED, 1, "H100", 0), used_up(BLUE, NOW + 2 * HOUR, 8))
    )
    assert check(hours_of_blue, Ask(8)).code == ReasonCode.WINDOW_EATS_GUARANTEES, (
        "the guarantee is reset during that window"
    )
    assert check(hours_of_blue, Ask(8), end=NOW + 2 * HOUR).fits
    assert check(hours_of_blue, Ask(8), **tomorrow).code == ReasonCode.WINDOW_EATS_GUARANTEES
    hours_of_red = replace(
        pool_of(1), quotas=(used_up(RED, NOW + 2 * HOUR, 4), QuotaInfo(BLUE, 1, "H100", 4 * GPU))
    )
    all_units_of_blue = (booked(1, 4, NOW + 23 * HOUR, NOW + 31 * HOUR),)
    assert check(replace(hours_of_red, reservations=all_units_of_blue), Ask(4), **tomorrow).fits
    assert check(hours_of_red, Ask(5), **tomorrow).code == ReasonCode.WINDOW_EATS_GUARANTEES


# -- limits of the team and of the user --------------------------------------------------------------


def test_a_reservation_stays_within_the_borrow_limit_of_its_team() -> None:
    limited = replace(
        pool_of(2), quotas=(QuotaInfo(RED, 1, "H100", 2 * GPU, 2 * GPU), QuotaInfo(BLUE, 1, "H100", 4 * GPU))
    )
    assert check(limited, Ask(4)).fits
    answer = check(limited, Ask(5))
    assert (answer.code, dict(answer.numbers)["limit"], dict(answer.numbers)["held"]) == (
        ReasonCode.OVER_QUOTA,
        4 * GPU,
        0,
    )
    others = replace(limited, reservations=(booked(1, 1, SOONEST + 2 * HOUR, NOW + 4 * HOUR, team=RED),))
    answer = check(others, Ask(4))
    assert (dict(answer.numbers)["at"], dict(answer.numbers)["held"]) == (SOONEST + 2 * HOUR, GPU)
    assert answer.first_windows[0].start == SOONEST, "it ends when the other reservation starts"
    assert check(limited, Ask(5), may_exceed_guarantee=True).fits
    assert check(limited, Ask(3), borrows_again_from=NOW + 9 * HOUR).code == ReasonCode.OVER_QUOTA
    assert check(limited, Ask(2), borrows_again_from=NOW + 9 * HOUR).fits


def test_a_team_may_borrow_after_its_budget_opens() -> None:
    """Guarantee 4 GPUs to red. It may borrow without a limit, but only after its budget opens in 3 hours."""
    opens = NOW + 3 * HOUR
    two = pool_of(2)
    answer = check(two, Ask(5), borrows_again_from=opens)
    assert (answer.code, dict(answer.numbers)["may_borrow"], dict(answer.numbers)["limit"]) == (
        ReasonCode.OVER_QUOTA,
        False,
        4 * GPU,
    )
    assert answer.first_windows == (ReservationWindow(opens, opens + 2 * HOUR),)
    assert (
        check(two, Ask(5), opens - 60, opens + HOUR, borrows_again_from=opens).code == ReasonCode.OVER_QUOTA
    )
    assert check(two, Ask(5), opens, opens + HOUR, borrows_again_from=opens).fits
    claimant = ReservationRequester(RED, borrows_again_from=opens)
    assert free_windows(two, Ask(5), claimant, 1, HOUR, NOW, NOW, 9 * HOUR) == (
        ReservationWindow(opens, opens + HOUR),
    )
    assert free_windows(two, Ask(5), claimant, 1, HOUR, NOW, NOW, 2 * HOUR) == ()


def test_a_window_borrows_only_after_the_budget_opens() -> None:
    """Request a window that exceeds the guarantee only from ``opens`` on.

    Another reservation of the team starts at ``opens``.
    """
    opens = NOW + 3 * HOUR
    later = pool_of(2, reservations=(booked(1, 2, opens, opens + 2 * HOUR, team=RED),))
    assert check(later, Ask(4), NOW + HOUR, opens + HOUR, borrows_again_from=opens).fits
    answer = check(later, Ask(4), NOW + HOUR, opens + HOUR, borrows_again_from=opens + 60)
    assert (answer.code, dict(answer.numbers)["at"]) == (ReasonCode.OVER_QUOTA, opens)


def test_the_borrow_limit_applies_after_the_budget_opens() -> None:
    quotas = (QuotaInfo(RED, 1, "H100", 2 * GPU, 2 * GPU), QuotaInfo(BLUE, 1, "H100", 4 * GPU))
    answer = check(replace(pool_of(2), quotas=quotas), Ask(5), borrows_again_from=NOW)
    assert (answer.code, dict(answer.numbers)["limit"], dict(answer.numbers)["may_borrow"]) == (
        ReasonCode.OVER_QUOTA,
        4 * GPU,
        True,
    )


def test_a_refused_extension_proposes_the_time_from_which_the_team_may_borrow() -> None:
    opens = NOW + 5 * HOUR
    above = replace(
        with_running_reservation(),
        quotas=(QuotaInfo(RED, 1, "H100", 2 * GPU), QuotaInfo(BLUE, 1, "H100", 4 * GPU)),
    )
    answer = check_extension(above, 1, NOW + 4 * HOUR, NOW, borrows_again_from=opens)
    assert (answer.code, answer.first_windows) == (
        ReasonCode.OVER_QUOTA,
        (ReservationWindow(opens, opens + 2 * HOUR),),
    )
    assert check_extension(above, 1, NOW + 4 * HOUR, NOW, borrows_again_from=NOW + 2 * HOUR).fits


def test_proposed_windows_start_no_earlier_than_requested() -> None:
    full = pool_of(1, reservations=(booked(1, 8, NOW + HOUR, NOW + 2 * HOUR),))
    assert (
        check(full, Ask(4), end=NOW + 2 * HOUR, earliest=NOW + 5 * HOUR).first_windows[0].start
        == NOW + 5 * HOUR
    )
    windows = [(NOW + HOUR, NOW + 2 * HOUR), (NOW + 3 * HOUR, NOW + 4 * HOUR)]
    assert (
        check_reservation_windows(full, Ask(4), RED, 1, windows, NOW, earliest=NOW)[0].first_windows[0].start
        == NOW + 2 * HOUR
    )


def test_a_model_without_a_quota_cannot_be_reserved() -> None:
    assert check(two_models(), Ask(1, models=("A100",)), team=BLUE).code == ReasonCode.NO_QUOTA


def test_borrowing_after_a_reset_counts_from_the_reset() -> None:
    refused_until = QuotaInfo(RED, 1, "H100", 0, 0, NOW + 2 * HOUR, 100, 4 * GPU, None)
    free = replace(pool_of(1), quotas=(refused_until, QuotaInfo(BLUE, 1, "H100", 0)))
    assert check(free, Ask(6)).code == ReasonCode.OVER_QUOTA
    assert check(free, Ask(6), NOW + 2 * HOUR, NOW + 4 * HOUR).fits


def test_a_window_is_proposed_at_the_reset_of_the_gpu_hours() -> None:
    """Use a pool in which no reservation and no work ends at the time of the reset."""
    hours_of_red = replace(
        pool_of(1),
        quotas=(replace(used_up(RED, NOW + 2 * HOUR, 4), borrow_limit=0), QuotaInfo(BLUE, 1, "H100", 0)),
    )
    answer = check(hours_of_red, Ask(4))
    assert (answer.code, answer.first_windows) == (
        ReasonCode.OVER_QUOTA,
        (ReservationWindow(NOW + 2 * HOUR, NOW + 4 * HOUR),),
    )
    assert free_windows(hours_of_red, Ask(4), ReservationRequester(RED), 1, HOUR, NOW, NOW, 9 * HOUR) == (
        ReservationWindow(NOW + 2 * HOUR, NOW + 3 * HOUR),
    )
    assert free_windows(hours_of_red, Ask(4), ReservationRequester(RED), 1, HOUR, NOW, NOW, HOUR) == (), (
        "the reset is after the horizon"
    )


def test_a_refused_extension_proposes_the_time_of_the_reset_of_gpu_hours() -> None:
    until = NOW + 5 * HOUR
    used_up_quotas = (replace(used_up(RED, until, 4), borrow_limit=0), QuotaInfo(BLUE, 1, "H100", 0))
    answer = extend(replace(with_running_reservation(), quotas=used_up_quotas))
    assert (answer.code, answer.first_windows) == (
        ReasonCode.OVER_QUOTA,
        (ReservationWindow(until, until + 2 * HOUR),),
    )


def test_reservations_of_a_user_stay_within_the_cap_on_users() -> None:
    capped = replace(
        pool_of(2),
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy(max_slots_per_user=4 * GPU)),),
    )
    assert check(capped, Ask(4), user=7).fits
    assert check(capped, Ask(5), user=7).code == ReasonCode.OVER_USER_CAP
    assert check(capped, Ask(5), user=7, may_exceed_guarantee=True).fits
    mine = replace(capped, reservations=(booked(1, 2, NOW + 2 * HOUR, NOW + 4 * HOUR, team=RED, user=7),))
    answer = check(mine, Ask(3), user=7)
    assert dict(answer.numbers) == {"at": NOW + 2 * HOUR, "cap": 4 * GPU, "held": 2 * GPU, "need": 3 * GPU}
    assert check(mine, Ask(3), user=8).fits
    assert check(mine, Ask(3), user=7, exclude_reservation=1).fits


def test_a_reservation_without_units_counts_for_the_cap_on_users() -> None:
    serviced = (MaintenanceInfo(1, NOW + HOUR, NOW + 90 * 60),)
    without_units = pool_of(
        1,
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy(max_slots_per_user=4 * GPU)),),
        maintenance=serviced,
        reservations=(booked(1, 4, NOW + HOUR, NOW + 4 * HOUR, team=RED, user=7),),
    )
    answer = check(without_units, Ask(4), NOW + 2 * HOUR, NOW + 4 * HOUR, user=7)
    assert (answer.code, answer.first_windows) == (
        ReasonCode.OVER_USER_CAP,
        (ReservationWindow(NOW + 4 * HOUR, NOW + 6 * HOUR),),
    )
