"""How an attempt of a workload goes and ends: the only writer of run states, and what they mean for the workload."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from scheduler import commands, gangs, nudge
from scheduler.core.reasons import Code
from scheduler.models import Allocation, IfMemberEnds, Reservation, Run, Workload, WorkloadKind
from scheduler.states import PROMISED, RunState, WorkloadState, change_state

RANK = {state: number for number, state in enumerate(RunState)}  # a run only goes forward
COMES_BACK = (Code.EVICTED_FOR_GUARANTEE, Code.EVICTED_FOR_PRIORITY, Code.EVICTED_FOR_RESERVATION, Code.DRAINED)
LOST = (Code.HOST_LOST, Code.LEASE_LOST, Code.GPU_ERROR, Code.START_FAILED, Code.DISK_RAN_LOW)
# Of the operator's program, of the disk, of the driver: costs the workload nothing but time.
HOSTS_OWN = (Code.PROLOG_FAILED, Code.HOST_FULL, Code.GPU_UNREADABLE)
PROLOG_WAIT_SECONDS = 60  # until its host is closed by the breaker, or put right
ITS_OWN_FAULT = (Code.FAILED, Code.OUT_OF_MEMORY, Code.OUT_OF_DISK, Code.KILLED_AT_GRACE)
MOST_LOST_ATTEMPTS = 5
MOST_HOSTS_FAILED = 3  # a workload that fails on so many is not the hosts' fault: it is not tried again
BETTER_ELSEWHERE = (Code.START_FAILED, Code.DISK_RAN_LOW, *HOSTS_OWN)
AVOIDED_FOR = timedelta(minutes=10)  # so long other hosts come first, after a start that failed or a disk that ran low
MOST_AVOIDED = 16
AT_ONCE = timedelta(seconds=60)  # a program that fails so soon after its start did not get to do its work
FIRST_BACK_OFF_SECONDS = 15
LONGEST_BACK_OFF_SECONDS = 30 * 60
SHORTEST_HOLD = timedelta(microseconds=1)  # an empty range would not be kept by PostgreSQL


def advance_run(run: Run, new: RunState, at: datetime) -> bool:
    """Move a run forward to starting, running or stopping. False when it is there or further already."""
    old = RunState(run.state)
    if RANK[new] <= RANK[old] or new == RunState.ENDED:
        return False
    since = {RunState.STARTING: "starting_at", RunState.RUNNING: "running_at"}.get(new)
    also = {since: at} if since and getattr(run, since) is None else {}
    if new == RunState.RUNNING and run.starting_at is None:
        also["starting_at"] = at  # it started so quickly that its agent first told that it runs
    return change_state(run, "state", old=old, new=new, **also)


def end_run(
    run: Run, *, outcome: str, exit_code: int | None, at: datetime, now: datetime, gpu_events: Sequence[str] = ()
) -> bool:
    """The host has confirmed that nothing of this run is left, as of ``at``: its slots are free. False when it had ended.

    ``at`` is held between the placement and ``now``. ``gpu_events``: the codes of what its own GPUs told, which it failed of.
    """
    at = min(max(at, run.placed_at + SHORTEST_HOLD), max(now, run.placed_at + SHORTEST_HOLD))
    outcome = outcome if gpu_events else _its_own(run, outcome)
    if run.state == RunState.ENDED or not change_state(
        run, "state", old=RunState(run.state), new=RunState.ENDED, ended_at=at, outcome=outcome, exit_code=exit_code,
        missing_since=None, gpu_events=list(gpu_events),
    ):  # fmt: skip
        return False
    still_open = Allocation.objects.filter(run=run, period__upper_inf=True)
    still_open.update(period=DateTimeTZRange(run.placed_at, at), end_code=_charged_as(run, outcome))
    commands.done([run], now)
    nudge.engine()
    return True


def _its_own(run: Run, outcome: str) -> str:
    """A member of a gang that was stopped because a GPU failed elsewhere ends as stopped: it has lost none of its own."""
    followed = outcome == Code.GPU_ERROR and gangs.is_gang(run.workload) and commands.was_told_to_stop([run])
    return str(Code.CANCELLED) if followed and not gangs.lost_a_gpu([run]) else outcome


def _charged_as(run: Run, outcome: str) -> str:
    """What it was told to go for, unless it had finished or was lost: how it took the stop does not change who pays.

    A job that ignores its owner's cancellation until it is killed was not preempted; one that leaves without a checkpoint when
    it has to make room was.
    """
    if outcome == Code.FINISHED or outcome in (*LOST, *HOSTS_OWN):
        return outcome
    told = run.commands.exclude(code="").order_by("-pk").values_list("code", flat=True).first()
    return told or outcome


def settle(workload: Workload, now: datetime) -> None:
    """Bring a workload's state to what its runs say. The workload is locked by the caller."""
    runs = list(Run.objects.filter(workload=workload, attempt=workload.attempt).order_by("rank"))
    if not runs or workload.state not in commands.LIVE:
        return
    live = [run for run in runs if run.state != RunState.ENDED]
    if not live:
        _attempt_ended(workload, runs, now)
        return
    _note_progress(workload, runs, now)
    # Who has saved after the notice and gone has done what was asked: the others have their notice to its end.
    well = (Code.FINISHED, *((Code.CHECKPOINTED,) if workload.state == WorkloadState.NOTICE else ()))
    failed = [run for run in runs if run.state == RunState.ENDED and run.outcome not in well]
    if failed:
        # One of a gang is gone: the others end with it, also where it had said before that it was going.
        _to(workload, WorkloadState.STOPPING, **_gone_by(workload, live, now))
        commands.stop_untold(live, code=failed[0].outcome, now=now)


