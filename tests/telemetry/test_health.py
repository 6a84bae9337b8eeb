"""Test the health rules: a rule handles each event once, and the rules never close most hosts of a pool."""

from __future__ import annotations

import time
from itertools import combinations
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from agent.protocol import Health, RunSeen
from scheduler.models import Command, Gpu, GpuStateChange, Host, HostStateChange, Unit
from scheduler.services.hosts import cordon_host, drain_host
from telemetry.health.distinct_owners import MAX_EXACT_OWNERS, count_distinct_causes, minimum_hitting_set_size
from telemetry.health.rules import apply_rules_to_events
from telemetry.ingest.agent_api import gpu_fault_codes, record_health_event
from telemetry.models import HealthEvent, HealthRule
from tests.telemetry.rows import at, hold, workload
from tests.world import TeamOfWorld, World, units_of

pytestmark = pytest.mark.django_db


def report(world: World, host: str, code: str, *, index: int = 0, name: str = "1", minute: int = 0) -> None:
    gpu = units_of(world.hosts[host])[index].gpu
    event = Health(f"{host}-{code}-{name}", gpu.uuid, "simulated", code, at(9, minute).timestamp(), "planted")
    record_health_event(world.hosts[host].pk, event, at(10))


def admin_states() -> dict[str, str]:
    return dict(Host.objects.values_list("name", "admin_state"))


def test_a_gpu_that_fell_off_the_bus_cordons_its_host_and_preempts_the_work_on_it(world: World) -> None:
    units = units_of(world.hosts["alpha"])
    victim = workload(world, world.vision)
    broken = hold(victim, units[0], at(9))
    preemptible_hold = hold(workload(world, world.language, preemptible=True), units[1], at(9))
    notebook_hold = hold(workload(world, world.language, kind="notebook"), units[2], at(9))
    report(world, "alpha", "xid:79")
    assert apply_rules_to_events(at(10)) == 1
    assert admin_states()["alpha"] == "cordoned"
    assert Gpu.objects.get(pk=units[0].gpu_id).repair_state == "quarantined"
    assert Command.objects.filter(run=broken.run, verb="stop", code="gpu_error").exists()
    assert Command.objects.filter(run=preemptible_hold.run, verb="notice", code="drained").exists()
    assert not Command.objects.filter(run=notebook_hold.run).exists()
    event = HealthEvent.objects.get()
    assert (event.action_taken, event.handled_at) == ("cordon", at(10))


@pytest.mark.parametrize(
    ("code", "detail", "public_detail"),
    [
        ("stray:process", "miner (pid 4242, user ada, 900 MiB) belongs to no workload", ""),
        ("stray:ended", "pid=4242, miner of user ada, 900 MiB, by TERM", ""),
        ("xid:79", "pid='4242', name=miner, GPU has fallen off the bus.", ""),
        ("xid:79", "Bus lost, pid=4242, name=miner of ada, Ch 8", "Bus lost"),
        ("xid:79", "planted", "planted"),
    ],
)
def test_the_public_reason_names_no_process_and_no_user(
    world: World, code: str, detail: str, public_detail: str
) -> None:
    HealthRule.objects.filter(code=code).update(action="cordon", repeats=1)
    gpu = units_of(world.hosts["alpha"])[0].gpu
    record_health_event(
        world.hosts["alpha"].pk, Health("one", gpu.uuid, "agent", code, at(9).timestamp(), detail), at(10)
    )
    apply_rules_to_events(at(10))
    gpu.refresh_from_db()
    reasons = {gpu.state_reason, Host.objects.get(name="alpha").state_reason}
    reasons |= {
        *HostStateChange.objects.values_list("reason", flat=True),
        *GpuStateChange.objects.values_list("reason", flat=True),
    }
    what = f"{HealthRule.objects.get(code=code).meaning} ({code})"
    assert reasons - {""} == {f"{what}: {public_detail}" if public_detail else what}


def test_an_event_is_handled_once(world: World) -> None:
    report(world, "alpha", "xid:79")
    apply_rules_to_events(at(10))
    Host.objects.filter(name="alpha").update(admin_state="in_service")
    apply_rules_to_events(at(10, 1))
    assert admin_states()["alpha"] == "in_service"


