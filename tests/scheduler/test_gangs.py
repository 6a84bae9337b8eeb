"""Work on several hosts: its members begin together, are told of each other, and end together as their owner wants it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from agent.protocol import GangWanted, RunSeen, RunWanted
from agent.runs.reconcile import outcome_of_stop
from scheduler import services
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import engine
from scheduler.models import Allocation, Decision, Gpu, GpuStateChange, Run, Workload
from scheduler.runs import gangs
from scheduler.sweeps import silent_hosts, time_limits
from scheduler.sync import agent_api
from scheduler.sync.agent_api import AgentRejected
from tests.fakes import FakeAgent
from tests.scheduler.test_life_of_a_job import job
from tests.world import H100, World, make_host

SECOND = dt.timedelta(seconds=1)


def placed(world: World, **wish: Any) -> tuple[Workload, list[FakeAgent]]:
    """A job on two hosts that has been placed, and the agents of its members by rank, each at an address of its own."""
    workload = job(world, world.vision, 4, world.now, hosts=2, **wish)
    engine.run_cycle("test", world.now)
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


def test_the_last_one_that_is_prepared_has_the_others_told_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (first, second) = placed(world)
    told: list[int] = []
    monkeypatch.setattr("scheduler.state.nudge.hosts", lambda hosts: told.extend(hosts))
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
    assert (
        gangs.RENDEZVOUS_FIRST_PORT <= told[0].port < gangs.RENDEZVOUS_FIRST_PORT + 2 * gangs.RENDEZVOUS_PORTS
    )


def test_an_agent_that_knows_nothing_of_gangs_holds_up_nobody(world: World) -> None:
    _, (first, second) = placed(world)
    assert not report(first, world.now + SECOND).go
    report(second, world.now + SECOND, state="running", prepared=False)
    assert report(first, world.now + 2 * SECOND).go


def test_work_on_one_host_is_no_gang(world: World) -> None:
    workload = job(world, world.vision, 2, world.now)
    engine.run_cycle("test", world.now)
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
    assert not Run.objects.filter(workload=workload).exclude(state="ended").exists(), (
        "all of it ended together"
    )
    kept = Decision.objects.get(workload=workload, kind=kind)
    assert (kept.code, kept.numbers["rank"], kept.numbers["host"]) == (outcome, 1, agents[1].host.name)
    assert kept.numbers["exit_code"] == 137


def test_a_gang_that_makes_room_comes_back_whatever_its_policy(world: World) -> None:
    workload, agents = placed(world, if_member_ends="end")
    for step in (1, 2):
        for agent in agents:
            agent.sync(world.now + step * SECOND)
    workload.refresh_from_db()
    Workload.objects.filter(pk=workload.pk).update(stop_requested=ReasonCode.EVICTED_FOR_GUARANTEE)
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
    agents[1].runs[going] = replace(
        agents[1].runs[going], state="stopping"
    )  # its lease was over for a moment, say
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
    with pytest.raises(AgentRejected, match="inventory.address"):
        agent.sync(world.now)


def test_a_gang_does_not_wait_for_ever_for_a_host_that_never_names_its_member(world: World) -> None:
    workload, (first, second) = placed(world)
    for seconds in (1, 60, 119):
        report(first, world.now + seconds * SECOND)
        agent_api.sync(second.host.pk, second.observed(), world.now + seconds * SECOND)
        time_limits.requeue_late_starts(world.now + seconds * SECOND)
    workload.refresh_from_db()
    assert workload.state == "starting"
    time_limits.requeue_late_starts(world.now + 121 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.stop_requested) == ("stopping", ReasonCode.START_FAILED)


def test_a_gang_whose_members_are_all_named_may_take_its_time_to_begin(world: World) -> None:
    workload, agents = placed(world)
    for agent in agents:
        report(agent, world.now + SECOND, prepared=False)
    time_limits.requeue_late_starts(world.now + 600 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "starting"


class PromptAgent(FakeAgent):
    """One whose workloads go at once when they are told, so that what they end as is what they were told for."""

    def _outcome_of_stop(self, wanted: RunWanted, seen: RunSeen) -> str:
        return "checkpointed" if seen.saved else outcome_of_stop(wanted.code)


def running_gang(world: World, hosts: int, **wish: Any) -> tuple[Workload, list[FakeAgent]]:
    """A job that runs on so many hosts of 8 GPUs, and the agents of its members by rank. One host more is free."""
    for extra in range(hosts - 1):
        make_host(f"extra-{extra}", world.shared, [H100] * 8, world.now)
    everywhere = {host.pk: PromptAgent.of(host) for host in world.shared.hosts.all()}
    workload = job(world, world.vision, 8, world.now, hosts=hosts, models_wanted=[H100], **wish)
    return workload, start_again(workload, everywhere, world.now)


def start_again(workload: Workload, everywhere: dict[int, FakeAgent], at: dt.datetime) -> list[FakeAgent]:
    """Placed once more, and running everywhere; its members' agents by rank."""
    engine.run_cycle("test", at)
    workload.refresh_from_db()
    runs = Run.objects.filter(workload=workload, attempt=workload.attempt).order_by("rank")
    agents = [everywhere[run.host_id] for run in runs]
    assert len(agents) == workload.hosts
    for step in (1, 2):
        for agent in agents:
            agent.sync(at + step * SECOND)
    workload.refresh_from_db()
    assert workload.state == "running"
    return agents


