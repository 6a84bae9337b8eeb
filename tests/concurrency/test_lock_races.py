"""Test races for reservations, array tasks, queue limits and budget gates.

The pool's lock guards changed and recurring windows. The array's lock guards its tasks.
The submitter's lock guards the queue limits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import date, time, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, transaction

from portal.models import User
from scheduler import services
from scheduler.coordination import locks
from scheduler.cycle import engine, plan_checks
from scheduler.models import JobArray, Pool, Reservation, Workload
from scheduler.queue import queue_limits
from scheduler.requests import WorkloadRequest
from scheduler.services import budget_gates, reservations
from scheduler.services.recurrence import Recurrence, occurrences
from scheduler.sweeps import dependency_release
from tests.concurrency.conftest import GUARDED, UNGUARDED, Meeting, race
from tests.world import H100, World, queue_workload

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
EVERY_DAY = Recurrence(frozenset(range(7)), time(9), time(18), "UTC", date(2026, 3, 3), date(2026, 3, 6))


def meet_after(monkeypatch: pytest.MonkeyPatch, name: str, patience: float) -> None:
    real, meeting = getattr(reservations, name), Meeting(2, patience)

    def check_then_meet(*given: Any, **more: Any) -> Any:
        answer = real(*given, **more)
        meeting.wait()
        return answer

    monkeypatch.setattr(reservations, name, check_then_meet)


def all_of_it(world: World) -> dict[str, Any]:
    return {
        "owner": world.vision.lead,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "all of it",
        "units": 8,
        "hosts": 2,
        "models_wanted": [H100],
        "may_exceed_guarantee": True,
        "now": world.now,
    }


def test_only_the_pool_lock_prevents_reserving_recurring_windows_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = occurrences(EVERY_DAY, world.now, 100)

    def confirm() -> Any:
        return services.confirm_series(recurrence=EVERY_DAY, windows=windows, **all_of_it(world))

    meet_after(monkeypatch, "check_windows", GUARDED)
    race([confirm] * 2)
    assert Reservation.objects.count() == 4
    monkeypatch.setattr(locks, "pools", lambda ids: {})
    Reservation.objects.all().delete()
    meet_after(monkeypatch, "check_windows", UNGUARDED)
    race([confirm] * 2)
    assert Reservation.objects.count() == 8, "without the lock both are promised the same GPUs"


def test_only_the_pool_lock_prevents_moving_two_windows_into_the_same_free_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = world.now + 100 * HOUR

    def two() -> list[Callable[[], Any]]:
        Reservation.objects.all().delete()
        rows = []
        for day in (24, 48):
            start = world.now + day * HOUR
            row, _ = services.confirm_reservation(start=start, end=start + 8 * HOUR, **all_of_it(world))
            assert row is not None
            rows.append(row)
        return [
            lambda row=row: services.change_reservation(row, start=later, end=later + 8 * HOUR, now=world.now)  # type: ignore[misc]
            for row in rows
        ]

    both = two()
    meet_after(monkeypatch, "check_change", GUARDED)
    race(both)
    assert Reservation.objects.filter(start=later).count() == 1
    monkeypatch.undo()
    both = two()
    monkeypatch.setattr(locks, "pools", lambda ids: {})
    meet_after(monkeypatch, "check_change", UNGUARDED)
    race(both)
    assert Reservation.objects.filter(start=later).count() == 2, "without the lock both get the same GPUs"


def sweep_of(world: World) -> WorkloadRequest:
    return WorkloadRequest(
        kind="job",
        type="training",
        name="sweep",
        pool=world.shared,
        project=world.vision.project,
        units=1,
        max_runtime_seconds=600,
    )


def test_concurrent_releases_never_exceed_the_limit_of_an_array(world: World) -> None:
    services.queue_array(
        sweep_of(world),
        indices=range(40),
        words="0-39",
        most_at_once=4,
        owner=world.vision.lead,
        now=world.now,
    )
    tasks = JobArray.objects.get().tasks
    for _ in range(5):
        for task in tasks.filter(held_back=False, state="queued").order_by("array_index")[:3]:
            Workload.objects.filter(pk=task.pk).update(state="ended", outcome="finished")
        race([lambda: dependency_release.release_dependents(world.now)] * 4)
        assert tasks.filter(held_back=False, state="queued").count() == 4


def test_only_the_submitters_lock_keeps_concurrent_submissions_within_the_queue_limits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pool.objects.update(most_waiting_per_user=50, most_waiting_per_team=100)
    world.shared.refresh_from_db()

    def array_of(owner: User) -> Callable[[], Any]:
        return lambda: services.queue_array(
            sweep_of(world),
            indices=range(30),
            words="0-29",
            most_at_once=None,
            owner=owner,
            now=world.now,
        )

    def count_then_meet(patience: float) -> None:
        meeting = Meeting(2, patience)

        def meet(*given: Any, **more: Any) -> Any:
            answer = real(*given, **more)
            meeting.wait()
            return answer

        monkeypatch.setattr(queue_limits, "queued_counts", meet)

    real = queue_limits.queued_counts
    count_then_meet(GUARDED)
    answers = race([array_of(world.vision.member)] * 2)  # 60 workloads of one person, whose limit is 50
    refused = [answer for answer in answers if isinstance(answer, services.OperationRejected)]
    assert [(rejection.code, rejection.numbers["of"]) for rejection in refused] == [
        ("too_many_waiting", "person")
    ]
    assert Workload.objects.count() == 30, "an array is queued as a whole or not at all"

    people = [User.objects.create_user(f"one of many {number}") for number in range(4)]
    monkeypatch.setattr(queue_limits, "queued_counts", real)
    answers = race(
        [array_of(person) for person in people]
    )  # 120 more workloads of one team, which may queue 70 more
    refused = [answer for answer in answers if isinstance(answer, services.OperationRejected)]
    assert [rejection.numbers["of"] for rejection in refused] == ["team", "team"]
    assert Workload.objects.count() == 90

    Workload.objects.all().delete()
    monkeypatch.setattr(locks, "submitters", lambda *, team, person: None)
    count_then_meet(UNGUARDED)
    race([array_of(world.vision.member)] * 2)
    assert Workload.objects.count() == 60, (
        "without the lock, both count the queue before either has added its workloads"
    )


def test_a_submission_does_not_wait_for_the_locks_of_the_engine(world: World) -> None:
    """Submit while the engine's locks on the pool and its workloads are held."""

    def submit() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
        return queue_workload(
            kind="job",
            type="training",
            name="a job",
            pool=world.shared,
            project=world.vision.project,
            owner=world.vision.member,
            units=1,
            max_runtime_seconds=600,
            now=world.now,
        )

    with transaction.atomic():
        locks.leader()
        locks.pools([world.shared.pk])
        locks.workloads(Workload.objects.values_list("pk", flat=True))
        assert isinstance(race([submit])[0], Workload)


