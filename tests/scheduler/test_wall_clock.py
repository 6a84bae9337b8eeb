"""The server's clock is set by an hour: nobody loses a lease, a place or a notice by it."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from portal import tasks as portal_tasks
from portal.edge.agents import database_calls
from portal.sweeps import idle_notebooks
from scheduler import services, tasks
from scheduler.coordination import clock_correction, leadership, locks
from scheduler.coordination.clock_check import ClockSample, ClockStepped, decide_at, read_clocks
from scheduler.cycle import engine
from scheduler.models import (
    BoundUnit,
    ClockReading,
    Command,
    Diagnostic,
    GeometryChange,
    Gpu,
    Host,
    Reservation,
    Run,
    Workload,
)
from scheduler.runs import attempts
from scheduler.state.states import GeometryState, LeaseState, ReservationState, WorkloadState
from scheduler.sweeps import reservation_windows, silent_hosts, time_limits
from scheduler.sync import agent_api, geometry_changes, gpu_diagnostics
from telemetry import tasks as telemetry_tasks
from tests.fakes import CREDENTIAL, FakeAgent
from tests.scheduler.test_life_of_a_job import job
from tests.scheduler.test_reservations import confirm
from tests.world import World

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


def _silence(world: World, name: str, since: dt.datetime) -> None:
    Host.objects.filter(pk=world.hosts[name].pk).update(last_sync_at=since)


def _look(now: dt.datetime, uptime: float, machine: str = "this boot") -> dt.timedelta:
    moment = ClockSample(now, machine, uptime)
    with decide_at(moment):
        return clock_correction.correct_clock_step(moment)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_clock_ends_no_lease_and_prolongs_none(world: World, step: dt.timedelta) -> None:
    now = world.now
    _look(now, 100.0)
    for name in world.hosts:
        _silence(world, name, now - SECOND)
    _silence(world, "alpha", now - 40 * SECOND)
    later = now + step + 2 * SECOND
    assert _look(later, 102.0) == step
    _silence(world, "beta", later)  # it has spoken since
    quiet = {h.name: (later - h.last_sync_at).total_seconds() for h in Host.objects.all() if h.last_sync_at}
    assert quiet == {"alpha": 42.0, "beta": 0.0, "gamma": 3.0, "delta": 3.0}
    silent_hosts.sweep_silent_hosts(later)
    assert Host.objects.get(name="gamma").lease_state == LeaseState.ALIVE


def test_a_dead_leader_is_followed_within_seconds_also_after_a_step_back(world: World) -> None:
    _look(world.now, 100.0)
    assert leadership.acquire_or_renew("first", world.now) is not None
    later = world.now - HOUR + 8 * SECOND
    _look(later, 108.0)
    assert leadership.acquire_or_renew("second", later) is not None


def test_who_was_given_notice_has_all_of_it_and_who_runs_all_of_its_time(world: World) -> None:
    now, agent = world.now, FakeAgent.of(world.hosts["alpha"])
    workload = job(world, world.vision, 8, now, max_runtime_seconds=1800)
    engine.run_cycle("test", now)
    agent.sync(now + SECOND)
    agent.sync(now + SECOND)
    workload.refresh_from_db()
    assert workload.state == WorkloadState.RUNNING
    services.drain_host(world.hosts["alpha"], reason="a fan", now=now + 2 * SECOND)
    stop_at = Command.objects.get(verb="notice").stop_at
    assert stop_at is not None
    _look(now + 2 * SECOND, 100.0)
    later = now + HOUR + 3 * SECOND
    _look(later, 101.0)
    time_limits.stop_after_notice(later)
    time_limits.stop_at_time_limits(later)
    assert Command.objects.get(verb="notice").stop_at == stop_at + HOUR
    assert not Command.objects.filter(verb="stop").exists()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_what_was_just_placed_has_all_of_its_time_to_begin(world: World, step: dt.timedelta) -> None:
    FakeAgent.of(world.hosts["alpha"])
    _look(world.now, 100.0)
    workload = job(world, world.vision, 8, world.now)
    engine.run_cycle("test", world.now)
    for seconds, state in ((2, "placed"), (119, "placed"), (121, "stopping")):
        at = world.now + step + seconds * SECOND
        _look(at, 100.0 + seconds)
        time_limits.requeue_late_starts(at)
        workload.refresh_from_db()
        assert workload.state == state


def test_a_diagnostic_and_a_change_of_geometry_have_all_of_their_time(world: World) -> None:
    _look(world.now, 100.0)
    looked_at, split = Gpu.objects.filter(host=world.hosts["alpha"]).order_by("index")[:2]
    diagnostic = gpu_diagnostics.request_diagnostic(looked_at, why=Diagnostic.Why.OPERATOR, now=world.now)
    change = GeometryChange.objects.create(
        host=world.hosts["alpha"],
        gpu=split,
        state=GeometryState.CHANGING,
        created_at=world.now,
        told_at=world.now,
    )
    later = world.now + HOUR + 2 * SECOND
    _look(later, 102.0)
    _silence(world, "alpha", later)
    gpu_diagnostics.sweep_diagnostics(later)
    geometry_changes.sweep_geometry_changes(later)
    diagnostic.refresh_from_db()
    change.refresh_from_db()
    assert (diagnostic.state, change.state) == ("wanted", "changing")


def test_small_corrections_and_other_machines_move_nothing(world: World) -> None:
    _look(world.now, 100.0)
    _silence(world, "alpha", world.now)
    assert _look(world.now + 10.5 * SECOND, 110.0) == dt.timedelta()
    assert _look(world.now + 2 * HOUR, 5.0, machine="another boot") == dt.timedelta()
    assert Host.objects.get(name="alpha").last_sync_at == world.now
    assert ClockReading.objects.get().machine == "another boot"


def test_a_look_that_comes_after_a_later_one_says_nothing(world: World) -> None:
    _look(world.now + HOUR + SECOND, 101.0)
    assert _look(world.now, 100.0) == dt.timedelta()
    assert ClockReading.objects.get().uptime == 101.0


def test_this_machine_has_an_uptime_that_goes_on() -> None:
    first, second = read_clocks(), read_clocks()
    assert first.machine == second.machine
    assert 0 < first.uptime <= second.uptime
    assert abs(second.stepped_since(first)) < SECOND


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_report_between_two_settings_that_no_tick_saw_costs_nobody_a_lease(
    world: World, step: dt.timedelta
) -> None:
    agents = [FakeAgent.of(host) for host in world.hosts.values()]
    for agent in agents:
        agent.sync(world.now)
    _look(world.now, 100.0)
    between = ClockSample(world.now + step + SECOND, "this boot", 101.0)
    frame = agents[0].observed()
    assert agent_api.sync_unchanged(agents[0].host.pk, [CREDENTIAL], frame, between) is None
    assert Host.objects.get(pk=agents[0].host.pk).last_sync_at == world.now
    clock_correction.correct_clock_step(between)
    assert agent_api.sync_unchanged(agents[0].host.pk, [CREDENTIAL], frame, between) is not None
    later = world.now + 2 * SECOND  # set back
    _look(later, 102.0)
    quiet = [later - h.last_sync_at for h in Host.objects.order_by("pk") if h.last_sync_at]
    assert sorted(quiet) == [SECOND, *[2 * SECOND] * (len(agents) - 1)]
    silent_hosts.sweep_silent_hosts(later)
    assert not Host.objects.exclude(lease_state=LeaseState.ALIVE).exists()


def test_a_look_is_one_query_where_nobody_set_the_clock(
    world: World, django_assert_num_queries: Callable[[int], Any]
) -> None:
    _look(world.now, 100.0)
    with django_assert_num_queries(1):
        assert _look(world.now + SECOND / 2, 100.5) == dt.timedelta()


def test_what_was_written_while_the_clock_was_set_is_written_once_more(world: World) -> None:
    clocks = iter(
        [(0.0, 1), (3600.5, 1.5), (3601.0, 2), (3602.0, 3)]
    )  # the wall clock's seconds, and those since the boot

    def both() -> ClockSample:
        wall, uptime = next(clocks)
        return ClockSample(world.now + wall * SECOND, "this boot", uptime)

    written: list[dt.datetime] = []
    clock_correction.with_steady_clock(lambda moment: written.append(moment.wall), both)
    assert written == [world.now, world.now + 3601 * SECOND]


def test_a_clock_that_is_kept_right_bit_by_bit_writes_once(world: World) -> None:
    clocks = iter([(0.0, 1), (0.9, 1)])
    written: list[dt.datetime] = []
    clock_correction.with_steady_clock(
        lambda moment: written.append(moment.wall),
        lambda: ClockSample(world.now + next(clocks)[0] * SECOND, "this boot", 1.0),
    )
    assert len(written) == 1


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_who_decides_by_a_time_from_before_a_look_decides_again(world: World, step: dt.timedelta) -> None:
    for host in world.hosts.values():
        FakeAgent.of(host).sync(world.now)
    _look(world.now, 100.0)
    moments = [
        ClockSample(world.now, "this boot", 100.0),
        *[ClockSample(world.now + step + SECOND, "this boot", 101.0)] * 3,
    ]
    times = []

    def watch(moment: ClockSample) -> None:
        times.append(moment.wall)
        _look(moments[1].wall, 101.0)  # somebody else's
        silent_hosts.sweep_silent_hosts(moment.wall)

    clock_correction.with_steady_clock(watch, iter(moments).__next__)
    assert times[-1] == world.now + step + SECOND
    assert not Host.objects.exclude(lease_state=LeaseState.ALIVE).exists()


def test_what_is_locked_after_a_look_has_another_time(world: World) -> None:
    _look(world.now, 100.0)
    before = ClockSample(world.now, "this boot", 100.0)
    with decide_at(before), transaction.atomic():
        locks.hosts([world.hosts["alpha"].pk])
        _look(world.now + HOUR, 100.5)
        for lock in (
            locks.leader,
            lambda: locks.hosts([world.hosts["alpha"].pk]),
            lambda: locks.workload_states([]),
        ):
            with pytest.raises(ClockStepped):
                lock()
        _look(world.now + SECOND, 101.0)
        locks.leader()


def test_a_clock_that_is_set_all_the_time_is_said_to_be(world: World) -> None:
    hours = iter(range(1000))
    tries: list[ClockSample] = []
    with pytest.raises(ClockStepped):
        clock_correction.with_steady_clock(
            tries.append, lambda: ClockSample(world.now + next(hours) * HOUR, "this boot", 1.0)
        )
    assert len(tries) == clock_correction.MAX_TRIES


def _hour_ago_the_clock_was_right() -> dt.datetime:
    """As if this machine's clock had been set an hour ahead a moment ago: the time that it was before."""
    moment = read_clocks()
    ClockReading.objects.update_or_create(
        pk=1, defaults={"wall": moment.wall - HOUR, "machine": moment.machine, "uptime": moment.uptime}
    )
    return moment.wall - HOUR


