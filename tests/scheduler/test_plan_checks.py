"""Test that applying a plan rejects the parts that became invalid because rows changed after planning.

Most tests also apply the plan without the check to show that the check is needed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from scheduler import services
from scheduler.coordination import leadership
from scheduler.core.model.plan import Eviction, Placement, Plan
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.planner import plan
from scheduler.cycle import core_values, engine, plan_checks, snapshot, snapshot_rows
from scheduler.cycle.apply import ApplyResult, StaleEpoch, apply_plan
from scheduler.models import Allocation, BoundUnit, Decision, Pool, Quota, Reservation, Run, Workload
from tests.fakes import FakeAgent
from tests.world import H100, World, queue_workload, units_of, world_fixture

SECOND, HOUR = dt.timedelta(seconds=1), dt.timedelta(hours=1)


def job(world: World, **overrides: Any) -> Workload:
    fields: dict[str, Any] = {
        "kind": "job",
        "type": "training",
        "name": "a job",
        "pool": world.shared,
        "project": world.vision.project,
        "owner": world.vision.member,
        "units": 1,
        "models_wanted": [H100],
        "max_runtime_seconds": 3600,
        "preemptible": True,
        "command": "true",
        "now": world.now,
        **overrides,
    }
    return queue_workload(**fields)


def reserve(world: World, start: dt.datetime, **overrides: Any) -> Reservation:
    fields: dict[str, Any] = {
        "owner": world.vision.lead,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "course",
        "units": 2,
        "models_wanted": [H100],
        "start": start,
        "end": start + 4 * HOUR,
        "now": world.now,
        **overrides,
    }
    reservation, answer = services.confirm_reservation(**fields)
    assert reservation is not None, answer
    return reservation


def planned(world: World, at: dt.datetime | None = None) -> tuple[Plan, Snapshot]:
    taken = snapshot.take_snapshot(None, at or world.now)
    return plan(taken, core_values.epoch_seconds(at or world.now)), taken


def refusals(applied: ApplyResult, kind: type) -> list[str]:
    return [r.problem for r in applied.rejected if isinstance(r.item, kind)]


# -- work that would start -----------------------------------------------------------------------------------


def cut_guarantee(world: World, workload: Workload) -> None:
    services.change_quota(
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_slots=0,
        borrow_limit_slots=0,
        now=world.now,
    )


def cut_borrowing(world: World, workload: Workload) -> None:
    Quota.objects.filter(team=world.vision.team).update(borrow_limit_slots=0)


def take_quota_away(world: World, workload: Workload) -> None:
    Quota.objects.filter(team=world.vision.team).delete()


def use_up_the_hours(world: World, workload: Workload) -> None:
    """Mark the team's GPU-hours as used up. The quota then refuses every start."""
    Quota.objects.filter(team=world.vision.team).update(
        hours_slot_seconds=1, when_used_up="refuse", hours_used_up=True, hours_until=world.now + HOUR
    )


def close_gate_of_project(world: World, workload: Workload) -> None:
    services.close_budget_gate(
        action="refuse_new", numbers={}, until=world.now + HOUR, now=world.now, project=world.vision.project
    )


def close_gate(world: World, workload: Workload) -> None:
    services.close_budget_gate(
        action="refuse_new", numbers={}, until=world.now + HOUR, now=world.now, team=world.vision.team
    )


def change_pool(world: World, workload: Workload) -> None:
    Pool.objects.filter(pk=world.shared.pk).update(most_gpus_per_workload=1)


def extend_runtime(world: World, workload: Workload) -> None:
    services.extend_workload(workload, seconds=3600, now=world.now)


def request_more_units(world: World, workload: Workload) -> None:
    Workload.objects.filter(pk=workload.pk).update(units=2)


def back_off(world: World, workload: Workload) -> None:
    Workload.objects.filter(pk=workload.pk).update(not_before=world.now + HOUR)


def start_another_of_the_team(world: World, workload: Workload) -> None:
    other = job(world)
    unit = units_of(world.hosts["beta"])[7]
    run = Run.objects.create(
        workload=other, attempt=1, host=world.hosts["beta"], generation=99, placed_at=world.now
    )
    Allocation.objects.create(
        run=run, workload=other, project=other.project, unit=unit, slots=unit.slots, period=(world.now, None)
    )
    Workload.objects.filter(pk=other.pk).update(state="placed", attempt=1)


