"""Test requests for reservations and quotas, which are confirmed at once or after an approval.

An approval checks the request again. A refusal names the next window that fits.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.urls import reverse

from portal.errors import Invalid, NotAllowed
from portal.models import Approval, AuditEvent, Membership, Submission
from portal.services.approvals import decisions, effects, submissions
from portal.services.calendar import reservation_preview, reservations
from portal.wording import request_texts
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Quota, Reservation
from tests.portal.rejections import rejected
from tests.portal.web.work_samples import signed_in
from tests.seeds import first_cases
from tests.world import H100, World

pytestmark = pytest.mark.django_db


def reserve(world: World, **changes: Any) -> Submission | Reservation:
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "Review week",
        "units": 2,
        "models": [H100],
        "start": world.now + timedelta(days=1),
        "end": world.now + timedelta(days=1, hours=8),
        "now": world.now,
    }
    return reservations.request_reservation(**(fields | changes))


def request_quota(world: World, gpus: int = 9, **changes: Any) -> Submission:
    fields: dict[str, Any] = {
        "actor": world.vision.lead,
        "team": world.vision.team,
        "pool": world.shared,
        "model": H100,
        "guaranteed_gpus": gpus,
        "why": "a deadline",
        "now": world.now,
    }
    return submissions.request_quota_change(**(fields | changes))


def test_a_small_reservation_is_confirmed_at_once(world: World) -> None:
    reservation = reserve(world)
    assert isinstance(reservation, Reservation)
    assert (reservation.state, reservation.units, reservation.owner) == ("confirmed", 2, world.vision.member)
    assert AuditEvent.objects.get().verb == "request_reservation"


def test_a_large_reservation_waits_for_approval_and_holds_no_units(world: World) -> None:
    submission = reserve(world, units=8)
    assert isinstance(submission, Submission)
    assert (submission.state, submission.kind, submission.payload["units"]) == ("waiting", "reservation", 8)
    assert not Reservation.objects.exists()


def test_an_approved_reservation_is_in_the_calendar_of_its_author(world: World) -> None:
    submission = reserve(world, units=8)
    assert isinstance(submission, Submission)
    effect = effects.approval_effect(submission, world.now)
    assert effect["fits"]
    decisions.approve_submission(actor=world.operator, submission=submission, now=world.now, comment="fine")
    submission.refresh_from_db()
    assert submission.reservation is not None
    assert (submission.reservation.owner, submission.reservation.units, submission.state) == (
        world.vision.member,
        8,
        "approved",
    )
    assert Approval.objects.get().decided_by == world.operator


def test_a_request_that_no_longer_fits_on_approval_is_refused_and_stays_waiting(world: World) -> None:
    first, second = reserve(world, units=8), reserve(world, units=8)
    assert isinstance(first, Submission) and isinstance(second, Submission)
    decisions.approve_submission(actor=world.operator, submission=first, now=world.now)
    with rejected() as refused:
        decisions.approve_submission(actor=world.operator, submission=second, now=world.now)
    assert refused.value.windows
    second.refresh_from_db()
    assert second.state == "waiting"
    assert Reservation.objects.count() == 1


def test_a_conflicting_request_is_refused_with_the_first_window_that_fits(world: World) -> None:
    large = reserve(world, units=8, hosts=2, may_exceed_guarantee=True)
    assert isinstance(large, Submission)
    changes = {"may_exceed_guarantee": True}
    decisions.approve_submission(actor=world.operator, submission=large, now=world.now, changes=changes)
    with rejected() as refused:
        reserve(world, units=2)
    assert refused.value.code == "window_full"
    assert "first window of that length" in refusal_sentence(refused.value)
    taken = Reservation.objects.get()
    assert refused.value.windows
    assert all(end <= taken.start or start >= taken.end for start, end in refused.value.windows)
    assert Submission.objects.filter(state="waiting").count() == 0


def test_the_second_of_two_concurrent_decisions_is_refused(world: World) -> None:
    submission = reserve(world, units=8)
    assert isinstance(submission, Submission)
    stale = Submission.objects.get(pk=submission.pk)
    decisions.decline_submission(
        actor=world.operator, submission=submission, comment="not now", now=world.now
    )
    with rejected("already declined, by operator"):
        decisions.approve_submission(actor=world.operator, submission=stale, now=world.now)
    assert not Reservation.objects.exists()


@pytest.mark.parametrize(
    "role",
    first_cases(2, ["lead", "finance", "member", "team mate", "other team", "auditor", "stranger"]),
)
def test_only_an_operator_decides(world: World, role: str) -> None:
    submission = reserve(world, units=8)
    assert isinstance(submission, Submission)
    with pytest.raises(NotAllowed):
        decisions.approve_submission(actor=world.people[role], submission=submission, now=world.now)
    with pytest.raises(NotAllowed):
        decisions.decline_submission(
            actor=world.people[role], submission=submission, comment="no", now=world.now
        )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"start": datetime(9999, 12, 31, tzinfo=UTC)}, "start"),
        ({"start": "tomorrow"}, "start"),
        ({"units": 0}, "units"),
        ({"units": 10**12}, "units"),
        ({"name": "a\u202eb"}, "name"),
        ({"name": "x" * 10_000}, "name"),
        ({"models": ["Q9000"]}, "models"),
        ({"why": "x" * 2000}, "why"),
    ],
)
def test_invalid_fields_are_named(world: World, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        reserve(world, **changes)
    assert field in refused.value.fields
    assert not Submission.objects.exists() and not Reservation.objects.exists()


@pytest.mark.parametrize(
    ("start", "end", "field"),
    [
        (timedelta(hours=-1), timedelta(hours=1), "start"),
        (timedelta(hours=2), timedelta(hours=1), "end"),
        (timedelta(hours=2), timedelta(hours=2), "end"),
        (timedelta(hours=2), timedelta(hours=2, seconds=30), "end"),
        (timedelta(days=100), timedelta(days=101), "start"),
        (timedelta(days=1), timedelta(days=30), "end"),
        (timedelta(days=365 * 7900), timedelta(days=365 * 7901), "start"),
        (timedelta(days=1), timedelta(days=365 * 7900), "end"),
    ],
)
def test_impossible_times_are_refused_with_what_is_allowed(
    world: World, start: timedelta, end: timedelta, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        reserve(world, start=world.now + start, end=world.now + end)
    assert "allowed" in refused.value.fields[field]


def test_a_preview_creates_nothing(world: World) -> None:
    answer = reservation_preview.preview_reservation(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        units=8,
        models=[H100],
        start=world.now + timedelta(days=1),
        end=world.now + timedelta(days=2),
        now=world.now,
    )
    assert (answer["fits"], answer["needs_approval"], answer["gpus"]) == (True, True, 8)
    assert not Submission.objects.exists()


def test_the_owner_can_shorten_and_cancel_a_reservation(world: World) -> None:
    reservation = reserve(world)
    assert isinstance(reservation, Reservation)
    end = reservation.start + timedelta(hours=2)
    reservations.shorten_reservation(
        actor=world.vision.member, reservation=reservation, end=end, now=world.now
    )
    reservation.refresh_from_db()
    assert reservation.end == end
    with pytest.raises(NotAllowed):
        reservations.cancel_reservation(actor=world.language.lead, reservation=reservation, now=world.now)
    reservations.cancel_reservation(actor=world.vision.member, reservation=reservation, now=world.now)
    with rejected("nothing to cancel"):
        reservations.cancel_reservation(actor=world.vision.member, reservation=reservation, now=world.now)


def test_a_lead_requests_a_quota_and_an_operator_changes_and_approves_it(world: World) -> None:
    submission = request_quota(world, 12)
    effect = effects.approval_effect(submission, world.now)
    assert not effect["fits"]
    assert (effect["capacity_gpus"], effect["guaranteed_before_gpus"], effect["team_before_gpus"]) == (
        16,
        14,
        8,
    )
    decisions.approve_submission(
        actor=world.operator, submission=submission, now=world.now, changes={"guaranteed_gpus": 10}
    )
    quota = Quota.objects.get(team=world.vision.team, pool=world.shared, model=H100)
    assert quota.guaranteed_slots == 10 * SLOTS_PER_GPU
    approval = Approval.objects.get()
    assert approval.changed_payload is not None and approval.changed_payload["guaranteed_gpus"] == 10
    event = AuditEvent.objects.get(verb="approve_submission")
    assert event.before is not None and event.after is not None
    assert event.before == {"model": H100, "guaranteed_gpus": 8}
    assert event.after == {"model": H100, "guaranteed_gpus": 10}
    request = AuditEvent.objects.get(verb="request_quota_change")
    assert (request.before, request.after) == (event.before, {"model": H100, "guaranteed_gpus": 12})


def limit_borrowing(world: World, gpus: int) -> None:
    Quota.objects.filter(team=world.vision.team, pool=world.shared, model=H100).update(
        borrow_limit_slots=gpus * SLOTS_PER_GPU
    )


def test_a_request_changes_only_the_values_that_it_names(world: World) -> None:
    limit_borrowing(world, 4)
    submission = request_quota(world, 9)
    what = "a quota of H100 80GB: guaranteed 8 → 9"
    assert request_texts.submission_summary(submission.kind, submission.payload) == what
    changes = effects.approval_effect(submission, world.now)["changes"]
    assert [(each.label, each.before, each.after) for each in changes] == [("guaranteed", "8", "9")]
    limit_borrowing(world, 6)  # another change is approved before this request
    decisions.approve_submission(actor=world.operator, submission=submission, now=world.now)
    quota = Quota.objects.get(team=world.vision.team, pool=world.shared, model=H100)
    assert (quota.guaranteed_slots, quota.borrow_limit_slots) == (9 * SLOTS_PER_GPU, 6 * SLOTS_PER_GPU)


def test_a_lifted_limit_is_shown_as_before_and_after_and_an_equal_quota_is_refused(world: World) -> None:
    limit_borrowing(world, 4)
    with rejected("has this quota"):
        request_quota(world, 8)
    submission = request_quota(world, 8, borrow_limit_gpus=None)
    summary = request_texts.submission_summary(submission.kind, submission.payload)
    assert summary == "a quota of H100 80GB: may borrow 4 → no limit"
    decisions.approve_submission(
        actor=world.operator, submission=submission, now=world.now, changes={"borrow_limit_gpus": 5}
    )
    quota = Quota.objects.get(team=world.vision.team, pool=world.shared, model=H100)
    assert (quota.guaranteed_slots, quota.borrow_limit_slots) == (8 * SLOTS_PER_GPU, 5 * SLOTS_PER_GPU)
    page = signed_in(world.operator).get(reverse("submission", args=[submission.public_id])).content.decode()
    assert "A quota of H100 80GB: may borrow 4 → 5" in page


def test_the_guarantees_of_all_teams_never_exceed_the_pool(world: World) -> None:
    submission = request_quota(world, 11)
    with rejected("up to 10"):
        decisions.approve_submission(actor=world.operator, submission=submission, now=world.now)
    submission.refresh_from_db()
    assert submission.state == "waiting"
    assert (
        Quota.objects.get(team=world.vision.team, pool=world.shared, model=H100).guaranteed_slots
        == 8 * SLOTS_PER_GPU
    )


@pytest.mark.parametrize("role", ["member", "other team", "finance", "auditor", "stranger"])
def test_only_a_lead_or_an_operator_requests_a_quota(world: World, role: str) -> None:
    with pytest.raises(NotAllowed):
        request_quota(world, actor=world.people[role])


def test_the_same_quota_cannot_be_requested_twice_while_it_waits(world: World) -> None:
    submission = request_quota(world)
    with rejected("already waits"):
        request_quota(world, 10)
    decisions.withdraw_submission(actor=world.vision.lead, submission=submission, now=world.now)
    assert request_quota(world, 10).state == "waiting"


@pytest.mark.parametrize(
    "changes",
    [{"guaranteed_gpus": -1}, {"guaranteed_gpus": "many"}, {"model": "other"}, {"state": "approved"}],
)
def test_an_approver_changes_only_the_fields_that_may_be_changed(
    world: World, changes: dict[str, Any]
) -> None:
    submission = request_quota(world)
    with pytest.raises(Invalid):
        decisions.approve_submission(
            actor=world.operator, submission=submission, now=world.now, changes=changes
        )
    submission.refresh_from_db()
    assert submission.state == "waiting"


def test_declining_needs_a_reason(world: World) -> None:
    with pytest.raises(Invalid):
        decisions.decline_submission(
            actor=world.operator, submission=request_quota(world), comment="  ", now=world.now
        )


def test_a_stranger_requests_membership_and_the_lead_decides(world: World) -> None:
    submission = submissions.request_membership(actor=world.stranger, team=world.vision.team, now=world.now)
    decisions.approve_submission(actor=world.vision.lead, submission=submission, now=world.now)
    assert Membership.objects.get(user=world.stranger).team == world.vision.team


def test_a_request_beyond_the_guarantee_is_refused_unless_it_asks_an_operator(world: World) -> None:
    # Vision is guaranteed 8 of the 16 H100, and the other teams are guaranteed 6. A reservation of 12 H100
    # would leave only 4 for the other teams.
    with rejected() as refused:
        reserve(world, units=6, hosts=2)
    assert refused.value.code == "window_eats_guarantees"
    submission = reserve(world, units=6, hosts=2, may_exceed_guarantee=True)
    assert isinstance(submission, Submission)
    with rejected():
        decisions.approve_submission(actor=world.operator, submission=submission, now=world.now)
    decisions.approve_submission(
        actor=world.operator, submission=submission, changes={"may_exceed_guarantee": True}, now=world.now
    )
    assert Reservation.objects.get().may_exceed_guarantee
