"""Work on several hosts: its members begin together, are told of each other, and end together as their owner wants it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from agent.protocol import GangWanted, RunSeen
from scheduler import agent_api, clock, engine, gangs
from scheduler.agent_api import AgentRefused
from scheduler.core.reasons import Code
from scheduler.models import Decision, Run, Workload
from tests.fakes import FakeAgent
from tests.scheduler.test_life_of_a_job import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)


def placed(world: World, **wish: Any) -> tuple[Workload, list[FakeAgent]]:
    """A job on two hosts that has been placed, and the agents of its members by rank, each at an address of its own."""
    workload = job(world, world.vision, 4, world.now, hosts=2, **wish)
    engine.cycle("test", world.now)
    agents = [FakeAgent.of(run.host) for run in Run.objects.filter(workload=workload).order_by("rank")]
    assert len(agents) == 2
    for rank, agent in enumerate(agents):
        agent.inventory = replace(agent.inventory, address=f"10.0.0.{rank + 1}")
    return workload, agents


def report(agent: FakeAgent, at: dt.datetime, state: str = "starting", prepared: bool = True) -> GangWanted:
    """A frame of an agent that has prepared what it is told to run, and waits; what it is told then."""
    wanted = agent_api.desired(agent.host.pk, at).runs[0]
    agent.runs = {wanted.run: RunSeen(wanted.run, wanted.generation, state, prepared=prepared)}
    answer = agent_api.sync(agent.host.pk, agent.observed(), at)
    assert answer.runs[0].gang is not None
    return answer.runs[0].gang


def test_nobody_begins_before_everybody_could(world: World) -> None:
    workload, (first, second) = placed(world)
    assert not report(first, world.now + SECOND).go
    assert not report(second, world.now + SECOND, prepared=False).go, "its units are still held by somebody"
    assert not report(first, world.now + 2 * SECOND).go
    assert report(second, world.now + 3 * SECOND).go
    assert report(first, world.now + 4 * SECOND).go
    workload.refresh_from_db()
    assert workload.state == "starting"


def test_the_last_one_that_is_prepared_has_the_others_told_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (first, second) = placed(world)
    told: list[int] = []
    monkeypatch.setattr("scheduler.nudge.hosts", lambda hosts: told.extend(hosts))
    report(first, world.now + SECOND)
    assert told == []
    report(second, world.now + SECOND)
    assert sorted(told) == sorted([first.host.pk, second.host.pk])


def test_members_know_each_other_and_one_place_to_meet(world: World) -> None:
    _, agents = placed(world)
    found = [report(agent, world.now + SECOND) for agent in agents]
    told = [report(agent, world.now + 2 * SECOND) for agent in agents]
    assert [gang.rank for gang in told] == [0, 1]
    assert told[0].members == told[1].members
    assert [member.address for member in told[0].members] == ["10.0.0.1", "10.0.0.2"]
    assert [member.units for member in told[0].members] == [4, 4]
    assert [member.host for member in told[0].members] == [agent.host.name for agent in agents]
    assert told[0].port == told[1].port == found[0].port
    assert gangs.FIRST_PORT <= told[0].port < gangs.FIRST_PORT + 2 * gangs.PORTS


def test_an_agent_that_knows_nothing_of_gangs_holds_up_nobody(world: World) -> None:
    _, (first, second) = placed(world)
    assert not report(first, world.now + SECOND).go
    report(second, world.now + SECOND, state="running", prepared=False)
    assert report(first, world.now + 2 * SECOND).go


def test_work_on_one_host_is_no_gang(world: World) -> None:
    workload = job(world, world.vision, 2, world.now)
    engine.cycle("test", world.now)
    run = Run.objects.get(workload=workload)
    assert agent_api.desired(run.host_id, world.now).runs[0].gang is None


def test_one_that_cannot_start_keeps_all_from_starting(world: World) -> None:
    workload, (first, second) = placed(world)
    report(first, world.now + SECOND)
    wanted = agent_api.desired(second.host.pk, world.now).runs[0]
    second.runs = {wanted.run: RunSeen(wanted.run, wanted.generation, "ended", outcome="start_failed")}
    agent_api.sync(second.host.pk, second.observed(), world.now + 2 * SECOND)
    (told,) = agent_api.desired(first.host.pk, world.now + 2 * SECOND).runs
    assert told.verb == "stop" and told.gang is not None and not told.gang.go
    workload.refresh_from_db()
    assert workload.state == "stopping"


@pytest.mark.parametrize(
    ("policy", "retries", "outcome", "state", "kind"),
    [
        ("restart", 1, "failed", "queued", "restarted"),
        ("restart", 0, "failed", "ended", "ended"),
        ("restart", 0, "host_lost", "queued", "restarted"),
        ("end", 3, "failed", "ended", "ended"),
        ("end", 3, "host_lost", "ended", "ended"),
        ("end", 3, "gpu_error", "ended", "ended"),
        ("end", 0, "start_failed", "queued", "restarted"),
    ],
)
def test_a_gang_goes_as_its_owner_said_when_a_member_ends(
    world: World, policy: str, retries: int, outcome: str, state: str, kind: str
) -> None:
    workload, agents = placed(world, if_member_ends=policy, most_retries=retries)
    for step in (1, 2):
        for agent in agents:
            agent.sync(world.now + step * SECOND)
    agents[1].end(agents[1].running[0], world.now + 3 * SECOND, outcome=outcome, exit_code=137)
    agents[1].sync(world.now + 3 * SECOND)
    agents[0].sync(world.now + 4 * SECOND)
    agents[0].sync(world.now + 5 * SECOND)
    workload.refresh_from_db()
    assert workload.state == state
    assert workload.outcome == (outcome if state == "ended" else "")
    assert not Run.objects.filter(workload=workload).exclude(state="ended").exists(), "all of it ended together"
    kept = Decision.objects.get(workload=workload, kind=kind)
    assert (kept.code, kept.numbers["rank"], kept.numbers["host"]) == (outcome, 1, agents[1].host.name)
    assert kept.numbers["exit_code"] == 137


def test_a_gang_that_makes_room_comes_back_whatever_its_policy(world: World) -> None:
    workload, agents = placed(world, if_member_ends="end")
    for step in (1, 2):
        for agent in agents:
            agent.sync(world.now + step * SECOND)
    workload.refresh_from_db()
    Workload.objects.filter(pk=workload.pk).update(stop_requested=Code.EVICTED_FOR_GUARANTEE)
    for agent in agents:
        agent.end(agent.running[0], world.now + 3 * SECOND, outcome="killed_at_grace")
        agent.sync(world.now + 3 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "queued"
    assert not Decision.objects.filter(workload=workload, kind__in=("restarted", "ended")).exists()


def test_the_others_are_told_also_where_the_first_to_go_had_said_so_before_it_was_gone(world: World) -> None:
    workload, agents = placed(world)
    for step in (1, 2):
        for agent in agents:
            agent.sync(world.now + step * SECOND)
    going = agents[1].running[0]
    agents[1].runs[going] = replace(agents[1].runs[going], state="stopping")  # its lease was over for a moment, say
    agents[1].sync(world.now + 3 * SECOND)
    agents[1].end(going, world.now + 4 * SECOND, outcome="lease_lost", exit_code=143)
    agents[1].sync(world.now + 4 * SECOND)
    assert [run.verb for run in agents[0].sync(world.now + 5 * SECOND).runs] == ["stop"]
    agents[0].sync(world.now + 6 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "queued"
    assert not Run.objects.filter(workload=workload).exclude(state="ended").exists()


def test_members_that_finish_one_after_the_other_end_as_finished(world: World) -> None:
    workload, agents = placed(world, if_member_ends="end")
    for step in (1, 2):
        for agent in agents:
            agent.sync(world.now + step * SECOND)
    for step, agent in enumerate(agents, start=3):
        agent.end(agent.running[0], world.now + step * SECOND)
        agent.sync(world.now + step * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.outcome) == ("ended", "finished")


@pytest.mark.parametrize("address", ["10.0.0.1 slots=9", "-x", "a\nb", "x" * 300])
def test_an_address_that_is_none_is_refused_in_words(world: World, address: str) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    agent.inventory = replace(agent.inventory, address=address)
    with pytest.raises(AgentRefused, match="inventory.address"):
        agent.sync(world.now)


def test_a_gang_does_not_wait_for_ever_for_a_host_that_never_names_its_member(world: World) -> None:
    workload, (first, second) = placed(world)
    for seconds in (1, 60, 119):
        report(first, world.now + seconds * SECOND)
        agent_api.sync(second.host.pk, second.observed(), world.now + seconds * SECOND)
        clock.give_up_starts(world.now + seconds * SECOND)
    workload.refresh_from_db()
    assert workload.state == "starting"
    clock.give_up_starts(world.now + 121 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.stop_requested) == ("stopping", Code.START_FAILED)


def test_a_gang_whose_members_are_all_named_may_take_its_time_to_begin(world: World) -> None:
    workload, agents = placed(world)
    for agent in agents:
        report(agent, world.now + SECOND, prepared=False)
    clock.give_up_starts(world.now + 600 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "starting"
