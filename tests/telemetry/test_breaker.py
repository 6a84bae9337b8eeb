"""A host on which different workloads keep failing takes no new work; a workload that fails everywhere is not its host's fault."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.models import Host, Run
from scheduler.services import return_host
from telemetry.health import circuit_breaker, rules
from telemetry.models import HealthEvent, HealthRule
from tests.telemetry.rows import at, hold, workload
from tests.world import TeamOfWorld, World, units_of

pytestmark = pytest.mark.django_db


def fails(
    world: World,
    team: TeamOfWorld,
    outcome: str,
    *,
    host: str = "alpha",
    minute: int = 0,
    work: Any = None,
    who: int = 0,
) -> Any:
    """An attempt that began at 9 and ended ``minute`` minutes later. ``who``: which of its people."""
    work = work or workload(world, team, owner=[*team.members, team.lead][who])
    held = hold(work, units_of(world.hosts[host])[0], at(9, minute), at(9, minute, 20), end_code=outcome)
    return Run.objects.select_related("workload").get(pk=held.run_id).workload


def closed(host: str = "alpha") -> bool:
    return Host.objects.get(name=host).admin_state == "cordoned"


def look(hour: int = 9, minute: int = 20) -> None:
    circuit_breaker.record_failing_hosts(at(hour, minute))
    rules.apply_rules_to_events(at(hour, minute))


def test_three_failed_starts_of_different_people_close_the_host_with_the_numbers(world: World) -> None:
    for minute in (0, 1, 2):
        fails(world, world.vision, "start_failed", minute=minute, who=minute)
    look()
    host = Host.objects.get(name="alpha")
    assert (host.admin_state, host.tripped_at) == ("cordoned", at(9, 20))
    assert "3 attempts of 3 different sources failed within 30 min (3 start_failed)" in host.state_reason
    assert HealthEvent.objects.get().action_taken == "cordon"
    look(9, 21)
    assert HealthEvent.objects.count() == 1


def test_two_are_not_enough_and_old_ones_do_not_count(world: World) -> None:
    for minute in (0, 1):
        fails(world, world.vision, "start_failed", minute=minute, who=minute)
    fails(world, world.vision, "start_failed", minute=40, who=2)
    look(9, 41)
    assert not closed()


def test_one_workload_that_fails_again_and_again_counts_once(world: World) -> None:
    work = fails(world, world.vision, "start_failed")
    for minute in (1, 2, 3):
        fails(world, world.vision, "start_failed", minute=minute, work=work)
    look()
    assert not closed()


def test_a_prolog_that_fails_counts_each_time_and_on_however_many_hosts(world: World) -> None:
    work = fails(world, world.vision, "prolog_failed", host="beta")
    for minute in (1, 2):
        fails(world, world.vision, "prolog_failed", minute=minute, work=work)
    look()
    assert not closed()
    fails(world, world.vision, "prolog_failed", minute=3, work=work)
    look(9, 21)
    assert closed() and not closed("beta")


def test_a_workload_that_fails_on_several_hosts_is_not_their_fault(world: World) -> None:
    for minute in (0, 1, 2):
        work = fails(world, world.vision, "start_failed", minute=minute, who=minute)
        fails(world, world.vision, "start_failed", host="beta", minute=minute + 3, work=work)
    look()
    assert not closed() and not closed("beta")


def test_what_one_person_broke_for_all_their_work_closes_no_host(world: World) -> None:
    for minute in range(9):
        fails(world, world.vision, "start_failed", minute=minute)
    look()
    assert not closed()
    fails(world, world.vision, "start_failed", minute=10, who=1)
    fails(world, world.language, "start_failed", minute=11)
    look()
    assert closed(), "it is not that person alone"


@pytest.mark.parametrize("elsewhere", ["finished", "failed"])
def test_starts_of_one_person_that_fail_here_and_go_well_elsewhere_close_the_host(
    world: World, elsewhere: str
) -> None:
    for minute in (0, 1, 2):
        work = fails(world, world.vision, "start_failed", minute=minute)
        fails(world, world.vision, elsewhere, host="beta", minute=minute + 5, work=work)  # after 20 seconds
    look()
    assert closed() is (elsewhere == "finished") and not closed("beta")


def test_programs_of_one_person_that_fail_here_and_run_elsewhere_close_no_host(world: World) -> None:
    for minute in (0, 1, 2):
        work = fails(world, world.vision, "failed", minute=minute)
        fails(world, world.vision, "finished", host="beta", minute=minute + 5, work=work)
    look()
    assert not closed(), "whoever writes a program can have it fail where they like"


def test_programs_that_fail_at_once_count_per_person(world: World) -> None:
    for minute in (0, 1, 2, 3):
        fails(world, world.vision, "failed", minute=minute)
    look()
    assert not closed(), "one person's mistake"
    fails(world, world.language, "failed", minute=4)
    fails(world, world.language, "gpu_error", minute=5)
    look()
    assert closed()


def test_an_operator_changes_the_numbers_in_the_table(world: World) -> None:
    HealthRule.objects.filter(code="breaker:attempts").update(repeats=2, window_seconds=600, action="warn")
    for minute in (15, 16):
        fails(world, world.vision, "start_failed", minute=minute, who=minute - 15)
    look()
    assert not closed()
    assert HealthEvent.objects.get().action_taken == "warn"


def test_a_host_that_an_operator_returned_begins_anew(world: World) -> None:
    for minute in (0, 1, 2):
        fails(world, world.vision, "start_failed", minute=minute, who=minute)
    look()
    host = Host.objects.get(name="alpha")
    assert return_host(host, now=at(9, 22))
    look(9, 23)
    assert not closed()
    assert Host.objects.get(name="alpha").tripped_at is None


def test_many_hosts_at_once_are_left_to_a_person(world: World) -> None:
    for host in ("alpha", "beta"):
        for minute in (0, 1, 2):
            fails(world, world.vision, "start_failed", host=host, minute=minute, who=minute)
    look()
    assert (closed("alpha"), closed("beta")) == (True, False)
    assert HealthEvent.objects.filter(action_taken="held_back").count() == 1
