"""Test concurrent requests: one succeeds, the other is refused, and nothing happens twice."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from portal.models import Approval, AuditEvent, Submission, User
from portal.services.approvals import decisions, effects, submissions
from portal.services.calendar import reservations
from portal.services.people import accounts
from portal.services.people.setup_code import new_setup_code
from scheduler import services as scheduling
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.rejection import OperationRejected
from scheduler.models import Quota, Reservation
from tests.portal.rejections import rejected
from tests.world import H100, MONDAY, World, build_world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def committed(transactional_db: None) -> World:
    """Commit the shared organisation, so that threads see it."""
    return build_world(MONDAY)


def run_concurrently(*verbs: Callable[[], Any]) -> list[Exception | None]:
    """Run each call in its own thread, with a common start. Return the OperationRejected of each, or None."""
    barrier = threading.Barrier(len(verbs))
    raised: list[Exception | None] = [None] * len(verbs)

    def run(place: int, verb: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            verb()
        except OperationRejected as problem:
            raised[place] = problem
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=each) for each in enumerate(verbs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def waiting_quota(world: World, team: Any, gpus: int) -> Submission:
    return submissions.request_quota_change(
        actor=team.lead, team=team.team, pool=world.shared, model=H100, guaranteed_gpus=gpus, now=world.now
    )


def test_a_submission_is_decided_once(committed: World) -> None:
    submission = waiting_quota(committed, committed.vision, 9)
    operators = [committed.operator, *(User.objects.create_user(f"op{n}", operator=True) for n in range(3))]

    def decide(number: int) -> Callable[[], Any]:
        mine = Submission.objects.get(pk=submission.pk)
        verb: Any = decisions.approve_submission if number % 2 else decisions.decline_submission
        return lambda: verb(actor=operators[number], submission=mine, comment="mine", now=committed.now)

    raised = run_concurrently(*(decide(number) for number in range(4)))
    assert sum(problem is None for problem in raised) == 1
    assert Approval.objects.count() == 1
    assert AuditEvent.objects.filter(verb__in=("approve_submission", "decline_submission")).count() == 1


def test_two_quotas_approved_concurrently_do_not_exceed_the_pool(committed: World) -> None:
    # 14 of 16 GPUs are guaranteed. One of the two teams can get 2 more, but not both.
    requests = [
        waiting_quota(committed, committed.vision, 10),
        waiting_quota(committed, committed.language, 6),
    ]
    raised = run_concurrently(
        *(
            functools.partial(
                decisions.approve_submission, actor=committed.operator, submission=mine, now=committed.now
            )
            for mine in requests
        )
    )
    assert sum(problem is None for problem in raised) == 1
    total = sum(
        Quota.objects.filter(pool=committed.shared, model=H100).values_list("guaranteed_slots", flat=True)
    )
    assert total == 16 * SLOTS_PER_GPU
    assert Submission.objects.filter(state="waiting").count() == 1


def test_two_concurrent_reservations_for_the_last_gpus_are_not_both_confirmed(committed: World) -> None:
    start = committed.now + timedelta(days=1)

    def reserve(team: Any, gpus: int) -> Callable[[], Any]:
        return lambda: reservations.request_reservation(
            actor=team.member,
            project=team.project,
            pool=committed.shared,
            name="mine",
            units=gpus,
            models=[H100],
            start=start,
            end=start + timedelta(hours=1),
            now=committed.now,
        )

    assert isinstance(reserve(committed.vision, 4)(), Reservation)
    assert isinstance(reserve(committed.vision, 4)(), Reservation)
    # Vision has reserved its guaranteed 8 of 16 GPUs, and the other teams are guaranteed 6. Two GPUs are left
    # for requests beyond the guarantee, so only one of the two requests fits.
    raised = run_concurrently(reserve(committed.vision, 2), reserve(committed.vision, 2))
    assert sum(problem is None for problem in raised) == 1
    assert Reservation.objects.count() == 3


def changeable(world: World, **changes: Any) -> Reservation:
    """Create a reservation of vision that is so large that an extension needs approval."""
    start = world.now + timedelta(days=1)
    fields: dict[str, Any] = {
        "owner": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "course",
        "units": 8,
        "models_wanted": [H100],
        "start": start,
        "end": start + timedelta(hours=4),
        "now": world.now,
    }
    row, answer = scheduling.confirm_reservation(**(fields | changes))
    assert row is not None, answer
    return row


def change_request(world: World, row: Reservation, **window: Any) -> Callable[[], Any]:
    """Return a call that requests a change of the reservation in its current state."""
    seen = Reservation.objects.select_related("pool", "project__team").get(pk=row.pk)
    return lambda: reservations.change_reservation(
        actor=world.vision.member, reservation=seen, now=world.now, **window
    )


def test_only_one_change_of_a_reservation_waits_after_concurrent_requests(committed: World) -> None:
    row = changeable(committed)
    raised = run_concurrently(
        *(change_request(committed, row, end=row.end + timedelta(hours=n + 1)) for n in range(4))
    )
    assert sum(problem is None for problem in raised) == 1
    refusals = [problem for problem in raised if problem is not None]
    assert {getattr(problem, "code", "") for problem in refusals} == {"window_change_waits"}
    assert Submission.objects.filter(kind="window_change", state="waiting").count() == 1


def test_the_database_refuses_a_second_waiting_change_of_a_reservation(committed: World) -> None:
    row = changeable(committed)
    first = change_request(committed, row, end=row.end + timedelta(hours=1))()
    with pytest.raises(IntegrityError, match="one_change_of_a_reservation_waits"), transaction.atomic():
        Submission.objects.create(
            kind="window_change",
            team=first.team,
            author=first.author,
            payload={},
            reservation=row,
            created_at=committed.now,
        )
    decisions.withdraw_submission(actor=committed.vision.member, submission=first, now=committed.now)
    assert isinstance(change_request(committed, row, end=row.end + timedelta(hours=1))(), Submission)


def test_a_change_of_the_end_does_not_undo_a_move_of_the_reservation(committed: World) -> None:
    row = changeable(committed, units=1)
    longer = change_request(committed, row, end=row.end + timedelta(hours=1))
    change_request(committed, row, start=row.start + timedelta(hours=2))()
    with rejected("course was changed meanwhile: 2026-03-03 11:00 UTC to 2026-03-03 15:00 UTC"):
        longer()
    fresh = Reservation.objects.get(pk=row.pk)
    assert (fresh.start, fresh.end) == (row.start + timedelta(hours=2), row.end + timedelta(hours=2))

    row = changeable(committed, units=1, name="other")
    raised = run_concurrently(
        change_request(committed, row, end=row.end + timedelta(hours=1)),
        change_request(committed, row, start=row.start + timedelta(hours=2)),
    )
    assert sum(problem is None for problem in raised) == 1
    fresh = Reservation.objects.get(pk=row.pk)
    assert (fresh.start, fresh.end) in (
        (row.start, row.end + timedelta(hours=1)),
        (row.start + timedelta(hours=2), row.end + timedelta(hours=2)),
    )


def test_a_waiting_change_is_refused_if_the_reservation_changed_meanwhile(committed: World) -> None:
    row = changeable(committed)
    waiting = change_request(committed, row, end=row.end + timedelta(hours=2))()
    scheduling.change_reservation(
        row, start=row.start + timedelta(hours=3), end=row.end + timedelta(hours=3), now=committed.now
    )
    window = (row.start, row.end)
    effect = effects.approval_effect(waiting, committed.now)
    assert not effect["fits"] and "was changed meanwhile" in effect["sentence"]
    with rejected("was changed meanwhile"):
        decisions.approve_submission(actor=committed.operator, submission=waiting, now=committed.now)
    fresh = Reservation.objects.get(pk=row.pk)
    assert (fresh.start, fresh.end) == window
    waiting.refresh_from_db()
    assert waiting.state == "waiting", "the request stays undecided"


def test_concurrent_requests_for_a_quota_or_a_membership_create_one_each(committed: World) -> None:
    newcomer = User.objects.create_user("newcomer")
    for ask in (
        lambda: waiting_quota(committed, committed.vision, 9),
        lambda: submissions.request_membership(actor=newcomer, team=committed.vision.team, now=committed.now),
    ):
        raised = run_concurrently(*[ask] * 4)
        assert sum(problem is None for problem in raised) == 1, raised
    assert Submission.objects.filter(state="waiting").count() == 2


def test_the_last_two_operators_cannot_both_resign(committed: World) -> None:
    other = User.objects.create_user("second", operator=True)
    people_at_once = [(committed.operator, other), (other, committed.operator)]
    run_concurrently(
        *(
            functools.partial(accounts.change_user, actor=actor, user=user, operator=False, now=committed.now)
            for actor, user in people_at_once
        )
    )
    assert User.objects.filter(operator=True, is_active=True).count() == 1


def test_the_first_run_setup_happens_once(transactional_db: None) -> None:
    code = new_setup_code(MONDAY) or ""

    def run(name: str) -> Callable[[], Any]:
        return lambda: accounts.first_run(
            organisation=name,
            time_zone="UTC",
            currency="EUR",
            username=name,
            email=f"{name}@example.org",
            password="correct horse battery staple",
            setup_code=code,
            now=MONDAY,
        )

    raised = run_concurrently(run("one"), run("two"), run("three"))
    assert sum(problem is None for problem in raised) == 1
    assert User.objects.filter(operator=True).count() == User.objects.count() == 1
