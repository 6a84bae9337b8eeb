"""Advance and end the attempts of workloads.

An attempt has one run on each host of the workload. Only this module writes the state of a run and the
effect of this state on the workload.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from scheduler.core.reasons import ReasonCode
from scheduler.models import Allocation, Reservation, Run, Workload
from scheduler.runs import commands, gangs
from scheduler.runs.retry_policy import (
    AVOID_HOST_CODES,
    HOST_AVOIDANCE_PERIOD,
    HOST_SETUP_CODES,
    LOST_CODES,
    MAX_AVOIDED_HOSTS,
    MAX_FAILED_HOSTS,
    WORKLOAD_FAILURE_CODES,
    RetryDecision,
    decide_retry,
)
from scheduler.state import nudge
from scheduler.state.states import OPEN_RESERVATION_STATES, RunState, WorkloadState, change_state

RUN_STATE_RANK = {
    state: number for number, state in enumerate(RunState)
}  # a run never moves to a state of a lower rank
IMMEDIATE_FAILURE_PERIOD = timedelta(seconds=60)  # if a run fails within this time, its host may be the cause
MIN_ALLOCATION_PERIOD = timedelta(microseconds=1)  # an empty range would lose its start and end in PostgreSQL


def advance_run(run: Run, new: RunState, at: datetime) -> bool:
    """Move a run forward to starting, running or stopping.

    Return False if nothing was changed. Then the run is already in the state ``new`` or in a later state, or
    another process has changed its row.
    """
    old = RunState(run.state)
    if RUN_STATE_RANK[new] <= RUN_STATE_RANK[old] or new == RunState.ENDED:
        return False
    since = {RunState.STARTING: "starting_at", RunState.RUNNING: "running_at"}.get(new)
    also = {since: at} if since and getattr(run, since) is None else {}
    if new == RunState.RUNNING and run.starting_at is None:
        also["starting_at"] = at  # the run started so quickly that its first report says "running"
    return change_state(run, "state", old=old, new=new, **also)


def end_run(
    run: Run,
    *,
    outcome: str,
    exit_code: int | None,
    at: datetime,
    now: datetime,
    gpu_events: Sequence[str] = (),
) -> bool:
    """End a run and free its slots. ``at`` is the time at which no process of the run was left.

    ``at`` is limited to the range from just after the placement (MIN_ALLOCATION_PERIOD) to ``now``.
    ``gpu_events`` are the codes of the hardware events that made the run fail. Return False if the run had
    already ended, or if another process has changed its row.
    """
    at = min(max(at, run.placed_at + MIN_ALLOCATION_PERIOD), max(now, run.placed_at + MIN_ALLOCATION_PERIOD))
    outcome = outcome if gpu_events else _own_outcome(run, outcome)
    if run.state == RunState.ENDED or not change_state(
        run,
        "state",
        old=RunState(run.state),
        new=RunState.ENDED,
        ended_at=at,
        outcome=outcome,
        exit_code=exit_code,
        missing_since=None,
        gpu_events=list(gpu_events),
    ):
        return False
    still_open = Allocation.objects.filter(run=run, period__upper_inf=True)
    still_open.update(period=DateTimeTZRange(run.placed_at, at), end_code=_charge_code(run, outcome))
    commands.mark_done([run], now)
    nudge.engine()
    return True


def _own_outcome(run: Run, outcome: str) -> str:
    """Return the outcome of this run alone, without the failures of other members of its gang.

    If the GPU of one member failed, another member that was stopped for this reason reports GPU_ERROR too.
    The outcome of this other member becomes CANCELLED, because it has not lost a GPU.
    """
    stopped_with_gang = (
        outcome == ReasonCode.GPU_ERROR
        and gangs.is_gang(run.workload)
        and commands.runs_ordered_to_stop([run])
    )
    if stopped_with_gang and not gangs.runs_that_lost_a_gpu([run]):
        return str(ReasonCode.CANCELLED)
    return outcome


def _charge_code(run: Run, outcome: str) -> str:
    """Return the code that decides who pays for the run.

    If the run finished, was lost or could not be set up on its host, the code is the run's outcome. Otherwise
    it is the code of the last command that has a code, or the outcome if there is no such command. So the
    run's reaction to a stop command does not change who pays, unless the run finishes. For example, a job
    that ignores its owner's cancellation until it is killed is charged by the code of the cancellation. A job
    that ends without a checkpoint after its eviction is charged by the code of the eviction.
    """
    if outcome == ReasonCode.FINISHED or outcome in (*LOST_CODES, *HOST_SETUP_CODES):
        return outcome
    ordered = run.commands.exclude(code="").order_by("-pk").values_list("code", flat=True).first()
    return ordered or outcome


def settle_workload(workload: Workload, now: datetime) -> None:
    """Update a workload's state from the states of its runs. The caller has locked the workload."""
    runs = list(Run.objects.filter(workload=workload, attempt=workload.attempt).order_by("rank"))
    if not runs or workload.state not in commands.LIVE_STATES:
        return
    live = [run for run in runs if run.state != RunState.ENDED]
    if not live:
        _attempt_ended(workload, runs, now)
        return
    _note_progress(workload, runs, now)
    # A run that saved a checkpoint after the notice and then ended has not failed. So the end of this run
    # does not stop the other runs before their notice ends.
    expected = (
        ReasonCode.FINISHED,
        *((ReasonCode.CHECKPOINTED,) if workload.state == WorkloadState.NOTICE else ()),
    )
    failed = [run for run in runs if run.state == RunState.ENDED and run.outcome not in expected]
    if failed:
        # One member of the gang has failed, so the other members are stopped. This also holds if the workload
        # is already stopping.
        _advance_workload(workload, WorkloadState.STOPPING, **_set_stop_deadline(workload, live, now))
        commands.stop_remaining(live, code=failed[0].outcome, now=now)