def test_a_program_error_is_only_noted(world: World) -> None:
    report(world, "alpha", "xid:13")
    assert apply_rules_to_events(at(10)) == 0
    assert admin_states()["alpha"] == "in_service"
    assert HealthEvent.objects.get().action_taken == "note"


def test_a_code_without_a_rule_is_noted(world: World) -> None:
    report(world, "alpha", "xid:9999")
    apply_rules_to_events(at(10))
    assert HealthEvent.objects.get().action_taken == "note"


def test_a_rule_acts_when_its_repeat_threshold_is_reached(world: World) -> None:
    HealthRule.objects.filter(code="xid:48").update(repeats=3, window_seconds=1800, action="quarantine_gpu")
    for minute in (0, 5):
        report(world, "alpha", "xid:48", name=str(minute), minute=minute)
    assert apply_rules_to_events(at(10)) == 0
    report(world, "alpha", "xid:48", name="third", minute=10)
    assert apply_rules_to_events(at(10)) == 1
    assert Gpu.objects.filter(repair_state="quarantined").count() == 1


def test_repeats_outside_the_window_do_not_count(world: World) -> None:
    HealthRule.objects.filter(code="xid:48").update(repeats=2, window_seconds=60, action="quarantine_gpu")
    report(world, "alpha", "xid:48", name="a", minute=0)
    report(world, "alpha", "xid:48", name="b", minute=10)
    assert apply_rules_to_events(at(10)) == 0


def test_an_operators_change_of_a_rule_takes_effect(world: World) -> None:
    HealthRule.objects.filter(code="xid:79").update(action="drain")
    report(world, "beta", "xid:79")
    apply_rules_to_events(at(10))
    assert admin_states()["beta"] == "draining"


def test_only_one_of_several_hosts_that_fail_together_is_cordoned_automatically(world: World) -> None:
    for host in ("alpha", "beta", "gamma"):
        report(world, host, "xid:79")
    apply_rules_to_events(at(10))
    closed = [name for name, state in admin_states().items() if state == "cordoned"]
    assert closed == ["alpha"]
    assert HealthEvent.objects.filter(action_taken="held_back").count() == 2
    report(world, "beta", "xid:79", name="again")
    apply_rules_to_events(at(11, 30))
    assert admin_states()["beta"] == "cordoned"


# -- events that programs can cause ------------------------------------------------------------------------


def report_context_timeout(
    world: World, team: TeamOfWorld, number: int, *, host: str = "alpha", member: int = 0, ahead: int = 0
) -> None:
    """Create a workload that holds a GPU for a minute, and an XID 109 event during that minute.

    ``ahead`` is the number of minutes by which the host's clock is ahead of the server's clock.
    """
    work = workload(world, team, owner=team.members[member])
    hold(work, units_of(world.hosts[host])[0], at(9, number), at(9, number + 1))
    uuid = units_of(world.hosts[host])[0].gpu.uuid
    event = Health(
        f"{host} {number}", uuid, "simulated", "xid:109", at(9, number).timestamp() + 60 * ahead, ""
    )
    record_health_event(world.hosts[host].pk, event, at(9, number, 5))


def quarantined_gpus(world: World) -> set[str]:
    return {
        f"{gpu.host.name}/{gpu.index}"
        for gpu in Gpu.objects.filter(repair_state="quarantined").select_related("host")
    }


def test_context_timeouts_of_one_person_never_quarantine_a_gpu(world: World) -> None:
    for number in range(0, 40, 4):
        report_context_timeout(world, world.vision, number)
    assert apply_rules_to_events(at(10)) == 0 and quarantined_gpus(world) == set()
    assert set(HealthEvent.objects.values_list("action_taken", flat=True)) == {"note"}


def test_context_timeouts_of_three_people_quarantine_the_gpu(world: World) -> None:
    report_context_timeout(world, world.vision, 0)
    report_context_timeout(world, world.vision, 4, member=1)
    assert apply_rules_to_events(at(10)) == 0
    report_context_timeout(world, world.language, 8)
    assert apply_rules_to_events(at(10)) == 1 and quarantined_gpus(world) == {"alpha/0"}


