"""Order hosts to start and stop runs.

Only this module writes Command rows and moves live workloads towards their stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from scheduler.models import Command, Run, Workload
from scheduler.state import nudge
from scheduler.state.states import RunState, WorkloadState, change_state

LIVE_STATES = (
    WorkloadState.PLACED,
    WorkloadState.STARTING,
    WorkloadState.RUNNING,
    WorkloadState.NOTICE,
    WorkloadState.STOPPING,
)


def live_runs(workload: Workload) -> list[Run]:
    """Return the runs of the current attempt that have not ended, in the order of their ranks."""
    runs = Run.objects.filter(workload=workload, attempt=workload.attempt).exclude(state=RunState.ENDED)
    return list(runs.order_by("rank"))


def order_start(runs: Sequence[Run], now: datetime) -> None:
    """Create one start command per run.

    A command stays open until its run has ended, or until another agent joins as the host.
    """
    Command.objects.bulk_create(
        Command(host_id=run.host_id, run=run, verb=Command.Verb.START, created_at=now) for run in runs
    )
    nudge.hosts(run.host_id for run in runs)


def give_notice(
    workload: Workload, *, code: str, stop_at: datetime, grace_seconds: int, now: datetime, **also: object
) -> bool:
    """Order a running workload to write a checkpoint and to end by ``stop_at``.

    ``also`` has further columns to set on the workload. ``grace_seconds`` is the pool's current grace period.
    A run that received a longer grace period at its start keeps it. If the workload is not running, return
    False and write nothing.
    """
    runs = live_runs(workload)
    gone_by = stop_at + longest_grace(runs, grace_seconds)
    if not change_state(
        workload,
        "state",
        old=WorkloadState.RUNNING,
        new=WorkloadState.NOTICE,
        stop_requested=code,
        gone_by=gone_by,
        **also,
    ):
        return False
    # A run may have written a checkpoint after an earlier notice that was withdrawn. It must write a new one.
    if any(run.saved for run in runs):
        Run.objects.filter(pk__in=[run.pk for run in runs]).update(saved=False)
    _create_commands(runs, Command.Verb.NOTICE, code, stop_at, now)
    nudge.pages(nudge.workload_topic(workload.public_id), nudge.QUEUE)
    return True


def order_stop(workload: Workload, *, code: str, grace_seconds: int, now: datetime, **also: object) -> bool:
    """Order a live workload to stop now. The reason of an earlier stop request is kept.

    ``also`` and ``grace_seconds`` have the same meaning as in ``give_notice``. If the workload is already
    stopping or not live, return False and write nothing.
    """
    old = WorkloadState(workload.state)
    if old not in LIVE_STATES or old == WorkloadState.STOPPING:
        return False
    reason = workload.stop_requested or code
    runs = live_runs(workload)
    gone_by = now + longest_grace(runs, grace_seconds)
    if not change_state(
        workload, "state", old=old, new=WorkloadState.STOPPING, stop_requested=reason, gone_by=gone_by, **also
    ):
        return False
    _create_commands(runs, Command.Verb.STOP, reason, None, now)
    nudge.pages(nudge.workload_topic(workload.public_id), nudge.QUEUE)
    return True


def stop_remaining(runs: Sequence[Run], *, code: str, now: datetime) -> None:
    """Order these runs to stop, for example the remaining runs of a gang after a member has ended.

    Runs that already have a stop command are skipped. This function does not change the workload's state.
    The reports of the agents change it later.
    """
    ordered = runs_ordered_to_stop(runs)
    _create_commands([run for run in runs if run.pk not in ordered], Command.Verb.STOP, code, None, now)


def runs_ordered_to_stop(runs: Iterable[Run]) -> set[int]:
    """Return the ids of the ``runs`` that have a stop command. Runs that have ended are included."""
    stops = Command.objects.filter(run__in=list(runs), verb=Command.Verb.STOP)
    return set(stops.values_list("run_id", flat=True))


def mark_done(runs: Iterable[Run], now: datetime) -> None:
    """Close the commands of runs that have ended."""
    ended = list(runs)
    Command.objects.filter(run__in=ended, done_at__isnull=True).update(done_at=now)
    nudge.hosts(run.host_id for run in ended)


def longest_grace(runs: Sequence[Run], pool_seconds: int) -> timedelta:
    """Return the longest of several grace periods.

    These are the pool's present grace period, and the grace periods that ``runs`` received at their start.
    """
    return timedelta(seconds=max([pool_seconds, *(run.grace_seconds for run in runs)]))


def _create_commands(
    runs: Sequence[Run], verb: Command.Verb, code: str, stop_at: datetime | None, now: datetime
) -> None:
    Command.objects.bulk_create(
        (
            Command(host_id=r.host_id, run=r, verb=verb, code=code, stop_at=stop_at, created_at=now)
            for r in runs
        ),
        ignore_conflicts=True,  # a conflict means that the run already has this command
    )
    nudge.hosts(run.host_id for run in runs)
