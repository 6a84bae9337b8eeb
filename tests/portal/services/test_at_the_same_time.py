"""Two people at once: one wins, the other is told, and nothing happens twice."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from portal.errors import Conflict
from portal.models import Approval, AuditEvent, Submission, User
from portal.services.approvals import decisions, effects, submissions
from portal.services.calendar import reservations
from portal.services.people import accounts
from scheduler import services as engine
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Quota, Reservation
from tests.world import H100, MONDAY, World, build_world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def committed(transactional_db: None) -> World:
    """The shared organisation, committed, so that threads see it."""
    return build_world(MONDAY)


def all_at_once(*verbs: Callable[[], Any]) -> list[Exception | None]:
    """Run each in a thread of its own, starting together; what each raised."""
    barrier = threading.Barrier(len(verbs))
    raised: list[Exception | None] = [None] * len(verbs)

    def run(place: int, verb: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            verb()
        except Conflict as problem:
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
    asked = waiting_quota(committed, committed.vision, 9)
    operators = [committed.operator, *(User.objects.create_user(f"op{n}", operator=True) for n in range(3))]

    def decide(number: int) -> Callable[[], Any]:
        mine = Submission.objects.get(pk=asked.pk)
        verb: Any = decisions.approve_submission if number % 2 else decisions.decline_submission
        return lambda: verb(actor=operators[number], submission=mine, comment="mine", now=committed.now)

    raised = all_at_once(*(decide(number) for number in range(4)))
    assert sum(problem is None for problem in raised) == 1
    assert Approval.objects.count() == 1
    assert AuditEvent.objects.filter(verb__in=("approve_submission", "decline_submission")).count() == 1


def test_two_quotas_approved_at_once_do_not_exceed_the_pool(committed: World) -> None:
    # 14 of 16 are guaranteed: either team may have 2 more, not both.
    asked = [waiting_quota(committed, committed.vision, 10), waiting_quota(committed, committed.language, 6)]
    raised = all_at_once(
        *(
            functools.partial(
                decisions.approve_submission, actor=committed.operator, submission=mine, now=committed.now
            )
            for mine in asked
        )
    )
    assert sum(problem is None for problem in raised) == 1
    total = sum(
        Quota.objects.filter(pool=committed.shared, model=H100).values_list("guaranteed_slots", flat=True)
    )
    assert total == 16 * SLOTS_PER_GPU
    assert Submission.objects.filter(state="waiting").count() == 1


def test_two_reservations_for_the_last_gpus_are_not_both_confirmed(committed: World) -> None:
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
    # Vision has 8, the others are guaranteed 6 of the 8 left: two may go beyond a guarantee, once.
    raised = all_at_once(reserve(committed.vision, 2), reserve(committed.vision, 2))
    assert sum(problem is None for problem in raised) == 1
    assert Reservation.objects.count() == 3


def changeable(world: World, **changes: Any) -> Reservation:
    """A reservation of vision's, large enough that time beyond its window waits for approval."""
    start = world.now + timedelta(days=1)
    given: dict[str, Any] = {
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
    row, answer = engine.confirm_reservation(**(given | changes))
    assert row is not None, answer
    return row


def changing(world: World, row: Reservation, **window: Any) -> Callable[[], Any]:
    """A change asked for by somebody who sees the reservation as it is now."""
    seen = Reservation.objects.select_related("pool", "project__team").get(pk=row.pk)
    return lambda: reservations.change_reservation(
        actor=world.vision.member, reservation=seen, now=world.now, **window
    )


def test_one_change_of_a_reservation_waits_however_many_ask_at_once(committed: World) -> None:
    row = changeable(committed)
    raised = all_at_once(*(changing(committed, row, end=row.end + timedelta(hours=n + 1)) for n in range(4)))
    assert sum(problem is None for problem in raised) == 1
    assert all("already waits" in str(problem) for problem in raised if problem is not None)
    assert Submission.objects.filter(kind="window_change", state="waiting").count() == 1


def test_a_second_change_of_a_reservation_is_refused_by_the_database_as_well(committed: World) -> None:
    row = changeable(committed)
    first = changing(committed, row, end=row.end + timedelta(hours=1))()
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
    assert isinstance(changing(committed, row, end=row.end + timedelta(hours=1))(), Submission)


def test_a_new_end_never_brings_back_the_start_from_before_a_move(committed: World) -> None:
    row = changeable(committed, units=1)
    longer = changing(committed, row, end=row.end + timedelta(hours=1))
    changing(committed, row, start=row.start + timedelta(hours=2))()
    with pytest.raises(
        Conflict, match="course was changed meanwhile: 2026-03-03 11:00 UTC to 2026-03-03 15:00 UTC"
    ):
        longer()
    fresh = Reservation.objects.get(pk=row.pk)
    assert (fresh.start, fresh.end) == (row.start + timedelta(hours=2), row.end + timedelta(hours=2))

    row = changeable(committed, units=1, name="other")
    raised = all_at_once(
        changing(committed, row, end=row.end + timedelta(hours=1)),
        changing(committed, row, start=row.start + timedelta(hours=2)),
    )
    assert sum(problem is None for problem in raised) == 1
    fresh = Reservation.objects.get(pk=row.pk)
    assert (fresh.start, fresh.end) in (
        (row.start, row.end + timedelta(hours=1)),
        (row.start + timedelta(hours=2), row.end + timedelta(hours=2)),
    )


def test_a_change_that_waited_does_not_undo_what_was_changed_meanwhile(committed: World) -> None:
    row = changeable(committed)
    waiting = changing(committed, row, end=row.end + timedelta(hours=2))()
    engine.change_reservation(
        row, start=row.start + timedelta(hours=3), end=row.end + timedelta(hours=3), now=committed.now
    )
    window = (row.start, row.end)
    effect = effects.approval_effect(waiting, committed.now)
    assert not effect["fits"] and "was changed meanwhile" in effect["sentence"]
    with pytest.raises(Conflict, match="was changed meanwhile"):
        decisions.approve_submission(actor=committed.operator, submission=waiting, now=committed.now)
    fresh = Reservation.objects.get(pk=row.pk)
    assert (fresh.start, fresh.end) == window
    waiting.refresh_from_db()
    assert waiting.state == "waiting", "nothing was decided"


def test_a_quota_change_and_a_wish_to_join_wait_once_however_many_ask_at_once(committed: World) -> None:
    newcomer = User.objects.create_user("newcomer")
    for ask in (
        lambda: waiting_quota(committed, committed.vision, 9),
        lambda: submissions.request_membership(actor=newcomer, team=committed.vision.team, now=committed.now),
    ):
        raised = all_at_once(*[ask] * 4)
        assert sum(problem is None for problem in raised) == 1, raised
    assert Submission.objects.filter(state="waiting").count() == 2


def test_the_last_two_operators_do_not_both_step_down(committed: World) -> None:
    other = User.objects.create_user("second", operator=True)
    people_at_once = [(committed.operator, other), (other, committed.operator)]
    all_at_once(
        *(
            functools.partial(accounts.change_user, actor=actor, user=user, operator=False, now=committed.now)
            for actor, user in people_at_once
        )
    )
    assert User.objects.filter(operator=True, is_active=True).count() == 1


def test_the_first_run_happens_once(transactional_db: None) -> None:
    def run(name: str) -> Callable[[], Any]:
        return lambda: accounts.first_run(
            organisation=name,
            time_zone="UTC",
            currency="EUR",
            username=name,
            email=f"{name}@example.org",
            password="correct horse battery staple",
            now=MONDAY,
        )

    raised = all_at_once(run("one"), run("two"), run("three"))
    assert sum(problem is None for problem in raised) == 1
    assert User.objects.filter(operator=True).count() == User.objects.count() == 1
