"""Test steps of the server's clock by an hour: they end no lease, placement or notice."""

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
from scheduler.sync.agent_rejections import AgentRejected
from telemetry import tasks as telemetry_tasks
from tests.fakes import CREDENTIAL, FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.scheduler.test_reservations import confirm
from tests.world import World

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


def _set_last_sync(world: World, name: str, since: dt.datetime) -> None:
    Host.objects.filter(pk=world.hosts[name].pk).update(last_sync_at=since)


def _correct_clock(now: dt.datetime, uptime: float, machine: str = "this boot") -> dt.timedelta:
    """Correct the stored times for a clock step at ``now``. Returns the step."""
    moment = ClockSample(now, machine, uptime)
    with decide_at(moment):
        return clock_correction.correct_clock_step(moment)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_clock_step_neither_ends_nor_prolongs_a_lease(world: World, step: dt.timedelta) -> None:
    now = world.now
    _correct_clock(now, 100.0)
    for name in world.hosts:
        _set_last_sync(world, name, now - SECOND)
    _set_last_sync(world, "alpha", now - 40 * SECOND)
    later = now + step + 2 * SECOND
    assert _correct_clock(later, 102.0) == step
    _set_last_sync(world, "beta", later)  # beta has reported since the step
    quiet = {h.name: (later - h.last_sync_at).total_seconds() for h in Host.objects.all() if h.last_sync_at}
    assert quiet == {"alpha": 42.0, "beta": 0.0, "gamma": 3.0, "delta": 3.0}
    silent_hosts.sweep_silent_hosts(later)
    assert Host.objects.get(name="gamma").lease_state == LeaseState.ALIVE


def test_a_dead_leader_is_replaced_within_seconds_even_after_a_step_back(world: World) -> None:
    _correct_clock(world.now, 100.0)
    assert leadership.acquire_or_renew("first", world.now) is not None
    later = world.now - HOUR + 8 * SECOND
    _correct_clock(later, 108.0)
    assert leadership.acquire_or_renew("second", later) is not None


def test_a_clock_step_shortens_no_notice_and_no_time_limit(world: World) -> None:
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
    _correct_clock(now + 2 * SECOND, 100.0)
    later = now + HOUR + 3 * SECOND
    _correct_clock(later, 101.0)
    time_limits.stop_after_notice(later)
    time_limits.stop_at_time_limits(later)
    assert Command.objects.get(verb="notice").stop_at == stop_at + HOUR
    assert not Command.objects.filter(verb="stop").exists()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_clock_step_does_not_shorten_the_start_timeout(world: World, step: dt.timedelta) -> None:
    FakeAgent.of(world.hosts["alpha"])
    _correct_clock(world.now, 100.0)
    workload = job(world, world.vision, 8, world.now)
    engine.run_cycle("test", world.now)
    for seconds, state in ((2, "placed"), (119, "placed"), (121, "stopping")):
        at = world.now + step + seconds * SECOND
        _correct_clock(at, 100.0 + seconds)
        time_limits.requeue_late_starts(at)
        workload.refresh_from_db()
        assert workload.state == state


def test_a_clock_step_does_not_shorten_the_timeouts_of_diagnostics_and_geometry_changes(world: World) -> None:
    _correct_clock(world.now, 100.0)
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
    _correct_clock(later, 102.0)
    _set_last_sync(world, "alpha", later)
    gpu_diagnostics.sweep_diagnostics(later)
    geometry_changes.sweep_geometry_changes(later)
    diagnostic.refresh_from_db()
    change.refresh_from_db()
    assert (diagnostic.state, change.state) == ("wanted", "changing")


def test_small_corrections_and_readings_of_other_machines_change_nothing(world: World) -> None:
    _correct_clock(world.now, 100.0)
    _set_last_sync(world, "alpha", world.now)
    assert _correct_clock(world.now + 10.5 * SECOND, 110.0) == dt.timedelta()
    assert _correct_clock(world.now + 2 * HOUR, 5.0, machine="another boot") == dt.timedelta()
    assert Host.objects.get(name="alpha").last_sync_at == world.now
    assert ClockReading.objects.get().machine == "another boot"


def test_a_reading_older_than_the_stored_one_is_ignored(world: World) -> None:
    _correct_clock(world.now + HOUR + SECOND, 101.0)
    assert _correct_clock(world.now, 100.0) == dt.timedelta()
    assert ClockReading.objects.get().uptime == 101.0


