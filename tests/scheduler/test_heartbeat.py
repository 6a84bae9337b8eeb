"""Test the heartbeat: an unchanged frame takes one SQL statement; any change takes the full sync."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent.protocol import DiagnosticSeen, GpuSeen, HomesSeen, Observed, UnitSeen
from scheduler import services
from scheduler.coordination.clock_check import ClockSample
from scheduler.cycle import engine
from scheduler.models import Gpu, Host, HostStateChange, Run, Unit
from scheduler.sync import agent_api, heartbeat
from tests.fakes import CREDENTIAL, FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.seeds import first_cases
from tests.world import World, make_host, world_fixture

LATER = dt.timedelta(seconds=5)


def write_agent(world: World) -> FakeAgent:
    """Return an agent that runs a job. Its last frame reported the same state as the frame before."""
    job(world, world.vision, 1, world.now)
    agent = FakeAgent.of(world.hosts["alpha"])
    agent.sync(world.now)
    engine.run_cycle("test", world.now)
    for _ in range(3):
        agent.sync(world.now)
    assert agent.running
    return agent


agent = world_fixture(write_agent)


def heartbeat_only(
    agent: FakeAgent, now: dt.datetime, frame: Observed | None = None, credential: str = CREDENTIAL
) -> Any:
    """Send a frame through the heartbeat only. Returns None if it needs the full sync."""
    return agent_api.sync_unchanged(
        agent.host.pk, [credential], frame or agent.observed(), ClockSample(now, "test", now.timestamp())
    )


def heard_at(agent: FakeAgent) -> dt.datetime | None:
    return Host.objects.get(pk=agent.host.pk).last_sync_at


def test_an_unchanged_frame_of_a_host_without_work_takes_one_query(
    world: World, django_assert_num_queries: Callable[[int], Any]
) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    expected = [agent.sync(world.now) for _ in range(2)][-1]
    frame = agent.observed()
    with django_assert_num_queries(1):
        answer = heartbeat_only(agent, world.now + LATER, frame)
    assert answer == expected
    assert heard_at(agent) == world.now + LATER


def test_an_unchanged_frame_gets_the_same_answer_as_the_full_sync(world: World, agent: FakeAgent) -> None:
    answer = heartbeat_only(agent, world.now + LATER)
    assert answer == agent_api.desired(agent.host.pk, world.now + LATER)
    assert [run.run for run in answer.runs] == agent.running
    assert heard_at(agent) == world.now + LATER


def whole_gpu(index: int, uuid: str) -> GpuSeen:
    return GpuSeen(index, uuid, "H100-80GB", 81_559, units=[UnitSeen(uuid, "", 0, 840, 81_559)])


@pytest.mark.parametrize("gpus", [1, 60])
def test_the_first_report_of_a_host_takes_the_same_number_of_queries_for_any_number_of_gpus(
    world: World, gpus: int, django_assert_max_num_queries: Callable[[int], Any]
) -> None:
    agent = FakeAgent.of(make_host("new", world.shared, [], world.now))
    new = [whole_gpu(number, f"GPU-new-{number}") for number in range(gpus)]
    agent.inventory = replace(agent.inventory, gpus=new)
    with django_assert_max_num_queries(25):
        agent.sync(world.now)
    assert Unit.objects.filter(gpu__host=agent.host, retired_at=None).count() == gpus


def test_a_new_gpu_may_take_the_index_of_a_held_gpu_that_is_no_longer_reported(
    world: World, agent: FakeAgent
) -> None:
    held = Gpu.objects.get(units__allocations__run__host=agent.host)
    kept = [gpu for gpu in agent.inventory.gpus if gpu.uuid != held.uuid]
    agent.inventory = replace(agent.inventory, gpus=[*kept, whole_gpu(held.index, "GPU-instead")])
    agent.sync(world.now + LATER)
    assert Gpu.objects.get(uuid="GPU-instead").index == held.index
    held.refresh_from_db()
    assert (held.repair_state, held.retired_at) == ("quarantined", None)


FRAME_CHANGES: dict[str, Callable[[Observed], Observed]] = {
    "version": lambda seen: replace(seen, version=2),
    "instance": lambda seen: replace(seen, instance="a clone"),
    "boot": lambda seen: replace(seen, boot_id="another boot"),
    "start": lambda seen: replace(seen, start="a copy"),
    "no start": lambda seen: replace(seen, start=""),
    "agent": lambda seen: replace(seen, agent_version="newer"),
    "inventory": lambda seen: replace(seen, inventory=replace(seen.inventory, notes=["the disk is full"])),
    "homes": lambda seen: replace(seen, homes=HomesSeen("a", 1.0, [])),
    "diagnostic": lambda seen: replace(seen, diagnostics=[DiagnosticSeen("x", "running")]),
    "run missing": lambda seen: replace(seen, runs=[]),
    "run ended": lambda seen: replace(seen, runs=[replace(seen.runs[0], state="ended")]),
    "generation": lambda seen: replace(seen, runs=[replace(seen.runs[0], generation=99)]),
    "step": lambda seen: replace(seen, runs=[replace(seen.runs[0], step="another")]),
    "ready": lambda seen: replace(seen, runs=[replace(seen.runs[0], ready=True)]),
    "prepared": lambda seen: replace(seen, runs=[replace(seen.runs[0], prepared=True)]),
    "activity": lambda seen: replace(seen, runs=[replace(seen.runs[0], activity={"kernels": 1})]),
    "checkpoint": lambda seen: replace(seen, runs=[replace(seen.runs[0], checkpoint_at=1_000.0)]),
}


@pytest.mark.parametrize("change", first_cases(4, FRAME_CHANGES))
def test_any_change_in_a_frame_takes_the_full_sync(world: World, agent: FakeAgent, change: str) -> None:
    assert heartbeat_only(agent, world.now + LATER, FRAME_CHANGES[change](agent.observed())) is None
    assert heard_at(agent) == world.now


@pytest.mark.parametrize(
    "change",
    first_cases(
        3,
        [
            {"lease_state": "joining"},
            {"lease_state": "silent"},
            {"agent_start": "another"},
            {"agent_instance": "another"},
            {"boot_id": "another"},
            {"credential_expires_at": dt.datetime(2001, 1, 1, tzinfo=dt.UTC)},
            {"credential_hash": ""},
            {"hardware": {}},
        ],
    ),
    ids=str,
)
def test_a_changed_host_row_takes_the_full_sync(
    world: World, agent: FakeAgent, change: dict[str, Any]
) -> None:
    Host.objects.filter(pk=agent.host.pk).update(**change)
    assert heartbeat_only(agent, world.now + LATER) is None
    assert heard_at(agent) == world.now


def test_a_heartbeat_restores_a_suspect_host(world: World, agent: FakeAgent) -> None:
    Host.objects.filter(pk=agent.host.pk).update(lease_state="suspect")
    assert heartbeat_only(agent, world.now + LATER) is not None
    assert Host.objects.get(pk=agent.host.pk).lease_state == "alive"
    change = HostStateChange.objects.filter(host=agent.host).latest("pk")
    assert (change.lease_state, change.reason, change.at) == ("alive", "its agent reports", world.now + LATER)


def test_an_unapplied_inventory_takes_the_full_sync(world: World, agent: FakeAgent) -> None:
    host = Host.objects.get(pk=agent.host.pk)
    Host.objects.filter(pk=host.pk).update(hardware={**host.hardware, "applied": False})
    assert heartbeat_only(agent, world.now + LATER) is None


def test_a_heartbeat_with_another_credential_is_ignored(world: World, agent: FakeAgent) -> None:
    assert heartbeat_only(agent, world.now + LATER, credential="another") is None
    services.revoke_credential(agent.host, now=world.now)
    assert heartbeat_only(agent, world.now + LATER) is None
    assert heard_at(agent) == world.now


def test_a_new_or_missing_run_takes_the_full_sync(world: World, agent: FakeAgent) -> None:
    Run.objects.filter(host=agent.host).update(missing_since=world.now)
    assert heartbeat_only(agent, world.now + LATER) is None
    Run.objects.filter(host=agent.host).update(missing_since=None)
    job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now + LATER)
    assert Run.objects.filter(host=agent.host, state="placed").exists()
    assert heartbeat_only(agent, world.now + LATER) is None
    assert heard_at(agent) == world.now


def test_a_suspect_host_that_was_revoked_is_not_restored(world: World) -> None:
    """Revoke the credential after the lease is renewed and before the host becomes alive."""
    host = world.hosts["alpha"]
    for credential, trusted in (("", "suspect"), (host.credential_hash, "alive")):
        Host.objects.filter(pk=host.pk).update(lease_state="suspect", credential_hash=credential)
        heartbeat._restore_suspect_host(host.pk, world.now)
        assert Host.objects.get(pk=host.pk).lease_state == trusted