@pytest.mark.parametrize("guarded", [True, False])
def test_only_the_leader_lock_prevents_a_start_after_a_budget_gate_has_closed(
    world: World, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Close the gate after the plan was checked against the gates and before the plan commits."""
    workload = queue_workload(
        kind="job",
        type="training",
        name="a job",
        pool=world.shared,
        project=world.vision.project,
        owner=world.vision.member,
        units=1,
        models_wanted=[H100],
        max_runtime_seconds=600,
        now=world.now,
    )
    meeting, real = Meeting(2, GUARDED if guarded else UNGUARDED), plan_checks.PlanChecks.placement_problem
    closed = threading.Event()
    if not guarded:
        monkeypatch.setattr(budget_gates, "locks", SimpleNamespace(leader=lambda: None))

    def checked(self: Any, placement: Any) -> str:
        why = real(self, placement)
        meeting.wait()
        closed.wait(GUARDED if guarded else UNGUARDED)
        return why

    monkeypatch.setattr(plan_checks.PlanChecks, "placement_problem", checked)

    def close() -> str:
        meeting.wait()
        services.close_budget_gate(
            action="refuse_new", numbers={}, until=world.now + HOUR, now=world.now, team=world.vision.team
        )
        closed.set()
        return Workload.objects.get(pk=workload.pk).state

    _, then = race([lambda: engine.run_cycle("test", world.now), close])
    assert Workload.objects.get(pk=workload.pk).state == "placed"
    assert then == ("placed" if guarded else "queued"), (
        "without the lock, the workload starts after the gate has closed"
    )
