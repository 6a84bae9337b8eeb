"""Test that hosts, pools and teams are removed, and hosts moved, without loss of history."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest
from django.db import IntegrityError, transaction

from scheduler import services
from scheduler.coordination import locks
from scheduler.core.rejection import OperationRejected
from scheduler.cycle import engine, snapshot
from scheduler.models import (
    DecayedUse,
    Gpu,
    GpuStateChange,
    Host,
    HostStateChange,
    MaintenanceWindow,
    Pool,
    Project,
    Quota,
    Reservation,
    Team,
    Unit,
    Workload,
)
from scheduler.services import quota_hours
from scheduler.services.hosts import quarantine_gpu
from scheduler.sync import agent_api, gpu_diagnostics
from scheduler.sync.agent_rejections import AGENT_REJECTIONS, AgentRejected
from tests.fakes import FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.scheduler.test_reservations import confirm, tick
from tests.world import A100, H100, World, make_host

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


def run_job(
    world: World, *names: str, units: int = 8, at: dt.datetime | None = None
) -> tuple[Workload, list[FakeAgent]]:
    """Run a job on one of the named hosts. Returns the job and the agents of these hosts."""
    now = at or world.now
    agents = [FakeAgent.of(world.hosts[name]) for name in names]
    workload = job(world, world.vision, units, now)
    engine.run_cycle("test", now)
    for agent in agents * 2:
        agent.sync(now)
    workload.refresh_from_db()
    assert workload.state == "running"
    return workload, agents


def rejection(operation: object, *args: object, **kwargs: object) -> OperationRejected:
    assert callable(operation)
    with pytest.raises(OperationRejected) as refused:
        operation(*args, **kwargs)
    return refused.value


# -- removing a host ---------------------------------------------------------------------------------------


def test_a_host_with_work_is_kept_and_its_work_is_named(world: World) -> None:
    workload, _ = run_job(world, "alpha", "beta")
    host = workload.runs.get().host
    refused = rejection(services.remove_host, host, reason="scrapped", now=world.now + HOUR)
    assert refused.code == "host_has_work"
    assert refused.numbers == {"host": host.name, "count": 1, "work": [workload.name]}
    assert Host.objects.filter(pk=host.pk).exists()
    assert host.gpus.filter(retired_at=None).count() == 8


def test_a_host_is_removed_after_its_work_has_left_it(world: World) -> None:
    workload, agents = run_job(world, "alpha", "beta")
    run = workload.runs.get()
    services.cancel_workload(workload, now=world.now + SECOND)
    for agent in agents * 2:
        agent.sync(world.now + 2 * SECOND)
    services.remove_host(run.host, reason="scrapped", now=world.now + HOUR)
    run.refresh_from_db()
    assert run.host.removed_at == world.now + HOUR
    assert not Host.objects.filter(pk=run.host_id).exists()
    assert not world.shared.hosts.filter(pk=run.host_id).exists()
    assert run.host.name in ("alpha", "beta"), "the run keeps its host"
    assert run.allocations.get(unit__gpu__index=0).unit.gpu.host == run.host
    last = HostStateChange.objects.filter(host=run.host).latest("pk")
    assert (last.reason, last.at) == ("scrapped", world.now + HOUR)
    assert rejection(services.remove_host, run.host, reason="", now=world.now).code == "host_is_removed"


def test_the_planner_no_longer_sees_a_removed_host(world: World) -> None:
    services.remove_host(world.hosts["alpha"], reason="scrapped", now=world.now)
    services.remove_host(world.hosts["beta"], reason="scrapped", now=world.now)
    taken = snapshot.take_snapshot([world.shared.pk], world.now)
    assert [host.name for host in taken.hosts] == ["gamma"]
    assert {unit.model for unit in taken.units} == {A100}
    workload = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    workload.refresh_from_db()
    assert workload.state == "queued"


def test_a_removed_hosts_agent_is_rejected_permanently_with_the_reason(world: World) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    agent.sync(world.now)
    token = services.issue_join_token(world.hosts["alpha"], now=world.now)
    credential = services.redeem_join_token(
        token=token, host_name="alpha", instance="new", boot_id="b", now=world.now
    )[1].text
    unused = services.issue_join_token(world.hosts["alpha"], now=world.now)
    services.remove_host(world.hosts["alpha"], reason="scrapped", now=world.now + SECOND)
    assert agent_api.authenticate(credential, world.now + SECOND) is None
    reason = agent_api.removal_rejection(credential)
    assert reason is not None and (reason.code, reason.retry) == ("host_is_removed", False)
    assert "removed by an operator" in str(reason)
    assert agent_api.removal_rejection("none") is None
    with pytest.raises(AgentRejected) as refused:
        agent.sync(world.now + 2 * SECOND)
    assert not refused.value.retry
    refusal = rejection(
        services.redeem_join_token,
        token=unused,
        host_name="alpha",
        instance="x",
        boot_id="b",
        now=world.now + SECOND,
    )
    assert refusal.code == "host_is_removed"
    assert AGENT_REJECTIONS[refusal.code]


def test_no_agent_joins_as_a_host_that_is_removed_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = services.issue_join_token(world.hosts["alpha"], now=world.now)
    real = locks.hosts

    def remove_then_lock(ids: list[int]) -> dict[int, Host]:
        monkeypatch.setattr(locks, "hosts", real)
        services.remove_host(world.hosts["alpha"], reason="scrapped", now=world.now)
        return locks.hosts(ids)

    monkeypatch.setattr(locks, "hosts", remove_then_lock)
    refused = rejection(
        services.redeem_join_token,
        token=token,
        host_name="alpha",
        instance="new",
        boot_id="b",
        now=world.now,
    )
    assert refused.code == "host_is_removed"


def test_a_removed_host_gets_no_maintenance_window(world: World) -> None:
    host = Host.objects.get(name="alpha")
    services.remove_host(world.hosts["alpha"], reason="scrapped", now=world.now)
    window = {"start": world.now + HOUR, "end": world.now + 2 * HOUR, "reason": "fans", "now": world.now}
    assert rejection(services.set_maintenance, host, **window).code == "host_is_removed"


def test_the_name_of_a_removed_host_can_be_used_again_and_its_gpus_get_new_rows(world: World) -> None:
    old = world.hosts["alpha"]
    inventory = FakeAgent.of(old).inventory
    gpu = old.gpus.get(index=3)
    quarantine_gpu(gpu, reason="XID 79", now=world.now)
    services.remove_host(old, reason="scrapped", now=world.now)
    with transaction.atomic():
        new = make_host("alpha", world.shared, [], world.now + HOUR)
    agent = FakeAgent.of(new)
    agent.inventory = inventory
    agent.sync(world.now + HOUR)
    assert new.gpus.filter(retired_at=None).count() == 8
    assert old.gpus.count() == 8 and not old.gpus.filter(retired_at=None).exists()
    again = new.gpus.get(index=3)
    assert (again.repair_state, again.state_reason) == ("quarantined", "XID 79"), "the GPU is still faulty"
    assert GpuStateChange.objects.filter(gpu=again, repair_state="quarantined", at=world.now + HOUR).exists()
    with pytest.raises(IntegrityError), transaction.atomic():
        make_host("alpha", world.shared, [], world.now)


def test_removal_ends_maintenance_diagnostics_and_geometry_changes(world: World) -> None:
    host = world.hosts["alpha"]
    for start in (world.now - HOUR, world.now + HOUR):
        MaintenanceWindow.objects.create(
            host=host, start=start, end=start + 1.5 * HOUR, reason="fans", created_at=world.now
        )
    diagnostic = gpu_diagnostics.request_diagnostic(host.gpus.get(index=0), why="operator", now=world.now)
    services.remove_host(host, reason="scrapped", now=world.now)
    windows = MaintenanceWindow.objects.filter(host=host)
    assert [window.end for window in windows] == [world.now]
    diagnostic.refresh_from_db()
    assert (diagnostic.state, diagnostic.detail) == ("stopped", "its host was removed")


def test_a_reservation_on_a_removed_host_gets_units_of_other_hosts(world: World) -> None:
    agents = [FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta")]
    reservation = confirm(world, 2, world.now + HOUR, world.now + 5 * HOUR)
    tick(agents, world.now + HOUR)
    first = reservation.bound_units.first()
    assert first is not None
    host = first.unit.gpu.host
    services.remove_host(host, reason="scrapped", now=world.now + HOUR + SECOND)
    rest = [agent for agent in agents if agent.host.pk != host.pk]
    for seconds in (2, 4):
        tick(rest, world.now + HOUR + seconds * SECOND)
    bound = reservation.bound_units.filter(period__endswith=reservation.end)
    assert {each.unit.gpu.host.name for each in bound} == {"alpha", "beta"} - {host.name}
    assert bound.count() == 2


# -- moving a host -----------------------------------------------------------------------------------------


def test_a_moved_host_gets_work_of_its_new_pool_only(world: World) -> None:
    agent = FakeAgent.of(world.hosts["beta"])
    services.move_host(world.hosts["beta"], world.static, reason="for vision", now=world.now)
    agent.sync(world.now + SECOND)
    assert snapshot.take_snapshot([world.shared.pk], world.now).hosts[-1].name != "beta"
    moved = job(world, world.vision, 8, world.now, pool=world.static)
    engine.run_cycle("test", world.now + SECOND)
    for _ in range(2):
        agent.sync(world.now + SECOND)
    moved.refresh_from_db()
    assert (moved.state, moved.runs.get().host.name) == ("running", "beta")


def test_a_moved_hosts_gpus_keep_their_units_and_repair_states_in_new_rows(world: World) -> None:
    host = world.hosts["gamma"]
    agent = FakeAgent.of(host)
    quarantine_gpu(host.gpus.get(index=2), reason="XID 79", now=world.now)
    before = sorted(Unit.objects.filter(gpu__host=host).values_list("uuid", "profile", "memory_mib"))
    services.move_host(host, world.static, reason="", now=world.now + HOUR)
    present = Unit.objects.filter(
        gpu__host=host, gpu__pool=world.static, retired_at=None, gpu__retired_at=None
    )
    assert sorted(present.values_list("uuid", "profile", "memory_mib")) == before
    old = host.gpus.filter(pool=world.shared)
    assert old.count() == 8 and not old.filter(retired_at=None).exists()
    assert not Unit.objects.filter(gpu__in=old, retired_at=None).exists()
    assert host.gpus.get(pool=world.static, index=2).repair_state == "quarantined"
    rows = Gpu.objects.count()
    agent.sync(world.now + HOUR + SECOND)
    assert Gpu.objects.count() == rows, "the next report changes nothing"
    agent.inventory = replace(agent.inventory, cpu_milli=agent.inventory.cpu_milli + 1000)
    agent.sync(world.now + HOUR + 2 * SECOND)
    assert Gpu.objects.count() == rows and not old.filter(retired_at=None).exists()


def test_a_host_is_not_moved_while_it_has_work_reserved_units_or_repairs(world: World) -> None:
    host = world.hosts["alpha"]
    assert (
        rejection(services.move_host, host, world.shared, reason="", now=world.now).code == "host_is_in_pool"
    )
    diagnostic = gpu_diagnostics.request_diagnostic(host.gpus.get(index=5), why="operator", now=world.now)
    refused = rejection(services.move_host, host, world.static, reason="", now=world.now)
    assert (refused.code, refused.numbers["gpus"]) == ("host_is_in_repair", [5])
    type(diagnostic).objects.all().delete()
    workload, _ = run_job(world, "alpha", "beta")
    used = workload.runs.get().host
    refused = rejection(services.move_host, used, world.static, reason="", now=world.now)
    assert (refused.code, refused.numbers["work"]) == ("host_has_work", [workload.name])


def test_a_host_is_not_moved_if_a_reservation_needs_it(world: World) -> None:
    agents = [FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta")]
    active = confirm(world, 2, world.now + HOUR, world.now + 5 * HOUR)
    coming = confirm(
        world, 8, world.now + 5 * HOUR, world.now + 6 * HOUR, hosts=2, may_exceed_guarantee=True, name="exam"
    )
    refused = rejection(services.move_host, world.hosts["gamma"], world.shared, reason="", now=world.now)
    assert refused.code == "host_is_in_pool"
    refused = rejection(services.move_host, world.hosts["alpha"], world.static, reason="", now=world.now)
    assert (refused.code, refused.numbers["reservations"]) == ("host_is_reserved", [coming.name])
    tick(agents, world.now + HOUR)
    bound = active.bound_units.first()
    assert bound is not None
    refused = rejection(
        services.move_host, bound.unit.gpu.host, world.static, reason="", now=world.now + HOUR + SECOND
    )
    assert (refused.code, refused.numbers["reservations"]) == ("host_has_reserved_units", ["course"])
    services.move_host(world.hosts["gamma"], world.static, reason="", now=world.now + HOUR + SECOND)
    assert Host.objects.get(name="gamma").pool == world.static


def test_a_cordoned_host_is_not_moved_if_a_reservation_needs_it_back(world: World) -> None:
    coming = confirm(
        world, 8, world.now + 5 * HOUR, world.now + 6 * HOUR, hosts=2, may_exceed_guarantee=True, name="exam"
    )
    services.cordon_host(world.hosts["alpha"], reason="fans", now=world.now)
    refused = rejection(services.move_host, world.hosts["alpha"], world.static, reason="", now=world.now)
    assert (refused.code, refused.numbers["reservations"]) == ("host_is_reserved", [coming.name])


def test_used_gpu_hours_stay_with_the_pool_that_a_host_has_left(world: World) -> None:
    workload, agents = run_job(world, "alpha", "beta")
    host = workload.runs.get().host
    services.cancel_workload(workload, now=world.now + HOUR)
    for agent in agents * 2:
        agent.sync(world.now + HOUR)
    quota = Quota.objects.get(team=world.vision.team, pool=world.shared, model=H100)
    Quota.objects.filter(pk=quota.pk).update(hours_slot_seconds=10**12)
    services.move_host(host, world.static, reason="", now=world.now + 2 * HOUR)
    quota_hours.count_quota_hours(world.now + 2 * HOUR)
    quota.refresh_from_db()
    assert round(quota.gpu_hours_used, 2) == 8.0


# -- removing a pool ---------------------------------------------------------------------------------------


def empty_pool(world: World) -> Pool:
    """Remove the hosts of the shared pool."""
    for host in list(world.shared.hosts.all()):
        services.remove_host(host, reason="", now=world.now)
    return world.shared


def test_a_pool_is_removed_only_without_hosts_work_and_reservations(world: World) -> None:
    reservation = confirm(world, 1, world.now + HOUR, world.now + 2 * HOUR)
    workload = job(world, world.vision, 1, world.now)
    DecayedUse.objects.create(team=world.vision.team, pool=world.shared, as_of=world.now, slot_seconds=1)
    refused = rejection(services.remove_pool, world.shared, now=world.now)
    assert (refused.code, refused.numbers["hosts"]) == ("pool_has_hosts", ["alpha", "beta", "gamma"])
    pool = empty_pool(world)
    refused = rejection(services.remove_pool, pool, now=world.now)
    assert (refused.code, refused.numbers["work"]) == ("pool_has_work", [workload.name])
    services.cancel_workload(workload, now=world.now)
    refused = rejection(services.remove_pool, pool, now=world.now)
    assert (refused.code, refused.numbers["reservations"]) == ("pool_has_reservations", [reservation.name])
    services.cancel_reservation(reservation, now=world.now)
    services.remove_pool(pool, now=world.now)
    assert not Pool.objects.filter(pk=pool.pk).exists()
    assert not Quota.objects.filter(pool=pool).exists()
    assert Quota.with_removed.filter(pool=pool).count() == 6
    assert pool.pk not in {each.id for each in snapshot.take_snapshot(None, world.now).pools}
    assert Workload.objects.get(pk=workload.pk).pool.name == "Shared", "the history keeps the pool"
    assert Reservation.objects.get(pk=reservation.pk).pool == pool
    assert rejection(services.remove_pool, pool, now=world.now).code == "pool_is_removed"


def test_nothing_is_queued_or_reserved_in_a_removed_pool(world: World) -> None:
    pool = empty_pool(world)
    services.remove_pool(pool, now=world.now)
    assert rejection(job, world, world.vision, 1, world.now).code == "pool_or_team_is_removed"
    refused = rejection(confirm, world, 1, world.now + HOUR, world.now + 2 * HOUR)
    assert refused.code == "pool_or_team_is_removed"
    assert not Workload.objects.filter(pool=pool).exists()


# -- removing a team ---------------------------------------------------------------------------------------


def test_a_team_is_removed_only_without_pools_work_and_reservations(world: World) -> None:
    team = world.vision.team
    refused = rejection(services.remove_team, team, now=world.now)
    assert (refused.code, refused.numbers["pools"]) == ("team_has_pools", ["Vision only"])
    services.remove_host(world.hosts["delta"], reason="", now=world.now)
    services.remove_pool(world.static, now=world.now)
    reservation = confirm(world, 1, world.now + HOUR, world.now + 2 * HOUR)
    workload = job(world, world.vision, 1, world.now)
    assert rejection(services.remove_team, team, now=world.now).code == "team_has_work"
    services.cancel_workload(workload, now=world.now)
    assert rejection(services.remove_team, team, now=world.now).code == "team_has_reservations"
    services.cancel_reservation(reservation, now=world.now)
    DecayedUse.objects.create(team=team, pool=world.shared, as_of=world.now, slot_seconds=1)
    services.remove_team(team, now=world.now)
    assert not Team.objects.filter(pk=team.pk).exists()
    assert not Quota.objects.filter(team=team).exists()
    assert not Project.objects.filter(team=team, active=True).exists()
    assert Workload.objects.get(pk=workload.pk).project.team.name == "Vision"
    assert team.pk not in {each.id for each in snapshot.take_snapshot(None, world.now).teams}
    assert rejection(job, world, world.vision, 1, world.now).code == "pool_or_team_is_removed"


def test_the_guarantees_of_a_removed_team_are_free_for_others(world: World) -> None:
    before = services.guarantee_capacity(pool=world.shared, model=H100, team=world.vision.team)
    services.remove_team(world.robotics.team, now=world.now)
    after = services.guarantee_capacity(pool=world.shared, model=H100, team=world.vision.team)
    assert before.others - after.others == 2 * 840