def _moved_by(name: str, before: dt.datetime) -> dt.timedelta:
    """To the second."""
    heard_at = Host.objects.get(name=name).last_sync_at
    assert heard_at is not None
    return dt.timedelta(seconds=round((heard_at - before).total_seconds()))


def test_the_edge_looks_before_it_takes_a_report_in(world: World) -> None:
    agents = {name: FakeAgent.of(host) for name, host in world.hosts.items()}
    before = _hour_ago_the_clock_was_right()
    for agent in agents.values():
        agent.sync(before)
    reporting = agents["alpha"]
    credential = f"gpa.{reporting.host.pk}.x"
    Host.objects.filter(pk=reporting.host.pk).update(
        credential_hash=hashlib.sha256(credential.encode()).hexdigest()
    )
    database_calls.sync(
        database_calls.AuthenticatedHost(reporting.host.pk, "alpha"), [credential], reporting.observed()
    )
    now = read_clocks().wall
    heard = [h.last_sync_at for h in Host.objects.all() if h.last_sync_at]
    assert len(heard) == len(agents)
    assert max(now - at for at in heard) < 10 * SECOND


@pytest.mark.parametrize(
    ("method", "headers", "moves"),
    [
        ("post", {"Authorization": "Bearer x"}, True),
        ("get", {"Authorization": "Bearer x"}, False),
        ("post", {}, False),
    ],
)
def test_a_request_that_may_write_looks_before_it_does(
    world: World, client: Client, method: str, headers: dict[str, str], moves: bool
) -> None:
    before = _hour_ago_the_clock_was_right()
    _silence(world, "alpha", before)
    getattr(client, method)("/api/v1/jobs/", headers=headers)
    assert (Host.objects.get(name="alpha").last_sync_at != before) == moves