def test_events_on_other_gpus_or_outside_the_window_do_not_count(world: World) -> None:
    report_context_timeout(world, world.vision, 0)
    report_context_timeout(world, world.language, 4, host="beta")
    report_context_timeout(world, world.robotics, 8)
    HealthRule.objects.filter(code="xid:109").update(window_seconds=600)
    report_context_timeout(world, world.language, 30)
    assert apply_rules_to_events(at(10)) == 0 and quarantined_gpus(world) == set()


def test_each_event_counts_if_nobody_held_the_gpu(world: World) -> None:
    for number in (0, 10, 20):
        report(world, "alpha", "xid:109", name=str(number), minute=number)
    assert apply_rules_to_events(at(10)) == 1 and quarantined_gpus(world) == {"alpha/0"}


def test_only_the_smallest_set_of_people_that_explains_all_events_counts(world: World) -> None:
    first, second = (
        unit for unit in Unit.objects.filter(gpu__host__name="gamma").exclude(profile="").order_by("pk")[:2]
    )
    assert first.gpu_id == second.gpu_id
    hold(workload(world, world.vision), first, at(9))
    for number, each in enumerate((world.language, world.robotics, world.language)):
        hold(workload(world, each), second, at(9, 10 * number), at(9, 10 * number + 6))
    index = first.gpu.index
    for minute in (1, 12, 23):
        event = Health(
            f"shared {minute}",
            first.gpu.uuid,
            "simulated",
            "xid:109",
            at(9, minute).timestamp(),
            f"GPU {index}",
        )
        record_health_event(world.hosts["gamma"].pk, event, at(9, minute, 1))
    assert apply_rules_to_events(at(10)) == 0, "the same person held the GPU at every event"


def test_an_event_reported_late_is_attributed_to_everyone_who_held_the_gpu_since(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9, 30))
    for minute in (0, 5, 10):  # the host's clock is half an hour slow
        report(world, "alpha", "xid:109", name=str(minute), minute=minute)
    assert apply_rules_to_events(at(10)) == 0


def test_one_person_never_causes_a_quarantine_even_if_the_hosts_clock_is_wrong(world: World) -> None:
    for number, ahead in ((0, 30), (4, 30), (8, 25), (40, -20), (44, -20), (48, -30)):
        report_context_timeout(world, world.vision, number, ahead=ahead)
    assert apply_rules_to_events(at(10)) == 0 and quarantined_gpus(world) == set()


def test_three_people_are_distinguished_on_a_host_whose_clock_is_ahead(world: World) -> None:
    for number, each in ((0, world.vision), (4, world.language), (8, world.robotics)):
        report_context_timeout(world, each, number, ahead=3)
    assert apply_rules_to_events(at(10)) == 1 and quarantined_gpus(world) == {"alpha/0"}


def test_the_number_of_distinct_owners_is_found_quickly_for_many_owners() -> None:
    alone = [frozenset({person}) for person in range(50)]
    began = time.process_time()
    assert minimum_hitting_set_size(alone, 40) == 40
    by_eight = [frozenset(range(number, number + 8)) for number in range(0, 200, 4)]
    assert 25 <= minimum_hitting_set_size(by_eight, 40) <= 40, "25 of the sets are disjoint"
    assert time.process_time() - began < 5.0, "seconds of CPU"


@given(
    events=st.lists(st.frozensets(st.integers(0, 6), min_size=1, max_size=4), max_size=7),
    enough=st.integers(0, MAX_EXACT_OWNERS + 1),
)
def test_the_minimum_hitting_set_is_exact_for_a_few_owners(events: list[frozenset[int]], enough: int) -> None:
    ways = (set(some) for count in range(8) for some in combinations(range(7), count))
    assert minimum_hitting_set_size(events, enough) == min(
        enough, len(next(some for some in ways if all(those & some for those in events)))
    )


def test_a_rule_with_a_high_threshold_counts_its_events_in_two_queries(world: World) -> None:
    HealthRule.objects.filter(code="xid:109").update(repeats=60)
    for number in range(60):
        report(world, "alpha", "xid:109", name=str(number), minute=number)
    with CaptureQueriesContext(connection) as asked:
        assert count_distinct_causes(list(HealthEvent.objects.all()), 60) == 60
    assert len(asked) == 2, "one query for the events, one for the allocations"
    assert apply_rules_to_events(at(10)) == 1 and quarantined_gpus(world) == {"alpha/0"}