def test_the_uptime_of_this_machine_increases() -> None:
    first, second = read_clocks(), read_clocks()
    assert first.machine == second.machine
    assert 0 < first.uptime <= second.uptime
    assert abs(second.stepped_since(first)) < SECOND


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_report_between_two_unnoticed_clock_steps_ends_no_lease(world: World, step: dt.timedelta) -> None:
    agents = [FakeAgent.of(host) for host in world.hosts.values()]
    for agent in agents:
        agent.sync(world.now)
    _correct_clock(world.now, 100.0)
    between = ClockSample(world.now + step + SECOND, "this boot", 101.0)
    frame = agents[0].observed()
    assert agent_api.sync_unchanged(agents[0].host.pk, [CREDENTIAL], frame, between) is None
    assert Host.objects.get(pk=agents[0].host.pk).last_sync_at == world.now
    clock_correction.correct_clock_step(between)
    assert agent_api.sync_unchanged(agents[0].host.pk, [CREDENTIAL], frame, between) is not None
    later = world.now + 2 * SECOND  # the clock is set back
    _correct_clock(later, 102.0)
    quiet = [later - h.last_sync_at for h in Host.objects.order_by("pk") if h.last_sync_at]
    assert sorted(quiet) == [SECOND, *[2 * SECOND] * (len(agents) - 1)]
    silent_hosts.sweep_silent_hosts(later)
    assert not Host.objects.exclude(lease_state=LeaseState.ALIVE).exists()


def test_a_clock_check_without_a_step_takes_one_query(
    world: World, django_assert_num_queries: Callable[[int], Any]
) -> None:
    _correct_clock(world.now, 100.0)
    with django_assert_num_queries(1):
        assert _correct_clock(world.now + SECOND / 2, 100.5) == dt.timedelta()


def test_a_write_during_a_clock_step_is_repeated(world: World) -> None:
    # (seconds of the wall clock, seconds since the boot)
    clocks = iter([(0.0, 1), (3600.5, 1.5), (3601.0, 2), (3602.0, 3)])

    def both() -> ClockSample:
        wall, uptime = next(clocks)
        return ClockSample(world.now + wall * SECOND, "this boot", uptime)

    written: list[dt.datetime] = []
    clock_correction.with_steady_clock(lambda moment: written.append(moment.wall), both)
    assert written == [world.now, world.now + 3601 * SECOND]


def test_gradual_clock_corrections_do_not_repeat_a_write(world: World) -> None:
    clocks = iter([(0.0, 1), (0.9, 1)])
    written: list[dt.datetime] = []
    clock_correction.with_steady_clock(
        lambda moment: written.append(moment.wall),
        lambda: ClockSample(world.now + next(clocks)[0] * SECOND, "this boot", 1.0),
    )
    assert len(written) == 1


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_decision_based_on_a_time_before_the_correction_is_repeated(
    world: World, step: dt.timedelta
) -> None:
    for host in world.hosts.values():
        FakeAgent.of(host).sync(world.now)
    _correct_clock(world.now, 100.0)
    moments = [
        ClockSample(world.now, "this boot", 100.0),
        *[ClockSample(world.now + step + SECOND, "this boot", 101.0)] * 3,
    ]
    times = []

    def watch(moment: ClockSample) -> None:
        times.append(moment.wall)
        _correct_clock(moments[1].wall, 101.0)  # another process corrects the stored times at this point
        silent_hosts.sweep_silent_hosts(moment.wall)

    clock_correction.with_steady_clock(watch, iter(moments).__next__)
    assert times[-1] == world.now + step + SECOND
    assert not Host.objects.exclude(lease_state=LeaseState.ALIVE).exists()


def test_locking_rows_after_a_clock_correction_raises_clock_stepped(world: World) -> None:
    _correct_clock(world.now, 100.0)
    before = ClockSample(world.now, "this boot", 100.0)
    with decide_at(before), transaction.atomic():
        locks.leader()
        _correct_clock(world.now + HOUR, 100.5)
        for lock in (
            locks.leader,
            lambda: locks.hosts([world.hosts["alpha"].pk]),
            lambda: locks.workload_states([]),
        ):
            with pytest.raises(ClockStepped):
                lock()
        _correct_clock(world.now + SECOND, 101.0)
        locks.leader()


def test_a_clock_that_steps_at_every_try_raises_clock_stepped(world: World) -> None:
    hours = iter(range(1000))
    tries: list[ClockSample] = []
    with pytest.raises(ClockStepped):
        clock_correction.with_steady_clock(
            tries.append, lambda: ClockSample(world.now + next(hours) * HOUR, "this boot", 1.0)
        )
    assert len(tries) == clock_correction.MAX_TRIES


def _step_clock_an_hour_ahead() -> dt.datetime:
    """Store a reading as if the clock had just been set an hour ahead. Returns the time before the step."""
    moment = read_clocks()
    ClockReading.objects.update_or_create(
        pk=1, defaults={"wall": moment.wall - HOUR, "machine": moment.machine, "uptime": moment.uptime}
    )
    return moment.wall - HOUR


def _moved_by(name: str, before: dt.datetime) -> dt.timedelta:
    """Return how far the host's last sync moved, rounded to the second."""
    heard_at = Host.objects.get(name=name).last_sync_at
    assert heard_at is not None
    return dt.timedelta(seconds=round((heard_at - before).total_seconds()))


def test_the_edge_checks_the_clock_before_it_stores_a_report(world: World) -> None:
    agents = {name: FakeAgent.of(host) for name, host in world.hosts.items()}
    before = _step_clock_an_hour_ahead()
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
    last_syncs = [h.last_sync_at for h in Host.objects.all() if h.last_sync_at]
    assert len(last_syncs) == len(agents)
    assert max(now - at for at in last_syncs) < 10 * SECOND


