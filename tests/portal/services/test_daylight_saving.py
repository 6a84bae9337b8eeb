"""Test that recurring reservations keep their local hours over a clock change.

Pages and API responses name each occurrence that the clock change affects.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import time_machine
from django.urls import reverse

from portal.errors import Invalid
from portal.services.calendar import recurring_reservations
from portal.wording import request_texts
from scheduler.models import Pool, Reservation, Series
from scheduler.services.recurrence import Recurrence, dst_occurrences, occurrences
from tests.portal.web.work_samples import signed_in
from tests.world import H100, World

BERLIN = ZoneInfo("Europe/Berlin")
FORWARD, BACK = date(2026, 3, 29), date(2026, 10, 25)
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def around(day: date, starts: str, ends: str) -> Recurrence:
    """Return a recurrence on the Sunday of the clock change and the Sunday after it."""
    first, last = time.fromisoformat(starts), time.fromisoformat(ends)
    return Recurrence(frozenset({6}), first, last, "Europe/Berlin", day, day + timedelta(days=7))


def local(recurrence: Recurrence) -> list[tuple[str, str]]:
    windows = occurrences(recurrence, LONG_AGO, 100)
    return [
        (f"{start.astimezone(BERLIN):%d %H:%M}", f"{end.astimezone(BERLIN):%d %H:%M}")
        for start, end in windows
    ]


def notes_of(recurrence: Recurrence) -> list[str]:
    return [
        request_texts.clock_change(change, "Europe/Berlin")
        for change in dst_occurrences(recurrence, LONG_AGO)
    ]


@pytest.mark.parametrize("day", [FORWARD, BACK])
def test_nine_to_five_stays_nine_to_five(day: date) -> None:
    weekly = Recurrence(
        frozenset({0}), time(9), time(17), "Europe/Berlin", day - timedelta(days=6), day + timedelta(days=8)
    )
    windows = occurrences(weekly, LONG_AGO, 100)
    assert len(windows) == 3 and all(end - start == timedelta(hours=8) for start, end in windows)
    assert {f"{start.astimezone(BERLIN):%H:%M}" for start, _ in windows} == {"09:00"}
    assert len({start.hour for start, _ in windows}) == 2, "the hour in UTC differs"
    assert notes_of(weekly) == []


def test_a_local_time_that_does_not_exist_becomes_the_time_of_the_change() -> None:
    starts = around(FORWARD, "02:30", "05:00")
    assert local(starts) == [("29 03:00", "29 05:00"), ("05 02:30", "05 05:00")]
    assert notes_of(starts) == [
        "Sun 29 Mar 2026: the clock of Europe/Berlin is put forward: 02:30 does not exist,"
        " it lasts 30 minutes less. It is from"
        " 03:00 to 05:00."
    ]
    ends = around(FORWARD, "01:00", "02:30")
    assert local(ends)[0] == ("29 01:00", "29 03:00") and "it lasts 30 minutes less" in notes_of(ends)[0]


def test_an_occurrence_in_hours_that_do_not_exist_is_left_out_with_a_note() -> None:
    gone = around(FORWARD, "02:00", "03:00")
    assert local(gone) == [("05 02:00", "05 03:00")]
    assert "nothing is reserved on that day" in notes_of(gone)[0]


def test_the_first_of_two_equal_local_times_is_used() -> None:
    twice = around(BACK, "02:30", "04:00")
    windows = occurrences(twice, LONG_AGO, 100)
    assert windows[0] == (datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 3, tzinfo=UTC))
    assert "02:30 comes twice; the first counts, it lasts 1 h longer" in notes_of(twice)[0]
    until = around(BACK, "01:00", "02:30")
    assert occurrences(until, LONG_AGO, 100)[0][1] == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(("day", "hours", "words"), [(FORWARD, 7, "1 h less"), (BACK, 9, "1 h longer")])
def test_a_night_across_the_change_is_as_long_as_local_time_says(day: date, hours: int, words: str) -> None:
    night = Recurrence(frozenset({5}), time(22), time(6), "Europe/Berlin", day - timedelta(days=8), day)
    windows = occurrences(night, LONG_AGO, 100)
    assert [end - start for start, end in windows] == [timedelta(hours=8), timedelta(hours=hours)]
    assert len(notes_of(night)) == 1 and words in notes_of(night)[0]


@pytest.mark.django_db
def test_a_clock_change_is_noted_in_the_preview_and_stored(world: World) -> None:
    Pool.objects.update(reservation_horizon_seconds=300 * 86_400)
    world.shared.refresh_from_db()
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "units": 1,
        "models": [H100],
        "start": datetime(2026, 3, 22, 2, 30, tzinfo=BERLIN),
        "end": datetime(2026, 3, 22, 4, tzinfo=BERLIN),
        "weekdays": ["sun"],
        "until": FORWARD,
        "time_zone": "Europe/Berlin",
        "now": world.now,
    }
    clock_changes = recurring_reservations.preview_series(**fields)["clock_changes"]
    assert len(clock_changes) == 1 and "02:30 does not exist" in clock_changes[0]
    series = recurring_reservations.request_series(**fields, name="night")
    assert isinstance(series, Series) and recurring_reservations.clock_changes_of(series) == clock_changes
    first = series.occurrences.order_by("start")[0]
    page = signed_in(world.vision.member).get(reverse("reservation", args=[first.public_id])).content.decode()
    assert clock_changes[0] in page
    whole_day = {
        **fields,
        "start": datetime(2026, 10, 25, tzinfo=BERLIN),
        "end": datetime(2026, 10, 26, tzinfo=BERLIN),
    }
    assert isinstance(
        recurring_reservations.request_series(**{**whole_day, "until": BACK}, name="25 hours"), Series
    )
    with pytest.raises(Invalid):
        late = whole_day["end"] + timedelta(minutes=1)
        recurring_reservations.request_series(
            **{**whole_day, "until": BACK, "end": late}, name="more than a day"
        )


@pytest.mark.django_db
def test_the_form_reserves_the_requested_number_of_hours_across_a_change(world: World) -> None:
    member = world.vision.member
    member.time_zone = "Europe/Berlin"
    member.save(update_fields=["time_zone"])
    data = {
        "kind": "reservation",
        "project": str(world.vision.project.pk),
        "target": f"shared|{H100}|",
        "count": "1",
        "start": "2026-03-28T22:00",
        "length": "8",
        "length_unit": "hours",
        "name": "once",
        "hosts": "1",
    }
    client = signed_in(member)
    with time_machine.travel(world.now, tick=False):
        assert client.post(reverse("ask"), data).status_code == 302
        again = {"name": "nights", "start": "2026-03-21T22:00", "repeat": "weekly", "until": "2026-03-28"}
        assert client.post(reverse("ask"), data | again).status_code == 302
    once = Reservation.objects.get(name="once")
    assert once.end - once.start == timedelta(hours=8)
    nights = [
        row.end.astimezone(BERLIN) for row in Reservation.objects.filter(name="nights").order_by("start")
    ]
    assert [f"{end:%H:%M}" for end in nights] == ["06:00", "06:00"], "the same local time on each day"


@pytest.mark.django_db
def test_a_waiting_request_links_to_its_own_week_in_the_calendar(world: World) -> None:
    Pool.objects.update(approval_above_gpus=0)
    data = {
        "kind": "reservation",
        "project": str(world.vision.project.pk),
        "target": f"shared|{H100}|",
        "count": "1",
        "start": "2026-03-20T09:00",
        "length": "8",
        "length_unit": "hours",
        "name": "later",
        "hosts": "1",
    }
    client = signed_in(world.vision.member)
    with time_machine.travel(world.now, tick=False):
        answer = client.post(reverse("ask"), data)
        assert answer.status_code == 302 and "at=2026-03-20T09%3A00" in answer.headers["Location"]
        assert "later" in client.get(answer.headers["Location"]).content.decode()
