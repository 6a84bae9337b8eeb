"""Test changes of reservations, and recurring reservations.

A reservation that is moved, shortened or extended must satisfy the rules of a new reservation. Either all
occurrences of a recurring reservation are confirmed, or none.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pytest

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, Submission
from portal.services.approvals import decisions, effects
from portal.services.calendar import recurring_reservations, reservations
from portal.wording.refusal_texts import refusal_sentence
from scheduler import services
from scheduler.core.rejection import OperationRejected
from scheduler.cycle import engine
from scheduler.models import BoundUnit, Pool, Reservation, Series
from telemetry.models import Price
from tests.portal.rejections import rejected
from tests.portal.services.test_reservations_and_approvals import reserve
from tests.world import H100, World

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def confirmed_reservation(world: World, **changes: Any) -> Reservation:
    row = reserve(world, **changes)
    assert isinstance(row, Reservation)
    return row


def change(world: World, row: Reservation, **changes: Any) -> Submission | Reservation:
    fields: dict[str, Any] = {"actor": world.vision.member, "reservation": row, "now": world.now}
    return reservations.change_reservation(**(fields | changes))


def recur(world: World, **changes: Any) -> Submission | Series:
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "Course",
        "units": 2,
        "models": [H100],
        "start": world.now + DAY,
        "end": world.now + DAY + 9 * HOUR,
        "weekdays": ["mon", "tue", "wed", "thu", "fri"],
        "until": date(2026, 3, 13),
        "now": world.now,
    }
    return recurring_reservations.request_series(**(fields | changes))


# -- changed windows -----------------------------------------------------------------------------------------


def test_a_reservation_can_be_moved_extended_and_shortened(world: World) -> None:
    row = confirmed_reservation(world)
    start, length = row.start, row.end - row.start
    change(world, row, start=start + HOUR)
    assert (row.start, row.end) == (start + HOUR, start + HOUR + length)
    change(world, row, end=row.end + HOUR)
    assert row.end - row.start == length + HOUR
    change(world, row, end=row.start + HOUR)
    assert row.end - row.start == HOUR
    verbs = AuditEvent.objects.filter(verb="change_reservation").order_by("pk")
    assert (
        verbs.count() == 3
        and verbs[0].before is not None
        and verbs[0].before["start"] != verbs[0].after["start"]
    )  # type: ignore[index]


def test_a_change_that_does_not_fit_is_refused_with_the_first_window_and_changes_nothing(
    world: World,
) -> None:
    row = confirmed_reservation(world, units=4)
    blocker = reserve(
        world, units=8, hosts=2, may_exceed_guarantee=True, start=row.end, end=row.end + 2 * HOUR
    )
    assert isinstance(blocker, Submission)
    decisions.approve_submission(
        actor=world.operator, submission=blocker, now=world.now, changes={"may_exceed_guarantee": True}
    )
    end = row.end
    with rejected() as refused:
        change(world, row, end=end + HOUR)
    assert refused.value.code == "window_full" and refused.value.windows
    row.refresh_from_db()
    assert row.end == end


def test_an_active_reservation_keeps_its_units_or_is_refused_with_the_next_window(world: World) -> None:
    row = confirmed_reservation(world, units=4, start=world.now, end=world.now + 4 * HOUR)
    engine.run_cycle("test", world.now)
    row.refresh_from_db()
    bound = set(BoundUnit.objects.filter(reservation=row).values_list("unit", flat=True))
    assert row.state == "active" and len(bound) == 4
    with pytest.raises(Invalid, match="only its end can change"):
        change(world, row, start=world.now + HOUR)
    change(world, row, end=world.now + 5 * HOUR, now=world.now + HOUR)
    still = BoundUnit.objects.filter(reservation=row, period__contains=world.now + 4.5 * HOUR)
    assert set(still.values_list("unit", flat=True)) == bound

    late = {"start": world.now + 6 * HOUR, "end": world.now + 8 * HOUR}
    other = reserve(world, units=8, hosts=2, may_exceed_guarantee=True, **late)
    assert isinstance(other, Submission)
    decisions.approve_submission(
        actor=world.operator, submission=other, now=world.now, changes={"may_exceed_guarantee": True}
    )
    with rejected() as refused:
        change(world, row, end=world.now + 7 * HOUR, now=world.now + HOUR)
    assert refused.value.code == "extension_blocked"
    assert refused.value.windows[0] == (world.now + 8 * HOUR, world.now + 10 * HOUR)
    assert "1 other reservation would lose its GPUs" in refusal_sentence(refused.value)


def test_a_change_above_the_threshold_waits_and_is_checked_again_on_approval(world: World) -> None:
    large = reserve(world, units=8)
    assert isinstance(large, Submission)
    decisions.approve_submission(actor=world.operator, submission=large, now=world.now)
    row = Reservation.objects.get()
    submission = change(world, row, end=row.end + 2 * HOUR, why="more data")
    assert isinstance(submission, Submission) and submission.kind == "window_change"
    end = row.end
    row.refresh_from_db()
    assert row.end == end, "the change holds no units until it is approved"
    assert effects.approval_effect(submission, world.now)["fits"]
    with rejected("already waits"):
        change(world, row, end=end + HOUR)
    decisions.approve_submission(actor=world.operator, submission=submission, now=world.now)
    row.refresh_from_db()
    assert row.end == end + 2 * HOUR
    assert isinstance(change(world, row, end=end), Reservation), "a shorter window needs no approval"


@pytest.mark.parametrize("late", [timedelta(0), 30 * HOUR])
def test_a_move_approved_after_the_start_is_refused_and_does_not_become_an_extension(
    world: World, late: timedelta
) -> None:
    large = reserve(world, units=8)
    assert isinstance(large, Submission)
    decisions.approve_submission(actor=world.operator, submission=large, now=world.now)
    row = Reservation.objects.get()
    window = row.start, row.end
    submission = change(world, row, start=row.start + HOUR)
    assert isinstance(submission, Submission)
    engine.run_cycle("test", row.start)
    now = row.start + late
    assert not effects.approval_effect(submission, now)["fits"]
    with pytest.raises((OperationRejected, Invalid)):
        decisions.approve_submission(actor=world.operator, submission=submission, now=now)
    row.refresh_from_db()
    submission.refresh_from_db()
    assert (row.start, row.end) == window and submission.state == "waiting", "the request stays undecided"


def test_a_move_that_loses_the_race_with_its_start_changes_nothing(world: World) -> None:
    row = confirmed_reservation(world, units=4, start=world.now + HOUR, end=world.now + 3 * HOUR)
    window = row.start, row.end
    stale = Reservation.objects.get(pk=row.pk)
    engine.run_cycle("test", row.start)
    with rejected("has started meanwhile"):
        change(world, stale, start=stale.start + HOUR, now=world.now + HOUR)
    row.refresh_from_db()
    assert row.state == "active" and (row.start, row.end) == window


def test_only_permitted_users_change_a_reservation_and_invalid_windows_are_named(world: World) -> None:
    row = confirmed_reservation(world)
    with pytest.raises(NotAllowed):
        change(world, row, actor=world.language.lead, end=row.end + HOUR)
    for wrong, field in (
        ({"end": row.start}, "end"),
        ({"end": row.end}, "end"),
        ({"start": world.now - HOUR}, "start"),
        ({"end": row.start + timedelta(days=30)}, "end"),
        ({"end": "soon"}, "end"),
        ({}, "end"),
    ):
        with pytest.raises(Invalid) as refused:
            change(world, row, **wrong)  # type: ignore[arg-type]
        assert field in refused.value.fields, wrong
    reservations.cancel_reservation(actor=world.vision.member, reservation=row, now=world.now)
    with rejected("can't be changed"):
        change(world, row, end=row.end + HOUR)


# -- recurring reservations ----------------------------------------------------------------------------------


def test_every_weekday_until_a_date_is_one_series(world: World) -> None:
    whole = recur(world)
    assert isinstance(whole, Series)
    rows = list(whole.occurrences.order_by("start"))
    assert len(rows) == 9, "Tuesday 3 March to Friday 13 March"
    assert {row.start.weekday() for row in rows} == {0, 1, 2, 3, 4}
    assert {(row.start.hour, row.end - row.start) for row in rows} == {(9, 9 * HOUR)}
    reservations.cancel_reservation(actor=world.vision.member, reservation=rows[3], now=world.now)
    assert recurring_reservations.cancel_series(actor=world.vision.member, series=whole, now=world.now) == 8
    with rejected("nothing to cancel"):
        recurring_reservations.cancel_series(actor=world.vision.member, series=whole, now=world.now)
    assert set(Reservation.objects.values_list("state", flat=True)) == {"cancelled"}


def test_a_preview_returns_the_total_cost_and_creates_nothing(world: World) -> None:
    Price.objects.create(
        model=H100, cost_per_gpu_hour="1", price_per_gpu_hour="2", valid_from=world.now, created_at=world.now
    )
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "units": 2,
        "models": [H100],
        "start": world.now + DAY,
        "end": world.now + DAY + 9 * HOUR,
        "weekdays": ["tue", "wed"],
        "until": date(2026, 3, 13),
        "now": world.now,
    }
    answer = recurring_reservations.preview_series(**fields)
    assert (answer["fits"], answer["occurrences"], answer["gpus"]) == (True, 4, 2)
    assert answer["price"] == 4 * 9 * 2 * 2 and answer["price_per_hour"] == 4
    assert not Series.objects.exists()


def test_occurrences_keep_their_local_time_across_a_clock_change(world: World) -> None:
    whole = recur(
        world,
        weekdays=["thu"],
        until=date(2026, 4, 3),
        time_zone="Europe/Berlin",
        start=datetime.fromisoformat("2026-03-26T09:00+01:00"),
        end=datetime.fromisoformat("2026-03-26T18:00+01:00"),
    )
    assert isinstance(whole, Series)
    starts = [row.start for row in whole.occurrences.order_by("start")]
    assert [start.isoformat() for start in starts] == [
        "2026-03-26T08:00:00+00:00",
        "2026-04-02T07:00:00+00:00",
    ]


def test_if_one_occurrence_does_not_fit_none_is_confirmed_and_it_is_named(world: World) -> None:
    day = world.now + timedelta(days=3)
    other = reserve(world, units=8, hosts=2, may_exceed_guarantee=True, start=day, end=day + 3 * HOUR)
    assert isinstance(other, Submission)
    decisions.approve_submission(
        actor=world.operator, submission=other, now=world.now, changes={"may_exceed_guarantee": True}
    )
    with rejected() as refused:
        recur(world)
    assert "Occurrence 3 of 9, Thu 5 Mar 09:00 to 18:00, does not fit." in refusal_sentence(refused.value)
    assert refused.value.numbers["occurrence"] == 3
    assert refused.value.windows[0] == (day + 3 * HOUR, day + 12 * HOUR)
    assert not Series.objects.exists() and Reservation.objects.count() == 1


def test_a_large_series_waits_and_is_confirmed_as_a_whole_on_approval(world: World) -> None:
    submission = recur(world, units=8)
    assert isinstance(submission, Submission) and submission.kind == "series"
    assert not Reservation.objects.exists()
    effect = effects.approval_effect(submission, world.now)
    assert effect["fits"] and effect["sentence"].startswith("All 9 occurrences fit")
    decisions.approve_submission(actor=world.operator, submission=submission, now=world.now)
    assert Series.objects.get().occurrences.filter(owner=world.vision.member).count() == 9
    submission.refresh_from_db()
    assert submission.reservation is not None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"weekdays": []}, "weekdays"),
        ({"weekdays": ["monday"]}, "weekdays"),
        ({"until": date(2026, 3, 1)}, "until"),
        ({"until": date(2199, 1, 1)}, "until"),
        ({"until": "soon"}, "until"),
        ({"until": date(2026, 3, 3), "weekdays": ["mon"]}, "until"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"end": datetime.fromisoformat("2026-03-05T10:00+00:00")}, "end"),
    ],
)
def test_invalid_fields_of_a_series_are_named(world: World, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        recur(world, **changes)
    assert list(refused.value.fields) == [field]


def test_the_number_of_occurrences_is_limited(world: World) -> None:
    type(world.shared).objects.filter(pk=world.shared.pk).update(reservation_horizon_seconds=365 * 86_400)
    world.shared.refresh_from_db()
    with pytest.raises(Invalid, match="100 occurrences"):
        recur(world, until=date(2026, 12, 1))


# -- closed budgets ------------------------------------------------------------------------------------------


def close_the_budget(world: World, until: datetime) -> None:
    services.close_budget_gate(
        action="refuse_new",
        numbers={"spent": "5", "limit": "5"},
        until=until,
        now=world.now,
        team=world.vision.team,
    )


def test_a_closed_budget_accepts_no_new_reservation_until_it_opens_again(world: World) -> None:
    close_the_budget(world, world.now + 2 * DAY)
    with rejected("budget is used up") as refused:
        confirmed_reservation(world)
    assert refused.value.code == "budget_closed"
    with rejected("budget is used up"):
        recur(world)
    with rejected("budget is used up"):
        reserve(world, units=8)
    assert not Reservation.objects.exists() and not Submission.objects.exists()
    confirmed_reservation(world, start=world.now + 2 * DAY, end=world.now + 2 * DAY + HOUR)


def test_a_closed_budget_lets_a_reservation_move_and_shrink_but_not_grow(world: World) -> None:
    row = confirmed_reservation(world)
    tomorrow = confirmed_reservation(world, start=world.now + 3 * DAY, end=world.now + 3 * DAY + 2 * HOUR)
    close_the_budget(world, world.now + 2 * DAY)
    change(world, row, start=row.start + HOUR)
    with rejected("budget is used up"):
        change(world, row, end=row.end + HOUR)
    change(world, row, end=row.end - HOUR)
    with rejected("budget is used up"):
        change(world, tomorrow, start=world.now + DAY, end=world.now + DAY + 2 * HOUR)


def test_an_active_reservation_is_not_extended_on_a_closed_budget(world: World) -> None:
    row = confirmed_reservation(world, units=4, start=world.now, end=world.now + 4 * HOUR)
    engine.run_cycle("test", world.now)
    row.refresh_from_db()
    close_the_budget(world, world.now + 2 * DAY)
    with rejected("budget is used up"):
        change(world, row, end=world.now + 5 * HOUR, now=world.now + HOUR)


def test_a_waiting_request_is_refused_on_approval_once_the_budget_is_closed(world: World) -> None:
    large = reserve(world, units=8)
    assert isinstance(large, Submission)
    close_the_budget(world, world.now + 2 * DAY)
    assert effects.approval_effect(large, world.now)["code"] == "budget_closed"
    with rejected("budget is used up"):
        decisions.approve_submission(actor=world.operator, submission=large, now=world.now)
    assert not Reservation.objects.exists()


def test_reservations_of_one_user_are_limited_to_the_cap_per_user(world: World) -> None:
    Pool.objects.filter(pk=world.shared.pk).update(most_gpus_per_user=2)
    world.shared.refresh_from_db()
    confirmed_reservation(world, units=2)
    with rejected("One person may hold at most 2 GPUs") as refused:
        confirmed_reservation(world, units=2)
    assert refused.value.code == "over_user_cap"
