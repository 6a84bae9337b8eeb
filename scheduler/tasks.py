"""The engine's ticks. Idempotent, short, over rows; they read the clock and pass it down."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings
from django.utils import timezone

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
from scheduler.apply import Applied
from scheduler.moment import Moment
from scheduler.recording import Recorder
from scheduler.warm import Warm

# This process's. Both are empty when it is forked, since only the engine's child processes run cycles.
_warm = Warm()
_recorder = Recorder() if settings.GPUPOOL_RECORDING_HOURS else None


@shared_task
def run_cycle() -> None:
    """Decide now. Sent by nudges, one at a time (scheduler.nudge)."""
    if wall_clock.steadily(_decide) is None:
        nudge.pass_on()


def _decide(moment: Moment) -> Applied | None:
    releases.settle(moment.now())
    return engine.cycle(engine.holder(), moment.now(), moment.now, _warm, _recorder)


@shared_task
def sweep() -> None:
    """The safety net: the same work, whether or not any nudge arrived."""
    wall_clock.steadily(_stop_what_is_due)
    wall_clock.steadily(_decide)


def _stop_what_is_due(moment: Moment) -> None:
    clock.stop_after_notice(moment.wall)
    clock.stop_at_time_limits(moment.wall)
    clock.give_up_starts(moment.wall)
    clock.give_up_notebooks(moment.wall)


@shared_task
def watch_hosts() -> None:
    """Leases of hosts, and maintenance windows."""
    wall_clock.steadily(_watch_hosts)


def _watch_hosts(moment: Moment) -> None:
    clock.watch_hosts(moment.wall)
    overstays.watch(moment.wall)
    clock.maintenance_clock(moment.wall)


@shared_task
def keep_diagnostics() -> None:
    """Diagnostics of GPUs: those that are due, and those that nobody answers."""
    wall_clock.steadily(lambda moment: diagnostics.keep(moment.wall))


@shared_task
def keep_geometries() -> None:
    """GPUs that are to be split otherwise: their hosts are told once nothing holds them."""
    wall_clock.steadily(lambda moment: geometry.keep(moment.wall))


@shared_task
def count_quota_hours() -> None:
    """What teams used of the GPU-hours that their guarantees are worth."""
    quota_hours.count(timezone.now())


@shared_task
def reservation_clock() -> None:
    """Reservations that begin, end or are not used."""
    wall_clock.steadily(lambda moment: clock.reservation_clock(moment.wall))


@shared_task
def forget_old() -> None:
    """Decisions, recorded snapshots and logs whose time is over, expected starts that no range is made from any more."""
    retention.forget_old(timezone.now())
    retention.forget_logs(timezone.now())
    estimates.tidy()
