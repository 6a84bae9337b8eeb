"""Test gangs, which are workloads on several hosts. Each host runs one member.

The members start together and get each other's addresses. The owner's policy decides when the gang ends.
"""

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
from scheduler.sync.agent_rejections import AgentRejected
from tests.fakes import FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.world import H100, World, make_host

SECOND = dt.timedelta(seconds=1)


def placed(world: World, **wish: Any) -> tuple[Workload, list[FakeAgent]]:
    """Return a job placed on two hosts, and the agents of its members by rank, each with its own address."""
    workload = job(world, world.vision, 4, world.now, hosts=2, **wish)
    engine.run_cycle("test", world.now)
    agents = [FakeAgent.of(run.host) for run in Run.objects.filter(workload=workload).order_by("rank")]
    assert len(agents) == 2
    for rank, agent in enumerate(agents):
        agent.inventory = replace(agent.inventory, address=f"10.0.0.{rank + 1}")
    return workload, agents


def report(agent: FakeAgent, at: dt.datetime, state: str = "starting", prepared: bool = True) -> GangWanted:
    """Sync an agent that reports its run with this state. Returns the gang's part of the response."""
    wanted = agent_api.desired(agent.host.pk, at).runs[0]
    agent.runs = {wanted.run: RunSeen(wanted.run, wanted.generation, state, prepared=prepared)}
    answer = agent_api.sync(agent.host.pk, agent.observed(), at)
    assert answer.runs[0].gang is not None
    return answer.runs[0].gang


def test_no_member_starts_before_all_members_are_prepared(world: World) -> None:
    workload, (first, second) = placed(world)
    assert not report(first, world.now + SECOND).go
    assert not report(second, world.now + SECOND, prepared=False).go, "other work still holds its units"
    assert not report(first, world.now + 2 * SECOND).go
    assert report(second, world.now + 3 * SECOND).go
    assert report(first, world.now + 4 * SECOND).go
    workload.refresh_from_db()
    assert workload.state == "starting"


def test_the_last_prepared_member_nudges_the_other_hosts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (first, second) = placed(world)
    nudged: list[int] = []
    monkeypatch.setattr("scheduler.state.nudge.hosts", lambda hosts: nudged.extend(hosts))
    report(first, world.now + SECOND)
    assert nudged == []
    report(second, world.now + SECOND)
    assert sorted(nudged) == sorted([first.host.pk, second.host.pk])


def test_members_get_the_same_addresses_and_rendezvous_port(world: World) -> None:
    _, agents = placed(world)
    before = [report(agent, world.now + SECOND) for agent in agents]
    answers = [report(agent, world.now + 2 * SECOND) for agent in agents]
    assert [gang.rank for gang in answers] == [0, 1]
    assert answers[0].members == answers[1].members
    assert [member.address for member in answers[0].members] == ["10.0.0.1", "10.0.0.2"]
    assert [member.units for member in answers[0].members] == [4, 4]
    assert [member.host for member in answers[0].members] == [agent.host.name for agent in agents]
    assert answers[0].port == answers[1].port == before[0].port
    assert (
        gangs.RENDEZVOUS_FIRST_PORT
        <= answers[0].port
        < gangs.RENDEZVOUS_FIRST_PORT + 2 * gangs.RENDEZVOUS_PORTS
    )


def test_an_agent_without_gang_support_does_not_block_the_other_members(world: World) -> None:
    _, (first, second) = placed(world)
    assert not report(first, world.now + SECOND).go
    report(second, world.now + SECOND, state="running", prepared=False)
    assert report(first, world.now + 2 * SECOND).go


def test_work_on_one_host_is_not_a_gang(world: World) -> None:
    workload = job(world, world.vision, 2, world.now)
    engine.run_cycle("test", world.now)
    run = Run.objects.get(workload=workload)
    assert agent_api.desired(run.host_id, world.now).runs[0].gang is None


def test_a_member_that_cannot_start_stops_the_whole_gang(world: World) -> None:
    workload, (first, second) = placed(world)
    report(first, world.now + SECOND)
    wanted = agent_api.desired(second.host.pk, world.now).runs[0]
    second.runs = {wanted.run: RunSeen(wanted.run, wanted.generation, "ended", outcome="start_failed")}
    agent_api.sync(second.host.pk, second.observed(), world.now + 2 * SECOND)
    (order,) = agent_api.desired(first.host.pk, world.now + 2 * SECOND).runs
    assert order.verb == "stop" and order.gang is not None and not order.gang.go
    workload.refresh_from_db()
    assert workload.state == "stopping"


