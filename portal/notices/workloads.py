"""Find events of workloads, for notices to their owners.

The events are starts, ends, evictions, idle warnings, shifts of the expected start, and forced moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, F, OuterRef, Q

from portal.models import ToldStart
from portal.notices.pending import PendingNotice, grouped_by_array
from portal.reads.work import forced_moves, job_arrays, manual_stops
from portal.sweeps.idle_notebooks import idle_notice_period
from scheduler.core.reasons import ReasonCode
from scheduler.models import Command, Decision, Run, Workload, WorkloadKind
from scheduler.state.states import WorkloadState
from scheduler.sync.home_volumes import has_other_storage
from telemetry.models import RunReport
from telemetry.money.refund_limits import RefundLimits, load_refund_limits

MIN_START_SHIFT = timedelta(minutes=30)
MAX_ADVICE_AGE = timedelta(days=2)


def started_workloads(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each workload that started or resumed, except tasks of arrays."""
    runs = Run.objects.filter(
        running_at__gt=since, running_at__lte=now, rank=0, workload__simulated=False, workload__array=None
    )
    for run in runs.select_related("workload", "host"):
        yield PendingNotice(
            "started" if run.attempt <= 1 else "resumed",
            f"started:{run.pk}",
            (run.workload.owner_id,),
            {
                "name": run.workload.name,
                "host": run.host.name,
                "attempt": run.attempt,
                **_checkpoint_location(run),
            },
            workload=run.workload_id,
        )


def _checkpoint_location(run: Run) -> dict[str, bool]:
    """Return ``other_homes`` if the run cannot read the last checkpoint.

    The checkpoint is then in a home that the run's host does not have.
    """
    return {"other_homes": True} if has_other_storage(run.workload.homes_id, run.host) else {}