def _note_progress(workload: Workload, runs: Sequence[Run], now: datetime) -> None:
    lowest = min((RunState(run.state) for run in runs), key=RUN_STATE_RANK.__getitem__)
    highest = max(
        (RunState(run.state) for run in runs if run.state != RunState.ENDED), key=RUN_STATE_RANK.__getitem__
    )
    if highest == RunState.STOPPING:
        _advance_workload(workload, WorkloadState.STOPPING, **_set_stop_deadline(workload, runs, now))
    elif RUN_STATE_RANK[lowest] >= RUN_STATE_RANK[RunState.RUNNING]:
        # A row without ``running_at`` must not make the host's report fail.
        first = min((run.running_at for run in runs if run.running_at), default=now)
        _advance_workload(
            workload, WorkloadState.RUNNING, **({} if workload.started_at else {"started_at": first})
        )
    elif RUN_STATE_RANK[highest] >= RUN_STATE_RANK[RunState.STARTING]:
        _advance_workload(workload, WorkloadState.STARTING)


def _set_stop_deadline(workload: Workload, runs: Sequence[Run], now: datetime) -> dict[str, datetime]:
    """Return the column ``gone_by`` for a workload that stops without an order.

    This is the case if a run begins to stop by itself, for example at the time limit that its host enforces,
    or if one member of the gang failed and the others are stopped. ``gone_by`` is the time by which the
    workload has stopped. Return an empty dict if ``gone_by`` is already set.
    """
    if workload.gone_by is not None:
        return {}
    return {"gone_by": now + commands.longest_grace(runs, workload.pool.grace_seconds)}


WORKLOAD_STATE_RANK = {state: number for number, state in enumerate(commands.LIVE_STATES)}


def _advance_workload(workload: Workload, new: WorkloadState, **also: object) -> None:
    old = WorkloadState(workload.state)
    if WORKLOAD_STATE_RANK[new] > WORKLOAD_STATE_RANK[old] and change_state(
        workload, "state", old=old, new=new, **also
    ):
        nudge.pages(nudge.workload_topic(workload.public_id), nudge.QUEUE)


