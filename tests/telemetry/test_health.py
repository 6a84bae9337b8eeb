"""Hardware events to what the table says, once each, and never a whole pool at once."""

from __future__ import annotations

import pytest

from agent.protocol import Health
from scheduler.models import Command, Gpu, GpuStateChange, Host, HostStateChange
from telemetry.agent_api import accept_health
from telemetry.health import handle_events
from telemetry.models import HealthEvent, HealthRule
from tests.telemetry.rows import at, hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


def report(world: World, host: str, code: str, *, index: int = 0, name: str = "1", minute: int = 0) -> None:
    gpu = units_of(world.hosts[host])[index].gpu
    event = Health(f"{host}-{code}-{name}", gpu.uuid, "simulated", code, at(9, minute).timestamp(), "planted")
    accept_health(world.hosts[host].pk, event, at(10))


def admin_states() -> dict[str, str]:
    return dict(Host.objects.values_list("name", "admin_state"))


def test_a_gpu_that_fell_off_the_bus_cordons_its_host_and_its_work_is_told_to_go(world: World) -> None:
    units = units_of(world.hosts["alpha"])
    ours = workload(world, world.vision)
    broken = hold(ours, units[0], at(9))
    beside = hold(workload(world, world.language, preemptible=True), units[1], at(9))
    staying = hold(workload(world, world.language, kind="notebook"), units[2], at(9))
    report(world, "alpha", "xid:79")
    assert handle_events(at(10)) == 1
    assert admin_states()["alpha"] == "cordoned"
    assert Gpu.objects.get(pk=units[0].gpu_id).repair_state == "quarantined"
    assert Command.objects.filter(run=broken.run, verb="stop", code="gpu_error").exists()
    assert Command.objects.filter(run=beside.run, verb="notice", code="drained").exists()
    assert not Command.objects.filter(run=staying.run).exists()
    event = HealthEvent.objects.get()
    assert (event.action_taken, event.handled_at) == ("cordon", at(10))


@pytest.mark.parametrize(
    ("code", "detail", "told"),
    [
        ("stray:process", "miner (pid 4242, user ada, 900 MiB) belongs to no workload", ""),
        ("xid:79", "pid='4242', name=miner, GPU has fallen off the bus.", ""),
        ("xid:79", "Bus lost, pid=4242, name=miner of ada, Ch 8", "Bus lost"),
        ("xid:79", "planted", "planted"),
    ],
)
def test_the_reason_that_everybody_sees_names_nobodys_process(world: World, code: str, detail: str, told: str) -> None:
    HealthRule.objects.filter(code=code).update(action="cordon", repeats=1)
    gpu = units_of(world.hosts["alpha"])[0].gpu
    accept_health(world.hosts["alpha"].pk, Health("one", gpu.uuid, "agent", code, at(9).timestamp(), detail), at(10))
    handle_events(at(10))
    gpu.refresh_from_db()
    reasons = {gpu.state_reason, Host.objects.get(name="alpha").state_reason}
    reasons |= {*HostStateChange.objects.values_list("reason", flat=True), *GpuStateChange.objects.values_list("reason", flat=True)}
    what = f"{HealthRule.objects.get(code=code).meaning} ({code})"
    assert reasons - {""} == {f"{what}: {told}" if told else what}


def test_an_event_is_acted_on_once(world: World) -> None:
    report(world, "alpha", "xid:79")
    handle_events(at(10))
    Host.objects.filter(name="alpha").update(admin_state="in_service")
    handle_events(at(10, 1))
    assert admin_states()["alpha"] == "in_service"


def test_a_mistake_of_a_program_is_only_noted(world: World) -> None:
    report(world, "alpha", "xid:13")
    assert handle_events(at(10)) == 0
    assert admin_states()["alpha"] == "in_service"
    assert HealthEvent.objects.get().action_taken == "note"


def test_a_code_without_a_rule_is_noted(world: World) -> None:
    report(world, "alpha", "xid:9999")
    handle_events(at(10))
    assert HealthEvent.objects.get().action_taken == "note"


def test_a_rule_with_a_repeat_threshold_acts_at_that_many(world: World) -> None:
    HealthRule.objects.filter(code="xid:48").update(repeats=3, window_seconds=1800, action="quarantine_gpu")
    for minute in (0, 5):
        report(world, "alpha", "xid:48", name=str(minute), minute=minute)
    assert handle_events(at(10)) == 0
    report(world, "alpha", "xid:48", name="third", minute=10)
    assert handle_events(at(10)) == 1
    assert Gpu.objects.filter(repair_state="quarantined").count() == 1


def test_repeats_that_are_too_far_apart_do_not_count(world: World) -> None:
    HealthRule.objects.filter(code="xid:48").update(repeats=2, window_seconds=60, action="quarantine_gpu")
    report(world, "alpha", "xid:48", name="a", minute=0)
    report(world, "alpha", "xid:48", name="b", minute=10)
    assert handle_events(at(10)) == 0


def test_what_an_operator_put_into_the_table_is_done(world: World) -> None:
    HealthRule.objects.filter(code="xid:79").update(action="drain")
    report(world, "beta", "xid:79")
    handle_events(at(10))
    assert admin_states()["beta"] == "draining"


def test_many_failing_hosts_at_once_are_left_to_a_person(world: World) -> None:
    for host in ("alpha", "beta", "gamma"):
        report(world, host, "xid:79")
    handle_events(at(10))
    closed = [name for name, state in admin_states().items() if state == "cordoned"]
    assert closed == ["alpha"]
    assert HealthEvent.objects.filter(action_taken="held_back").count() == 2
    report(world, "beta", "xid:79", name="again")
    handle_events(at(11, 30))
    assert admin_states()["beta"] == "cordoned"
