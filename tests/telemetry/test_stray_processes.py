"""Test stray processes, which use a GPU but belong to no workload. Each reported one raises one event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.protocol import StraySeen
from telemetry.health import rules, stray_processes
from telemetry.ingest.agent_api import record_stray_processes
from telemetry.models import HealthEvent, Stray
from tests.telemetry.rows import at
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def stray(world: World) -> StraySeen:
    return StraySeen(units_of(world.hosts["alpha"])[0].gpu.uuid, 4242, 99, "ada", "python", 1500)


def test_a_stray_process_raises_one_event_and_is_marked_as_gone_after_a_report_omits_it(
    world: World, stray: StraySeen
) -> None:
    host = world.hosts["alpha"]
    record_stray_processes(host.pk, [stray], at(9))
    record_stray_processes(host.pk, [replace(stray, memory_mib=3000, done="asked to end")], at(9, 1))
    row = Stray.objects.get()
    assert (row.user, row.name, row.pid, row.memory_mib, row.done) == (
        "ada",
        "python",
        4242,
        3000,
        "asked to end",
    )
    assert (row.first_seen, row.last_seen, row.gone_at) == (at(9), at(9, 1), None)
    event = HealthEvent.objects.get()
    assert event.detail == "python (pid 4242, user ada, 1500 MiB) belongs to no workload"
    rules.apply_rules_to_events(at(9, 1))
    assert HealthEvent.objects.get().action_taken == "warn", "by the default rule, operators are notified"
    record_stray_processes(host.pk, [], at(9, 2))
    assert Stray.objects.get().gone_at == at(9, 2)


def test_a_later_process_with_the_same_pid_is_a_new_stray_process(world: World, stray: StraySeen) -> None:
    record_stray_processes(world.hosts["alpha"].pk, [stray], at(9))
    record_stray_processes(world.hosts["alpha"].pk, [replace(stray, started=100)], at(9, 1))
    assert Stray.objects.filter(gone_at=None).count() == 1
    assert HealthEvent.objects.count() == 2


def test_invalid_reports_of_stray_processes_are_not_stored(world: World, stray: StraySeen) -> None:
    host = world.hosts["alpha"]
    strange = [
        replace(stray, gpu="GPU-elsewhere"),
        replace(stray, pid=0),
        replace(stray, pid=2**40),
        replace(stray, started=-1),
    ]
    record_stray_processes(host.pk, strange, at(9))
    assert not Stray.objects.exists()
    record_stray_processes(host.pk, [replace(stray, memory_mib=2**50, name="n" * 500)], at(9))
    row = Stray.objects.get()
    assert (row.memory_mib, len(row.name)) == (None, 64)


def test_counts_raise_no_event_for_a_host_that_lists_its_stray_processes(
    world: World, stray: StraySeen
) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    stray_processes.record_stray_counts({(host.pk, unit.pk): (at(9).timestamp(), 2)}, at(9))
    assert HealthEvent.objects.filter(detail__startswith="2 processes").count() == 1
    HealthEvent.objects.all().delete()
    record_stray_processes(host.pk, [stray], at(9))
    stray_processes.record_stray_counts({(host.pk, unit.pk): (at(9).timestamp(), 1)}, at(9))
    assert HealthEvent.objects.count() == 1
