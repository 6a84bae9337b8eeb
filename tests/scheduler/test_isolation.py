"""Test the isolation level that a pool demands: weaker hosts get no new work."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest

from agent.protocol import Inventory
from portal.errors import Invalid
from portal.models import AuditEvent
from portal.services.fleet import pools
from portal.services.fleet.pools import demand_isolation
from portal.wording import reason_texts
from portal.wording.host_texts import ISOLATION_UNDECIDED, isolation_note
from scheduler.core.planner import plan
from scheduler.cycle import engine, snapshot
from scheduler.cycle.apply import apply_plan
from scheduler.models import Host, Pool, Run, Workload
from scheduler.reads import capacity
from scheduler.state import isolation
from scheduler.sync import host_inventory
from scheduler.sync.desired_state import desired
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SANDBOX: dict[str, Any] = {"isolation": "bubblewrap"}
USERS = {**SANDBOX, "users_per_team": True}
ALL = {**USERS, "limits": ["cpu", "memory", "pids"]}
SECOND = dt.timedelta(seconds=1)


@pytest.mark.parametrize(
    ("reported", "level"),
    [
        ({}, "none"),
        ({"isolation": "plain", "users_per_team": True, "limits": ["cpu", "memory", "pids"]}, "none"),
        (SANDBOX, "sandbox"),
        ({**SANDBOX, "limits": ["cpu", "memory", "pids"]}, "sandbox"),
        (USERS, "team_users"),
        ({**USERS, "limits": ["cpu", "memory"]}, "team_users"),
        (ALL, "limits"),
    ],
)
def test_each_isolation_level_includes_the_weaker_levels(reported: dict[str, Any], level: str) -> None:
    assert isolation.isolation_level(reported) == level
    for demanded in isolation.ISOLATION_LEVELS:
        assert isolation.is_weaker_isolation(level, demanded) == bool(
            isolation.missing_levels(reported, demanded)
        )


def test_an_unknown_isolation_level_counts_as_the_weakest() -> None:
    assert isolation.is_weaker_isolation("of tomorrow", "sandbox")
    assert not isolation.is_weaker_isolation("limits", "of tomorrow")


def set_reported(host: Host, **reported: Any) -> None:
    """Store this inventory as the host's last report."""
    values: dict[str, Any] = {
        "gpus": [],
        "cpu_milli": 64_000,
        "memory_mib": 512_000,
        "isolation": "plain",
        "simulated": True,
    }
    inventory = dataclasses.asdict(Inventory(**{**values, **reported}))
    Host.objects.filter(pk=host.pk).update(
        isolation=inventory["isolation"],
        isolation_level=isolation.isolation_level(inventory),
        hardware={"reported": inventory, "applied": True},
    )


def demand(world: World, level: str, at: dt.datetime) -> None:
    demand_isolation(actor=world.operator, pool=world.shared, isolation=level, now=at)


def test_work_is_placed_on_hosts_with_the_demanded_isolation(world: World) -> None:
    set_reported(world.hosts["beta"], **USERS)
    demand(world, "team_users", world.now)
    workloads = [job(world, world.vision, 4, world.now) for _ in range(2)]
    engine.run_cycle("test", world.now)
    assert {Run.objects.get(workload=each).host.name for each in workloads} == {"beta"}


def test_gpus_of_hosts_with_too_weak_isolation_are_not_free(world: World) -> None:
    def free() -> set[str]:
        return set(capacity.free_units(world.shared, world.now).values_list("gpu__host__name", flat=True))

    set_reported(world.hosts["beta"], **USERS)
    set_reported(world.hosts["alpha"], **SANDBOX)
    assert {"alpha", "beta"} <= free()
    for level, left in (("sandbox", {"alpha", "beta"}), ("team_users", {"beta"}), ("limits", set())):
        demand(world, level, world.now)
        assert free() == left, level


def test_work_waits_with_a_reason_and_numbers_if_no_host_has_the_demanded_isolation(world: World) -> None:
    demand(world, "limits", world.now)
    waiting = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    row = Workload.objects.get(pk=waiting.pk)
    assert row.reason_code == "host_closed"
    assert row.reason_numbers["codes"] == ["isolation_too_weak"]
    assert row.reason_numbers["too_weak"] == 3 and row.expected_start is None
    sentence = reason_texts.waiting_sentence(row)
    assert "take no new work: alpha isolates workloads less than the pool requires" in sentence


