"""Test agents and hosts: frames, inventory, repairs and logs."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace

import pytest

from agent.protocol import LogChunk, Observed, RunSeen, UnitSeen
from benchmarks.plan_verifier import violations
from scheduler import services
from scheduler.core.planner import plan
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import core_values, engine, snapshot
from scheduler.models import Allocation, Gpu, GpuStateChange, Host, Run, Unit, Workload
from scheduler.runs import logs
from scheduler.services.hosts import quarantine_gpu
from scheduler.sweeps import maintenance
from scheduler.sync import agent_api
from scheduler.sync.agent_rejections import AgentRejected
from scheduler.sync.host_inventory import retire_missing_gpu
from tests.fakes import FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.seeds import first_cases
from tests.world import World, units_of

SECOND = dt.timedelta(seconds=1)
MINUTE = dt.timedelta(minutes=1)


def start(world: World, agents: list[FakeAgent], at: dt.datetime) -> None:
    """Run one planning cycle and sync each agent with a run twice, so that placed work runs."""
    engine.run_cycle("test", at)
    hosts = set(Run.objects.exclude(state="ended").values_list("host_id", flat=True))
    for agent in [agent for agent in agents if agent.host.pk in hosts] * 2:
        agent.sync(at)


def agents_of(world: World, *names: str) -> list[FakeAgent]:
    return [FakeAgent.of(world.hosts[name]) for name in names]


# -- frames --------------------------------------------------------------------------------------------------


def test_reports_of_unknown_runs_and_of_other_generations_are_ignored(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    run = Run.objects.get()
    stale = RunSeen(str(run.public_id), run.generation - 1, "ended", outcome="finished", exit_code=0)
    unknown = RunSeen("0" * 32, 1, "running")
    nonsense = RunSeen("not an id", 1, "running")
    agent.sync(world.now + SECOND, replace(agent.observed(), runs=[stale, unknown, nonsense]))
    workload.refresh_from_db()
    assert workload.state == "running"


def test_a_run_that_its_agent_stops_reporting_is_lost_after_a_delay(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    without = replace(agent.observed(), runs=[])
    agent_api.sync(agent.host.pk, without, world.now + SECOND)
    agent_api.sync(agent.host.pk, without, world.now + 5 * SECOND)
    assert Workload.objects.get(pk=workload.pk).state == "running"
    agent_api.sync(agent.host.pk, without, world.now + 12 * SECOND)
    assert Workload.objects.get(pk=workload.pk).state == "running", (
        "a clock step may explain the time between these two frames"
    )
    agent_api.sync(agent.host.pk, without, world.now + 13 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code, workload.lost_attempts) == (
        "queued",
        ReasonCode.HOST_LOST,
        1,
    )


def test_a_reboot_ends_the_runs_before_it(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    agent.boot_id, agent.runs = "next boot", {}
    agent.sync(world.now + 2 * MINUTE)
    workload.refresh_from_db()
    assert workload.state == "queued" and Allocation.objects.get().end_code == ReasonCode.HOST_LOST


def test_a_wrong_host_clock_cannot_move_an_end_outside_the_servers_observations(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    for at, hours, expected in ((world.now, -1, 10), (world.now + MINUTE, 1, 20)):
        workload = job(world, world.vision, 1, at, pool=world.static, models_wanted=[])
        start(world, [agent], at)
        agent.sync(at + 10 * SECOND)
        agent.end(agent.running[0], at + 15 * SECOND + dt.timedelta(hours=hours))
        agent.sync(at + 20 * SECOND)
        agent.sync(at + 20 * SECOND)
        held = Allocation.objects.get(workload=workload)
        assert held.period.upper == at + expected * SECOND


@pytest.mark.parametrize(
    ("reported", "stored"),
    [
        ((12.5, 2048), (12.5, 2048)),
        ((0.0, 0), (0.0, 0)),
        ((None, None), (None, None)),  # an agent of an earlier version, or a host without control groups
        ((-1.0, -5), (None, None)),
        ((1e13, 2**40), (None, None)),
    ],
)
def test_the_cpu_time_and_memory_of_an_ended_run_are_stored_if_they_are_possible(
    world: World, reported: tuple[float | None, int | None], stored: tuple[float | None, int | None]
) -> None:
    (agent,) = agents_of(world, "delta")
    job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    name = agent.running[0]
    agent.end(name, world.now + 10 * SECOND)
    cpu_seconds, memory = reported
    agent.runs[name] = replace(agent.runs[name], cpu_seconds=cpu_seconds, memory_peak_mib=memory)
    agent.sync(world.now + 10 * SECOND)
    run = Run.objects.get()
    assert (run.state, run.cpu_seconds, run.memory_peak_mib) == ("ended", *stored)


def test_a_failed_job_is_retried_with_growing_delays_up_to_its_limit(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[], most_retries=2)
    at, waits = world.now, []
    for _ in range(3):
        start(world, [agent], at)
        agent.end(agent.running[0], at, outcome="failed", exit_code=3)
        agent.sync(at)
        agent.sync(at)
        workload.refresh_from_db()
        waits.append((workload.not_before - at).total_seconds() if workload.not_before else None)
        at = workload.not_before or at
    assert waits[:2] == [15, 30]
    assert (workload.state, workload.outcome, workload.attempt) == ("ended", "failed", 3)
    assert workload.outcome_numbers == {"attempt": 3, "exit_code": 3}


@pytest.mark.parametrize("jobs", [5, pytest.param(15, marks=pytest.mark.long)])
def test_lost_duplicated_and_reordered_frames_converge_to_the_same_end(world: World, jobs: int) -> None:
    rng = random.Random(7)
    agents = agents_of(world, "alpha", "beta")
    workloads = [
        job(world, rng.choice(world.teams), rng.choice([1, 2, 4, 8]), world.now) for _ in range(jobs)
    ]
    late: list[tuple[FakeAgent, Observed]] = []
    at = world.now
    for step in range(400):
        at += 2 * SECOND
        for agent in agents:
            _sync_over_a_lossy_connection(rng, agent, at, late)
        if late and rng.random() < 0.3:
            agent, frame = late.pop(rng.randrange(len(late)))
            agent_api.sync(agent.host.pk, frame, at)
        if step % 4 == 0:
            taken, seconds = snapshot.take_snapshot(None, at), core_values.epoch_seconds(at)
            assert violations(taken, plan(taken, seconds), seconds) == []
        engine.run_cycle("test", at)
        if step == 20:
            services.cancel_workload(workloads[-1], now=at)
        if not Workload.objects.exclude(state="ended").exists():
            break
    for workload in workloads:
        workload.refresh_from_db()
        assert workload.state == "ended", (workload.reason_code, workload.reason_numbers)
    assert not Allocation.objects.filter(period__upper_inf=True).exists()
    assert all(len(seen) == 1 for seen in _attempts_by_workload().values()), "no attempt was started twice"


def _sync_over_a_lossy_connection(
    rng: random.Random, agent: FakeAgent, at: dt.datetime, late: list[tuple[FakeAgent, Observed]]
) -> None:
    """End some runs and send one frame.

    The frame arrives once or twice, or its response is lost, or the frame is added to ``late``.
    """
    for run in agent.running:
        if rng.random() < 0.2:
            agent.end(run, at, outcome=rng.choice(["finished", "finished", "failed"]))
    frame = agent.observed()
    fate = rng.random()
    if fate < 0.2:
        late.append((agent, frame))  # arrives later, after newer frames
    elif fate < 0.4:
        agent_api.sync(agent.host.pk, frame, at)  # the response is lost
    else:
        for _ in range(rng.choice([1, 1, 2])):
            agent.sync(at, frame)


def _attempts_by_workload() -> dict[tuple[int, int], list[int]]:
    attempts: dict[tuple[int, int], list[int]] = {}
    for run in Run.objects.all():
        attempts.setdefault((run.workload_id, run.attempt), []).append(run.pk)
    return attempts


# -- inventory -----------------------------------------------------------------------------------------------


def test_a_new_geometry_is_applied_once_the_gpu_is_free(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    job(world, world.vision, 4, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    gpu = agent.inventory.gpus[0]
    halves = [UnitSeen(f"MIG-{i}", "3g.20gb", i * 420, 420, 20_000) for i in range(2)]
    agent.inventory = replace(agent.inventory, gpus=[replace(gpu, units=halves), *agent.inventory.gpus[1:]])
    agent.sync(world.now + SECOND)
    row = Gpu.objects.get(uuid=gpu.uuid)
    assert row.repair_state == "quarantined" and row.units.filter(retired_at=None).count() == 1
    agent.end(agent.running[0], world.now + 2 * SECOND)
    agent.sync(world.now + 2 * SECOND)
    agent.sync(world.now + 3 * SECOND)
    row.refresh_from_db()
    assert row.repair_state == "well"
    assert [u.profile for u in row.units.filter(retired_at=None)] == ["3g.20gb"] * 2
    agent.inventory = replace(agent.inventory, gpus=[gpu, *agent.inventory.gpus[1:]])
    agent.sync(world.now + 4 * SECOND)
    assert row.units.get(retired_at=None).uuid == gpu.uuid and Unit.objects.filter(gpu=row).count() == 3


def test_a_missing_gpu_is_retired_and_reused_when_it_is_reported_again(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    all_gpus = agent.inventory
    agent.inventory = replace(all_gpus, gpus=all_gpus.gpus[:3])
    agent.sync(world.now)
    assert len(units_of(world.hosts["delta"])) == 3
    agent.inventory = all_gpus
    agent.sync(world.now + SECOND)
    assert (
        len(units_of(world.hosts["delta"])) == 4
        and Gpu.objects.filter(host=world.hosts["delta"]).count() == 4
    )


def test_a_missing_gpu_keeps_its_state_until_it_is_reported_again_or_retired_by_an_operator(
    world: World,
) -> None:
    (agent,) = agents_of(world, "delta")
    all_gpus = agent.inventory
    gpu = Gpu.objects.get(uuid=all_gpus.gpus[3].uuid)
    assert quarantine_gpu(gpu, reason="fell off the bus", now=world.now)
    agent.inventory = replace(all_gpus, gpus=all_gpus.gpus[:3])
    agent.sync(world.now + SECOND)
    agent.sync(world.now + 2 * SECOND)
    gpu.refresh_from_db()
    assert (gpu.missing_since, gpu.retired_at) == (world.now + SECOND, world.now + SECOND)
    assert (gpu.repair_state, gpu.state_reason) == ("quarantined", "fell off the bus"), (
        "a missing GPU keeps its state"
    )
    last = GpuStateChange.objects.filter(gpu=gpu).order_by("pk")
    assert [row.reason for row in last] == ["fell off the bus", "its host does not report it any more"]
    agent.inventory = all_gpus
    agent.sync(world.now + 3 * SECOND)
    gpu.refresh_from_db()
    assert (gpu.missing_since, gpu.retired_at, gpu.repair_state) == (None, None, "quarantined")
    assert last.reverse()[0].reason == "its host reports it again"
    assert not retire_missing_gpu(gpu), "the GPU is not missing"
    agent.inventory = replace(all_gpus, gpus=all_gpus.gpus[:3])
    agent.sync(world.now + 4 * SECOND)
    assert retire_missing_gpu(gpu)
    agent.sync(world.now + 5 * SECOND)
    gpu.refresh_from_db()
    assert gpu.missing_since is None and gpu.retired_at == world.now + 4 * SECOND


def test_a_held_gpu_that_disappears_is_missing_at_once_and_cannot_be_retired(
    world: World,
) -> None:
    (agent,) = agents_of(world, "delta")
    job(world, world.vision, 4, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    all_gpus = agent.inventory
    gpu = Gpu.objects.get(uuid=all_gpus.gpus[3].uuid)
    agent.inventory = replace(all_gpus, gpus=all_gpus.gpus[:3])
    agent.sync(world.now + SECOND)
    gpu.refresh_from_db()
    assert (gpu.repair_state, gpu.missing_since, gpu.retired_at) == ("quarantined", world.now + SECOND, None)
    assert not retire_missing_gpu(gpu)
    agent.end(agent.running[0], world.now + 2 * SECOND)
    agent.sync(world.now + 2 * SECOND)
    agent.sync(world.now + 3 * SECOND)
    gpu.refresh_from_db()
    assert gpu.retired_at is not None and gpu.missing_since == world.now + SECOND
    agent.inventory = all_gpus
    agent.sync(world.now + 4 * SECOND)
    gpu.refresh_from_db()
    assert (gpu.repair_state, gpu.missing_since) == ("well", None)
    reasons = list(GpuStateChange.objects.filter(gpu=gpu).order_by("pk").values_list("reason", flat=True))
    assert reasons == ["its host does not report it any more", "its host reports it again"]


@pytest.mark.parametrize(
    ("change", "message"),
    first_cases(
        3,
        [
            ({"uuid": "GPU-alpha-0"}, "is a GPU of host alpha"),
            ({"index": 1}, "have the same index or uuid"),
            ({"units": [UnitSeen("a", "x", 0, 800, 1), UnitSeen("b", "x", 799, 41, 1)]}, "do not overlap"),
            ({"units": [UnitSeen("a", "x", 0, 841, 1)]}, "within 0 to 840"),
            (
                {"units": [UnitSeen("a", "x", 0, 100, 1), UnitSeen("a", "x", 100, 100, 1)]},
                "two units have the same uuid",
            ),
            ({"model": ""}, "model ''"),
            ({"memory_mib": -1}, "memory_mib -1"),
        ],
    ),
)
def test_an_invalid_inventory_is_rejected_with_a_reason(
    world: World, change: dict[str, object], message: str
) -> None:
    (agent,) = agents_of(world, "delta")
    first, *rest = agent.inventory.gpus
    agent.inventory = replace(agent.inventory, gpus=[replace(first, **change), *rest])  # type: ignore[arg-type]
    with pytest.raises(AgentRejected, match=message):
        agent.sync(world.now)
    assert Gpu.objects.filter(host=world.hosts["delta"], retired_at=None).count() == 4


# -- taking hosts and GPUs out -------------------------------------------------------------------------------


def test_the_work_of_a_quarantined_gpu_is_requeued_and_placed_on_another_gpu(world: World) -> None:
    agents = agents_of(world, "alpha", "beta")
    workload = job(world, world.vision, 1, world.now)
    start(world, agents, world.now)
    gpu = Allocation.objects.get().unit.gpu
    assert services.quarantine_gpu(gpu, reason="xid:79", now=world.now + SECOND)
    for agent in agents * 2:
        agent.sync(world.now + 2 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code) == ("queued", ReasonCode.GPU_ERROR)
    start(world, agents, world.now + 3 * SECOND)
    assert Allocation.objects.get(workload=workload, period__upper_inf=True).unit.gpu != gpu
    assert services.return_gpu(gpu, now=world.now + 4 * SECOND)
    assert [c.repair_state for c in gpu.state_changes.order_by("pk")] == ["quarantined", "well"]


def test_a_maintenance_window_drains_its_host_in_time_and_returns_it_afterwards(world: World) -> None:
    agents = agents_of(world, "alpha", "beta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    host = workload.runs.get().host
    begin = world.now + 30 * MINUTE
    services.set_maintenance(host, start=begin, end=begin + 60 * MINUTE, reason="new fans", now=world.now)
    maintenance.sweep_maintenance(world.now + 20 * MINUTE)
    assert Workload.objects.get(pk=workload.pk).state == "running"
    maintenance.sweep_maintenance(begin - 60 * SECOND)
    assert Workload.objects.get(pk=workload.pk).state == "notice"
    maintenance.sweep_maintenance(begin - 58 * SECOND)
    assert Workload.objects.get(pk=workload.pk).state == "notice", (
        "the work has the whole notice period for its checkpoint"
    )
    maintenance.sweep_maintenance(begin)
    assert Host.objects.get(pk=host.pk).admin_state == "maintenance"
    maintenance.sweep_maintenance(begin + 61 * MINUTE)
    assert Host.objects.get(pk=host.pk).admin_state == "in_service"


# -- logs ----------------------------------------------------------------------------------------------------


def test_duplicate_and_late_log_chunks_are_placed_by_their_offset(
    world: World, settings: object, tmp_path: object
) -> None:
    settings.GPUPOOL_STATE = tmp_path  # type: ignore[attr-defined]
    (agent,) = agents_of(world, "delta")
    job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    engine.run_cycle("test", world.now)
    run = Run.objects.get()
    for offset, text in ((6, "two\n"), (0, "one\n"), (0, "one\n"), (4, "é")):
        agent_api.store_log(agent.host.pk, LogChunk(str(run.public_id), offset, text))
    assert logs.read_log(run.public_id) == ("one\nétwo\n", 10)
    assert logs.read_log(run.public_id, -4) == ("two\n", 10)
    for stranger in ("no id", "0" * 32):
        with pytest.raises(AgentRejected, match="of this host"):
            agent_api.store_log(agent.host.pk, LogChunk(stranger, 0, "x"))
    with pytest.raises(AgentRejected):
        agent_api.store_log(world.hosts["alpha"].pk, LogChunk(str(run.public_id), 0, "x"))
