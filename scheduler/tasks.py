"""The engine's ticks. Idempotent, short, over rows; they read the clock and pass it down."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings

from scheduler import (
    clock,
    diagnostics,
    engine,
    estimates,
    geometry,
    nudge,
    overstays,
    quota_hours,
    releases,
    retention,
    wall_clock,
)
from scheduler.recording import Recorder
from scheduler.warm import Warm

# This process's. Both are empty when it is forked, since only the engine's child processes run cycles.
_warm = Warm()
_recorder = Recorder() if settings.GPUPOOL_RECORDING_HOURS else None


@shared_task
def run_cycle() -> None:
    """Decide now. Sent by nudges, one at a time (scheduler.nudge)."""
    releases.settle(wall_clock.now())
    if engine.cycle(engine.holder(), wall_clock.now(), wall_clock.now, _warm, _recorder) is None:
        nudge.pass_on()


@shared_task
def sweep() -> None:
    """The safety net: the same work, whether or not any nudge arrived."""
    moment = wall_clock.read()
    wall_clock.look(moment)
    now = moment.wall
    clock.stop_after_notice(now)
    clock.stop_at_time_limits(now)
    clock.give_up_starts(now)
    clock.give_up_notebooks(now)
    releases.settle(now)
    engine.cycle(engine.holder(), wall_clock.now(), wall_clock.now, _warm, _recorder)


@shared_task
def watch_hosts() -> None:
    """Leases of hosts, and maintenance windows."""
    moment = wall_clock.read()
    wall_clock.look(moment)
    now = moment.wall
    clock.watch_hosts(now)
    overstays.watch(now)
    clock.maintenance_clock(now)


@shared_task
def keep_diagnostics() -> None:
    """Diagnostics of GPUs: those that are due, and those that nobody answers."""
    diagnostics.keep(wall_clock.now())


@shared_task
def keep_geometries() -> None:
    """GPUs that are to be split otherwise: their hosts are told once nothing holds them."""
    geometry.keep(wall_clock.now())


@shared_task
def count_quota_hours() -> None:
    """What teams used of the GPU-hours that their guarantees are worth."""
    quota_hours.count(wall_clock.now())


@shared_task
def reservation_clock() -> None:
    """Reservations that begin, end or are not used."""
    clock.reservation_clock(wall_clock.now())


@shared_task
def forget_old() -> None:
    """Decisions, recorded snapshots and logs whose time is over, expected starts that no range is made from any more."""
    retention.forget_old(wall_clock.now())
    retention.forget_logs(wall_clock.now())
    estimates.tidy()
