"""A pool may demand how well its hosts keep workloads apart: hosts that have less take no new work."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest

from agent.protocol import Inventory
from portal.errors import Invalid
from portal.services.fleet.pools import demand_isolation
from portal.wording import reason_texts
from scheduler.core.planner import plan
from scheduler.cycle import engine, snapshot
from scheduler.cycle.apply import apply_plan
from scheduler.models import Host, Pool, Run, Workload
from scheduler.reads import capacity
from scheduler.state import isolation
from scheduler.sync import host_inventory
from scheduler.sync.desired_state import desired
from tests.scheduler.test_life_of_a_job import job
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
def test_each_level_includes_those_before_it(reported: dict[str, Any], level: str) -> None:
    assert isolation.isolation_level(reported) == level
    for demanded in isolation.ISOLATION_LEVELS:
        assert isolation.is_weaker_isolation(level, demanded) == bool(
            isolation.missing_levels(reported, demanded)
        )


def test_an_unknown_level_is_the_least() -> None:
    assert isolation.is_weaker_isolation("of tomorrow", "sandbox")
    assert not isolation.is_weaker_isolation("limits", "of tomorrow")


def has(host: Host, **reported: Any) -> None:
    """The host reports this."""
    values: dict[str, Any] = {
        "gpus": [],
        "cpu_milli": 64_000,
        "memory_mib": 512_000,
        "isolation": "plain",
        "simulated": True,
    }
    told = dataclasses.asdict(Inventory(**{**values, **reported}))
    Host.objects.filter(pk=host.pk).update(
        isolation=told["isolation"],
        isolation_level=isolation.isolation_level(told),
        hardware={"reported": told, "applied": True},
    )


def demand(world: World, level: str, at: dt.datetime) -> None:
    demand_isolation(actor=world.operator, pool=world.shared, isolation=level, now=at)


def test_work_goes_to_the_hosts_that_have_what_the_pool_demands(world: World) -> None:
    has(world.hosts["beta"], **USERS)
    demand(world, "team_users", world.now)
    made = [job(world, world.vision, 4, world.now) for _ in range(2)]
    engine.run_cycle("test", world.now)
    assert {Run.objects.get(workload=each).host.name for each in made} == {"beta"}


def test_a_gpu_of_a_host_that_is_not_good_enough_is_not_free(world: World) -> None:
    def free() -> set[str]:
        return set(capacity.free_units(world.shared, world.now).values_list("gpu__host__name", flat=True))

    has(world.hosts["beta"], **USERS)
    has(world.hosts["alpha"], **SANDBOX)
    assert {"alpha", "beta"} <= free()
    for level, left in (("sandbox", {"alpha", "beta"}), ("team_users", {"beta"}), ("limits", set())):
        demand(world, level, world.now)
        assert free() == left, level


def test_work_that_no_host_is_good_enough_for_waits_and_is_told_why_with_numbers(world: World) -> None:
    demand(world, "limits", world.now)
    waiting = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    row = Workload.objects.get(pk=waiting.pk)
    assert row.reason_code == "host_closed"
    assert row.reason_numbers["codes"] == ["isolation_too_weak"]
    assert row.reason_numbers["too_weak"] == 3 and row.expected_start is None
    assert "3 keep workloads less apart than the pool demands" in reason_texts.reason_sentence(
        row.reason_code, row.reason_numbers
    )


def test_what_the_pool_demands_counts_from_the_next_cycle_on_and_what_runs_goes_on(world: World) -> None:
    first = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    demand(world, "sandbox", world.now)
    second = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now + SECOND)
    assert Workload.objects.get(pk=first.pk).state == "placed"
    assert Workload.objects.get(pk=second.pk).state == "queued"
    for host in world.hosts.values():
        has(host, **SANDBOX)
    engine.run_cycle("test", world.now + 2 * SECOND)
    assert Workload.objects.get(pk=second.pk).state == "placed"


def test_a_plan_made_before_the_demand_places_nothing(world: World) -> None:
    engine.run_cycle("test", world.now)  # takes the lead
    late = job(world, world.vision, 1, world.now)
    taken = snapshot.take_snapshot(None, world.now)
    planned = plan(taken, int(world.now.timestamp()))
    assert planned.placements
    Pool.objects.filter(pk=world.shared.pk).update(isolation="sandbox")
    done = apply_plan(planned, taken, world.now)
    assert not done.accepted
    assert Workload.objects.get(pk=late.pk).state == "queued"


def test_a_host_is_as_good_as_it_reports(world: World) -> None:
    host = world.hosts["alpha"]
    seen = Inventory(gpus=[], cpu_milli=1, memory_mib=1, simulated=True, **ALL)
    host_inventory.store_inventory(host, seen, world.now)
    assert Host.objects.get(pk=host.pk).isolation_level == "limits"
    host_inventory.store_inventory(host, dataclasses.replace(seen, users_per_team=False), world.now)
    assert Host.objects.get(pk=host.pk).isolation_level == "sandbox"


def test_an_impossible_demand_is_refused_in_words(world: World) -> None:
    with pytest.raises(Invalid, match="isolation is 'perfect'"):
        demand(world, "perfect", world.now)


def test_each_team_has_a_user_of_its_own_that_every_host_is_told(world: World, settings: Any) -> None:
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
