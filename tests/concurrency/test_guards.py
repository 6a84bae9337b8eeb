"""Test each invariant with a race.

A guard is the lock, check or constraint that protects an invariant. Each race runs with its guard, and again
without it to show that the guard is needed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from scheduler import services
from scheduler.coordination import leadership, locks
from scheduler.core.model.plan import Placement, Plan
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.planner import plan
from scheduler.cycle import apply as applying
from scheduler.cycle import core_values, engine, snapshot
from scheduler.cycle.apply import StaleEpoch, apply_plan
from scheduler.models import Allocation, BoundUnit, Quota, Reservation, Run, Workload
from scheduler.services import quotas, reservations
from scheduler.state.states import IllegalTransition, WorkloadState, change_state
from tests.concurrency.conftest import GUARDED, UNGUARDED, Meeting, race
from tests.fakes import FakeAgent
from tests.world import H100, World, queue_workload, units_of

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


def job(world: World, units: int = 1, **overrides: Any) -> Workload:
    fields: dict[str, Any] = {
        "kind": "job",
        "type": "training",
        "name": "a job",
        "pool": world.shared,
        "project": world.vision.project,
        "owner": world.vision.member,
        "units": units,
        "models_wanted": [H100],
        "max_runtime_seconds": 3600,
        "preemptible": True,
        "command": "true",
        "now": world.now,
        **overrides,
    }
    return queue_workload(**fields)


def planned(world: World, at: dt.datetime | None = None) -> tuple[Plan, Any]:
    taken = snapshot.take_snapshot(None, at or world.now)
    return plan(taken, core_values.epoch_seconds(at or world.now)), taken


# -- 1. a slot is held by at most one allocation at any instant ----------------------------------------------


def hold(world: World, workload: Workload, generation: int) -> Allocation:
    """Insert an allocation of alpha's first unit without any check by the application."""
    unit = units_of(world.hosts["alpha"])[0]
    run = Run.objects.create(
        workload=workload, attempt=1, host=world.hosts["alpha"], generation=generation, placed_at=world.now
    )
    return Allocation.objects.create(
        run=run,
        workload=workload,
        project=workload.project,
        unit=unit,
        slots=unit.slots,
        period=DateTimeTZRange(world.now, None),
    )


def test_two_workloads_cannot_hold_one_slot_and_only_the_constraint_prevents_it(world: World) -> None:
    first, second = job(world), job(world)
    hold(world, first, 1)
    with pytest.raises(IntegrityError, match="a_slot_is_held_once_at_any_instant"), transaction.atomic():
        hold(world, second, 2)
    with transaction.atomic():
        _as_owner("ALTER TABLE scheduler_allocation DROP CONSTRAINT a_slot_is_held_once_at_any_instant")
        hold(world, second, 2)
        assert Allocation.objects.count() == 2
        transaction.set_rollback(True)


