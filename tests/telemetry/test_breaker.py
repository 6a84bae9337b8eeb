"""Test the circuit breaker: it closes a host on which different workloads fail.

A workload that fails on every host does not count against its hosts.
"""

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


def failed_attempt(
    world: World,
    team: TeamOfWorld,
    outcome: str,
    *,
    host: str = "alpha",
    minute: int = 0,
    work: Any = None,
    who: int = 0,
) -> Any:
    """Create an attempt that began ``minute`` minutes after 9:00 and failed after 20 s. Returns its workload.

    ``who`` selects the owner: an index in the list of the team's members, with the lead at the end.
    """
    work = work or workload(world, team, owner=[*team.members, team.lead][who])
    held = hold(work, units_of(world.hosts[host])[0], at(9, minute), at(9, minute, 20), end_code=outcome)
    return Run.objects.select_related("workload").get(pk=held.run_id).workload


def closed(host: str = "alpha") -> bool:
    return Host.objects.get(name=host).admin_state == "cordoned"


def run_breaker(hour: int = 9, minute: int = 20) -> None:
    """Record failing hosts and apply the health rules at this time."""
    circuit_breaker.record_failing_hosts(at(hour, minute))
    rules.apply_rules_to_events(at(hour, minute))


def test_three_failed_starts_of_different_owners_cordon_the_host_and_the_reason_has_the_numbers(
    world: World,
) -> None:
    for minute in (0, 1, 2):
        failed_attempt(world, world.vision, "start_failed", minute=minute, who=minute)
    run_breaker()
    host = Host.objects.get(name="alpha")
    assert (host.admin_state, host.tripped_at) == ("cordoned", at(9, 20))
    assert "3 attempts of 3 different sources failed within 30 min (3 start_failed)" in host.state_reason
    assert HealthEvent.objects.get().action_taken == "cordon"
    run_breaker(9, 21)
    assert HealthEvent.objects.count() == 1


def test_two_recent_failures_do_not_cordon_the_host_and_old_failures_do_not_count(world: World) -> None:
    for minute in (0, 1):
        failed_attempt(world, world.vision, "start_failed", minute=minute, who=minute)
    failed_attempt(world, world.vision, "start_failed", minute=40, who=2)
    run_breaker(9, 41)
    assert not closed()


def test_repeated_failures_of_one_workload_count_once(world: World) -> None:
    work = failed_attempt(world, world.vision, "start_failed")
    for minute in (1, 2, 3):
        failed_attempt(world, world.vision, "start_failed", minute=minute, work=work)
    run_breaker()
    assert not closed()


def test_each_failed_prolog_counts_even_if_the_workload_also_fails_on_other_hosts(world: World) -> None:
    work = failed_attempt(world, world.vision, "prolog_failed", host="beta")
    for minute in (1, 2):
        failed_attempt(world, world.vision, "prolog_failed", minute=minute, work=work)
    run_breaker()
    assert not closed()
    failed_attempt(world, world.vision, "prolog_failed", minute=3, work=work)
    run_breaker(9, 21)
    assert closed() and not closed("beta")


def test_a_workload_that_fails_on_several_hosts_does_not_count_against_them(world: World) -> None:
    for minute in (0, 1, 2):
        work = failed_attempt(world, world.vision, "start_failed", minute=minute, who=minute)
        failed_attempt(world, world.vision, "start_failed", host="beta", minute=minute + 3, work=work)
    run_breaker()
    assert not closed() and not closed("beta")


def test_failed_starts_of_a_single_owner_do_not_cordon_the_host(world: World) -> None:
    for minute in range(9):
        failed_attempt(world, world.vision, "start_failed", minute=minute)
    run_breaker()
    assert not closed()
    failed_attempt(world, world.vision, "start_failed", minute=10, who=1)
    failed_attempt(world, world.language, "start_failed", minute=11)
    run_breaker()
    assert closed(), "other owners failed, too"


@pytest.mark.parametrize("elsewhere", ["finished", "failed"])
def test_failed_starts_of_one_owner_cordon_the_host_only_if_the_workloads_finish_on_another_host(
    world: World, elsewhere: str
) -> None:
    for minute in (0, 1, 2):
        work = failed_attempt(world, world.vision, "start_failed", minute=minute)
        failed_attempt(
            world, world.vision, elsewhere, host="beta", minute=minute + 5, work=work
        )  # the attempt ends after 20 s, so the outcome "failed" counts as an immediate failure
    run_breaker()
    assert closed() is (elsewhere == "finished") and not closed("beta")


def test_failed_programs_of_one_owner_do_not_cordon_the_host_even_if_they_finish_elsewhere(
    world: World,
) -> None:
    for minute in (0, 1, 2):
        work = failed_attempt(world, world.vision, "failed", minute=minute)
        failed_attempt(world, world.vision, "finished", host="beta", minute=minute + 5, work=work)
    run_breaker()
    assert not closed(), "the owner of a program decides where it fails"


def test_programs_that_fail_quickly_count_once_per_owner(world: World) -> None:
    for minute in (0, 1, 2, 3):
        failed_attempt(world, world.vision, "failed", minute=minute)
    run_breaker()
    assert not closed(), "one person's mistake"
    failed_attempt(world, world.language, "failed", minute=4)
    failed_attempt(world, world.language, "gpu_error", minute=5)
    run_breaker()
    assert closed()


def test_the_breaker_uses_the_operators_threshold_window_and_action(world: World) -> None:
    HealthRule.objects.filter(code="breaker:attempts").update(repeats=2, window_seconds=600, action="warn")
    for minute in (15, 16):
        failed_attempt(world, world.vision, "start_failed", minute=minute, who=minute - 15)
    run_breaker()
    assert not closed()
    assert HealthEvent.objects.get().action_taken == "warn"


def test_returning_a_host_clears_its_earlier_failures(world: World) -> None:
    for minute in (0, 1, 2):
        failed_attempt(world, world.vision, "start_failed", minute=minute, who=minute)
    run_breaker()
    host = Host.objects.get(name="alpha")
    assert return_host(host, now=at(9, 22))
    run_breaker(9, 23)
    assert not closed()
    assert Host.objects.get(name="alpha").tripped_at is None


def test_the_breaker_cordons_only_one_of_several_hosts_that_fail_together(world: World) -> None:
    for host in ("alpha", "beta"):
        for minute in (0, 1, 2):
            failed_attempt(world, world.vision, "start_failed", host=host, minute=minute, who=minute)
    run_breaker()
    assert (closed("alpha"), closed("beta")) == (True, False)
    assert HealthEvent.objects.filter(action_taken="held_back").count() == 1