def all_go(workload: Workload, agents: list[FakeAgent], at: dt.datetime) -> None:
    for step in (1, 2):
        for agent in agents:
            agent.sync(at + step * SECOND)
    workload.refresh_from_db()


@pytest.mark.parametrize("hosts", [3, 4])
def test_a_gang_on_many_hosts_comes_back_after_a_gpu_error_and_only_that_host_is_to_blame(
    world: World, hosts: int
) -> None:
    workload, agents = running_gang(world, hosts)
    ill = agents[2].host
    now = world.now + 10 * SECOND
    assert services.quarantine_gpu(
        Gpu.objects.get(host=ill, index=3), reason="fell off the bus (xid:79)", now=now
    )
    all_go(workload, agents, now)
    assert (workload.state, workload.reason_code, workload.lost_attempts) == (
        "queued",
        ReasonCode.GPU_ERROR,
        1,
    )
    ended = {run.host_id: run.outcome for run in workload.runs.all()}
    assert {host for host, outcome in ended.items() if outcome == ReasonCode.GPU_ERROR} == {ill.pk}
    kept = Decision.objects.get(workload=workload, kind="restarted")
    assert (kept.code, kept.numbers["host"]) == (ReasonCode.GPU_ERROR, ill.name)
    charged = Allocation.objects.filter(workload=workload).values_list("end_code", flat=True).distinct()
    assert list(charged) == [ReasonCode.GPU_ERROR], "the time of all of them was lost by the hardware"


def test_a_gang_is_tried_until_its_gpus_failed_on_three_hosts(world: World) -> None:
    workload, agents = running_gang(world, 4)
    everywhere = {host.pk: PromptAgent.of(host) for host in world.shared.hosts.all()}
    now = world.now
    for failed in (1, 2, 3):
        now += 60 * SECOND
        gpu = Gpu.objects.get(host=agents[0].host, index=0)
        assert services.quarantine_gpu(gpu, reason="xid:79", now=now)
        all_go(workload, agents, now)
        assert workload.state == ("queued" if failed < 3 else "ended"), failed
        if failed < 3:
            agents = again(workload, world, agents, everywhere, failed, now + 5 * SECOND)
    assert workload.outcome_numbers["failed_on_hosts"] == 3


def again(
    workload: Workload,
    world: World,
    agents: list[FakeAgent],
    everywhere: dict[int, FakeAgent],
    number: int,
    at: dt.datetime,
) -> list[FakeAgent]:
    """On another host in the ill one's place."""
    fresh = make_host(f"fresh-{number}", world.shared, [H100] * 8, at)
    everywhere[fresh.pk] = PromptAgent.of(fresh)
    for agent in everywhere.values():
        agent.sync(at)
    found = start_again(workload, everywhere, at)
    return sorted(found, key=lambda agent: agent.host.pk in {one.host.pk for one in agents[:1]})


@pytest.mark.parametrize("order", [1, -1])
def test_who_failed_because_another_lost_its_host_or_gpu_is_not_why_the_gang_ended(
    world: World, order: int
) -> None:
    workload, agents = running_gang(world, 3)
    ill, *others = agents
    now = world.now + 10 * SECOND
    for agent in others[::order]:  # their collective failed at once; that the GPU is out is known later
        agent.end(agent.running[0], now, outcome="failed", exit_code=1)
        agent.sync(now)
    assert services.quarantine_gpu(Gpu.objects.get(host=ill.host, index=0), reason="xid:79", now=now + SECOND)
    all_go(workload, agents, now + SECOND)
    assert (workload.state, workload.reason_code, workload.lost_attempts) == (
        "queued",
        ReasonCode.GPU_ERROR,
        1,
    )
    assert Decision.objects.get(workload=workload, kind="restarted").numbers["host"] == ill.host.name


def test_members_that_fail_before_their_host_is_known_to_be_lost_use_no_retry(world: World) -> None:
    workload, agents = running_gang(world, 3)
    lost, *others = agents
    idle = [
        PromptAgent.of(h) for h in world.shared.hosts.all() if h.pk not in {agent.host.pk for agent in agents}
    ]
    for agent in others:
        agent.end(agent.running[0], world.now + 10 * SECOND, outcome="failed", exit_code=1)
    for seconds in (10, 100):
        for agent in others + idle:
            agent.sync(world.now + seconds * SECOND)
    silent_hosts.sweep_silent_hosts(world.now + 100 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code, workload.failures) == ("queued", ReasonCode.HOST_LOST, 0)
    assert Decision.objects.get(workload=workload, kind="restarted").numbers["host"] == lost.host.name


@pytest.mark.parametrize("outcome", ["failed", "start_failed"])
def test_one_attempt_of_a_gang_is_one_host_however_many_of_its_members_fail(
    world: World, outcome: str
) -> None:
    workload, agents = running_gang(world, 4, most_retries=2)
    for agent in agents:
        agent.end(agent.running[0], world.now + 10 * SECOND, outcome=outcome, exit_code=1)
    all_go(workload, agents, world.now + 10 * SECOND)
    assert workload.state == "queued"