def _attempt_ended(workload: Workload, runs: Sequence[Run], now: datetime) -> None:
    unfinished = [run for run in runs if run.outcome != ReasonCode.FINISHED]
    ((cause, outcome),) = attempt_outcomes([runs])
    ended_at = max((run.ended_at for run in runs if run.ended_at), default=now)
    decided = decide_retry(workload, outcome)
    requeues = decided.requeues and not _reservation_is_over(workload, now)
    failed_hosts = _failed_host_count(workload) if requeues and decided.failures + decided.lost else 0
    requeues = requeues and failed_hosts < MAX_FAILED_HOSTS
    if (
        unfinished
        and gangs.is_gang(workload)
        and decided.code in (*LOST_CODES, *HOST_SETUP_CODES, *WORKLOAD_FAILURE_CODES)
    ):
        gangs.record_gang_end(workload, cause, decided.code, restarts=requeues, now=now)
    if requeues:
        placement_columns = {
            **_avoided_hosts(workload, runs, now),
            **_checkpoint_storage(workload),
            "reason_numbers": _gpu_event_numbers(cause),
            **_evicted_by(workload, runs),
        }
        _requeue(workload, decided, placement_columns, now)
    else:
        _end_workload(workload, decided, cause, ended_at, failed_hosts)
    nudge.engine()
    nudge.pages(nudge.workload_topic(workload.public_id), nudge.QUEUE)


def attempt_outcomes(attempts: Collection[Sequence[Run]]) -> list[tuple[Run, str]]:
    """Return a pair for each attempt: the ended run that explains the attempt's end, and the outcome.

    The outcome of the attempt is the outcome of this run, with one exception. If the run is a gang member
    that lost a GPU, and its own outcome is not in LOST_CODES, the outcome of the attempt is GPU_ERROR. The
    run's own outcome may differ if another member ended first and this run was stopped for that reason.
    Retries and pages use the outcome of the attempt.

    The function takes at most three queries, and no query for work on one host. In addition, the workloads of
    the runs are loaded if they are not loaded yet.
    """
    causes = gangs.first_failures(
        [[run for run in runs if run.outcome != ReasonCode.FINISHED] or runs for runs in attempts]
    )
    lost = gangs.runs_that_lost_a_gpu(
        [run for run in causes if run.outcome not in LOST_CODES and gangs.is_gang(run.workload)]
    )
    return [(run, str(ReasonCode.GPU_ERROR) if run.pk in lost else run.outcome) for run in causes]


def _reservation_is_over(workload: Workload, now: datetime) -> bool:
    if workload.reservation_id is None:
        return False
    return not Reservation.objects.filter(
        pk=workload.reservation_id, end__gt=now, state__in=OPEN_RESERVATION_STATES
    ).exists()


def _avoided_hosts(workload: Workload, runs: Sequence[Run], now: datetime) -> dict[str, object]:
    """Return the columns that list the hosts to avoid in the next attempt.

    These are the hosts on which this attempt could not start or ran low on disk. Return an empty dict if
    there are none. Hosts of earlier attempts are kept if ``avoids_until`` has not passed; ``avoids_until`` is
    then extended for all hosts. If there are more than MAX_AVOIDED_HOSTS, the oldest are dropped.
    """
    failed = [run.host_id for run in runs if run.outcome in AVOID_HOST_CODES]
    if not failed:
        return {}
    before = workload.avoids if workload.avoids_until is not None and now < workload.avoids_until else []
    kept = [host for host in before if host not in failed]
    return {"avoids": [*kept, *failed][-MAX_AVOIDED_HOSTS:], "avoids_until": now + HOST_AVOIDANCE_PERIOD}


def _checkpoint_storage(workload: Workload) -> dict[str, object]:
    """Return the column with the storage of the last checkpoint, or an empty dict without a checkpoint.

    The planner prefers hosts that mount this storage.
    """
    if workload.checkpoint_at is None:
        return {}
    saved = Run.objects.filter(workload=workload, checkpoint_at__isnull=False).order_by(
        "-checkpoint_at", "-pk"
    )
    return {"homes_id": saved.values_list("host__storage_id", flat=True).first()}