@pytest.mark.parametrize(
    "task",
    [
        tasks.run_cycle,
        tasks.sweep,
        tasks.watch_hosts,
        tasks.keep_diagnostics,
        tasks.keep_geometries,
        tasks.reservation_clock,
        portal_tasks.idle_cull,
        telemetry_tasks.act_on_health,
    ],
)
def test_every_tick_that_decides_by_the_time_looks_first(world: World, task: Callable[[], object]) -> None:
    before = _hour_ago_the_clock_was_right()
    _silence(world, "alpha", before)
    task()
    assert _moved_by("alpha", before) == HOUR


def test_what_a_host_is_told_is_of_a_time_that_the_rows_share(world: World) -> None:
    before = _hour_ago_the_clock_was_right()
    FakeAgent.of(world.hosts["alpha"])
    _silence(world, "alpha", before)
    with pytest.raises(database_calls.AgentConnectionRefused):
        database_calls.desired_state(
            database_calls.AuthenticatedHost(world.hosts["alpha"].pk, "alpha"), ["another's"]
        )
    assert _moved_by("alpha", before) == HOUR


def test_who_was_warned_of_idling_and_who_asked_to_be_kept_wait_no_longer_and_no_shorter(
    world: World,
) -> None:
    workload = job(world, world.vision, 8, world.now)
    times = ("idle_warned_at", "keep_until", "avoids_until")
    Workload.objects.filter(pk=workload.pk).update(**dict.fromkeys(times, world.now + SECOND))
    _look(world.now, 100.0)
    _look(world.now + HOUR, 100.0)
    assert Workload.objects.values_list(*times).get(pk=workload.pk) == (world.now + HOUR + SECOND,) * 3