def test_two_engines_with_the_same_epoch_start_nothing_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply one plan from two engines at the same time.

    Both pass the check of the leader's epoch. Each start is also checked under locks, so it happens once.
    """
    for _ in range(6):
        job(world, units=4)
    answer, taken = planned(world)
    assert answer.placements
    applied = race([lambda: apply_plan(answer, taken, world.now)] * 2)
    assert not [a for a in applied if isinstance(a, Exception)]
    done = [len(a.accepted) for a in applied if isinstance(a, applying.ApplyResult)]
    assert sum(done) == len(answer.placements)
    held = list(Allocation.objects.values_list("unit_id", flat=True))
    assert len(held) == len(set(held)) == 16


# -- 2. a gang starts on all its GPUs or on none -------------------------------------------------------------


def test_a_gang_does_not_start_if_one_of_its_gpus_was_taken_after_planning(world: World) -> None:
    gang = job(world, units=8, hosts=2, preemptible=True, max_runtime_seconds=600)
    other = job(world)
    Quota.objects.filter(team=world.vision.team).update(guaranteed_slots=16 * SLOTS_PER_GPU)
    answer, taken = planned(world)
    gang_placements = [p for p in answer.placements if p.workload == gang.pk]
    assert len(gang_placements) == 1 and len(gang_placements[0].units) == 16
    hold(world, other, 1)
    applied = apply_plan(Plan(answer.epoch, placements=tuple(gang_placements)), taken, world.now)
    assert len(applied.rejected) == 1
    gang.refresh_from_db()
    assert gang.state == "queued"
    assert (
        not Run.objects.filter(workload=gang).exists()
        and not Allocation.objects.filter(workload=gang).exists()
    )


def test_a_plan_is_accepted_partially(world: World) -> None:
    taken_meanwhile, fine = job(world), job(world)
    answer, taken = planned(world)
    services.cancel_workload(taken_meanwhile, now=world.now)
    applied = apply_plan(answer, taken, world.now)
    assert [p.workload for p in applied.accepted if isinstance(p, Placement)] == [fine.pk]
    assert [r.item.workload for r in applied.rejected if isinstance(r.item, Placement)] == [
        taken_meanwhile.pk
    ]


def test_only_the_check_under_lock_rejects_a_placement_on_a_host_cordoned_after_planning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(world)
    answer, taken = planned(world)
    for name in ("alpha", "beta"):
        services.cordon_host(world.hosts[name], reason="fan", now=world.now)
    assert apply_plan(answer, taken, world.now).accepted == []
    monkeypatch.setattr(applying.schedulable_hosts, "host_unschedulable_code", lambda *states: "")
    assert len(apply_plan(answer, taken, world.now).accepted) == 1


# -- the leader's epoch --------------------------------------------------------------------------------------


def test_only_the_epoch_fence_stops_a_plan_of_an_earlier_epoch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leadership.acquire_or_renew("first", world.now) is not None
    workload = job(world)
    answer, taken = planned(world)
    assert leadership.acquire_or_renew("second", world.now + SECOND) is None
    assert leadership.acquire_or_renew("second", world.now + 6 * SECOND) == answer.epoch + 1
    with pytest.raises(StaleEpoch):
        apply_plan(answer, taken, world.now + 7 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "queued" and not Run.objects.exists()

    real = locks.leader

    def unfenced() -> Any:
        row = real()
        row.epoch = answer.epoch
        return row

    monkeypatch.setattr(locks, "leader", unfenced)
    assert len(apply_plan(answer, taken, world.now + 7 * SECOND).accepted) == 1


def test_exactly_one_of_several_engines_becomes_leader(world: World) -> None:
    answers = race(
        [lambda name=f"engine {n}": leadership.acquire_or_renew(name, world.now) for n in range(4)]
    )  # type: ignore[misc]
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert sorted(answer is not None for answer in answers) == [False, False, False, True]


# -- reservations and guarantees under the pool's lock -----------------------------------------------------


def reserve_all_h100s(world: World) -> Callable[[], Any]:
    def confirm() -> Any:
        return services.confirm_reservation(
            owner=world.vision.lead,
            project=world.vision.project,
            pool=world.shared,
            name="all of it",
            units=8,
            hosts=2,
            models_wanted=[H100],
            start=world.now + 24 * HOUR,
            end=world.now + 32 * HOUR,
            may_exceed_guarantee=True,
            now=world.now,
        )

    return confirm


def meet_after_the_check(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, patience: float) -> None:
    real, meeting = getattr(module, name), Meeting(2, patience)

    def check_then_meet(*positional: Any, **named: Any) -> Any:
        answer = real(*positional, **named)
        meeting.wait()
        return answer

    monkeypatch.setattr(module, name, check_then_meet)


def test_only_the_pool_lock_prevents_reserving_one_window_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_after_the_check(monkeypatch, reservations, "check_window_in_snapshot", GUARDED)
    answers = race([reserve_all_h100s(world)] * 2)
    assert sorted(a[1].fits for a in answers) == [False, True]  # type: ignore[index]
    assert Reservation.objects.count() == 1
    Reservation.objects.all().delete()

    monkeypatch.setattr(locks, "pools", lambda ids: {})
    meet_after_the_check(monkeypatch, reservations, "check_window_in_snapshot", UNGUARDED)
    race([reserve_all_h100s(world)] * 2)
    assert Reservation.objects.count() == 2, "without the lock both are promised the same GPUs"


def test_only_the_pool_lock_keeps_guarantees_within_the_pool(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_to_nine(team: Any) -> Callable[[], bool]:
        def change() -> bool:
            return services.change_quota(
                team=team,
                pool=world.shared,
                model=H100,
                guaranteed_slots=9 * SLOTS_PER_GPU,
                borrow_limit_slots=None,
                now=world.now,
            )

        return change

    def reset() -> None:
        Quota.objects.filter(model=H100).update(guaranteed_slots=2 * SLOTS_PER_GPU)

    both = [raise_to_nine(world.vision.team), raise_to_nine(world.language.team)]
    reset()
    meet_after_the_check(monkeypatch, quotas, "guarantee_capacity", GUARDED)
    assert sorted(race(both)) == [False, True]  # type: ignore[type-var]
    reset()
    monkeypatch.setattr(locks, "pools", lambda ids: {})
    meet_after_the_check(monkeypatch, quotas, "guarantee_capacity", UNGUARDED)
    assert race(both) == [True, True], "without the lock 18 of 16 GPUs are guaranteed"


# -- states --------------------------------------------------------------------------------------------------


def test_exactly_one_of_many_concurrent_state_changes_succeeds(world: World) -> None:
    workload = job(world)

    def end() -> bool:
        fresh = Workload.objects.get(pk=workload.pk)
        return change_state(
            fresh, "state", old=WorkloadState.QUEUED, new=WorkloadState.ENDED, outcome="cancelled"
        )

    assert sorted(race([end] * 6)) == [False] * 5 + [True]  # type: ignore[type-var]
    with pytest.raises(IllegalTransition):
        change_state(workload, "state", old=WorkloadState.ENDED, new=WorkloadState.QUEUED)


def test_a_cancel_concurrent_with_a_start_leaves_no_unit_allocated(world: World) -> None:
    for _ in range(5):
        workload = job(world)
        both: list[Callable[[], Any]] = [
            partial(services.cancel_workload, workload, now=world.now),
            partial(engine.run_cycle, "e", world.now),
        ]
        race(both)
        workload.refresh_from_db()
        assert workload.state in ("ended", "stopping")
        for name in ("alpha", "beta"):
            agent = FakeAgent.of(world.hosts[name])
            for step in (1, 2):
                agent.sync(world.now + step * SECOND)
        workload.refresh_from_db()
        assert (workload.state, workload.outcome) == ("ended", "cancelled")
        assert not Allocation.objects.filter(period__upper_inf=True).exists()


def test_a_join_token_can_be_redeemed_only_once(world: World) -> None:
    token = services.issue_join_token(world.hosts["alpha"], now=world.now)

    def redeem(instance: str) -> Callable[[], Any]:
        return lambda: services.redeem_join_token(
            token=token, host_name="alpha", instance=instance, boot_id="b", now=world.now
        )

    answers = race([redeem(f"agent {n}") for n in range(4)])
    refused = [a for a in answers if isinstance(a, services.OperationRejected)]
    assert len(refused) == 3 and {r.code for r in refused} == {"join_token_spent"}


# -- guards of the database ----------------------------------------------------------------------------------


def test_only_the_trigger_keeps_a_closed_allocation_unchanged(world: World) -> None:
    held = hold(world, job(world), 1)
    row = Allocation.objects.filter(pk=held.pk)
    row.update(period=DateTimeTZRange(world.now, world.now + HOUR))
    for change in (
        lambda: row.update(period=DateTimeTZRange(world.now, world.now + 2 * HOUR)),
        lambda: row.update(end_code="finished"),
        lambda: row.delete(),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()
    with transaction.atomic():
        _as_owner("ALTER TABLE scheduler_allocation DISABLE TRIGGER allocations_are_history")
        assert row.update(period=DateTimeTZRange(world.now, world.now + 2 * HOUR)) == 1
        transaction.set_rollback(True)


def test_only_the_trigger_keeps_other_workloads_off_bound_slots(world: World) -> None:
    reservation, _ = reserve_all_h100s(world)()
    unit = units_of(world.hosts["alpha"])[0]
    stranger = job(world, project=world.language.project, owner=world.language.member)
    BoundUnit.objects.create(
        reservation=reservation,
        unit=unit,
        slots=unit.slots,
        period=DateTimeTZRange(world.now, world.now + HOUR),
    )
    with pytest.raises(IntegrityError, match="bound to another reservation"), transaction.atomic():
        hold(world, stranger, 1)
    with transaction.atomic():
        _as_owner("ALTER TABLE scheduler_allocation DISABLE TRIGGER no_stranger_on_bound_slots")
        hold(world, stranger, 1)
        transaction.set_rollback(True)


def test_only_the_trigger_prevents_binding_of_held_slots(world: World) -> None:
    reservation, _ = reserve_all_h100s(world)()
    held = hold(world, job(world), 1)
    period = DateTimeTZRange(world.now, world.now + HOUR)
    with pytest.raises(IntegrityError, match="held by work outside"), transaction.atomic():
        BoundUnit.objects.create(reservation=reservation, unit=held.unit, slots=held.slots, period=period)
    with transaction.atomic():
        _as_owner("ALTER TABLE scheduler_boundunit DISABLE TRIGGER bind_only_free_slots")
        BoundUnit.objects.create(reservation=reservation, unit=held.unit, slots=held.slots, period=period)
        transaction.set_rollback(True)


def _as_owner(statement: str) -> None:
    """Execute the statement in the current transaction with the rights of the tables' owner."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE NONE")
        cursor.execute(statement)