def _evicted_by(workload: Workload, runs: Sequence[Run]) -> dict[str, object]:
    """Return the column with the id of the workload for which ``workload`` was last evicted.

    ``workload`` may not evict this evictor in return. The rule ends when ``workload`` has run for its pool's
    minimum runtime, or when it is evicted for another workload.
    """
    evictor = workload.evicted_for_workload_id
    if evictor is None and workload.evicted_by_id is not None:
        minimum = timedelta(seconds=workload.pool.minimum_runtime_seconds)
        has_run = all(run.ended_at is not None and run.ended_at - run.placed_at >= minimum for run in runs)
        evictor = None if has_run else workload.evicted_by_id
    return {"evicted_by_id": evictor}


def _requeue(
    workload: Workload, decided: RetryDecision, placement_columns: Mapping[str, object], now: datetime
) -> None:
    """Put a workload back into the queue. It keeps its submission time, which decides its queue position.

    ``placement_columns`` are further columns to set, for example the hosts to avoid.
    """
    change_state(
        workload,
        "state",
        old=WorkloadState(workload.state),
        new=WorkloadState.QUEUED,
        queued_at=now,
        not_before=now + timedelta(seconds=decided.wait_seconds) if decided.wait_seconds else None,
        failures=workload.failures + decided.failures,
        lost_attempts=workload.lost_attempts + decided.lost,
        evicted_for_workload=None,
        evicted_for_reservation=None,
        stop_requested="",
        gone_by=None,
        borrowed_slots=0,
        idle_warned_at=None,
        reason_code=str(decided.code),
        blockers=[],
        **placement_columns,
    )


def _gpu_event_numbers(run: Run) -> dict[str, object]:
    """Return the run's GPU events as the value ``event`` of the reason's sentence.

    Return an empty dict if there are none.
    """
    return {"event": ", ".join(run.gpu_events)} if run.gpu_events else {}


def _failed_host_count(workload: Workload) -> int:
    """Return the number of hosts that may themselves be the cause of a failure of the workload.

    A host counts if the workload could not start or lost its GPU on it. A host also counts if the workload
    failed immediately on it without a stop command. In a gang's attempt, only the host of the member that
    ended the attempt counts.
    """
    unfinished = Run.objects.filter(workload=workload, state=RunState.ENDED).exclude(
        outcome=ReasonCode.FINISHED
    )
    attempts: dict[int, list[Run]] = defaultdict(list)
    for run in unfinished.order_by("attempt", "rank"):
        attempts[run.attempt].append(run)
    ended = gangs.first_failures(attempts.values())
    failed = {run.pk for run in ended if run.outcome == ReasonCode.FAILED and failed_immediately(run)}
    by_itself = failed - commands.runs_ordered_to_stop(run for run in ended if run.pk in failed)
    host_codes = (ReasonCode.START_FAILED, ReasonCode.GPU_ERROR)
    return len({run.host_id for run in ended if run.outcome in host_codes or run.pk in by_itself})


def failed_immediately(run: Run) -> bool:
    """Return True if the run ended so soon that its host may be the cause.

    The run must have ended within IMMEDIATE_FAILURE_PERIOD after it began to run, or after its placement if
    it never ran.
    """
    return (
        run.ended_at is not None
        and run.ended_at - (run.running_at or run.placed_at) <= IMMEDIATE_FAILURE_PERIOD
    )


def _end_workload(
    workload: Workload, decided: RetryDecision, cause: Run, ended_at: datetime, failed_hosts: int
) -> None:
    numbers: dict[str, object] = {"attempt": workload.attempt}
    if failed_hosts >= MAX_FAILED_HOSTS:
        numbers["failed_on_hosts"] = failed_hosts
    if cause.exit_code is not None:
        numbers["exit_code"] = cause.exit_code
    numbers |= _gpu_event_numbers(cause)
    if cause.outcome != decided.code:
        numbers["run_outcome"] = cause.outcome
    change_state(
        workload,
        "state",
        old=WorkloadState(workload.state),
        new=WorkloadState.ENDED,
        ended_at=ended_at,
        outcome=str(decided.code),
        outcome_numbers=numbers,
        gone_by=None,
        position=None,
        expected_start=None,
    )