@pytest.mark.parametrize(
    ("policy", "retries", "outcome", "state", "kind"),
    [
        ("restart", 1, "failed", "queued", "restarted"),
        ("end", 3, "host_lost", "ended", "ended"),
        pytest.param("restart", 0, "failed", "ended", "ended", marks=pytest.mark.long),
        pytest.param("end", 0, "start_failed", "queued", "restarted", marks=pytest.mark.long),
        pytest.param("restart", 0, "host_lost", "queued", "restarted", marks=pytest.mark.long),
        pytest.param("end", 3, "failed", "ended", "ended", marks=pytest.mark.long),
        pytest.param("end", 3, "gpu_error", "ended", "ended", marks=pytest.mark.long),
    ],
)
def test_the_owners_policy_decides_what_happens_when_a_member_ends(
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
        "all members end together"
    )
    kept = Decision.objects.get(workload=workload, kind=kind)
    assert (kept.code, kept.numbers["rank"], kept.numbers["host"]) == (outcome, 1, agents[1].host.name)
    assert kept.numbers["exit_code"] == 137


def test_a_preempted_gang_is_requeued_whatever_its_policy(world: World) -> None:
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


@pytest.mark.long
def test_the_other_members_are_stopped_if_a_member_is_reported_as_stopping_before_it_ends(
    world: World,
) -> None:
    workload, agents = placed(world)
    for step in (1, 2):
        for agent in agents:
            agent.sync(world.now + step * SECOND)
    stopping_run = agents[1].running[0]
    # The run of this member is stopping, e.g. after it lost its lease for a short time.
    agents[1].runs[stopping_run] = replace(agents[1].runs[stopping_run], state="stopping")
    agents[1].sync(world.now + 3 * SECOND)
    agents[1].end(stopping_run, world.now + 4 * SECOND, outcome="lease_lost", exit_code=143)
    agents[1].sync(world.now + 4 * SECOND)
    assert [run.verb for run in agents[0].sync(world.now + 5 * SECOND).runs] == ["stop"]
    agents[0].sync(world.now + 6 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "queued"
    assert not Run.objects.filter(workload=workload).exclude(state="ended").exists()


def test_a_gang_whose_members_finish_one_after_another_is_finished(world: World) -> None:
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
def test_an_invalid_address_is_rejected_with_a_reason(world: World, address: str) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    agent.inventory = replace(agent.inventory, address=address)
    with pytest.raises(AgentRejected, match="inventory.address"):
        agent.sync(world.now)


@pytest.mark.long
def test_a_gang_is_stopped_if_a_host_never_reports_its_member(world: World) -> None:
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


def test_a_gang_whose_members_are_all_reported_has_no_start_timeout(world: World) -> None:
    workload, agents = placed(world)
    for agent in agents:
        report(agent, world.now + SECOND, prepared=False)
    time_limits.requeue_late_starts(world.now + 600 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "starting"


class PromptAgent(FakeAgent):
    """An agent whose workloads end as soon as a stop is ordered, with the outcome of the stop code."""

    def _outcome_of_stop(self, wanted: RunWanted, seen: RunSeen) -> str:
        return "checkpointed" if seen.saved else outcome_of_stop(wanted.code)


def running_gang(world: World, hosts: int, **wish: Any) -> tuple[Workload, list[FakeAgent]]:
    """Return a job that runs on ``hosts`` hosts of 8 GPUs, and its agents by rank. One more host is free."""
    for extra in range(hosts - 1):
        make_host(f"extra-{extra}", world.shared, [H100] * 8, world.now)
    everywhere = {host.pk: PromptAgent.of(host) for host in world.shared.hosts.all()}
    workload = job(world, world.vision, 8, world.now, hosts=hosts, models_wanted=[H100], **wish)
    return workload, start_again(workload, everywhere, world.now)


def start_again(workload: Workload, everywhere: dict[int, FakeAgent], at: dt.datetime) -> list[FakeAgent]:
    """Place the workload and run all its members. Returns the members' agents by rank."""
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


def sync_twice(workload: Workload, agents: list[FakeAgent], at: dt.datetime) -> None:
    for step in (1, 2):
        for agent in agents:
            agent.sync(at + step * SECOND)
    workload.refresh_from_db()


@pytest.mark.parametrize("hosts", [3, pytest.param(4, marks=pytest.mark.long)])
def test_a_gang_is_requeued_after_a_gpu_error_and_only_the_faulty_member_is_marked(
    world: World, hosts: int
) -> None:
    workload, agents = running_gang(world, hosts)
    faulty = agents[2].host
    now = world.now + 10 * SECOND
    assert services.quarantine_gpu(
        Gpu.objects.get(host=faulty, index=3), reason="fell off the bus (xid:79)", now=now
    )
    sync_twice(workload, agents, now)
    assert (workload.state, workload.reason_code, workload.lost_attempts) == (
        "queued",
        ReasonCode.GPU_ERROR,
        1,
    )
    ended = {run.host_id: run.outcome for run in workload.runs.all()}
    assert {host for host, outcome in ended.items() if outcome == ReasonCode.GPU_ERROR} == {faulty.pk}
    kept = Decision.objects.get(workload=workload, kind="restarted")
    assert (kept.code, kept.numbers["host"]) == (ReasonCode.GPU_ERROR, faulty.name)
    charged = Allocation.objects.filter(workload=workload).values_list("end_code", flat=True).distinct()
    assert list(charged) == [ReasonCode.GPU_ERROR], "the hardware fault cost the time of all members"


@pytest.mark.long
def test_a_gang_is_retried_until_gpus_have_failed_on_three_hosts(world: World) -> None:
    workload, agents = running_gang(world, 4)
    everywhere = {host.pk: PromptAgent.of(host) for host in world.shared.hosts.all()}
    now = world.now
    for failed in (1, 2, 3):
        now += 60 * SECOND
        gpu = Gpu.objects.get(host=agents[0].host, index=0)
        assert services.quarantine_gpu(gpu, reason="xid:79", now=now)
        sync_twice(workload, agents, now)
        assert workload.state == ("queued" if failed < 3 else "ended"), failed
        if failed < 3:
            agents = restart_on_fresh_host(workload, world, agents, everywhere, failed, now + 5 * SECOND)
    assert workload.outcome_numbers["failed_on_hosts"] == 3


def restart_on_fresh_host(
    workload: Workload,
    world: World,
    agents: list[FakeAgent],
    everywhere: dict[int, FakeAgent],
    number: int,
    at: dt.datetime,
) -> list[FakeAgent]:
    """Restart the gang with a fresh host in place of the failed host. Returns the new members' agents."""
    fresh = make_host(f"fresh-{number}", world.shared, [H100] * 8, at)
    everywhere[fresh.pk] = PromptAgent.of(fresh)
    for agent in everywhere.values():
        agent.sync(at)
    agents_by_rank = start_again(workload, everywhere, at)
    return sorted(agents_by_rank, key=lambda agent: agent.host.pk in {agent.host.pk for agent in agents[:1]})


@pytest.mark.long
@pytest.mark.parametrize("order", [1, -1])
def test_members_that_fail_as_a_consequence_are_not_the_cause_of_the_gangs_end(
    world: World, order: int
) -> None:
    workload, agents = running_gang(world, 3)
    faulty, *others = agents
    now = world.now + 10 * SECOND
    for agent in others[::order]:  # their collective operation fails before the GPU fault is reported
        agent.end(agent.running[0], now, outcome="failed", exit_code=1)
        agent.sync(now)
    assert services.quarantine_gpu(
        Gpu.objects.get(host=faulty.host, index=0), reason="xid:79", now=now + SECOND
    )
    sync_twice(workload, agents, now + SECOND)
    assert (workload.state, workload.reason_code, workload.lost_attempts) == (
        "queued",
        ReasonCode.GPU_ERROR,
        1,
    )
    assert Decision.objects.get(workload=workload, kind="restarted").numbers["host"] == faulty.host.name


def test_members_that_fail_before_another_members_host_is_known_as_lost_use_no_retry(world: World) -> None:
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


@pytest.mark.parametrize("outcome", ["failed", pytest.param("start_failed", marks=pytest.mark.long)])
def test_one_attempt_of_a_gang_counts_as_one_failed_host_however_many_members_fail(
    world: World, outcome: str
) -> None:
    workload, agents = running_gang(world, 4, most_retries=2)
    for agent in agents:
        agent.end(agent.running[0], world.now + 10 * SECOND, outcome=outcome, exit_code=1)
    sync_twice(workload, agents, world.now + 10 * SECOND)
    assert workload.state == "queued"


def noticed_gang(world: World, hosts: int = 2) -> tuple[Workload, list[FakeAgent]]:
    """Return a gang with a notice because one of its hosts drains, and the gang's agents."""
    workload, agents = running_gang(world, hosts)
    services.drain_host(agents[0].host, reason="a fan", now=world.now + 60 * SECOND)
    for agent in agents:
        assert [run.verb for run in agent.sync(world.now + 60 * SECOND).runs] == ["notice"]
    workload.refresh_from_db()
    assert workload.state == "notice"
    return workload, agents


def checkpoint_and_end(agent: FakeAgent, at: dt.datetime) -> None:
    (run,) = agent.running
    agent.checkpoint(run, at)
    agent.end(run, at, outcome="checkpointed", exit_code=0)
    agent.sync(at)


def test_a_member_that_saves_first_does_not_shorten_the_notice_of_the_others(world: World) -> None:
    workload, (slow, quick) = noticed_gang(world)
    checkpoint_and_end(quick, world.now + 65 * SECOND)
    time_limits.stop_after_notice(world.now + 66 * SECOND)
    assert [run.verb for run in slow.sync(world.now + 70 * SECOND).runs] == ["notice"], "slow may still save"
    workload.refresh_from_db()
    assert workload.state == "notice"
    stop_at = world.now + 60 * SECOND + world.shared.notice_seconds * SECOND
    time_limits.stop_after_notice(stop_at)
    assert [run.verb for run in slow.sync(stop_at).runs] == ["stop"]
    slow.sync(stop_at + SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code) == ("queued", ReasonCode.DRAINED)


@pytest.mark.long
def test_a_gang_is_stopped_once_all_its_members_have_saved(world: World) -> None:
    workload, (first, second, third) = noticed_gang(world, 3)
    checkpoint_and_end(second, world.now + 65 * SECOND)
    for agent in (first, third):
        agent.checkpoint(agent.running[0], world.now + 70 * SECOND)
        assert agent.sync(world.now + 70 * SECOND)
    sync_twice(workload, [first, third], world.now + 71 * SECOND)
    assert (workload.state, workload.reason_code) == ("queued", ReasonCode.DRAINED)
    assert {run.outcome for run in workload.runs.all()} == {"checkpointed"}


def test_a_member_that_fails_after_the_notice_still_ends_the_others(world: World) -> None:
    workload, (first, second) = noticed_gang(world)
    second.end(second.running[0], world.now + 65 * SECOND, outcome="failed", exit_code=1)
    second.sync(world.now + 65 * SECOND)
    assert [run.verb for run in first.sync(world.now + 66 * SECOND).runs] == ["stop"]
    workload.refresh_from_db()
    assert workload.state == "stopping"


@pytest.mark.parametrize(
    ("others", "failed_rank"),
    [("killed_at_grace", 2), pytest.param("checkpointed", 0, marks=pytest.mark.long)],
)
def test_a_gang_counts_as_checkpointed_only_if_all_its_members_are_checkpointed(
    world: World, others: str, failed_rank: int
) -> None:
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
    (failure,) = gangs.first_failures([list(workload.runs.order_by("rank"))])
    assert failure.rank == failed_rank


def test_a_host_with_a_slow_clock_is_not_taken_as_the_first_failure(world: World) -> None:
    workload, agents = running_gang(world, 3)
    agents[2].end(agents[2].running[0], world.now + 60 * SECOND, outcome="failed", exit_code=3)
    agents[2].sync(world.now + 60 * SECOND)
    for agent in agents[:2]:
        agent.sync(world.now + 60 * SECOND)  # the run stops at once; the host's clock is an hour slow
        (run,) = agent.runs
        agent.end(run, world.now - 3600 * SECOND, outcome="killed_at_grace")
        agent.sync(world.now + 61 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.outcome, workload.outcome_numbers["exit_code"]) == ("ended", "failed", 3)


def test_a_gpu_taken_out_counts_as_lost_for_the_run_that_held_it(world: World) -> None:
    workload, agents = running_gang(world, 2)
    run = workload.runs.get(rank=1)

    def assert_lost(expected: dict[int, bool]) -> None:
        """Take a GPU of the run out at each second in ``expected``. Check whether it counts as lost."""
        for seconds, lost in expected.items():
            change = GpuStateChange.objects.create(
                gpu=Gpu.objects.get(host=run.host, index=0),
                repair_state="quarantined",
                at=world.now + seconds * SECOND,
            )
            found = gangs.runs_that_lost_a_gpu(list(workload.runs.all()))
            assert found == ({run.pk} if lost else set()), seconds
            change.delete()

    assert_lost({-5: False, 5: True})
    agents[1].end(agents[1].running[0], world.now + 100 * SECOND, outcome="failed")
    agents[1].sync(world.now + 100 * SECOND)
    assert_lost({100: True, 130: True, 200: False})
