"""Test reservations from confirmation to end with the real planner and sweeps."""

from __future__ import annotations

import datetime as dt

import pytest

from scheduler import services
from scheduler.core.promises.reservation_windows import WINDOW_VALID_SECONDS, WindowCheckResult
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import engine
from scheduler.models import Allocation, BoundUnit, Reservation, Workload
from scheduler.reads import capacity
from scheduler.sweeps import reservation_windows, time_limits
from tests.fakes import FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.world import H100, World

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


@pytest.fixture
def agents(world: World) -> list[FakeAgent]:
    """Return the agents of the hosts with H100."""
    return [FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta")]


def ask(world: World, units: int, start: dt.datetime, end: dt.datetime, **also: object) -> dict[str, object]:
    return {
        "project": world.vision.project,
        "pool": world.shared,
        "name": "course",
        "units": units,
        "models_wanted": [H100],
        "start": start,
        "end": end,
        "now": world.now,
        **also,
    }


def confirm(world: World, units: int, start: dt.datetime, end: dt.datetime, **also: object) -> Reservation:
    reservation, answer = services.confirm_reservation(
        owner=world.vision.lead, **ask(world, units, start, end, **also)
    )  # type: ignore[arg-type]
    assert reservation is not None, answer
    return reservation


def tick(agents: list[FakeAgent], at: dt.datetime) -> None:
    """Run the sweeps, one planning cycle, and one frame of each agent."""
    time_limits.stop_after_notice(at)
    time_limits.stop_at_time_limits(at)
    reservation_windows.sweep_reservations(at)
    engine.run_cycle("test", at)
    for agent in agents:
        agent.sync(at)


def test_a_reservation_that_cannot_be_bound_shows_the_reason_until_it_is_bound(
    world: World, agents: list[FakeAgent]
) -> None:
    start, end = world.now + HOUR, world.now + 3 * HOUR
    reservation = confirm(world, 8, start, end)
    for name in ("alpha", "beta"):
        services.cordon_host(world.hosts[name], reason="fans", now=world.now)
    tick(agents, start - SECOND)
    reservation.refresh_from_db()
    assert reservation.reason_code == ""
    for seconds in (0, 5):
        tick(agents, start + seconds * SECOND)
        reservation.refresh_from_db()
        assert reservation.reason_code == ReasonCode.RESERVED_UNITS_MISSING and reservation.reason_at == start
    numbers = {"need": 8, "free": 0, "closed": 16, "total": 16, "hosts": 1}
    assert (reservation.state, reservation.reason_numbers) == ("confirmed", numbers)
    services.return_host(world.hosts["beta"], now=start + 6 * SECOND)
    tick(agents, start + 7 * SECOND)
    reservation.refresh_from_db()
    assert (reservation.state, reservation.reason_code, reservation.reason_at) == ("active", "", None)


def test_borrowers_are_preempted_by_the_start_and_work_inside_is_stopped_by_the_end(
    world: World, agents: list[FakeAgent]
) -> None:
    start, end = world.now + HOUR, world.now + 3 * HOUR
    reservation = confirm(world, 8, start, end)
    borrowers = [job(world, world.robotics, 8, world.now) for _ in range(2)]
    inside = job(world, world.vision, 8, world.now, reservation=reservation)
    tick(agents, world.now)
    inside.refresh_from_db()
    assert inside.reason_code == ReasonCode.RESERVATION_NOT_STARTED
    before_start = (1800, 600, 60, 45, 30, 25, 20, 0)
    for seconds in before_start:
        at = start - seconds * SECOND
        tick(agents, at)
    gone = Workload.objects.get(pk__in=[b.pk for b in borrowers], state="queued")
    assert gone.reason_code and gone.decisions.filter(kind="evicted", for_reservation=reservation).exists()
    for _ in range(3):
        at += SECOND
        tick(agents, at)
    reservation.refresh_from_db()
    inside.refresh_from_db()
    assert (reservation.state, inside.state) == ("active", "running")
    assert reservation.bound_units.count() == 8 and reservation.first_used_at is not None
    bound = set(reservation.bound_units.values_list("unit_id", flat=True))
    assert set(Allocation.objects.filter(workload=inside).values_list("unit_id", flat=True)) == bound

    tick(agents, end - 59 * SECOND)
    inside.refresh_from_db()
    assert (inside.state, inside.stop_requested) == ("notice", ReasonCode.RESERVATION_OVER)
    for seconds in (-30, -20, 0, 1, 2):
        tick(agents, end + seconds * SECOND)
    inside.refresh_from_db()
    reservation.refresh_from_db()
    assert (inside.state, inside.outcome, reservation.state) == ("ended", ReasonCode.RESERVATION_OVER, "over")
    gone.refresh_from_db()
    assert gone.state == "running", "the borrower resumes on the freed units"


def test_an_unused_reservation_is_released(world: World, agents: list[FakeAgent]) -> None:
    reservation = confirm(world, 8, world.now, world.now + 3 * HOUR)
    tick(agents, world.now)
    assert BoundUnit.objects.filter(period__contains=world.now).count() == 8
    assert capacity.free_units(world.shared, world.now).filter(gpu__model=H100).count() == 8
    tick(agents, world.now + 29 * 60 * SECOND)
    reservation.refresh_from_db()
    assert reservation.state == "active"
    later = world.now + 31 * 60 * SECOND
    tick(agents, later)
    reservation.refresh_from_db()
    assert (reservation.state, reservation.ended_at) == ("released", later)
    assert {b.period.upper for b in reservation.bound_units.all()} == {later}
    assert capacity.free_units(world.shared, later).filter(gpu__model=H100).count() == 16


MINUTE = 60 * SECOND


def state_of(reservation: Reservation) -> str:
    reservation.refresh_from_db()
    return reservation.state


def test_the_no_show_period_begins_when_the_units_are_bound(world: World, agents: list[FakeAgent]) -> None:
    reservation = confirm(world, 8, world.now, world.now + 3 * HOUR)
    for name in ("alpha", "beta"):
        services.cordon_host(world.hosts[name], reason="fans", now=world.now)
    tick(agents, world.now)
    bound = world.now + 31 * MINUTE
    tick(agents, bound - SECOND)
    services.return_host(world.hosts["beta"], now=bound)
    for seconds in (0, 1, 60, 29 * 60):
        tick(agents, bound + seconds * SECOND)
        assert state_of(reservation) == "active"
    tick(agents, bound + 30 * MINUTE)
    assert state_of(reservation) == "released"


def test_a_reservation_moved_to_other_units_has_a_new_no_show_period(
    world: World, agents: list[FakeAgent]
) -> None:
    reservation = confirm(world, 8, world.now, world.now + 3 * HOUR)
    tick(agents, world.now)
    bound = reservation.bound_units.first()
    assert bound is not None
    moved = world.now + 29 * MINUTE
    services.cordon_host(bound.unit.gpu.host, reason="fan", now=moved)
    for at in (moved, moved + MINUTE, moved + 2 * MINUTE):
        tick(agents, at)
    assert state_of(reservation) == "active"
    assert {unit.period.lower for unit in reservation.bound_units.filter(period__contains=at)} == {moved}
    tick(agents, moved + 30 * MINUTE)
    assert state_of(reservation) == "released"


def test_a_reservation_that_lost_its_units_is_not_released_as_a_no_show(
    world: World, agents: list[FakeAgent]
) -> None:
    reservation = confirm(world, 8, world.now, world.now + 3 * HOUR)
    tick(agents, world.now)
    for name in ("alpha", "beta"):
        services.cordon_host(world.hosts[name], reason="fans", now=world.now + MINUTE)
    for minutes in (1, 31, 100):
        tick(agents, world.now + minutes * MINUTE)
        assert state_of(reservation) == "active"
    tick(agents, world.now + 3 * HOUR)
    assert state_of(reservation) == "over"


def test_a_full_window_is_rejected_with_the_first_windows_that_fit(world: World) -> None:
    start, end = world.now + 24 * HOUR, world.now + 28 * HOUR
    first = ask(world, 8, start, end, hosts=2, may_exceed_guarantee=True)
    reservation, _ = services.confirm_reservation(owner=world.vision.lead, **first)  # type: ignore[arg-type]
    assert reservation is not None
    reservation, answer = services.confirm_reservation(owner=world.vision.lead, **first)  # type: ignore[arg-type]
    assert reservation is None and answer.code == ReasonCode.WINDOW_FULL
    assert answer.first_windows and all(
        w.end <= start.timestamp() or w.start >= end.timestamp() for w in answer.first_windows
    )
    assert Reservation.objects.count() == 1


def test_a_reservation_may_exceed_the_guarantee_only_with_approval(world: World) -> None:
    start, end = world.now + 24 * HOUR, world.now + 28 * HOUR
    request = ask(world, 8, start, end, hosts=2)
    assert services.check_window(**request).code == ReasonCode.WINDOW_EATS_GUARANTEES  # type: ignore[arg-type]
    assert services.check_window(**request, may_exceed_guarantee=True).fits  # type: ignore[arg-type]


def test_a_reservation_can_be_shortened_extended_and_moved_if_the_timeline_allows(
    world: World, agents: list[FakeAgent]
) -> None:
    start, end = world.now, world.now + 4 * HOUR
    reservation = confirm(world, 8, start, end)
    tick(agents, world.now)
    assert services.shorten_reservation(reservation, end=end - HOUR, now=world.now + HOUR)
    assert {b.period.upper for b in reservation.bound_units.all()} == {end - HOUR}
    assert not services.shorten_reservation(reservation, end=end, now=world.now + HOUR), (
        "a later end is rejected"
    )
    assert not services.shorten_reservation(reservation, end=world.now, now=world.now + HOUR), (
        "a past end is rejected"
    )
    assert services.change_reservation(reservation, end=end + HOUR, now=world.now + HOUR).fits
    reservation.refresh_from_db()
    assert reservation.end == end + HOUR

    other = confirm(world, 8, world.now + 24 * HOUR, world.now + 26 * HOUR)
    assert services.change_reservation(
        other, start=world.now + 30 * HOUR, end=world.now + 32 * HOUR, now=world.now + HOUR
    ).fits
    other.refresh_from_db()
    assert other.start == world.now + 30 * HOUR


def test_cancelling_a_reservation_ends_the_work_inside_it(world: World, agents: list[FakeAgent]) -> None:
    reservation = confirm(world, 2, world.now, world.now + 4 * HOUR)
    running, waiting = [job(world, world.vision, 2, world.now, reservation=reservation) for _ in range(2)]
    for seconds in range(4):
        tick(agents, world.now + seconds * SECOND)
    assert Workload.objects.get(pk=running.pk).state == "running"
    assert services.cancel_reservation(reservation, now=world.now + 10 * SECOND)
    assert not services.cancel_reservation(reservation, now=world.now + 11 * SECOND)
    for seconds in (12, 13):
        tick(agents, world.now + seconds * SECOND)
    ended = Workload.objects.filter(pk__in=[running.pk, waiting.pk]).values_list("state", "outcome")
    assert set(ended) == {("ended", ReasonCode.RESERVATION_OVER)}
    assert not Allocation.objects.filter(period__upper_inf=True).exists()


def test_an_unused_reservation_moves_off_a_host_that_is_closed(world: World, agents: list[FakeAgent]) -> None:
    reservation = confirm(world, 8, world.now, world.now + 4 * HOUR)
    tick(agents, world.now)
    host = reservation.bound_units.first().unit.gpu.host  # type: ignore[union-attr]
    services.cordon_host(host, reason="fan", now=world.now + SECOND)
    at = world.now + 2 * SECOND
    tick(agents, at)
    now_bound = BoundUnit.objects.filter(reservation=reservation, period__contains=at)
    assert now_bound.count() == 8
    assert host.pk not in set(now_bound.values_list("unit__gpu__host_id", flat=True))
    reservation.refresh_from_db()
    assert reservation.state == "active"

    assert services.change_reservation(reservation, end=reservation.end + HOUR, now=at + SECOND).fits
    released = BoundUnit.objects.filter(reservation=reservation, unit__gpu__host=host)
    assert {bound.period.upper for bound in released} == {at}, "a released unit is not bound again"
    assert BoundUnit.objects.filter(reservation=reservation, period__contains=at + 4 * HOUR).count() == 8


def test_the_approver_sees_which_workloads_a_reservation_would_evict(
    world: World, agents: list[FakeAgent]
) -> None:
    borrowers = [job(world, world.robotics, 8, world.now) for _ in range(2)]
    for seconds in range(3):
        tick(agents, world.now + seconds * SECOND)
    later = world.now + HOUR
    request = ask(world, 8, world.now + 2 * HOUR, world.now + 4 * HOUR)
    victims = services.evicted_by_reservation(**{**request, "now": later})  # type: ignore[arg-type]
    assert len(victims) == 1 and victims[0] in borrowers
    assert Reservation.objects.count() == 0 and Workload.objects.filter(state="running").count() == 2


# -- used-up budgets ---------------------------------------------------------------------------------------

DAY = 24 * HOUR


def close_gate(world: World, action: str, until: dt.datetime, **owner: object) -> None:
    numbers = {"spent": "5", "limit": "5", "currency": "EUR"}
    owner = owner or {"team": world.vision.team}
    services.close_budget_gate(action=action, numbers=numbers, until=until, now=world.now, **owner)  # type: ignore[arg-type]


def first_starts(answer: WindowCheckResult) -> list[dt.datetime]:
    return [dt.datetime.fromtimestamp(window.start, dt.UTC) for window in answer.first_windows]


def test_a_closed_budget_prevents_borrowing_until_it_opens(world: World) -> None:
    """Reserve 10 H100: vision is guaranteed 8, and the other teams' guarantees stay intact."""
    opens = world.now + 2 * DAY
    close_gate(world, "stop_borrowing", world.now + DAY)
    close_gate(world, "stop_borrowing", opens, project=world.vision.project)
    ten = ask(world, 5, opens - 2 * HOUR, opens, hosts=2)
    answer = services.check_window(**ten)  # type: ignore[arg-type]
    assert (answer.code, first_starts(answer)) == (ReasonCode.OVER_QUOTA, [opens])
    assert confirm(world, 5, opens, opens + 2 * HOUR, hosts=2).state == "confirmed"
    assert services.check_window(**ask(world, 4, opens - 2 * HOUR, opens, hosts=2)).fits  # type: ignore[arg-type]


def test_a_recurring_reservation_may_borrow_in_windows_after_the_budget_opens(world: World) -> None:
    opens = world.now + 2 * DAY
    close_gate(world, "stop_borrowing", opens)
    windows = [(opens + days * DAY, opens + days * DAY + HOUR) for days in (-1, 0, 1)]
    request = {
        name: what
        for name, what in ask(world, 5, *windows[0], hosts=2).items()
        if name not in ("start", "end")
    }
    answers = services.check_windows(**request, windows=windows)  # type: ignore[arg-type]
    assert [(answer.code, first_starts(answer)[:1]) for answer in answers] == [
        (ReasonCode.OVER_QUOTA, [opens]),
        ("", []),
        ("", []),
    ]


def test_an_active_reservation_can_exceed_the_guarantee_only_after_the_budget_opens(
    world: World, agents: list[FakeAgent]
) -> None:
    ends = world.now + 4 * HOUR
    row = confirm(world, 5, world.now, ends, hosts=2)
    tick(agents, world.now)
    row.refresh_from_db()
    close_gate(world, "stop_borrowing", ends + HOUR)
    answer = services.check_change(row, end=ends + HOUR, now=world.now + HOUR)
    assert (answer.code, first_starts(answer)) == (ReasonCode.OVER_QUOTA, [ends + HOUR])
    close_gate(world, "stop_borrowing", ends)
    assert services.check_change(row, end=ends + HOUR, now=world.now + HOUR).fits


def test_suggested_windows_respect_a_closed_budget(world: World) -> None:
    opens, full = world.now + 2 * DAY, world.now + 3 * DAY
    everything = confirm(world, 8, full, full + 2 * HOUR, hosts=2, may_exceed_guarantee=True)
    other = confirm(world, 2, world.now + DAY, world.now + DAY + HOUR)
    close_gate(world, "refuse_new", opens)
    request = ask(world, 2, full, full + HOUR)
    once = {name: what for name, what in request.items() if name not in ("start", "end")}
    recurring = services.check_windows(**once, windows=[(full, full + HOUR)])  # type: ignore[arg-type]
    for answer in (services.check_window(**request), *recurring):  # type: ignore[arg-type]
        assert (answer.code, first_starts(answer)) == (ReasonCode.WINDOW_FULL, [opens, everything.end])
    assert services.check_window(**{**request, "start": opens, "end": opens + HOUR}).fits  # type: ignore[arg-type]
    # The reservation already uses one hour before the budget opens. A changed window may use no more of that
    # time, so a window of two hours begins at most one hour before the budget opens.
    for length, soonest in (
        (HOUR, world.now + dt.timedelta(seconds=WINDOW_VALID_SECONDS)),
        (2 * HOUR, opens - HOUR),
    ):
        answer = services.check_change(other, start=full, end=full + length, now=world.now)
        assert (answer.code, first_starts(answer)) == (ReasonCode.WINDOW_FULL, [soonest, everything.end])
        assert services.check_change(other, start=soonest, end=soonest + length, now=world.now).fits
    sooner = opens - HOUR - MINUTE
    assert (
        services.check_change(other, start=sooner, end=sooner + 2 * HOUR, now=world.now).code
        == ReasonCode.BUDGET_CLOSED
    )
