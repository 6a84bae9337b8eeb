"""Define the engine's Celery tasks.

The tasks are idempotent and short. They read the clock and pass the time to the functions that they call.
"""

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
    unserved_reservations,
)
from scheduler.sync import geometry_changes, gpu_diagnostics

# Each process has its own cache and recorder. Only child processes of the engine run cycles, so both are
# still empty when a process forks.
_snapshot_cache = SnapshotCache()
_recorder = CycleRecorder() if settings.GPUPOOL_RECORDING_HOURS else None


@shared_task(name="scheduler.tasks.run_cycle")
def run_cycle() -> None:
    """Run one planning cycle.

    A nudge sends this task (``scheduler.state.nudge``). At most one such task is pending.
    """
    if clock_correction.with_steady_clock(_run_cycle) is None:
        nudge.forward_engine_nudge()


def _run_cycle(moment: ClockSample) -> ApplyResult | None:
    dependency_release.release_dependents(moment.now())
    return engine.run_cycle(engine.leader_name(), moment.now(), moment.now, _snapshot_cache, _recorder)


@shared_task(name="scheduler.tasks.sweep")
def sweep() -> None:
    """Stop work that is due to stop, and run a planning cycle even if no nudge arrived."""
    clock_correction.with_steady_clock(_stop_due_work)
    clock_correction.with_steady_clock(_run_cycle)


def _stop_due_work(moment: ClockSample) -> None:
    time_limits.stop_after_notice(moment.wall)
    time_limits.stop_at_time_limits(moment.wall)
    time_limits.requeue_late_starts(moment.wall)
    time_limits.stop_unready_notebooks(moment.wall)


@shared_task(name="scheduler.tasks.watch_hosts")
def watch_hosts() -> None:
    """Check the leases of hosts, stuck processes and maintenance windows."""
    clock_correction.with_steady_clock(_watch_hosts)


def _watch_hosts(moment: ClockSample) -> None:
    silent_hosts.sweep_silent_hosts(moment.wall)
    stuck_processes.sweep_stuck_processes(moment.wall)
    maintenance.sweep_maintenance(moment.wall)


@shared_task(name="scheduler.tasks.keep_diagnostics")
def keep_diagnostics() -> None:
    """Request diagnostics of GPUs that are due, and end diagnostics that no host reports."""
    clock_correction.with_steady_clock(lambda moment: gpu_diagnostics.sweep_diagnostics(moment.wall))


@shared_task(name="scheduler.tasks.keep_geometries")
def keep_geometries() -> None:
    """Order hosts to change the MIG geometry of GPUs that nothing holds any more."""
    clock_correction.with_steady_clock(lambda moment: geometry_changes.sweep_geometry_changes(moment.wall))


@shared_task(name="scheduler.tasks.count_quota_hours")
def count_quota_hours() -> None:
    """Count the used GPU-hours of all quotas that limit GPU-hours."""
    quota_hours.count_quota_hours(timezone.now())


@shared_task(name="scheduler.tasks.reservation_clock")
def reservation_clock() -> None:
    """Do the periodic work of reservations: starts, notices, ends and releases."""
    clock_correction.with_steady_clock(lambda moment: reservation_windows.sweep_reservations(moment.wall))


@shared_task(name="scheduler.tasks.check_reservations")
def check_reservations() -> None:
    """Record the reservations for which the pool has no usable units."""
    clock_correction.with_steady_clock(
        lambda moment: unserved_reservations.sweep_unserved_reservations(moment.wall)
    )


@shared_task(name="scheduler.tasks.forget_old")
def forget_old() -> None:
    """Delete expired decisions, recordings, logs and start estimates."""
    retention.delete_expired_rows(timezone.now())
    retention.delete_expired_logs(timezone.now())
    start_estimates.prune_estimates()
