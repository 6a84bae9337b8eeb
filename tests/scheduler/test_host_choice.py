"""Test the choice of hosts: full disks, failed starts, and the location of checkpoints.

A host with a full disk gets no new work. A workload avoids hosts that could not start it.
A workload with a checkpoint prefers hosts that share its home folder.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import replace

import pytest

from portal.models import Notification
from portal.notices import delivery
from portal.reads.work.workload_details import attempts_of
from portal.wording import reason_texts
from portal.wording.notices import notice_texts
from scheduler import services
from scheduler.core.planner import plan
from scheduler.cycle import engine, snapshot
from scheduler.cycle.apply import apply_plan
from scheduler.models import Host, Run, Storage, Workload
from scheduler.reads import capacity, explanations
from scheduler.runs.retry_policy import HOST_AVOIDANCE_PERIOD, MAX_AVOIDED_HOSTS
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import start
from tests.scheduler.test_job_lifecycle import job
from tests.scheduler.test_repeated_failures import fail
from tests.telemetry.rows import workload
from tests.world import H100, World

pytestmark = pytest.mark.django_db

SECOND, MINUTE = dt.timedelta(seconds=1), dt.timedelta(minutes=1)


def agents_of(world: World) -> dict[str, FakeAgent]:
    return {name: FakeAgent.of(host) for name, host in world.hosts.items()}


def report_disk(agents: Iterable[FakeAgent], now: dt.datetime, *, full: bool) -> None:
    """Sync the agents with their disk reported as full or not."""
    for agent in agents:
        agent.inventory = replace(agent.inventory, disk_full=full)
        agent.sync(now)


def host_of(work: Workload) -> str:
    return Run.objects.filter(workload=work).latest("attempt").host.name


def free_hosts(world: World) -> set[str]:
    return set(
        capacity.free_units(world.shared, world.now)
        .filter(gpu__model=H100)
        .values_list("gpu__host__name", flat=True)
    )


# -- full disks ----------------------------------------------------------------------------------------------


def test_no_work_is_placed_on_a_host_with_a_full_disk(world: World) -> None:
    agents = agents_of(world)
    report_disk([agents["alpha"]], world.now, full=True)
    assert free_hosts(world) == {"beta"}, "the GPUs of alpha are not free"
    workloads = [job(world, world.vision, 4, world.now) for _ in range(3)]
    engine.run_cycle("test", world.now)
    assert [Workload.objects.get(pk=workload.pk).state for workload in workloads] == [
        "placed",
        "placed",
        "queued",
    ]
    assert {host_of(workload) for workload in workloads[:2]} == {"beta"}


@pytest.mark.long
def test_the_reason_names_the_full_hosts_and_the_work_starts_once_a_disk_has_space(
    world: World,
) -> None:
    agents = agents_of(world)
    report_disk(agents.values(), world.now, full=True)
    waiting = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    row = Workload.objects.get(pk=waiting.pk)
    assert (row.state, row.reason_code, row.expected_start) == ("queued", "host_full", None)
    assert (
        row.reason_numbers["full"] == len(row.reason_numbers["hosts"]) > 0 and row.reason_numbers["need"] == 1
    )
    assert set(row.reason_numbers["hosts"]) <= set(world.hosts)
    words = reason_texts.reason_sentence(row.reason_code, row.reason_numbers)
    assert all(name in words for name in row.reason_numbers["hosts"]) and "full" in words
    report_disk(agents.values(), world.now + 5 * SECOND, full=False)
    engine.run_cycle("test", world.now + 6 * SECOND)
    assert Workload.objects.get(pk=waiting.pk).state == "placed"


def test_running_work_continues_when_the_disk_of_its_host_fills_up(world: World) -> None:
    agents = agents_of(world)
    work = job(world, world.vision, 1, world.now)
    start(world, list(agents.values()), world.now)
    report_disk(agents.values(), world.now + SECOND, full=True)
    engine.run_cycle("test", world.now + 2 * SECOND)
    assert Workload.objects.get(pk=work.pk).state == "running"


def test_a_plan_made_before_the_disk_filled_up_starts_nothing_on_that_host(world: World) -> None:
    agents = agents_of(world)
    engine.run_cycle("test", world.now)  # acquires leadership
    work = job(world, world.vision, 1, world.now)
    taken = snapshot.take_snapshot(None, world.now)
    planned = plan(taken, int(world.now.timestamp()))
    assert [placement.workload for placement in planned.placements] == [work.pk]
    report_disk(agents.values(), world.now, full=True)
    applied = apply_plan(planned, taken, world.now)
    assert "is full" in applied.rejected[0].problem and Workload.objects.get(pk=work.pk).state == "queued"


def test_a_frame_with_a_changed_disk_state_takes_the_full_sync(world: World) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    agent.sync(world.now)
    agent.sync(world.now + SECOND)
    short = agent.heard_by_short_way
    for seconds, full in ((2, True), (3, False)):
        report_disk([agent], world.now + seconds * SECOND, full=full)
        assert Host.objects.get(name="alpha").disk_full == full
    assert short and agent.heard_by_short_way == short


# -- a start that failed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outcome",
    [
        "start_failed",
        "disk_ran_low",
        *(
            pytest.param(outcome, marks=pytest.mark.long)
            for outcome in ("prolog_failed", "host_full", "gpu_unreadable")
        ),
    ],
)
def test_a_workload_avoids_the_host_that_could_not_start_it(world: World, outcome: str) -> None:
    agents = agents_of(world)
    work = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    first = host_of(work)
    agents[first].sync(world.now)
    (run,) = agents[first].running
    agents[first].end(run, world.now + SECOND, outcome=outcome)
    agents[first].sync(world.now + SECOND)
    row = Workload.objects.get(pk=work.pk)
    assert (
        row.avoids == [world.hosts[first].pk]
        and row.avoids_until == world.now + SECOND + HOST_AVOIDANCE_PERIOD
    )
    engine.run_cycle("test", world.now + 2 * MINUTE)
    assert host_of(work) != first


def test_a_workload_returns_to_an_avoided_host_if_it_fits_no_other_host(world: World) -> None:
    agents = agents_of(world)
    work = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    first = host_of(work)
    agents[first].sync(world.now)
    (run,) = agents[first].running
    agents[first].end(run, world.now, outcome="start_failed")
    agents[first].sync(world.now)
    Host.objects.exclude(name=first).update(admin_state="cordoned")
    engine.run_cycle("test", world.now + 2 * MINUTE)
    assert host_of(work) == first and Run.objects.filter(workload=work).count() == 2


def test_several_hosts_are_avoided_for_a_limited_time(world: World) -> None:
    work = workload(world, world.vision)
    pks = [world.hosts[name].pk for name in ("alpha", "beta")]
    assert fail(work, world, "alpha", 0, "host_full").avoids == pks[:1]
    assert fail(work, world, "beta", 2, "host_full").avoids == pks
    assert fail(work, world, "alpha", 4, "host_full").avoids == pks[::-1], "the latest host is last"
    assert fail(work, world, "beta", 40, "host_full").avoids == pks[1:], "an old failure is dropped"
    Workload.objects.filter(pk=work.pk).update(avoids=list(range(900, 900 + MAX_AVOIDED_HOSTS)))
    row = fail(Workload.objects.get(pk=work.pk), world, "alpha", 42, "host_full")
    assert len(row.avoids) == MAX_AVOIDED_HOSTS and row.avoids[-1] == pks[0]


def test_a_workload_whose_program_fails_avoids_no_host(world: World) -> None:
    work = workload(world, world.vision, most_retries=2)
    assert fail(work, world, "alpha", 0, "failed").avoids == []


# -- hosts with the checkpoint -----------------------------------------------------------------------------


def share_storage(world: World, *names: str) -> Storage:
    homes = Storage.objects.create(key="-".join(names), listed_at=world.now)
    for name in names:
        Host.objects.filter(pk=world.hosts[name].pk).update(storage=homes)
    return homes


def test_work_with_a_checkpoint_is_placed_on_a_host_that_shares_its_home_folder(world: World) -> None:
    agents = agents_of(world)
    near, far = share_storage(world, "beta"), share_storage(world, "alpha")
    work = job(world, world.vision, 1, world.now)
    Host.objects.filter(name="alpha").update(admin_state="cordoned")
    start(world, list(agents.values()), world.now)
    assert host_of(work) == "beta"
    Host.objects.update(admin_state="in_service")
    agent = agents["beta"]
    (run,) = agent.running
    agent.checkpoint(run, world.now + MINUTE)
    agent.sync(world.now + MINUTE)
    agent.end(run, world.now + 2 * MINUTE, outcome="gpu_error")
    agent.sync(world.now + 2 * MINUTE)
    row = Workload.objects.get(pk=work.pk)
    assert (row.state, row.homes_id) == ("queued", near.pk)
    taken = snapshot.take_snapshot(None, world.now + 3 * MINUTE)
    for homes, expected in ((near, "beta"), (far, "alpha")):
        waiting = replace(next(q for q in taken.queued if q.id == work.pk), checkpoint_storage=homes.pk)
        (placed,) = plan(replace(taken, queued=(waiting,)), int(taken.queued[0].submitted) + 180).placements
        assert {unit.host for unit in taken.units if unit.id in placed.units} == {world.hosts[expected].pk}
    engine.run_cycle("test", world.now + 3 * MINUTE)
    assert host_of(work) == "beta" and Run.objects.filter(workload=work).count() == 2


def test_work_without_a_checkpoint_may_run_on_any_host(world: World) -> None:
    share_storage(world, "alpha")
    work = workload(world, world.vision)
    assert fail(work, world, "alpha", 0, "gpu_error").homes_id is None


@pytest.mark.long
def test_owners_and_operators_see_that_moved_work_does_not_find_its_checkpoint(world: World) -> None:
    """Drain a host whose work then starts on a host without its checkpoint.

    The owner sees this in a notice and in the attempts, and the operator sees it before the drain.
    """
    agents = agents_of(world)
    share_storage(world, "alpha"), share_storage(world, "beta")
    Host.objects.exclude(name="alpha").update(admin_state="cordoned")
    work = job(world, world.vision, 1, world.now)
    start(world, list(agents.values()), world.now)
    Host.objects.filter(name="beta").update(admin_state="in_service")
    (moved,) = explanations.drain_effect(world.hosts["alpha"], world.now).workloads
    assert moved.loses_checkpoint
    (run,) = agents["alpha"].running
    agents["alpha"].checkpoint(run, world.now + MINUTE)
    agents["alpha"].sync(world.now + MINUTE)
    services.drain_host(world.hosts["alpha"], reason="fans", now=world.now + 2 * MINUTE)
    agents["alpha"].end(run, world.now + 3 * MINUTE, outcome="checkpointed")
    agents["alpha"].sync(world.now + 3 * MINUTE)
    delivery.write_notices(world.now + 3 * MINUTE)
    start(world, list(agents.values()), world.now + 4 * MINUTE)
    assert host_of(work) == "beta"
    delivery.write_notices(world.now + 5 * MINUTE)
    notice = Notification.objects.get(user=world.vision.member, kind="resumed")
    words = notice_texts.notice_sentence(notice.kind, notice.numbers)
    assert words.endswith(
        "resumed on beta, attempt 2: another home folder, so it does not find its checkpoint"
        " and starts from the beginning."
    )
    assert [(row["number"], row["begins_anew"]) for row in attempts_of(work)] == [(2, True), (1, False)]
    Host.objects.filter(name="beta").update(storage=Host.objects.get(name="alpha").storage)
    assert [row["begins_anew"] for row in attempts_of(work)] == [False, False]


def test_no_loss_of_a_checkpoint_is_shown_if_the_storage_is_unknown(world: World) -> None:
    work = workload(world, world.vision)
    fail(work, world, "alpha", 0, "gpu_error")
    fail(work, world, "beta", 9, "gpu_error")
    Run.objects.filter(workload=work).update(checkpoint_at=world.now)
    assert not any(row["begins_anew"] for row in attempts_of(work))
