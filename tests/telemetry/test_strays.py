"""Processes of no workload, as hosts tell them: each kept while it is there, and one event when it is first seen."""

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
def one(world: World) -> StraySeen:
    return StraySeen(units_of(world.hosts["alpha"])[0].gpu.uuid, 4242, 99, "ada", "python", 1500)


def test_one_is_kept_told_once_and_gone_when_it_is_not_named(world: World, one: StraySeen) -> None:
    host = world.hosts["alpha"]
    record_stray_processes(host.pk, [one], at(9))
    record_stray_processes(host.pk, [replace(one, memory_mib=3000, done="asked to end")], at(9, 1))
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
    assert HealthEvent.objects.get().action_taken == "warn", "the table says that operators are told"
    record_stray_processes(host.pk, [], at(9, 2))
    assert Stray.objects.get().gone_at == at(9, 2)


def test_a_later_process_with_the_same_pid_is_another_one(world: World, one: StraySeen) -> None:
    record_stray_processes(world.hosts["alpha"].pk, [one], at(9))
    record_stray_processes(world.hosts["alpha"].pk, [replace(one, started=100)], at(9, 1))
    assert Stray.objects.filter(gone_at=None).count() == 1
    assert HealthEvent.objects.count() == 2


def test_what_can_not_be_is_not_kept(world: World, one: StraySeen) -> None:
    host = world.hosts["alpha"]
    strange = [
        replace(one, gpu="GPU-elsewhere"),
        replace(one, pid=0),
        replace(one, pid=2**40),
        replace(one, started=-1),
    ]
    record_stray_processes(host.pk, strange, at(9))
    assert not Stray.objects.exists()
    record_stray_processes(host.pk, [replace(one, memory_mib=2**50, name="n" * 500)], at(9))
    row = Stray.objects.get()
    assert (row.memory_mib, len(row.name)) == (None, 64)


def test_a_host_that_names_them_is_not_counted_besides(world: World, one: StraySeen) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    stray_processes.record_stray_counts({(host.pk, unit.pk): (at(9).timestamp(), 2)}, at(9))
    assert HealthEvent.objects.filter(detail__startswith="2 processes").count() == 1
    HealthEvent.objects.all().delete()
    record_stray_processes(host.pk, [one], at(9))
    stray_processes.record_stray_counts({(host.pk, unit.pk): (at(9).timestamp(), 1)}, at(9))
    assert HealthEvent.objects.count() == 1
