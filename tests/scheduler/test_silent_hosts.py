"""Test silent hosts: requeued work, mass silence, powered-off hosts and stuck processes."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from scheduler import services
from scheduler.coordination import leases
from scheduler.core.reasons import ReasonCode
from scheduler.models import Allocation, Gpu, Host, HostStateChange, Workload
from scheduler.services.powered_off import attest_powered_off
from scheduler.sweeps import silent_hosts, stuck_processes
from scheduler.sync import agent_api
from scheduler.sync.agent_api import AgentRejected
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_job_lifecycle import job
from tests.world import World, units_of

SECOND = dt.timedelta(seconds=1)
MINUTE = dt.timedelta(minutes=1)


def test_the_work_of_a_silent_host_is_requeued_and_the_host_returns_after_stopping_the_work(
    world: World,
) -> None:
    agents = agents_of(world, "alpha", "beta", "gamma", "delta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    lost = next(a for a in agents if a.running)
    others = [a for a in agents if a is not lost]

    def tick(at: dt.datetime) -> str:
        for agent in others:
            agent.sync(at)
        silent_hosts.sweep_silent_hosts(at)
        return str(Host.objects.get(pk=lost.host.pk).lease_state)

    assert tick(world.now + 5 * SECOND) == "alive"
    assert tick(world.now + 15 * SECOND) == "suspect"
    assert tick(world.now + 60 * SECOND) == "suspect", "lease 30, grace 30 and margin 10 are not over"
    assert Workload.objects.get(pk=workload.pk).state == "running"
    assert tick(world.now + 71 * SECOND) == "silent"
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code) == ("queued", ReasonCode.HOST_LOST)
    start(world, others, world.now + 72 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "running" and workload.runs.get(attempt=2).host != lost.host

    # The host returns and still runs the lost work: it must stop the work before it is trusted again.
    answer = agent_api.sync(lost.host.pk, lost.observed(), world.now + 80 * SECOND)
    assert answer.runs == [] and Host.objects.get(pk=lost.host.pk).lease_state == "silent"
    lost.apply_desired(answer, world.now + 80 * SECOND)
    lost.sync(world.now + 81 * SECOND)
    assert Host.objects.get(pk=lost.host.pk).lease_state == "alive"
    states = list(
        HostStateChange.objects.filter(host=lost.host).order_by("pk").values_list("lease_state", flat=True)
    )
    assert states == ["alive", "suspect", "silent", "alive"]


def test_if_most_hosts_are_silent_no_work_is_requeued(world: World) -> None:
    agents = agents_of(world, "alpha", "beta", "gamma", "delta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    for minutes in (1, 2, 10):
        agents[3].sync(world.now + minutes * MINUTE)
        silent_hosts.sweep_silent_hosts(world.now + minutes * MINUTE)
    workload.refresh_from_db()
    assert workload.state == "running"
    assert Host.objects.filter(lease_state="suspect").count() == 3
    for agent in agents:
        agent.sync(world.now + 11 * MINUTE)
    assert Host.objects.filter(lease_state="alive").count() == 4


def test_only_the_rule_of_mass_silence_prevents_the_requeue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = agents_of(world, "alpha", "beta", "gamma", "delta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    agents[3].sync(world.now + 2 * MINUTE)
    silent_hosts.sweep_silent_hosts(world.now + 2 * MINUTE)
    assert Workload.objects.get(pk=workload.pk).state == "running"
    monkeypatch.setattr(leases, "is_mass_silence", lambda quiet, hosts: False)
    silent_hosts.sweep_silent_hosts(world.now + 2 * MINUTE)
    assert Workload.objects.get(pk=workload.pk).state == "queued"


@pytest.mark.parametrize(
    ("quiet", "hosts", "is_mass"), [(2, 2, False), (3, 5, True), (5, 10, False), (6, 10, True)]
)
def test_mass_silence_means_more_than_55_percent_and_at_least_three_hosts(
    quiet: int, hosts: int, is_mass: bool
) -> None:
    assert leases.is_mass_silence(quiet, hosts) is is_mass


def test_the_work_of_a_host_attested_as_powered_off_is_requeued_at_once(world: World) -> None:
    agents = agents_of(world, "alpha", "beta", "gamma", "delta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    lost = next(a for a in agents if a.running)
    others = [a for a in agents if a is not lost]
    assert not attest_powered_off(lost.host, reason="seen off", now=world.now + 5 * SECOND), (
        "its agent reports"
    )
    at = world.now + 20 * SECOND  # before the end of lease (30 s), grace (30 s) and margin (10 s)
    for agent in others:
        agent.sync(at)
    silent_hosts.sweep_silent_hosts(at)
    assert Workload.objects.get(pk=workload.pk).state == "running"
    assert attest_powered_off(lost.host, reason="seen off", now=at)
    start(world, others, at + SECOND)
    workload.refresh_from_db()
    assert workload.state == "running" and workload.runs.get(attempt=2).host != lost.host
    assert lost.host.lease_state == "silent" and units_of(lost.host) == []
    # The host was not off: it stops the lost work and keeps its GPUs.
    lost.sync(world.now + 90 * SECOND)
    lost.sync(world.now + 91 * SECOND)
    lost.host.refresh_from_db()
    assert lost.host.lease_state == "alive" and len(units_of(lost.host)) == 8 and not lost.running


def test_a_gpu_may_move_to_another_host_only_after_its_host_is_attested_as_powered_off(world: World) -> None:
    alpha, gamma = agents_of(world, "alpha", "gamma")
    alpha.sync(world.now)
    gamma.sync(world.now)
    moved = replace(alpha.inventory.gpus[0], index=40)
    gamma.inventory = replace(gamma.inventory, gpus=[*gamma.inventory.gpus, moved])
    with pytest.raises(AgentRejected, match="is a GPU of host alpha"):
        gamma.sync(world.now + MINUTE)
    assert attest_powered_off(alpha.host, reason="seen off", now=world.now + 2 * MINUTE)
    gamma.sync(world.now + 2 * MINUTE)
    assert Gpu.objects.get(uuid=moved.uuid).host == gamma.host


def test_units_used_while_the_servers_clock_was_ahead_are_available_after_it_is_set_back(
    world: World,
) -> None:
    agents = agents_of(world, "alpha", "beta", "gamma", "delta")
    ahead = world.now + 60 * MINUTE
    for at in (ahead, ahead + MINUTE):
        workload = job(world, world.vision, 4, at, pool=world.static, models_wanted=[])
        start(world, agents, at)
        agents[3].end(agents[3].running[0], at + 10 * SECOND)
        agents[3].sync(at + 10 * SECOND)
        agents[3].sync(at + 10 * SECOND)
    back = world.now + 2 * MINUTE
    workload = job(world, world.vision, 4, back, pool=world.static, models_wanted=[])
    start(world, agents, back)
    workload.refresh_from_db()
    assert workload.state == "running"
    held = list(Allocation.objects.filter(workload=workload))
    assert {a.period.lower for a in held} == {ahead + MINUTE + 10 * SECOND}, "history is not changed"
    agents[3].end(agents[3].running[0], back + MINUTE)
    agents[3].sync(back + MINUTE)
    workload.refresh_from_db()
    assert workload.state == "ended" and not Allocation.objects.filter(period__upper_inf=True).exists()


def test_a_process_that_survives_sigkill_quarantines_its_gpu_until_it_ends(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    gpu = Allocation.objects.get().unit.gpu
    services.cancel_workload(workload, now=world.now)

    def look(seconds: int) -> str:
        stuck_processes.sweep_stuck_processes(world.now + seconds * SECOND)
        return str(Gpu.objects.get(pk=gpu.pk).repair_state)

    (run,) = agent.running
    stuck = replace(agent.runs[run], state="stopping")
    agent_api.sync(agent.host.pk, replace(agent.observed(), runs=[stuck]), world.now)
    assert look(59) == "well", "grace 30 and a lease of 30 are not over"
    assert look(61) == "quarantined"
    assert Allocation.objects.filter(period__upper_inf=True).exists(), "no other work may get the GPU"
    agent.end(run, world.now + 70 * SECOND, outcome="killed_at_grace")
    agent.sync(world.now + 70 * SECOND)
    assert look(71) == "well"


def test_a_stuck_process_is_not_considered_ended_while_its_host_is_silent(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    gpu = Allocation.objects.get().unit.gpu
    services.cancel_workload(workload, now=world.now)
    (run,) = agent.running
    stuck = replace(agent.runs[run], state="stopping")
    Host.objects.exclude(pk=agent.host.pk).update(last_sync_at=world.now + 600 * SECOND)
    agent_api.sync(agent.host.pk, replace(agent.observed(), runs=[stuck]), world.now + 61 * SECOND)
    stuck_processes.sweep_stuck_processes(world.now + 61 * SECOND)
    late = world.now + 75 * SECOND
    silent_hosts.sweep_silent_hosts(late)
    assert Host.objects.get(pk=agent.host.pk).lease_state == "suspect"
    stuck_processes.sweep_stuck_processes(late)
    silent_hosts.sweep_silent_hosts(world.now + 200 * SECOND)
    assert Host.objects.get(pk=agent.host.pk).lease_state == "silent"
    stuck_processes.sweep_stuck_processes(world.now + 200 * SECOND)
    assert list(gpu.state_changes.values_list("repair_state", flat=True)) == ["quarantined"]
