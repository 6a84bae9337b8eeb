"""How an attempt of a workload goes and ends: the only writer of run states, and what they mean for the workload."""

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

RUN_STATE_RANK = {state: number for number, state in enumerate(RunState)}  # a run only goes forward
IMMEDIATE_FAILURE_PERIOD = timedelta(
    seconds=60
)  # a program that fails so soon after its start did not get to do its work
MIN_ALLOCATION_PERIOD = timedelta(microseconds=1)  # an empty range would not be kept by PostgreSQL


def advance_run(run: Run, new: RunState, at: datetime) -> bool:
    """Move a run forward to starting, running or stopping. False when it is there or further already."""
    old = RunState(run.state)
    if RUN_STATE_RANK[new] <= RUN_STATE_RANK[old] or new == RunState.ENDED:
        return False
    since = {RunState.STARTING: "starting_at", RunState.RUNNING: "running_at"}.get(new)
    also = {since: at} if since and getattr(run, since) is None else {}
    if new == RunState.RUNNING and run.starting_at is None:
        also["starting_at"] = at  # it started so quickly that its agent first told that it runs
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
    """The host has confirmed that nothing of this run is left, as of ``at``: its slots are free. False when it had ended.

    ``at`` is held between the placement and ``now``. ``gpu_events``: the codes of what its own GPUs told, which it failed of.
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
    """A member of a gang that was stopped because a GPU failed elsewhere ends as stopped: it has lost none of its own."""
    followed = (
        outcome == ReasonCode.GPU_ERROR and gangs.is_gang(run.workload) and commands.runs_told_to_stop([run])
    )
    return str(ReasonCode.CANCELLED) if followed and not gangs.runs_that_lost_a_gpu([run]) else outcome


def _charge_code(run: Run, outcome: str) -> str:
    """What it was told to go for, unless it had finished or was lost: how it took the stop does not change who pays.

    A job that ignores its owner's cancellation until it is killed was not preempted; one that leaves without a checkpoint when
    it has to make room was.
    """
    if outcome == ReasonCode.FINISHED or outcome in (*LOST_CODES, *HOST_SETUP_CODES):
        return outcome
    told = run.commands.exclude(code="").order_by("-pk").values_list("code", flat=True).first()
    return told or outcome


def settle_workload(workload: Workload, now: datetime) -> None:
    """Bring a workload's state to what its runs say. The workload is locked by the caller."""
    runs = list(Run.objects.filter(workload=workload, attempt=workload.attempt).order_by("rank"))
    if not runs or workload.state not in commands.LIVE_STATES:
        return
    live = [run for run in runs if run.state != RunState.ENDED]
    if not live:
        _attempt_ended(workload, runs, now)
        return
    _note_progress(workload, runs, now)
    # Who has saved after the notice and gone has done what was asked: the others have their notice to its end.
    well = (
        ReasonCode.FINISHED,
        *((ReasonCode.CHECKPOINTED,) if workload.state == WorkloadState.NOTICE else ()),
    )
    failed = [run for run in runs if run.state == RunState.ENDED and run.outcome not in well]
    if failed:
        # One of a gang is gone: the others end with it, also where it had said before that it was going.
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
        # Nobody may have noted when: such a row must not keep its host from reporting.
        first = min((run.running_at for run in runs if run.running_at), default=now)
        _advance_workload(
            workload, WorkloadState.RUNNING, **({} if workload.started_at else {"started_at": first})
        )
    elif RUN_STATE_RANK[highest] >= RUN_STATE_RANK[RunState.STARTING]:
        _advance_workload(workload, WorkloadState.STARTING)


def _set_stop_deadline(workload: Workload, runs: Sequence[Run], now: datetime) -> dict[str, datetime]:
    """When what stops without having been told by the server is gone at the latest: its host stops it at its limit, or the gang."""
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
    bad = [run for run in runs if run.outcome != ReasonCode.FINISHED]
    ((told, outcome),) = attempt_outcomes([runs])
    ended_at = max((run.ended_at for run in runs if run.ended_at), default=now)
    decided = decide_retry(workload, outcome)
    comes_back = decided.requeues and not _reservation_is_over(workload, now)
    hosts = _failed_host_count(workload) if comes_back and decided.failures + decided.lost else 0
    comes_back = comes_back and hosts < MAX_FAILED_HOSTS
    if (
        bad
        and gangs.is_gang(workload)
        and decided.code in (*LOST_CODES, *HOST_SETUP_CODES, *WORKLOAD_FAILURE_CODES)
    ):
        gangs.record_gang_end(workload, told, decided.code, restarts=comes_back, now=now)
    if comes_back:
        where = {
            **_avoided_hosts(workload, runs, now),
            **_checkpoint_storage(workload),
            "reason_numbers": _gpu_event_numbers(told),
        }
        _requeue(workload, decided, {**where, **_evicted_by(workload, runs)}, now)
    else:
        _end_workload(workload, decided, told, ended_at, hosts)
    nudge.engine()
    nudge.pages(nudge.workload_topic(workload.public_id), nudge.QUEUE)


