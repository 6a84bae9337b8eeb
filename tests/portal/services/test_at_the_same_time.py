"""Two people at once: one wins, the other is told, and nothing happens twice."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from portal.errors import Conflict
from portal.models import Approval, AuditEvent, Submission, User
from portal.services import approvals, people, reservations
from scheduler.core.model import SLOTS_PER_GPU
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
    return approvals.request_quota_change(
        actor=team.lead, team=team.team, pool=world.shared, model=H100, guaranteed_gpus=gpus, now=world.now
    )


def test_a_submission_is_decided_once(committed: World) -> None:
    asked = waiting_quota(committed, committed.vision, 9)
    operators = [committed.operator, *(User.objects.create_user(f"op{n}", operator=True) for n in range(3))]

    def decide(number: int) -> Callable[[], Any]:
        mine = Submission.objects.get(pk=asked.pk)
        verb: Any = approvals.approve_submission if number % 2 else approvals.decline_submission
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
                approvals.approve_submission, actor=committed.operator, submission=mine, now=committed.now
            )
            for mine in asked
        )
    )
    assert sum(problem is None for problem in raised) == 1
    total = sum(Quota.objects.filter(pool=committed.shared, model=H100).values_list("guaranteed_slots", flat=True))
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


def test_the_last_two_operators_do_not_both_step_down(committed: World) -> None:
    other = User.objects.create_user("second", operator=True)
    people_at_once = [(committed.operator, other), (other, committed.operator)]
    all_at_once(
        *(
            functools.partial(people.change_user, actor=actor, user=user, operator=False, now=committed.now)
            for actor, user in people_at_once
        )
    )
    assert User.objects.filter(operator=True, is_active=True).count() == 1


def test_the_first_run_happens_once(transactional_db: None) -> None:
    def run(name: str) -> Callable[[], Any]:
        return lambda: people.first_run(
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