def test_a_new_demand_applies_from_the_next_cycle_and_not_to_placed_work(world: World) -> None:
    first = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    demand(world, "sandbox", world.now)
    second = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now + SECOND)
    assert Workload.objects.get(pk=first.pk).state == "placed"
    assert Workload.objects.get(pk=second.pk).state == "queued"
    for host in world.hosts.values():
        set_reported(host, **SANDBOX)
    engine.run_cycle("test", world.now + 2 * SECOND)
    assert Workload.objects.get(pk=second.pk).state == "placed"


def test_a_plan_made_before_the_demand_is_rejected(world: World) -> None:
    engine.run_cycle("test", world.now)  # acquires leadership
    late = job(world, world.vision, 1, world.now)
    taken = snapshot.take_snapshot(None, world.now)
    planned = plan(taken, int(world.now.timestamp()))
    assert planned.placements
    Pool.objects.filter(pk=world.shared.pk).update(isolation="sandbox")
    done = apply_plan(planned, taken, world.now)
    assert not done.accepted
    assert Workload.objects.get(pk=late.pk).state == "queued"


def test_the_isolation_level_of_a_host_follows_its_report(world: World) -> None:
    host = world.hosts["alpha"]
    seen = Inventory(gpus=[], cpu_milli=1, memory_mib=1, simulated=True, **ALL)
    host_inventory.store_inventory(host, seen, world.now)
    assert Host.objects.get(pk=host.pk).isolation_level == "limits"
    host_inventory.store_inventory(host, dataclasses.replace(seen, users_per_team=False), world.now)
    assert Host.objects.get(pk=host.pk).isolation_level == "sandbox"


def test_an_unknown_demand_is_rejected_with_a_reason(world: World) -> None:
    with pytest.raises(Invalid, match="isolation is 'perfect'"):
        demand(world, "perfect", world.now)


def test_every_host_gets_the_same_user_id_for_a_team(world: World, settings: Any) -> None:
    settings.GPUPOOL_FIRST_TEAM_USER = 80_000
    for team in (world.vision, world.language):
        job(world, team, 1, world.now)
    engine.run_cycle("test", world.now)
    runs = [run for host in world.hosts.values() for run in desired(host, world.now).runs]
    users = {run.team: run.team_user for run in runs}
    assert users == {
        "vision": 80_000 + world.vision.team.pk,
        "language": 80_000 + world.language.team.pk,
    }
    assert len({run.team_id for run in runs}) == 2


def test_a_new_pool_demands_the_isolation_of_its_first_hosts(world: World) -> None:
    pool = pools.create_pool(actor=world.operator, name="New", kind="dynamic", now=world.now)
    assert pools.demand_isolation_of_first_hosts(world.now) == 0, "no host has reported"
    for name, level in (("one", "limits"), ("two", "team_users")):
        Host.objects.create(
            pool=pool, name=name, isolation="bubblewrap", isolation_level=level, created_at=world.now
        )
    Host.objects.create(pool=pool, name="silent", created_at=world.now)
    assert pools.demand_isolation_of_first_hosts(world.now) == 1
    pool.refresh_from_db()
    assert pool.isolation == "team_users"
    event = AuditEvent.objects.get(verb="demand_isolation")
    assert (event.actor, event.after) == (None, {"isolation": "team_users"})
    Host.objects.filter(name="two").update(isolation="plain", isolation_level="none")
    assert pools.demand_isolation_of_first_hosts(world.now) == 0, "a weaker host changes nothing later"
    world.shared.refresh_from_db()
    assert world.shared.isolation == "none", "pools from before keep their level"


def test_an_operator_decides_about_the_isolation_of_a_new_pool_before_its_hosts(world: World) -> None:
    pool = pools.create_pool(actor=world.operator, name="New", kind="dynamic", now=world.now)
    demand_isolation(actor=world.operator, pool=pool, isolation="none", now=world.now)
    Host.objects.create(
        pool=pool, name="one", isolation="bubblewrap", isolation_level="limits", created_at=world.now
    )
    assert pools.demand_isolation_of_first_hosts(world.now) == 0


def test_the_page_of_a_pool_says_what_its_isolation_lacks() -> None:
    assert isolation_note("none", [], True) == ISOLATION_UNDECIDED
    assert "the pool may demand it" in isolation_note("none", ["limits", "sandbox"], False)
    assert "does not separate teams" in isolation_note("none", ["none"], False)
    assert "does not separate teams" in isolation_note("sandbox", [], False)
    assert "may slow down the others" in isolation_note("team_users", ["team_users"], False)
    assert isolation_note("limits", ["none"], False) == ""
