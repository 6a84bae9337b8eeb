"""Test the reminders: a reservation ends, and a request waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from portal.models import NoticeMessage, Notification, Submission
from portal.notices import delivery
from portal.notices.channels.mail import mail_of
from portal.notices.channels.messages import outgoing_message
from portal.services.approvals import submissions
from portal.services.calendar import reservations
from portal.services.people.notice_channels import channels
from scheduler.models import Reservation
from tests.world import H100, World

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def told(kind: str) -> list[Any]:
    return list(Notification.objects.filter(kind=kind).order_by("user_id").values_list("user_id", "numbers"))


def booked(world: World) -> Reservation:
    reservation = reservations.request_reservation(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        name="review",
        units=1,
        models=[H100],
        start=world.now + HOUR,
        end=world.now + 2 * HOUR,
        now=world.now,
    )
    assert isinstance(reservation, Reservation)
    return reservation


def test_the_owner_is_reminded_once_before_an_active_reservation_ends(world: World) -> None:
    reservation = booked(world)
    Reservation.objects.filter(pk=reservation.pk).update(state="active")
    delivery.write_notices(reservation.end - timedelta(minutes=16))
    assert told("reservation_ends") == []
    for minutes in (14, 13):
        delivery.write_notices(reservation.end - timedelta(minutes=minutes))
    numbers = {"name": "review", "end": reservation.end.timestamp(), "workloads": 0}
    assert told("reservation_ends") == [(world.vision.member.pk, numbers)]


def test_a_request_that_waits_is_reported_to_all_operators_after_the_set_time(
    world: World, settings: Any
) -> None:
    settings.GPUPOOL_APPROVAL_REMINDER_HOURS = 2
    submission = submissions.request_quota_change(
        actor=world.vision.lead,
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=9,
        why="course",
        now=world.now,
    )
    assert isinstance(submission, Submission)
    delivery.write_notices(world.now + timedelta(minutes=119))
    assert told("approval_waits") == []
    delivery.write_notices(world.now + 2 * HOUR)
    delivery.write_notices(world.now + 3 * HOUR)
    assert [user for user, _ in told("approval_waits")] == [world.operator.pk]


def test_mail_about_the_begin_of_a_reservation_has_a_calendar_file(world: World) -> None:
    reservation = booked(world)
    channels.create_channel(
        actor=world.vision.member, now=world.now, name="Mail", kind="mail", topics=["reservations"]
    )
    now = reservation.start - timedelta(minutes=10)
    delivery.write_notices(now)
    mail = mail_of(outgoing_message(NoticeMessage.objects.get(), now, "UTC"))
    [(name, content, kind)] = mail.attachments
    text = content.decode() if isinstance(content, bytes) else str(content)
    assert (name, kind) == ("reservation.ics", "text/calendar")
    assert str(reservation.public_id) in text and "SUMMARY:review" in text