@pytest.mark.parametrize(
    ("method", "headers", "moves"),
    [
        ("post", {"Authorization": "Bearer x"}, True),
        ("get", {"Authorization": "Bearer x"}, False),
        ("post", {}, False),
    ],
)
def test_a_request_that_may_write_checks_the_clock_first(
    world: World, client: Client, method: str, headers: dict[str, str], moves: bool
) -> None:
    before = _step_clock_an_hour_ahead()
    _set_last_sync(world, "alpha", before)
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
        tasks.check_reservations,
        portal_tasks.idle_cull,
        portal_tasks.expire_submissions,
        telemetry_tasks.act_on_health,
    ],
)
def test_every_periodic_task_that_depends_on_the_time_checks_the_clock_first(
    world: World, task: Callable[[], object]
) -> None:
    before = _step_clock_an_hour_ahead()
    _set_last_sync(world, "alpha", before)
    task()
    assert _moved_by("alpha", before) == HOUR


def test_the_desired_state_is_computed_after_a_clock_check(world: World) -> None:
    before = _step_clock_an_hour_ahead()
    FakeAgent.of(world.hosts["alpha"])
    _set_last_sync(world, "alpha", before)
    with pytest.raises(AgentRejected):
        database_calls.desired_state(
            database_calls.AuthenticatedHost(world.hosts["alpha"].pk, "alpha"), ["another's"]
        )
    assert _moved_by("alpha", before) == HOUR


def test_a_clock_step_moves_idle_warnings_postponements_and_avoidances(
    world: World,
) -> None:
    workload = job(world, world.vision, 8, world.now)
    times = ("idle_warned_at", "keep_until", "avoids_until")
    Workload.objects.filter(pk=workload.pk).update(**dict.fromkeys(times, world.now + SECOND))
    _correct_clock(world.now, 100.0)
    _correct_clock(world.now + HOUR, 100.0)
    assert Workload.objects.values_list(*times).get(pk=workload.pk) == (world.now + HOUR + SECOND,) * 3


def test_clock_steps_forward_and_back_leave_stored_times_unchanged(world: World) -> None:
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
        _correct_clock(later + (ahead + number) * SECOND, 100.0 + number)
    assert Run.objects.values(*counted).get() == before[0]
    assert Host.objects.values("last_sync_at", "credential_expires_at").get(name="alpha") == before[1]


def test_a_step_forward_does_not_expire_a_credential(world: World) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    expires = world.now + HOUR
    Host.objects.filter(pk=agent.host.pk).update(credential_expires_at=expires)
    _correct_clock(world.now, 100.0)
    _correct_clock(world.now + 25 * HOUR, 100.0)
    assert Host.objects.get(pk=agent.host.pk).credential_expires_at == expires + 25 * HOUR


def active_reservation(world: World, hours: int = 4) -> tuple[Reservation, dt.datetime]:
    """Return a reservation of a whole host that has just begun, and its start."""
    for host in world.hosts.values():
        FakeAgent.of(host)
    start = world.now + 10 * SECOND
    reservation = confirm(world, 8, start, start + hours * HOUR)
    reservation_windows.sweep_reservations(start)
    engine.run_cycle("test", start)
    reservation.refresh_from_db()
    assert reservation.state == ReservationState.ACTIVE
    return reservation, start


def test_a_clock_step_does_not_release_a_reservation_that_has_just_begun(world: World) -> None:
    reservation, start = active_reservation(world)
    _correct_clock(start + SECOND, 100.0)
    ahead = start + HOUR + SECOND
    _correct_clock(ahead, 100.0)
    reservation_windows.sweep_reservations(ahead)
    reservation.refresh_from_db()
    assert reservation.state == ReservationState.ACTIVE
    reservation_windows.sweep_reservations(ahead + dt.timedelta(seconds=world.shared.no_show_seconds))
    reservation.refresh_from_db()
    assert reservation.state == ReservationState.RELEASED


def test_units_of_a_reservation_that_ended_in_the_future_are_free_after_a_step_back(
    world: World,
) -> None:
    reservation, start = active_reservation(world)
    _correct_clock(start + SECOND, 100.0)
    ahead = start + HOUR + SECOND
    _correct_clock(ahead, 100.0)
    services.cancel_reservation(reservation, now=ahead)
    back = start + 2 * SECOND
    assert BoundUnit.objects.filter(period__endswith__gt=back).exists()
    _correct_clock(back, 101.0)
    assert not BoundUnit.objects.filter(period__endswith__gt=back).exists()


def test_a_reservation_binds_units_whose_work_ended_in_the_future(world: World) -> None:
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


def test_idle_time_restarts_at_a_clock_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
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
    _correct_clock(world.now, 100.0)
    _correct_clock(world.now + HOUR, 100.0)
    at = world.now + HOUR + SECOND
    assert idle_notebooks.stop_idle_notebooks(at)["busy"] == 1
    assert (
        idle_notebooks.stop_idle_notebooks(at + dt.timedelta(seconds=workload.pool.idle_limit_seconds))[
            "warn"
        ]
        == 1
    )
