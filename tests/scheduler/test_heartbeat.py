"""A host without news is heard by one statement; with any news, or any doubt, that statement writes nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent.protocol import DiagnosticSeen, GpuSeen, HomesSeen, Observed
from scheduler import services
from scheduler.coordination.clock_check import ClockSample
from scheduler.cycle import engine
from scheduler.models import Gpu, Host, HostStateChange, Run, Unit
from scheduler.sync import agent_api, heartbeat
from tests.fakes import CREDENTIAL, FakeAgent
from tests.scheduler.test_life_of_a_job import job
from tests.world import World, make_host

LATER = dt.timedelta(seconds=5)


@pytest.fixture
def agent(world: World) -> FakeAgent:
    """An agent that runs a job, and whose last frame had no news."""
    job(world, world.vision, 1, world.now)
    agent = FakeAgent.of(world.hosts["alpha"])
    agent.sync(world.now)
    engine.run_cycle("test", world.now)
    for _ in range(3):
        agent.sync(world.now)
    assert agent.running
    return agent


def short_way(
    agent: FakeAgent, now: dt.datetime, frame: Observed | None = None, credential: str = CREDENTIAL
) -> Any:
    return agent_api.sync_unchanged(
        agent.host.pk, [credential], frame or agent.observed(), ClockSample(now, "test", now.timestamp())
    )


def heard_at(agent: FakeAgent) -> dt.datetime | None:
    return Host.objects.get(pk=agent.host.pk).last_sync_at


def test_a_host_without_work_and_news_is_heard_by_one_query(
    world: World, django_assert_num_queries: Callable[[int], Any]
) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    expected = [agent.sync(world.now) for _ in range(2)][-1]
    frame = agent.observed()
    with django_assert_num_queries(1):
        answer = short_way(agent, world.now + LATER, frame)
    assert answer == expected
    assert heard_at(agent) == world.now + LATER


def test_a_host_that_reports_its_work_as_before_is_answered_as_by_the_whole_way(
    world: World, agent: FakeAgent
) -> None:
    answer = short_way(agent, world.now + LATER)
    assert answer == agent_api.desired(agent.host.pk, world.now + LATER)
    assert [run.run for run in answer.runs] == agent.running
    assert heard_at(agent) == world.now + LATER


@pytest.mark.parametrize("gpus", [1, 60])
def test_a_host_s_first_report_takes_as_many_queries_whatever_it_has(
    world: World, gpus: int, django_assert_max_num_queries: Callable[[int], Any]
) -> None:
    agent = FakeAgent.of(make_host("new", world.shared, [], world.now))
    new = [GpuSeen(number, f"GPU-new-{number}", "H100-80GB", 81_559) for number in range(gpus)]
    agent.inventory = replace(agent.inventory, gpus=new)
    with django_assert_max_num_queries(25):
        agent.sync(world.now)
    assert Unit.objects.filter(gpu__host=agent.host, retired_at=None).count() == gpus


def test_a_new_gpu_takes_the_place_of_a_held_one_that_is_not_reported_any_more(
    world: World, agent: FakeAgent
) -> None:
    held = Gpu.objects.get(units__allocations__run__host=agent.host)
    kept = [gpu for gpu in agent.inventory.gpus if gpu.uuid != held.uuid]
    agent.inventory = replace(
        agent.inventory, gpus=[*kept, GpuSeen(held.index, "GPU-instead", held.model, 81_559)]
    )
    agent.sync(world.now + LATER)
    assert Gpu.objects.get(uuid="GPU-instead").index == held.index
    held.refresh_from_db()
    assert (held.repair_state, held.retired_at) == ("quarantined", None)


NEWS: dict[str, Callable[[Observed], Observed]] = {
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


@pytest.mark.parametrize("news", NEWS)
def test_news_of_any_kind_goes_the_whole_way(world: World, agent: FakeAgent, news: str) -> None:
    assert short_way(agent, world.now + LATER, NEWS[news](agent.observed())) is None
    assert heard_at(agent) == world.now


@pytest.mark.parametrize(
    "doubt",
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
    ids=str,
)
def test_a_row_that_is_not_as_it_was_goes_the_whole_way(
    world: World, agent: FakeAgent, doubt: dict[str, Any]
) -> None:
    Host.objects.filter(pk=agent.host.pk).update(**doubt)
    assert short_way(agent, world.now + LATER) is None
    assert heard_at(agent) == world.now


def test_a_suspect_host_is_trusted_again_by_the_short_way(world: World, agent: FakeAgent) -> None:
    Host.objects.filter(pk=agent.host.pk).update(lease_state="suspect")
    assert short_way(agent, world.now + LATER) is not None
    assert Host.objects.get(pk=agent.host.pk).lease_state == "alive"
    told = HostStateChange.objects.filter(host=agent.host).latest("pk")
    assert (told.lease_state, told.reason, told.at) == ("alive", "its agent speaks", world.now + LATER)


def test_an_inventory_that_is_to_be_applied_again_goes_the_whole_way(world: World, agent: FakeAgent) -> None:
    host = Host.objects.get(pk=agent.host.pk)
    Host.objects.filter(pk=host.pk).update(hardware={**host.hardware, "applied": False})
    assert short_way(agent, world.now + LATER) is None


def test_another_credential_than_the_host_s_is_never_heard(world: World, agent: FakeAgent) -> None:
    assert short_way(agent, world.now + LATER, credential="another") is None
    services.revoke_credential(agent.host, now=world.now)
    assert short_way(agent, world.now + LATER) is None
    assert heard_at(agent) == world.now


def test_a_run_that_was_placed_or_missed_meanwhile_goes_the_whole_way(world: World, agent: FakeAgent) -> None:
    Run.objects.filter(host=agent.host).update(missing_since=world.now)
    assert short_way(agent, world.now + LATER) is None
    Run.objects.filter(host=agent.host).update(missing_since=None)
    job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now + LATER)
    assert Run.objects.filter(host=agent.host, state="placed").exists()
    assert short_way(agent, world.now + LATER) is None
    assert heard_at(agent) == world.now


def test_a_late_host_that_was_revoked_meanwhile_is_not_trusted_again(world: World) -> None:
    """Its renewal was written, and before it is trusted for it an operator takes its credential away."""
    host = world.hosts["alpha"]
    for credential, trusted in (("", "suspect"), (host.credential_hash, "alive")):
        Host.objects.filter(pk=host.pk).update(lease_state="suspect", credential_hash=credential)
        heartbeat._restore_suspect_host(host.pk, world.now)
        assert Host.objects.get(pk=host.pk).lease_state == trusted