def announce_maintenance(world: World, workload: Workload) -> None:
    for name in ("alpha", "beta"):
        services.set_maintenance(
            world.hosts[name], start=world.now + HOUR / 2, end=world.now + HOUR, reason="fan", now=world.now
        )


def move_hosts_to_another_pool(world: World, workload: Workload) -> None:
    for name in ("alpha", "beta"):
        world.hosts[name].pool = world.static
        world.hosts[name].save()


@pytest.mark.parametrize(
    "change",
    [
        cut_guarantee,
        cut_borrowing,
        take_quota_away,
        use_up_the_hours,
        close_gate,
        close_gate_of_project,
        change_pool,
        extend_runtime,
        request_more_units,
        back_off,
        start_another_of_the_team,
        announce_maintenance,
        move_hosts_to_another_pool,
    ],
)
def test_only_the_plan_check_rejects_a_placement_that_is_no_longer_allowed(
    world: World, change: Callable[[World, Workload], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, other = (
        job(world),
        job(world, project=world.language.project, owner=world.language.member, max_runtime_seconds=600),
    )
    answer, taken = planned(world)
    change(world, workload)
    if change not in (change_pool, move_hosts_to_another_pool):  # these changes affect the whole pool
        unaffected = Plan(
            answer.epoch, placements=tuple(p for p in answer.placements if p.workload == other.pk)
        )
        assert len(unaffected.placements) == 1
    applied = apply_plan(answer, taken, world.now)
    placed = {p.workload for p in applied.accepted if isinstance(p, Placement)}
    assert workload.pk not in placed and refusals(applied, Placement)[0]
    if change not in (change_pool, move_hosts_to_another_pool):
        assert placed == {other.pk}
    workload.refresh_from_db()
    assert workload.state == "queued" and not Run.objects.filter(workload=workload).exists()

    monkeypatch.setattr(plan_checks.PlanChecks, "placement_problem", lambda self, placement: "")
    again = apply_plan(answer, taken, world.now)
    assert workload.pk in {p.workload for p in again.accepted if isinstance(p, Placement)}


def test_a_team_that_may_no_longer_borrow_still_gets_its_guarantee(world: World) -> None:
    within = job(world, project=world.robotics.project, owner=world.robotics.member, units=2)
    above = job(world, project=world.robotics.project, owner=world.robotics.member)
    answer, taken = planned(world)
    assert len(answer.placements) == 2
    services.close_budget_gate(
        action="stop_borrowing", numbers={}, until=world.now + HOUR, now=world.now, team=world.robotics.team
    )
    applied = apply_plan(answer, taken, world.now)
    assert [p.workload for p in applied.accepted if isinstance(p, Placement)] == [within.pk]
    assert [r.item.workload for r in applied.rejected if isinstance(r.item, Placement)] == [above.pk]


def test_only_preemptible_work_starts_if_it_would_overlap_a_reservation_confirmed_after_planning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, goes = (
        job(world, preemptible=False, max_runtime_seconds=14_400),
        job(world, max_runtime_seconds=14_400),
    )
    answer, taken = planned(world)
    reserve(world, world.now + HOUR, project=world.language.project, owner=world.language.lead)
    applied = apply_plan(answer, taken, world.now)
    assert [p.workload for p in applied.accepted if isinstance(p, Placement)] == [goes.pk]
    assert "confirmed meanwhile" in refusals(applied, Placement)[0]
    monkeypatch.setattr(plan_checks.PlanChecks, "placement_problem", lambda self, placement: "")
    assert [
        p.workload for p in apply_plan(answer, taken, world.now).accepted if isinstance(p, Placement)
    ] == [stays.pk]


def test_work_inside_a_cancelled_reservation_does_not_start_on_its_units(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reservation = reserve(world, world.now + SECOND)
    at = world.now + 2 * SECOND
    engine.run_cycle("test", at)
    assert BoundUnit.objects.filter(reservation=reservation).count() == 2
    inside = job(world, reservation=reservation)
    answer, taken = planned(world, at)
    assert [p.workload for p in answer.placements] == [inside.pk]
    Reservation.objects.filter(pk=reservation.pk).update(state="cancelled")
    assert "no longer open" in refusals(apply_plan(answer, taken, at), Placement)[0]
    monkeypatch.setattr(plan_checks.PlanChecks, "placement_problem", lambda self, placement: "")
    assert len(apply_plan(answer, taken, at).accepted) == 1


def test_work_starts_inside_a_reservation_that_the_same_plan_binds(world: World) -> None:
    reservation = reserve(world, world.now + SECOND)
    at = world.now + 2 * SECOND
    inside = job(world, reservation=reservation)
    answer, taken = planned(world, at)
    assert answer.bindings and [p.workload for p in answer.placements] == [inside.pk]
    applied = apply_plan(answer, taken, at)
    assert [rejected.problem for rejected in applied.rejected] == []
    assert Allocation.objects.get(workload=inside).reservation_id == reservation.pk


def test_work_does_not_start_inside_a_reservation_whose_binding_was_rejected(world: World) -> None:
    reservation = reserve(world, world.now + SECOND)
    at = world.now + 2 * SECOND
    inside = job(world, reservation=reservation)
    answer, taken = planned(world, at)
    Reservation.objects.filter(pk=reservation.pk).update(start=at + HOUR)
    assert "no longer has these units" in refusals(apply_plan(answer, taken, at), Placement)[0]
    inside.refresh_from_db()
    assert inside.state == "queued" and not BoundUnit.objects.exists()


def test_a_reservation_moved_after_planning_is_not_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reservation = reserve(world, world.now + SECOND)
    at = world.now + 2 * SECOND
    answer, taken = planned(world, at)
    assert answer.bindings
    Reservation.objects.filter(pk=reservation.pk).update(start=at + HOUR)
    assert apply_plan(answer, taken, at).rejected[0].problem == "the reservation was moved to a later time"
    assert not BoundUnit.objects.exists()
    monkeypatch.setattr(plan_checks.PlanChecks, "binding_problem", lambda self, reservation: "")
    assert len(apply_plan(answer, taken, at).accepted) == 1


# -- work that would be evicted ----------------------------------------------------------------------------


@dataclass
class Crowd:
    """A full pool. Robotics has borrowed all 16 H100s, and the plan evicts one of its jobs for vision.

    The waiting workload of vision claims the 8 H100s of vision's guarantee.
    """

    claimant: Workload
    victim: Workload
    answer: Plan
    taken: Snapshot
    at: dt.datetime


def write_crowd(world: World) -> Crowd:
    """Return the full pool, planned but not applied."""
    Pool.objects.filter(pk=world.shared.pk).update(minimum_runtime_seconds=0)
    robotics = {"project": world.robotics.project, "owner": world.robotics.member}
    borrowers = [job(world, units=8, max_runtime_seconds=24 * 3600, **robotics) for _ in range(2)]
    engine.run_cycle("test", world.now)
    for name in ("alpha", "beta"):
        agent = FakeAgent.of(world.hosts[name])
        for step in (1, 2):
            agent.sync(world.now + step * SECOND)
    at = world.now + 60 * SECOND
    claimant = job(world, units=8, preemptible=False, now=at)
    answer, taken = planned(world, at)
    assert [e.for_workload for e in answer.evictions] == [claimant.pk]
    victim = next(w for w in borrowers if w.pk == answer.evictions[0].workload)
    return Crowd(claimant, victim, answer, taken, at)


crowd = world_fixture(write_crowd)


def withdraw_the_claim(world: World, crowd: Crowd) -> None:
    services.cancel_workload(crowd.claimant, now=crowd.at)


def close_the_claimants_budget(world: World, crowd: Crowd) -> None:
    close_gate(world, crowd.claimant)


def cut_the_claimants_guarantee(world: World, crowd: Crowd) -> None:
    cut_guarantee(world, crowd.claimant)


def raise_the_victims_guarantee(world: World, crowd: Crowd) -> None:
    Quota.objects.filter(team=world.robotics.team, model=H100).update(guaranteed_slots=16 * SLOTS_PER_GPU)


def let_other_work_of_the_victims_team_end(world: World, crowd: Crowd) -> None:
    others = Workload.objects.filter(project=world.robotics.project, state="running").exclude(
        pk=crowd.victim.pk
    )
    services.cancel_workload(others.get(), now=crowd.at)


def protect_the_victim(world: World, crowd: Crowd) -> None:
    Workload.objects.filter(pk=crowd.victim.pk).update(preemptible=False)


def change_the_pools_rules(world: World, crowd: Crowd) -> None:
    Pool.objects.filter(pk=world.shared.pk).update(minimum_runtime_seconds=3600)


@pytest.mark.parametrize(
    "change",
    [
        withdraw_the_claim,
        close_the_claimants_budget,
        cut_the_claimants_guarantee,
        raise_the_victims_guarantee,
        let_other_work_of_the_victims_team_end,
        protect_the_victim,
        change_the_pools_rules,
    ],
)
def test_only_the_plan_check_rejects_an_eviction_whose_reason_no_longer_applies(
    world: World, crowd: Crowd, change: Callable[[World, Crowd], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(world, crowd)
    applied = apply_plan(crowd.answer, crowd.taken, crowd.at)
    assert refusals(applied, Eviction) and not [e for e in applied.accepted if isinstance(e, Eviction)]
    crowd.victim.refresh_from_db()
    assert crowd.victim.state == "running" and not Decision.objects.filter(kind="evicted").exists()
    monkeypatch.setattr(plan_checks.PlanChecks, "eviction_problem", lambda self, eviction: "")
    assert [e for e in apply_plan(crowd.answer, crowd.taken, crowd.at).accepted if isinstance(e, Eviction)]


def test_the_evictions_for_one_workload_are_applied_together_or_not_at_all(world: World) -> None:
    Pool.objects.filter(pk=world.shared.pk).update(minimum_runtime_seconds=0)
    robotics = {
        "project": world.robotics.project,
        "owner": world.robotics.member,
        "max_runtime_seconds": 24 * 3600,
    }
    borrowers = [job(world, units=4, **robotics) for _ in range(4)]
    engine.run_cycle("test", world.now)
    for name in ("alpha", "beta"):
        agent = FakeAgent.of(world.hosts[name])
        for step in (1, 2):
            agent.sync(world.now + step * SECOND)
    at = world.now + 60 * SECOND
    job(world, units=8, preemptible=False, now=at)
    answer, taken = planned(world, at)
    first, second = (e.workload for e in answer.evictions)
    Workload.objects.filter(pk=first).update(preemptible=False)
    applied = apply_plan(answer, taken, at)
    assert not applied.accepted and len(refusals(applied, Eviction)) == 2
    assert {w.pk for w in borrowers} >= {first, second}
    assert Workload.objects.filter(pk=second, state="running").exists()

    Workload.objects.filter(pk=first).update(preemptible=True)
    # The first victim stops anyway; the eviction of the second is still needed.
    services.cancel_workload(Workload.objects.get(pk=first), now=at)
    again = apply_plan(Plan(answer.epoch, evictions=answer.evictions), taken, at)
    assert "already stopping" in refusals(again, Eviction)[0]


# -- leaders -------------------------------------------------------------------------------------------------


def test_an_engine_that_lost_leadership_before_reading_writes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = job(world)
    real = snapshot_rows.SnapshotReader.read

    def overtaken(self: snapshot_rows.SnapshotReader) -> snapshot_rows.SnapshotRows:
        assert leadership.acquire_or_renew("the next one", world.now + 6 * SECOND) is not None
        return real(self)

    monkeypatch.setattr(snapshot_rows.SnapshotReader, "read", overtaken)
    assert engine.run_cycle("the frozen one", world.now) is None
    workload.refresh_from_db()
    assert workload.state == "queued" and not Run.objects.exists()


def test_applying_a_plan_twice_starts_its_work_once(world: World) -> None:
    for _ in range(3):
        job(world)
    answer, taken = planned(world)
    assert len(apply_plan(answer, taken, world.now).accepted) == 3
    again = apply_plan(answer, taken, world.now)
    assert not again.accepted and len(again.rejected) == 3 and Run.objects.count() == 3


def test_a_plan_of_the_previous_leader_is_rejected_completely(world: World) -> None:
    assert leadership.acquire_or_renew("first", world.now) is not None
    job(world)
    answer, taken = planned(world)
    assert leadership.acquire_or_renew("second", world.now + 6 * SECOND) is not None
    with pytest.raises(StaleEpoch):
        apply_plan(answer, taken, world.now + 6 * SECOND)
    assert not Run.objects.exists()
