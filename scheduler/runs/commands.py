"""What the engine tells hosts about runs: the only writer of Command, and of a live workload's way towards its stop."""

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
    """The runs of the present attempt that have not ended, by rank."""
    runs = Run.objects.filter(workload=workload, attempt=workload.attempt).exclude(state=RunState.ENDED)
    return list(runs.order_by("rank"))


def order_start(runs: Sequence[Run], now: datetime) -> None:
    """One open start command per run; it stays open until the run has ended."""
    Command.objects.bulk_create(
        Command(host_id=run.host_id, run=run, verb=Command.Verb.START, created_at=now) for run in runs
    )
    nudge.hosts(run.host_id for run in runs)


def give_notice(
    workload: Workload, *, code: str, stop_at: datetime, grace_seconds: int, now: datetime, **also: object
) -> bool:
    """A running workload is told to write a checkpoint and be gone by ``stop_at``; ``also`` is set on it at the same time.
    ``grace_seconds`` of its pool now; where its hosts were told a longer one at its start, that counts.

    False when it does not run (any more): then nothing is written.
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
    if any(run.saved for run in runs):  # since an earlier notice, which was withdrawn
        Run.objects.filter(pk__in=[run.pk for run in runs]).update(saved=False)
    _create_commands(runs, Command.Verb.NOTICE, code, stop_at, now)
    nudge.pages(nudge.workload_topic(workload.public_id), nudge.QUEUE)
    return True


def order_stop(workload: Workload, *, code: str, grace_seconds: int, now: datetime, **also: object) -> bool:
    """A live workload is told to stop now; ``also`` is set on it at the same time. Its first reason stays its reason.
    ``grace_seconds`` as for a notice.

    False when it is already stopping or does not run (any more): then nothing is written.
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
    """Stop those of ``runs`` that nobody has told yet: the rest of a gang of which one has ended or goes by itself. The workload's
    own state follows from what the agents report."""
    told = runs_told_to_stop(runs)
    _create_commands([run for run in runs if run.pk not in told], Command.Verb.STOP, code, None, now)


def runs_told_to_stop(runs: Iterable[Run]) -> set[int]:
    """Those of ``runs`` that were, ended or not."""
    told = Command.objects.filter(run__in=list(runs), verb=Command.Verb.STOP)
    return set(told.values_list("run_id", flat=True))


def mark_done(runs: Iterable[Run], now: datetime) -> None:
    """These runs have ended: nothing is wanted of their hosts any more."""
    ended = list(runs)
    Command.objects.filter(run__in=ended, done_at__isnull=True).update(done_at=now)
    nudge.hosts(run.host_id for run in ended)


def longest_grace(runs: Sequence[Run], of_pool: int) -> timedelta:
    """Of the pool now and of what the hosts of ``runs`` were told at their start."""
    return timedelta(seconds=max([of_pool, *(run.grace_seconds for run in runs)]))


def _create_commands(
    runs: Sequence[Run], verb: Command.Verb, code: str, stop_at: datetime | None, now: datetime
) -> None:
    Command.objects.bulk_create(
        (
            Command(host_id=r.host_id, run=r, verb=verb, code=code, stop_at=stop_at, created_at=now)
            for r in runs
        ),
        ignore_conflicts=True,  # told before: once is enough
    )
    nudge.hosts(run.host_id for run in runs)