def _note_progress(workload: Workload, runs: Sequence[Run], now: datetime) -> None:
    lowest = min((RunState(run.state) for run in runs), key=RANK.__getitem__)
    highest = max((RunState(run.state) for run in runs if run.state != RunState.ENDED), key=RANK.__getitem__)
    if highest == RunState.STOPPING:
        _to(workload, WorkloadState.STOPPING, **_gone_by(workload, runs, now))
    elif RANK[lowest] >= RANK[RunState.RUNNING]:
        # Nobody may have noted when: such a row must not keep its host from reporting.
        first = min((run.running_at for run in runs if run.running_at), default=now)
        _to(workload, WorkloadState.RUNNING, **({} if workload.started_at else {"started_at": first}))
    elif RANK[highest] >= RANK[RunState.STARTING]:
        _to(workload, WorkloadState.STARTING)


def _gone_by(workload: Workload, runs: Sequence[Run], now: datetime) -> dict[str, datetime]:
    """When what stops without having been told by the server is gone at the latest: its host stops it at its limit, or the gang."""
    if workload.gone_by is not None:
        return {}
    return {"gone_by": now + commands.longest_grace(runs, workload.pool.grace_seconds)}


FORWARD = {state: number for number, state in enumerate(commands.LIVE)}


def _to(workload: Workload, new: WorkloadState, **also: object) -> None:
    old = WorkloadState(workload.state)
    if FORWARD[new] > FORWARD[old] and change_state(workload, "state", old=old, new=new, **also):
        nudge.pages(nudge.workload_topic(workload.public_id), nudge.QUEUE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a workload whose attempt ended. ``comes_back`` with the counters it costs, or it ends with ``code``."""

    code: str
    comes_back: bool = False
    failures: int = 0
    lost: int = 0
    wait_seconds: int = 0


def verdict(workload: Workload, outcome: str) -> Verdict:
    """The rule of retries: what was told to make room or to move comes back for free; what a host, its disk, a GPU or a start
    lost comes back a few times, jobs only; what a host's prolog refused as often as that happens, after a wait; what failed by
    itself as often as its owner said, with a growing wait. A gang whose owner wants it to end with its first member comes back only
    where it could not start."""
    wanted = workload.stop_requested or (Code.DRAINED if outcome == Code.DRAINED else "")  # its agent may drain by itself
    if outcome == Code.FINISHED and wanted in (*COMES_BACK, *LOST):
        return Verdict(outcome)  # it was done before the word reached it
    if wanted in COMES_BACK:
        return Verdict(wanted, comes_back=True)
    if wanted and wanted not in LOST:
        return Verdict(wanted)
    if outcome in HOSTS_OWN:
        return Verdict(outcome, comes_back=True, wait_seconds=PROLOG_WAIT_SECONDS)
    if _ends_with_a_member(workload, outcome):
        return Verdict(outcome if outcome in LOST else wanted or outcome)
    if outcome in LOST or wanted in LOST:
        code = outcome if outcome in LOST else wanted
        again = workload.kind == WorkloadKind.JOB and workload.lost_attempts < MOST_LOST_ATTEMPTS
        wait = _back_off(workload.lost_attempts) if code in (Code.START_FAILED, Code.DISK_RAN_LOW) else 0
        return Verdict(code, comes_back=again, lost=1, wait_seconds=wait)
    if outcome in ITS_OWN_FAULT and workload.failures < workload.most_retries:
        return Verdict(outcome, comes_back=True, failures=1, wait_seconds=_back_off(workload.failures))
    return Verdict(outcome)


def _ends_with_a_member(workload: Workload, outcome: str) -> bool:
    wants_that = gangs.is_gang(workload) and workload.if_member_ends == IfMemberEnds.END
    return wants_that and outcome not in (Code.START_FAILED, *HOSTS_OWN)


def _back_off(times_before: int) -> int:
    return int(min(FIRST_BACK_OFF_SECONDS * 2**times_before, LONGEST_BACK_OFF_SECONDS))


def _attempt_ended(workload: Workload, runs: Sequence[Run], now: datetime) -> None:
    bad = [run for run in runs if run.outcome != Code.FINISHED]
    ((told, outcome),) = how_ended([runs])
    ended_at = max((run.ended_at for run in runs if run.ended_at), default=now)
    decided = verdict(workload, outcome)
    comes_back = decided.comes_back and not _its_reservation_is_over(workload, now)
    hosts = _hosts_failed_on(workload) if comes_back and decided.failures + decided.lost else 0
    comes_back = comes_back and hosts < MOST_HOSTS_FAILED
    if bad and gangs.is_gang(workload) and decided.code in (*LOST, *HOSTS_OWN, *ITS_OWN_FAULT):
        gangs.record_end(workload, told, decided.code, restarts=comes_back, now=now)
    if comes_back:
        where = {**_avoided(workload, runs, now), **_where_saved(workload), "reason_numbers": _event(told)}
        _queue_again(workload, decided, {**where, **_makes_room_for(workload, runs)}, now)
    else:
        _end(workload, decided, told, ended_at, hosts)
    nudge.engine()
    nudge.pages(nudge.workload_topic(workload.public_id), nudge.QUEUE)


def how_ended(attempts: Collection[Sequence[Run]]) -> list[tuple[Run, str]]:
    """Of each attempt, by its ended runs: the one that says why, and the outcome of all of it. That is the run's own; of a gang's
    member that lost a GPU while it was going for another's failure, that. What becomes of a workload goes by this, and its pages
    say this. Three queries at most, none for work on one host, beside the workload of runs that are loaded without it."""
    told = gangs.why([[run for run in runs if run.outcome != Code.FINISHED] or runs for runs in attempts])
    lost = gangs.lost_a_gpu([run for run in told if run.outcome not in LOST and gangs.is_gang(run.workload)])
    return [(run, str(Code.GPU_ERROR) if run.pk in lost else run.outcome) for run in told]


def _its_reservation_is_over(workload: Workload, now: datetime) -> bool:
    if workload.reservation_id is None:
        return False
    return not Reservation.objects.filter(
        pk=workload.reservation_id, end__gt=now, state__in=PROMISED
    ).exists()


def _avoided(workload: Workload, runs: Sequence[Run], now: datetime) -> dict[str, object]:
    """The hosts that could not start it or had no room for it just now, beside those of a moment ago: others come first."""
    failed = [run.host_id for run in runs if run.outcome in BETTER_ELSEWHERE]
    if not failed:
        return {}
    before = workload.avoids if workload.avoids_until is not None and now < workload.avoids_until else []
    kept = [host for host in before if host not in failed]
    return {"avoids": [*kept, *failed][-MOST_AVOIDED:], "avoids_until": now + AVOIDED_FOR}


def _where_saved(workload: Workload) -> dict[str, object]:
    """The homes that its last checkpoint lies in, where that is known: hosts that share them come first."""
    if workload.checkpoint_at is None:
        return {}
    saved = Run.objects.filter(workload=workload, checkpoint_at__isnull=False).order_by("-checkpoint_at", "-pk")
    return {"homes_id": saved.values_list("host__storage_id", flat=True).first()}


def _makes_room_for(workload: Workload, runs: Sequence[Run]) -> dict[str, object]:
    """Whom it may not evict, because it had to make room for that one: until it has run for its pool's minimum runtime since, or
    others had to have its room."""
    last = workload.evicted_for_workload_id
    if last is None and workload.evicted_by_id is not None:
        whole = timedelta(seconds=workload.pool.minimum_runtime_seconds)
        has_run = all(run.ended_at is not None and run.ended_at - run.placed_at >= whole for run in runs)
        last = None if has_run else workload.evicted_by_id
    return {"evicted_by_id": last}


def _queue_again(workload: Workload, decided: Verdict, where: Mapping[str, object], now: datetime) -> None:
    """It keeps its place: its submission time is what the queue is ordered by. ``where``: what the next placement goes by."""
    change_state(
        workload, "state", old=WorkloadState(workload.state), new=WorkloadState.QUEUED, queued_at=now,
        not_before=now + timedelta(seconds=decided.wait_seconds) if decided.wait_seconds else None,
        failures=workload.failures + decided.failures, lost_attempts=workload.lost_attempts + decided.lost,
        evicted_for_workload=None, evicted_for_reservation=None,
        stop_requested="", gone_by=None, borrowed_slots=0, idle_warned_at=None, reason_code=str(decided.code),
        blockers=[], **where,
    )  # fmt: skip


def _event(told: Run) -> dict[str, object]:
    """What its GPU told, for the sentence of its outcome."""
    return {"event": ", ".join(told.gpu_events)} if told.gpu_events else {}


def _hosts_failed_on(workload: Workload) -> int:
    """On how many hosts it could not start, lost its GPU or failed at once by itself. Of an attempt of a gang the member that ended
    it: the others followed."""
    bad = Run.objects.filter(workload=workload, state=RunState.ENDED).exclude(outcome=Code.FINISHED)
    attempts: dict[int, list[Run]] = defaultdict(list)
    for run in bad.order_by("attempt", "rank"):
        attempts[run.attempt].append(run)
    ended = gangs.why(attempts.values())
    failed = {run.pk for run in ended if run.outcome == Code.FAILED and ended_at_once(run)}
    by_itself = failed - commands.was_told_to_stop(run for run in ended if run.pk in failed)
    hosts_own = (Code.START_FAILED, Code.GPU_ERROR)
    return len({run.host_id for run in ended if run.outcome in hosts_own or run.pk in by_itself})


def ended_at_once(run: Run) -> bool:
    """Whether it ended so soon after its start that it points at where it ran rather than at what it did."""
    return run.ended_at is not None and run.ended_at - (run.running_at or run.placed_at) <= AT_ONCE


def _end(workload: Workload, decided: Verdict, told: Run, ended_at: datetime, hosts: int) -> None:
    numbers: dict[str, object] = {"attempt": workload.attempt}
    if hosts >= MOST_HOSTS_FAILED:
        numbers["failed_on_hosts"] = hosts
    if told.exit_code is not None:
        numbers["exit_code"] = told.exit_code
    numbers |= _event(told)
    if told.outcome != decided.code:
        numbers["run_outcome"] = told.outcome
    change_state(
        workload, "state", old=WorkloadState(workload.state), new=WorkloadState.ENDED, ended_at=ended_at,
        outcome=str(decided.code), outcome_numbers=numbers, gone_by=None, position=None, expected_start=None,
    )  # fmt: skip