def noticed_gang(world: World, hosts: int = 2) -> tuple[Workload, list[FakeAgent]]:
    """A gang of which one host is being drained: it has its notice, and its agents know."""
    workload, agents = running_gang(world, hosts)
    services.drain_host(agents[0].host, reason="a fan", now=world.now + 60 * SECOND)
    for agent in agents:
        assert [run.verb for run in agent.sync(world.now + 60 * SECOND).runs] == ["notice"]
    workload.refresh_from_db()
    assert workload.state == "notice"
    return workload, agents


def saves_and_goes(agent: FakeAgent, at: dt.datetime) -> None:
    (run,) = agent.running
    agent.checkpoint(run, at)
    agent.end(run, at, outcome="checkpointed", exit_code=0)
    agent.sync(at)


def test_the_first_member_to_save_and_go_cuts_nobodys_notice_short(world: World) -> None:
    workload, (slow, quick) = noticed_gang(world)
    saves_and_goes(quick, world.now + 65 * SECOND)
    time_limits.stop_after_notice(world.now + 66 * SECOND)
    assert [run.verb for run in slow.sync(world.now + 70 * SECOND).runs] == ["notice"], "it may still write"
    workload.refresh_from_db()
    assert workload.state == "notice"
    stop_at = world.now + 60 * SECOND + world.shared.notice_seconds * SECOND
    time_limits.stop_after_notice(stop_at)
    assert [run.verb for run in slow.sync(stop_at).runs] == ["stop"]
    slow.sync(stop_at + SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code) == ("queued", ReasonCode.DRAINED)


def test_the_rest_of_a_gang_is_stopped_as_soon_as_all_of_it_has_saved(world: World) -> None:
    workload, (first, second, third) = noticed_gang(world, 3)
    saves_and_goes(second, world.now + 65 * SECOND)
    for agent in (first, third):
        agent.checkpoint(agent.running[0], world.now + 70 * SECOND)
        assert agent.sync(world.now + 70 * SECOND)
    all_go(workload, [first, third], world.now + 71 * SECOND)
    assert (workload.state, workload.reason_code) == ("queued", ReasonCode.DRAINED)
    assert {run.outcome for run in workload.runs.all()} == {"checkpointed"}


def test_a_member_that_fails_after_the_notice_still_ends_the_others(world: World) -> None:
    workload, (first, second) = noticed_gang(world)
    second.end(second.running[0], world.now + 65 * SECOND, outcome="failed", exit_code=1)
    second.sync(world.now + 65 * SECOND)
    assert [run.verb for run in first.sync(world.now + 66 * SECOND).runs] == ["stop"]
    workload.refresh_from_db()
    assert workload.state == "stopping"


@pytest.mark.parametrize(("others", "why"), [("killed_at_grace", 2), ("checkpointed", 0)])
def test_a_gang_has_saved_when_all_its_members_have(world: World, others: str, why: int) -> None:
    workload, agents = running_gang(world, 3)
    for seconds, agent in enumerate(agents):
        (run,) = agent.running
        agent.end(
            run,
            world.now + (60 + seconds) * SECOND,
            outcome="checkpointed" if seconds < 2 else others,
            exit_code=0,
        )
        agent.sync(world.now + (60 + seconds) * SECOND)
    (told,) = gangs.first_failures([list(workload.runs.order_by("rank"))])
    assert told.rank == why


def test_a_host_whose_clock_is_behind_is_not_taken_for_the_first_that_went(world: World) -> None:
    workload, agents = running_gang(world, 3)
    agents[2].end(agents[2].running[0], world.now + 60 * SECOND, outcome="failed", exit_code=3)
    agents[2].sync(world.now + 60 * SECOND)
    for agent in agents[:2]:
        agent.sync(world.now + 60 * SECOND)  # told to stop, and gone at once: by its own clock an hour ago
        (run,) = agent.runs
        agent.end(run, world.now - 3600 * SECOND, outcome="killed_at_grace")
        agent.sync(world.now + 61 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.outcome, workload.outcome_numbers["exit_code"]) == ("ended", "failed", 3)


@pytest.mark.parametrize(
    ("seconds", "lost"), [(-5, False), (5, True), (100, True), (130, True), (200, False)]
)
def test_a_gpu_counts_as_lost_by_who_held_it_when_it_was_taken_out(
    world: World, seconds: int, lost: bool
) -> None:
    workload, agents = running_gang(world, 2)
    run = workload.runs.get(rank=1)
    GpuStateChange.objects.create(
        gpu=Gpu.objects.get(host=run.host, index=0),
        repair_state="quarantined",
        at=world.now + seconds * SECOND,
    )
    if seconds > 5:
        agents[1].end(agents[1].running[0], world.now + 100 * SECOND, outcome="failed")
        agents[1].sync(world.now + 100 * SECOND)
    assert gangs.runs_that_lost_a_gpu(list(workload.runs.all())) == ({run.pk} if lost else set())
