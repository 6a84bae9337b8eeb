"""The engine's ticks. Idempotent, short, over rows; they read the clock and pass it down."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from scheduler.coordination import clock_correction
from scheduler.coordination.clock_check import ClockSample
from scheduler.cycle import engine
from scheduler.cycle.apply import ApplyResult
from scheduler.cycle.recording import CycleRecorder
from scheduler.cycle.snapshot_cache import SnapshotCache
from scheduler.queue import start_estimates
from scheduler.services import quota_hours
from scheduler.state import nudge
from scheduler.sweeps import (
    dependency_release,
    maintenance,
    reservation_windows,
    retention,
    silent_hosts,
    stuck_processes,
    time_limits,
)
from scheduler.sync import geometry_changes, gpu_diagnostics

# This process's. Both are empty when it is forked, since only the engine's child processes run cycles.
_snapshot_cache = SnapshotCache()
_recorder = CycleRecorder() if settings.GPUPOOL_RECORDING_HOURS else None


@shared_task(name="scheduler.tasks.run_cycle")
def run_cycle() -> None:
    """Decide now. Sent by nudges, one at a time (scheduler.state.nudge)."""
    if clock_correction.with_steady_clock(_run_cycle) is None:
        nudge.forward_engine_nudge()


def _run_cycle(moment: ClockSample) -> ApplyResult | None:
    dependency_release.release_dependents(moment.now())
    return engine.run_cycle(engine.leader_name(), moment.now(), moment.now, _snapshot_cache, _recorder)


@shared_task(name="scheduler.tasks.sweep")
def sweep() -> None:
    """The safety net: the same work, whether or not any nudge arrived."""
    clock_correction.with_steady_clock(_stop_due_work)
    clock_correction.with_steady_clock(_run_cycle)


def _stop_due_work(moment: ClockSample) -> None:
    time_limits.stop_after_notice(moment.wall)
    time_limits.stop_at_time_limits(moment.wall)
    time_limits.requeue_late_starts(moment.wall)
    time_limits.stop_unready_notebooks(moment.wall)


@shared_task(name="scheduler.tasks.watch_hosts")
def watch_hosts() -> None:
    """Leases of hosts, and maintenance windows."""
    clock_correction.with_steady_clock(_watch_hosts)


def _watch_hosts(moment: ClockSample) -> None:
    silent_hosts.sweep_silent_hosts(moment.wall)
    stuck_processes.sweep_stuck_processes(moment.wall)
    maintenance.sweep_maintenance(moment.wall)


@shared_task(name="scheduler.tasks.keep_diagnostics")
def keep_diagnostics() -> None:
    """Diagnostics of GPUs: those that are due, and those that nobody answers."""
    clock_correction.with_steady_clock(lambda moment: gpu_diagnostics.sweep_diagnostics(moment.wall))


@shared_task(name="scheduler.tasks.keep_geometries")
def keep_geometries() -> None:
    """GPUs that are to be split otherwise: their hosts are told once nothing holds them."""
    clock_correction.with_steady_clock(lambda moment: geometry_changes.sweep_geometry_changes(moment.wall))


@shared_task(name="scheduler.tasks.count_quota_hours")
def count_quota_hours() -> None:
    """What teams used of the GPU-hours that their guarantees are worth."""
    quota_hours.count_quota_hours(timezone.now())


@shared_task(name="scheduler.tasks.reservation_clock")
def reservation_clock() -> None:
    """Reservations that begin, end or are not used."""
    clock_correction.with_steady_clock(lambda moment: reservation_windows.sweep_reservations(moment.wall))


@shared_task(name="scheduler.tasks.forget_old")
def forget_old() -> None:
    """Decisions, recorded snapshots and logs whose time is over, expected starts that no range is made from any more."""
    retention.delete_expired_rows(timezone.now())
    retention.delete_expired_logs(timezone.now())
    start_estimates.prune_estimates()
