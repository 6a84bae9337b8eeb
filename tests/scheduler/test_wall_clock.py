"""The server's clock is set by an hour: nobody loses a lease, a place or a notice by it."""

from __future__ import annotations

import datetime as dt

import pytest

from scheduler import clock, diagnostics, engine, geometry, leadership, services, wall_clock
from scheduler.models import ClockReading, Command, Diagnostic, GeometryChange, Gpu, Host
from scheduler.states import GeometryState, LeaseState, WorkloadState
from scheduler.wall_clock import Uptime
from tests.fakes import FakeAgent
from tests.scheduler.test_life_of_a_job import job
from tests.world import World

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


def _silence(world: World, name: str, since: dt.datetime) -> None:
    Host.objects.filter(pk=world.hosts[name].pk).update(last_sync_at=since)


def _look(now: dt.datetime, uptime: float, machine: str = "this boot") -> dt.timedelta:
    return wall_clock.look(now, Uptime(machine, uptime))


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
    clock.watch_hosts(later)
    assert Host.objects.get(name="gamma").lease_state == LeaseState.ALIVE


def test_a_host_that_spoke_after_the_step_and_before_the_look_is_not_moved(world: World) -> None:
    _look(world.now, 100.0)
    _silence(world, "alpha", world.now + HOUR + SECOND)
    _look(world.now + HOUR + 2 * SECOND, 102.0)
    assert Host.objects.get(name="alpha").last_sync_at == world.now + HOUR + SECOND


def test_a_dead_leader_is_followed_within_seconds_also_after_a_step_back(world: World) -> None:
    _look(world.now, 100.0)
    assert leadership.lead("first", world.now) is not None
    later = world.now - HOUR + 8 * SECOND
    _look(later, 108.0)
    assert leadership.lead("second", later) is not None


def test_who_was_given_notice_has_all_of_it_and_who_runs_all_of_its_time(world: World) -> None:
    now, agent = world.now, FakeAgent.of(world.hosts["alpha"])
    workload = job(world, world.vision, 8, now, max_runtime_seconds=1800)
    engine.cycle("test", now)
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
    clock.stop_after_notice(later)
    clock.stop_at_time_limits(later)
    assert Command.objects.get(verb="notice").stop_at == stop_at + HOUR
    assert not Command.objects.filter(verb="stop").exists()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_what_was_just_placed_has_all_of_its_time_to_begin(world: World, step: dt.timedelta) -> None:
    FakeAgent.of(world.hosts["alpha"])
    _look(world.now, 100.0)
    workload = job(world, world.vision, 8, world.now)
    engine.cycle("test", world.now)
    for seconds, state in ((2, "placed"), (119, "placed"), (121, "stopping")):
        at = world.now + step + seconds * SECOND
        _look(at, 100.0 + seconds)
        clock.give_up_starts(at)
        workload.refresh_from_db()
        assert workload.state == state


def test_a_diagnostic_and_a_change_of_geometry_have_all_of_their_time(world: World) -> None:
    _look(world.now, 100.0)
    looked_at, split = Gpu.objects.filter(host=world.hosts["alpha"]).order_by("index")[:2]
    diagnostic = diagnostics.want(looked_at, why=Diagnostic.Why.OPERATOR, now=world.now)
    change = GeometryChange.objects.create(
        host=world.hosts["alpha"], gpu=split, state=GeometryState.CHANGING, created_at=world.now, told_at=world.now
    )
    later = world.now + HOUR + 2 * SECOND
    _look(later, 102.0)
    _silence(world, "alpha", later)
    diagnostics.keep(later)
    geometry.keep(later)
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


def test_this_machine_has_an_uptime_that_goes_on() -> None:
    first, second = wall_clock.uptime(), wall_clock.uptime()
    assert first.machine == second.machine
    assert 0 < first.seconds <= second.seconds
