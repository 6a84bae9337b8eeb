"""Test that a request for a reservation expires if nobody approves or declines it before its start."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone
from django.utils.timezone import override

from portal import tasks
from portal.errors import Invalid
from portal.models import AuditEvent, Notification, Submission
from portal.notices import delivery
from portal.services.approvals import decisions, submissions
from portal.services.calendar import recurring_reservations, reservation_preview, reservations
from portal.sweeps.expired_submissions import expire_submissions
from portal.wording import formatting
from portal.wording.notices import notice_texts
from scheduler.models import Reservation
from tests.portal.rejections import rejected
from tests.portal.web.work_samples import signed_in
from tests.world import H100, World

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def requested(world: World, **changes: Any) -> Submission:
    """Request a reservation that starts in an hour and needs an approval. Return the request."""
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "Review week",
        "units": 8,
        "models": [H100],
        "start": world.now + HOUR,
        "end": world.now + 9 * HOUR,
        "now": world.now,
    }
    submission = reservations.request_reservation(**(fields | changes))
    assert isinstance(submission, Submission)
    return submission


def requested_series(world: World) -> Submission:
    days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    submission = recurring_reservations.request_series(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        name="Nightly",
        units=8,
        models=[H100],
        start=world.now + HOUR,
        end=world.now + 2 * HOUR,
        weekdays=days,
        until=(world.now + timedelta(days=2)).date(),
        now=world.now,
    )
    assert isinstance(submission, Submission)
    return submission


def state(submission: Submission) -> str:
    submission.refresh_from_db()
    return str(submission.state)


@pytest.mark.parametrize("request_of", [requested, requested_series])
def test_an_undecided_request_expires_at_its_start(world: World, request_of: Any) -> None:
    submission = request_of(world)
    assert expire_submissions(world.now + HOUR - SECOND) == 0
    assert state(submission) == "waiting"
    assert expire_submissions(world.now + HOUR) == 1
    assert state(submission) == "expired"
    assert expire_submissions(world.now + 2 * HOUR) == 0
    assert not Reservation.objects.exists()


def test_the_expiry_is_in_the_audit_trail(world: World) -> None:
    submission = requested(world)
    expire_submissions(world.now + HOUR)
    event = AuditEvent.objects.get(verb="expire_submission")
    assert (event.actor, event.via, event.at) == (None, "program", world.now + HOUR)
    assert event.target == f"submission:{submission.public_id}"
    assert event.team == world.vision.team
    assert "before its start" in event.why


def test_requester_and_approvers_are_notified_once(world: World) -> None:
    submission = requested(world)
    expire_submissions(world.now + HOUR)
    for _ in range(2):
        delivery.write_notices(world.now + HOUR + SECOND)
    found = Notification.objects.filter(kind="submission_expired")
    assert {row.user for row in found} == {world.vision.member, world.operator}
    assert {row.submission for row in found} == {submission}
    sentence = notice_texts.notice_sentence("submission_expired", found[0].numbers)
    assert "8 × H100" in sentence and "before its start" in sentence and world.vision.team.name in sentence


def test_notices_of_a_request_and_its_decision_show_the_hours_of_their_reader(world: World) -> None:
    submission = requested(world)
    delivery.write_notices(world.now + SECOND)
    decisions.approve_submission(actor=world.operator, submission=submission, now=world.now + 2 * SECOND)
    delivery.write_notices(world.now + 3 * SECOND)
    for reader, kind in ((world.operator, "approval_wanted"), (world.vision.member, "approved")):
        notice = Notification.objects.get(user=reader, kind=kind)
        reader.time_zone = "Asia/Kathmandu"
        reader.save()
        hours = window_in("Asia/Kathmandu", world.now + HOUR, world.now + 9 * HOUR)
        assert hours in signed_in(reader).get(reverse("notifications")).content.decode()
        for zone, header in (("America/Lima", {"Time-Zone": "America/Lima"}), ("UTC", {})):
            answer = signed_in(reader).get("/api/v1/notifications/", headers=header).json()
            said = next(row["sentence"] for row in answer["results"] if row["kind"] == notice.kind)
            assert window_in(zone, world.now + HOUR, world.now + 9 * HOUR) in said


def window_in(zone: str, start: datetime, end: datetime) -> str:
    with override(zone):
        return formatting.window(start, end)


def test_an_approval_after_the_start_is_refused_with_the_reason(world: World) -> None:
    submission = requested(world)
    stale = Submission.objects.get(pk=submission.pk)
    with rejected("has expired: nobody decided it before its start"):
        decisions.approve_submission(
            actor=world.operator, submission=submission, now=world.now + HOUR, changes={"units": 7}
        )
    assert state(submission) == "waiting", "only the sweep changes the state to expired"
    expire_submissions(world.now + HOUR)
    later = {"start": (world.now + 3 * HOUR).isoformat()}
    with rejected("has expired: nobody decided it before its start"):
        decisions.approve_submission(actor=world.operator, submission=stale, now=world.now, changes=later)
    with rejected("has expired"):
        decisions.decline_submission(
            actor=world.operator, submission=submission, comment="no", now=world.now + HOUR
        )
    assert not Reservation.objects.exists()


def test_the_approvals_page_lists_an_expired_request_as_decided(world: World) -> None:
    submission = requested(world)
    operator = signed_in(world.operator)
    Submission.objects.update(created_at=timezone.now())
    page = operator.get(reverse("submission", args=[submission.public_id])).content.decode()
    assert "if nobody decides it" in page
    expire_submissions(world.now + HOUR)
    waiting = operator.get(reverse("approvals")).content.decode()
    assert reverse("submission", args=[submission.public_id]) not in waiting
    decided = operator.get(reverse("approvals") + "?decided=1").content.decode()
    assert reverse("submission", args=[submission.public_id]) in decided
    assert "Expired" in decided
    page = operator.get(reverse("submission", args=[submission.public_id])).content.decode()
    assert "nobody decided it before its start" in page
    assert reverse("submission-approve", args=[submission.public_id]) not in page
    answer = operator.post(reverse("submission-approve", args=[submission.public_id]), {"units": 8})
    assert answer.status_code == 400
    assert "has expired" in answer.content.decode()


def confirmed(world: World) -> Reservation:
    submission = requested(world)
    decisions.approve_submission(actor=world.operator, submission=submission, now=world.now)
    return Reservation.objects.get()


def changed(world: World, start: datetime | None, end: datetime | None) -> Submission:
    submission = reservations.change_reservation(
        actor=world.vision.member, reservation=confirmed(world), start=start, end=end, now=world.now
    )
    assert isinstance(submission, Submission)
    return submission


def test_a_request_for_a_later_window_expires_at_the_start_of_the_present_window(world: World) -> None:
    submission = changed(world, world.now + 12 * HOUR, None)
    assert expire_submissions(world.now + HOUR - SECOND) == 0
    assert expire_submissions(world.now + HOUR) == 1
    assert state(submission) == "expired"


def test_a_request_for_a_longer_window_expires_at_the_end_of_the_present_window(world: World) -> None:
    submission = changed(world, None, world.now + 12 * HOUR)
    assert expire_submissions(world.now + 9 * HOUR - SECOND) == 0
    assert expire_submissions(world.now + 9 * HOUR) == 1
    assert state(submission) == "expired"


def test_a_quota_or_membership_request_does_not_expire(world: World) -> None:
    rows = [
        submissions.request_quota_change(
            actor=world.vision.lead,
            team=world.vision.team,
            pool=world.shared,
            model=H100,
            guaranteed_gpus=5,
            now=world.now,
        ),
        submissions.request_membership(actor=world.stranger, team=world.vision.team, now=world.now),
    ]
    assert expire_submissions(world.now + timedelta(days=300)) == 0
    assert [state(row) for row in rows] == ["waiting", "waiting"]


def test_a_request_that_would_expire_at_once_is_refused_with_the_field_start(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        requested(world, start=world.now)
    assert "the approval that it needs" in refused.value.fields["start"]
    with pytest.raises(Invalid) as refused:
        reservation_preview.preview_reservation(
            actor=world.vision.member,
            project=world.vision.project,
            pool=world.shared,
            units=8,
            models=[H100],
            start=world.now,
            end=world.now + 8 * HOUR,
            now=world.now,
        )
    assert "the approval that it needs" in refused.value.fields["start"]
    assert not Submission.objects.exists()


def test_the_periodic_task_expires_requests(world: World) -> None:
    submission = requested(world)
    payload = {**submission.payload, "start": "2020-01-01T00:00:00+00:00"}
    Submission.objects.filter(pk=submission.pk).update(payload=payload)
    assert tasks.expire_submissions() == 1
    assert state(submission) == "expired"