def attempt_outcomes(attempts: Collection[Sequence[Run]]) -> list[tuple[Run, str]]:
    """Of each attempt, by its ended runs: the one that says why, and the outcome of all of it. That is the run's own; of a gang's
    member that lost a GPU while it was going for another's failure, that. What becomes of a workload goes by this, and its pages
    say this. Three queries at most, none for work on one host, beside the workload of runs that are loaded without it."""
    told = gangs.first_failures(
        [[run for run in runs if run.outcome != ReasonCode.FINISHED] or runs for runs in attempts]
    )
    lost = gangs.runs_that_lost_a_gpu(
        [run for run in told if run.outcome not in LOST_CODES and gangs.is_gang(run.workload)]
    )
    return [(run, str(ReasonCode.GPU_ERROR) if run.pk in lost else run.outcome) for run in told]


def _reservation_is_over(workload: Workload, now: datetime) -> bool:
    if workload.reservation_id is None:
        return False
    return not Reservation.objects.filter(
        pk=workload.reservation_id, end__gt=now, state__in=OPEN_RESERVATION_STATES
    ).exists()


def _avoided_hosts(workload: Workload, runs: Sequence[Run], now: datetime) -> dict[str, object]:
    """The hosts that could not start it or had no room for it just now, beside those of a moment ago: others come first."""
    failed = [run.host_id for run in runs if run.outcome in AVOID_HOST_CODES]
    if not failed:
        return {}
    before = workload.avoids if workload.avoids_until is not None and now < workload.avoids_until else []
    kept = [host for host in before if host not in failed]
    return {"avoids": [*kept, *failed][-MAX_AVOIDED_HOSTS:], "avoids_until": now + HOST_AVOIDANCE_PERIOD}


def _checkpoint_storage(workload: Workload) -> dict[str, object]:
    """The homes that its last checkpoint lies in, where that is known: hosts that share them come first."""
    if workload.checkpoint_at is None:
        return {}
    saved = Run.objects.filter(workload=workload, checkpoint_at__isnull=False).order_by(
        "-checkpoint_at", "-pk"
    )
    return {"homes_id": saved.values_list("host__storage_id", flat=True).first()}


def _evicted_by(workload: Workload, runs: Sequence[Run]) -> dict[str, object]:
    """Whom it may not evict, because it had to make room for that one: until it has run for its pool's minimum runtime since, or
    others had to have its room."""
    last = workload.evicted_for_workload_id
    if last is None and workload.evicted_by_id is not None:
        whole = timedelta(seconds=workload.pool.minimum_runtime_seconds)
        has_run = all(run.ended_at is not None and run.ended_at - run.placed_at >= whole for run in runs)
        last = None if has_run else workload.evicted_by_id
    return {"evicted_by_id": last}


def _requeue(workload: Workload, decided: RetryDecision, where: Mapping[str, object], now: datetime) -> None:
    """It keeps its place: its submission time is what the queue is ordered by. ``where``: what the next placement goes by."""
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
        **where,
    )


def _gpu_event_numbers(told: Run) -> dict[str, object]:
    """What its GPU told, for the sentence of its outcome."""
    return {"event": ", ".join(told.gpu_events)} if told.gpu_events else {}


def _failed_host_count(workload: Workload) -> int:
    """On how many hosts it could not start, lost its GPU or failed at once by itself. Of an attempt of a gang the member that ended
    it: the others followed."""
    bad = Run.objects.filter(workload=workload, state=RunState.ENDED).exclude(outcome=ReasonCode.FINISHED)
    attempts: dict[int, list[Run]] = defaultdict(list)
    for run in bad.order_by("attempt", "rank"):
        attempts[run.attempt].append(run)
    ended = gangs.first_failures(attempts.values())
    failed = {run.pk for run in ended if run.outcome == ReasonCode.FAILED and failed_immediately(run)}
    by_itself = failed - commands.runs_told_to_stop(run for run in ended if run.pk in failed)
    hosts_own = (ReasonCode.START_FAILED, ReasonCode.GPU_ERROR)
    return len({run.host_id for run in ended if run.outcome in hosts_own or run.pk in by_itself})


def failed_immediately(run: Run) -> bool:
    """Whether it ended so soon after its start that it points at where it ran rather than at what it did."""
    return (
        run.ended_at is not None
        and run.ended_at - (run.running_at or run.placed_at) <= IMMEDIATE_FAILURE_PERIOD
    )


def _end_workload(
    workload: Workload, decided: RetryDecision, told: Run, ended_at: datetime, hosts: int
) -> None:
    numbers: dict[str, object] = {"attempt": workload.attempt}
    if hosts >= MAX_FAILED_HOSTS:
        numbers["failed_on_hosts"] = hosts
    if told.exit_code is not None:
        numbers["exit_code"] = told.exit_code
    numbers |= _gpu_event_numbers(told)
    if told.outcome != decided.code:
        numbers["run_outcome"] = told.outcome
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