def test_events_that_programs_can_cause_do_not_use_up_the_limit_for_hardware_faults(world: World) -> None:
    HealthRule.objects.filter(code="xid:109").update(action="cordon", repeats=1)
    report(world, "alpha", "xid:109")
    report(world, "beta", "xid:109")
    report(world, "gamma", "xid:79")
    apply_rules_to_events(at(10))
    assert admin_states()["alpha"] == "cordoned" and admin_states()["beta"] == "in_service"
    assert admin_states()["gamma"] == "cordoned"
    actions = dict(HealthEvent.objects.values_list("host__name", "action_taken"))
    assert actions == {"alpha": "cordon", "beta": "held_back", "gamma": "cordon"}


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 69, 109])
def test_program_events_count_by_people_and_hardware_events_by_events(
    code: int,
) -> None:
    assert HealthRule.objects.get(code=f"xid:{code}").counts == "people"
    for hardware in (48, 79, 94, 95, 119):
        assert HealthRule.objects.get(code=f"xid:{hardware}").counts == "events"


def test_an_ended_stray_process_is_noted_and_is_never_the_cause_of_a_failed_run(world: World) -> None:
    gpu = units_of(world.hosts["alpha"])[0].gpu
    record_health_event(
        world.hosts["alpha"].pk,
        Health("one", gpu.uuid, "agent", "stray:ended", at(9).timestamp(), "pid=7, x"),
        at(9),
    )
    assert apply_rules_to_events(at(9)) == 0
    assert HealthEvent.objects.get().action_taken == "note"
    HealthRule.objects.filter(code="stray:ended").update(action="quarantine_gpu")
    run = RunSeen("r", 1, "ended", gpu_events=["stray:ended"])
    assert gpu_fault_codes([run]) == frozenset()


# -- hosts that an operator has already closed -------------------------------------------------------------


@pytest.mark.parametrize("close", [cordon_host, drain_host])
def test_a_fault_is_added_to_the_reason_of_a_host_that_an_operator_has_closed(
    world: World, close: Any
) -> None:
    alpha, units = world.hosts["alpha"], units_of(world.hosts["alpha"])
    preemptible_hold = hold(workload(world, world.language, preemptible=True), units[1], at(9))
    close(alpha, reason="looking at fans", now=at(8))
    before = Host.objects.get(name="alpha").admin_state
    report(world, "alpha", "xid:79")
    assert apply_rules_to_events(at(10)) == 1
    host = Host.objects.get(name="alpha")
    assert host.state_reason == "looking at fans; the GPU has fallen off the bus (xid:79): planted"
    assert host.admin_state == before
    assert (
        HostStateChange.objects.filter(host=host).latest("pk").reason
        == "the GPU has fallen off the bus (xid:79): planted"
    )
    assert Gpu.objects.get(pk=units[0].gpu_id).repair_state == "quarantined"
    assert Command.objects.filter(run=preemptible_hold.run, verb="notice", code="drained").exists()
    report(world, "alpha", "xid:79", name="again")
    apply_rules_to_events(at(10, 1))
    assert Host.objects.get(name="alpha").state_reason == host.state_reason, "the same fault is added once"


def test_a_long_reason_is_cut_so_that_the_fault_fits(world: World) -> None:
    cordon_host(world.hosts["alpha"], reason="fans " * 60, now=at(8))
    report(world, "alpha", "xid:79")
    apply_rules_to_events(at(10))
    reason = Host.objects.get(name="alpha").state_reason
    assert len(reason) == 300 and reason.endswith("; the GPU has fallen off the bus (xid:79): planted")


def test_a_drain_by_a_rule_keeps_the_operators_reason(world: World) -> None:
    HealthRule.objects.filter(code="xid:79").update(action="drain")
    cordon_host(world.hosts["alpha"], reason="looking at fans", now=at(8))
    report(world, "alpha", "xid:79")
    apply_rules_to_events(at(10))
    host = Host.objects.get(name="alpha")
    assert host.admin_state == "draining" and host.state_reason.startswith(
        "looking at fans; the GPU has fallen"
    )
