"""Decide whether a workload is requeued after its attempt ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from scheduler.core.reasons import ReasonCode
from scheduler.models import IfMemberEnds, Workload, WorkloadKind
from scheduler.runs import gangs

REQUEUE_CODES = (
    ReasonCode.EVICTED_FOR_GUARANTEE,
    ReasonCode.EVICTED_FOR_PRIORITY,
    ReasonCode.EVICTED_FOR_RESERVATION,
    ReasonCode.DRAINED,
)


LOST_CODES = (
    ReasonCode.HOST_LOST,
    ReasonCode.LEASE_LOST,
    ReasonCode.GPU_ERROR,
    ReasonCode.START_FAILED,
    ReasonCode.DISK_RAN_LOW,
)


# These outcomes are faults of the host: its prolog script, its disk or its driver. They do not count as
# failed attempts of the workload.
HOST_SETUP_CODES = (ReasonCode.PROLOG_FAILED, ReasonCode.HOST_FULL, ReasonCode.GPU_UNREADABLE)


# The workload waits this long before each retry. Meanwhile the host may be cordoned or repaired.
HOST_SETUP_RETRY_SECONDS = 60


WORKLOAD_FAILURE_CODES = (
    ReasonCode.FAILED,
    ReasonCode.OUT_OF_MEMORY,
    ReasonCode.OUT_OF_DISK,
    ReasonCode.KILLED_AT_GRACE,
)


MAX_LOST_ATTEMPTS = 5


# Work that failed on this many hosts is probably itself the cause of the failures, so it is not retried.
MAX_FAILED_HOSTS = 3


AVOID_HOST_CODES = (ReasonCode.START_FAILED, ReasonCode.DISK_RAN_LOW, *HOST_SETUP_CODES)


# After a failed start or a low disk on a host, the planner prefers other hosts for this period.
HOST_AVOIDANCE_PERIOD = timedelta(minutes=10)


MAX_AVOIDED_HOSTS = 16


BACKOFF_INITIAL_SECONDS = 15


BACKOFF_MAX_SECONDS = 30 * 60


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The decision after an attempt of a workload.

    If ``requeues`` is False, the workload ends with ``code``. If it is True, the workload is requeued for the
    reason ``code`` after ``wait_seconds``. Its counters of failed and lost attempts then grow by ``failures``
    and ``lost``.
    """

    code: str
    requeues: bool = False
    failures: int = 0
    lost: int = 0
    wait_seconds: int = 0


# Not split: the first matching rule decides and the order of the rules matters.
def decide_retry(workload: Workload, outcome: str) -> RetryDecision:
    """Decide whether a workload whose attempt ended with ``outcome`` is requeued.

    - Evicted or drained work is requeued. This does not count as a failed or lost attempt.
    - A job is requeued up to MAX_LOST_ATTEMPTS times if it lost its host, disk or GPU, or could not start.
    - Work that could not run because of the host's prolog or setup is requeued without limit, after a wait.
    - Work that failed by itself is requeued up to ``most_retries`` times, with a growing wait.

    A gang with the rule END (all members end if one member ends) is requeued only if it was evicted or
    drained, or could not start.
    """
    # An agent may drain its host without a command of the server.
    requested = workload.stop_requested or (ReasonCode.DRAINED if outcome == ReasonCode.DRAINED else "")
    if outcome == ReasonCode.FINISHED and requested in (*REQUEUE_CODES, *LOST_CODES):
        return RetryDecision(outcome)  # it finished before the stop command arrived
    if requested in REQUEUE_CODES:
        return RetryDecision(requested, requeues=True)
    if requested and requested not in LOST_CODES:
        return RetryDecision(requested)
    if outcome in HOST_SETUP_CODES:
        return RetryDecision(outcome, requeues=True, wait_seconds=HOST_SETUP_RETRY_SECONDS)
    if _ends_with_member(workload, outcome):
        return RetryDecision(outcome if outcome in LOST_CODES else requested or outcome)
    if outcome in LOST_CODES or requested in LOST_CODES:
        code = outcome if outcome in LOST_CODES else requested
        again = workload.kind == WorkloadKind.JOB and workload.lost_attempts < MAX_LOST_ATTEMPTS
        wait = (
            _backoff_seconds(workload.lost_attempts)
            if code in (ReasonCode.START_FAILED, ReasonCode.DISK_RAN_LOW)
            else 0
        )
        return RetryDecision(code, requeues=again, lost=1, wait_seconds=wait)
    if outcome in WORKLOAD_FAILURE_CODES and workload.failures < workload.most_retries:
        return RetryDecision(
            outcome, requeues=True, failures=1, wait_seconds=_backoff_seconds(workload.failures)
        )
    return RetryDecision(outcome)


def _ends_with_member(workload: Workload, outcome: str) -> bool:
    ends_together = gangs.is_gang(workload) and workload.if_member_ends == IfMemberEnds.END
    return ends_together and outcome not in (ReasonCode.START_FAILED, *HOST_SETUP_CODES)


def _backoff_seconds(times_before: int) -> int:
    return int(min(BACKOFF_INITIAL_SECONDS * 2**times_before, BACKOFF_MAX_SECONDS))