def ended_workloads(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each workload that ended. If a person stopped it, the notice names the person."""
    ended = list(
        Workload.objects.filter(
            ended_at__gt=since, ended_at__lte=now, state=WorkloadState.ENDED, simulated=False, array=None
        )
    )
    by_hand = manual_stops.manual_stops_of(ended)
    for workload in ended:
        numbers = {**workload.outcome_numbers, "name": workload.name, "outcome": workload.outcome}
        if manual_stops.is_manual_stop(workload):
            numbers["ran"] = workload.attempt > 0
        if workload.pk in by_hand:
            numbers |= {"by": by_hand[workload.pk].name, "why": by_hand[workload.pk].why}
        yield PendingNotice(
            "ended",
            f"ended:{workload.pk}",
            (workload.owner_id,),
            numbers,
            workload=workload.pk,
            actor=by_hand[workload.pk].user_id if workload.pk in by_hand else None,
        )


def advised_workloads(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each workload whose report has advice. The report may be written several times.

    Tasks of arrays have none: the utilisation page adds up their advice. Neither has work that ended long
    ago, of which many reports may be made at once after an outage.
    """
    reports = RunReport.objects.filter(made_at__gt=since, made_at__lte=now, workload__array=None)
    reports = reports.filter(workload__ended_at__gt=now - MAX_ADVICE_AGE)
    for report in reports.exclude(advice=[]).select_related("workload"):
        workload, (first, *others) = report.workload, report.advice
        numbers = {"name": workload.name, "advice": first, "more": len(others)}
        source = f"advice:{workload.pk}"
        yield PendingNotice("advice", source, (workload.owner_id,), numbers, workload=workload.pk)


def started_arrays(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each array whose first task runs."""
    for array, run in job_arrays.arrays_started_between(since, now):
        numbers = {"name": array.name, "tasks": array.tasks_all, "host": run.host.name}
        yield PendingNotice(
            "array_started", f"array started:{array.pk}", (array.owner_id,), numbers, workload=run.workload_id
        )


def ended_arrays(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each array whose last task has ended, with the number of tasks by outcome.

    While tasks remain, there is a notice each time the number of failed tasks has doubled. A thousand tasks
    cause at most ten such notices.
    """
    for array, task in job_arrays.arrays_ended_between(since, now):
        numbers: dict[str, Any] = {"name": array.name, "tasks": array.tasks_all, "failed": array.failed}
        if array.failed:
            numbers |= {**task.outcome_numbers, "task": task.name, "outcome": task.outcome}
        owner = (array.owner_id,)
        if array.waiting + array.running == 0:
            numbers |= {"finished": array.finished, "cancelled": array.cancelled}
            yield PendingNotice("array_ended", f"array ended:{array.pk}", owner, numbers, workload=task.pk)
        elif array.failed:
            source = f"array failed:{array.pk}:{array.failed.bit_length()}"
            yield PendingNotice("array_fails", source, owner, numbers, workload=task.pk)


def evicted_workloads(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each eviction.

    Tasks of an array are often evicted together, so they share one notice per hour.
    """
    decisions = Decision.objects.filter(
        kind=Decision.DecisionKind.EVICTED, at__gt=since, at__lte=now, workload__simulated=False
    )
    rows = list(decisions.select_related("workload__array").order_by("pk"))
    limits = load_refund_limits({decision.workload.pool_id for decision in rows})
    for decision in rows:
        name, source = grouped_by_array(decision.workload, f"evicted:{decision.pk}", decision.at)
        refund = _refund_numbers(decision.workload, limits, decision.at)
        numbers = {**decision.numbers, "name": name, "code": decision.code, **refund}
        yield PendingNotice(
            "preemption_notice", source, (decision.workload.owner_id,), numbers, workload=decision.workload_id
        )


def _refund_numbers(workload: Workload, limits: RefundLimits, at: datetime) -> dict[str, Any]:
    """Return ``forgiven_minutes``, the pool's refund limit. It is None if there is no limit.

    Return an empty dict for a notebook, because the time of notebooks is always charged.
    """
    if workload.kind == WorkloadKind.NOTEBOOK:
        return {}
    return {"forgiven_minutes": limits.minutes_at(workload.pool_id, at)}


def idle_warnings(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each notebook with an idle warning. The notice contains the time of the stop."""
    for workload in Workload.objects.filter(
        idle_warned_at__gt=since, idle_warned_at__lte=now, state=WorkloadState.RUNNING
    ).select_related("pool"):
        warned = workload.idle_warned_at
        if warned is not None:
            stop_at = warned + idle_notice_period(timedelta(seconds=workload.pool.idle_limit_seconds))
            numbers = {"name": workload.name, "stop_at": stop_at.timestamp()}
            source = f"idle:{workload.pk}:{warned.timestamp():.0f}"
            yield PendingNotice("idle_warning", source, (workload.owner_id,), numbers, workload=workload.pk)


def shifted_expected_starts(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each waiting workload whose expected start has moved by a large amount.

    The shift must be more than half an hour, and at least a quarter of the announced wait. The new start is
    stored as the announced one.
    """
    waiting = Workload.objects.filter(
        state=WorkloadState.QUEUED, expected_start__isnull=False, simulated=False
    )
    # For an array, look only at its first task. The other tasks are expected to start later.
    waiting = waiting.exclude(Exists(Workload.objects.filter(array=OuterRef("array"), pk__lt=OuterRef("pk"))))
    unannounced = waiting.filter(told_start=None).only("pk", "expected_start")
    ToldStart.objects.bulk_create(
        [
            ToldStart(workload=workload, expected_start=workload.expected_start, at=now)
            for workload in unannounced
            if workload.expected_start
        ],
        ignore_conflicts=True,
    )
    earlier = Q(told_start__expected_start__gt=F("expected_start") + MIN_START_SHIFT)
    later = Q(told_start__expected_start__lt=F("expected_start") - MIN_START_SHIFT)
    for workload in waiting.filter(earlier | later).select_related("told_start", "array"):
        last, expected = workload.told_start, workload.expected_start
        if expected is None or abs(expected - last.expected_start) < abs(last.expected_start - last.at) / 4:
            continue
        numbers = {
            "name": workload.array.name if workload.array else workload.name,
            "expected_start": expected.timestamp(),
            "before": last.expected_start.timestamp(),
        }
        ToldStart.objects.filter(pk=last.pk).update(expected_start=expected, at=now)
        source = f"moved:{workload.pk}:{expected.timestamp():.0f}"
        yield PendingNotice(
            "expected_start_moved", source, (workload.owner_id,), numbers, workload=workload.pk
        )


def forced_moves_of_workloads(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each workload whose host or GPU is taken out of service."""
    evictions = Command.objects.filter(
        verb__in=(Command.Verb.NOTICE, Command.Verb.STOP),
        code__in=(ReasonCode.DRAINED, ReasonCode.GPU_ERROR),
        created_at__gt=since,
        created_at__lte=now,
    )
    commands = list(evictions.select_related("run__workload__array", "host").order_by("pk"))
    behind = forced_moves.forced_moves_of_commands(commands)
    limits = load_refund_limits({command.run.workload.pool_id for command in commands})
    by_attempt: dict[tuple[int, int], list[Command]] = defaultdict(list)
    for command in commands:
        by_attempt[command.run.workload_id, command.run.attempt].append(command)
    for members in by_attempt.values():
        # A workload on several hosts has one command for each. Name the host that is taken out of service.
        known = (c for c in members if behind[c.run_id].numbers.keys() & {"event", "words"})
        command = next(known, members[0])
        workload, move = command.run.workload, behind[command.run_id]
        # A notebook whose GPU failed cannot resume.
        ends = command.code == ReasonCode.GPU_ERROR and workload.kind == WorkloadKind.NOTEBOOK
        name, source = grouped_by_array(workload, f"moves:{command.run_id}", command.created_at)
        numbers = {**move.numbers, "name": name, "host": command.host.name, "code": move.code, "ends": ends}
        numbers |= _refund_numbers(workload, limits, command.created_at)
        yield PendingNotice("has_to_move", source, (workload.owner_id,), numbers, workload=workload.pk)