def test_to_and_fro_leaves_every_time_that_is_counted_as_it_was(world: World) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    job(world, world.vision, 8, world.now)
    engine.run_cycle("test", world.now)
    agent.sync(world.now + SECOND)
    agent.sync(world.now + SECOND)
    counted = ("prepared_at", "starting_at", "running_at", "ready_at", "missing_since")
    before = (
        Run.objects.values(*counted).get(),
        Host.objects.values("last_sync_at", "credential_expires_at").get(name="alpha"),
    )
    assert before[0]["running_at"] is not None
    later = world.now + dt.timedelta(minutes=3)
    for number, ahead in enumerate((0, -60, 0, 3600, 0, -3600, 3600, 0)):
        _look(later + (ahead + number) * SECOND, 100.0 + number)
    assert Run.objects.values(*counted).get() == before[0]
    assert Host.objects.values("last_sync_at", "credential_expires_at").get(name="alpha") == before[1]


def test_a_step_forward_ends_no_credential(world: World) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    expires = world.now + HOUR
    Host.objects.filter(pk=agent.host.pk).update(credential_expires_at=expires)
    _look(world.now, 100.0)
    _look(world.now + 25 * HOUR, 100.0)
    assert Host.objects.get(pk=agent.host.pk).credential_expires_at == expires + 25 * HOUR


def active_reservation(world: World, hours: int = 4) -> tuple[Reservation, dt.datetime]:
    """One that has just begun with all of a host, and when."""
    for host in world.hosts.values():
        FakeAgent.of(host)
    start = world.now + 10 * SECOND
    reservation = confirm(world, 8, start, start + hours * HOUR)
    reservation_windows.sweep_reservations(start)
    engine.run_cycle("test", start)
    reservation.refresh_from_db()
    assert reservation.state == ReservationState.ACTIVE
    return reservation, start


def test_a_reservation_that_had_just_begun_is_not_released_by_a_step(world: World) -> None:
    reservation, start = active_reservation(world)
    _look(start + SECOND, 100.0)
    ahead = start + HOUR + SECOND
    _look(ahead, 100.0)
    reservation_windows.sweep_reservations(ahead)
    reservation.refresh_from_db()
    assert reservation.state == ReservationState.ACTIVE
    reservation_windows.sweep_reservations(ahead + dt.timedelta(seconds=world.shared.no_show_seconds))
    reservation.refresh_from_db()
    assert reservation.state == ReservationState.RELEASED


def test_what_a_reservation_had_when_it_was_closed_in_a_time_to_come_is_free_after_the_step_back(
    world: World,
) -> None:
    reservation, start = active_reservation(world)
    _look(start + SECOND, 100.0)
    ahead = start + HOUR + SECOND
    _look(ahead, 100.0)
    services.cancel_reservation(reservation, now=ahead)
    back = start + 2 * SECOND
    assert BoundUnit.objects.filter(period__endswith__gt=back).exists()
    _look(back, 101.0)
    assert not BoundUnit.objects.filter(period__endswith__gt=back).exists()


def test_a_reservation_begins_on_units_whose_work_ended_in_a_time_to_come(world: World) -> None:
    FakeAgent.of(world.hosts["alpha"])
    workload = job(world, world.vision, 8, world.now)
    engine.run_cycle("test", world.now)
    run = Run.objects.get(workload=workload)
    ahead = world.now + 3 * HOUR
    attempts.end_run(run, outcome="finished", exit_code=0, at=ahead, now=ahead)
    attempts.settle_workload(Workload.objects.get(pk=workload.pk), ahead)
    Host.objects.exclude(pk=run.host_id).update(admin_state="cordoned")
    reservation, _ = active_reservation(world)
    assert reservation.bound_units.count() == 8


def test_idleness_is_counted_anew_from_a_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = job(world, world.vision, 8, world.now)
    long_ago = world.now - 10 * HOUR
    FakeAgent.of(world.hosts["alpha"])
    engine.run_cycle("test", world.now)
    Run.objects.filter(workload=workload).update(state="running", ready_at=long_ago)
    Workload.objects.filter(pk=workload.pk).update(state="running", kind="notebook")
    monkeypatch.setattr(
        idle_notebooks,
        "notebook_activity",
        lambda run, now, limit: idle_notebooks.NotebookActivity(0, long_ago, long_ago),
    )
    _look(world.now, 100.0)
    _look(world.now + HOUR, 100.0)
    at = world.now + HOUR + SECOND
    assert idle_notebooks.stop_idle_notebooks(at)["busy"] == 1
    assert (
        idle_notebooks.stop_idle_notebooks(at + dt.timedelta(seconds=workload.pool.idle_limit_seconds))[
            "warn"
        ]
        == 1
    )
