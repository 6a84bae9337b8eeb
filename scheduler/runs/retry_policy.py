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


# Of the operator's program, of the disk, of the driver: costs the workload nothing but time.
HOST_SETUP_CODES = (ReasonCode.PROLOG_FAILED, ReasonCode.HOST_FULL, ReasonCode.GPU_UNREADABLE)


HOST_SETUP_RETRY_SECONDS = 60  # until its host is closed by the breaker, or put right


WORKLOAD_FAILURE_CODES = (
    ReasonCode.FAILED,
    ReasonCode.OUT_OF_MEMORY,
    ReasonCode.OUT_OF_DISK,
    ReasonCode.KILLED_AT_GRACE,
)


MAX_LOST_ATTEMPTS = 5


MAX_FAILED_HOSTS = 3  # a workload that fails on so many is not the hosts' fault: it is not tried again


AVOID_HOST_CODES = (ReasonCode.START_FAILED, ReasonCode.DISK_RAN_LOW, *HOST_SETUP_CODES)


HOST_AVOIDANCE_PERIOD = timedelta(
    minutes=10
)  # so long other hosts come first, after a start that failed or a disk that ran low


MAX_AVOIDED_HOSTS = 16


BACKOFF_INITIAL_SECONDS = 15


BACKOFF_MAX_SECONDS = 30 * 60


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """What becomes of a workload whose attempt ended. ``comes_back`` with the counters it costs, or it ends with ``code``."""

    code: str
    requeues: bool = False
    failures: int = 0
    lost: int = 0
    wait_seconds: int = 0


def decide_retry(workload: Workload, outcome: str) -> RetryDecision:
    """The rule of retries: what was told to make room or to move comes back for free; what a host, its disk, a GPU or a start
    lost comes back a few times, jobs only; what a host's prolog refused as often as that happens, after a wait; what failed by
    itself as often as its owner said, with a growing wait. A gang whose owner wants it to end with its first member comes back only
    where it could not start."""
    wanted = workload.stop_requested or (
        ReasonCode.DRAINED if outcome == ReasonCode.DRAINED else ""
    )  # its agent may drain by itself
    if outcome == ReasonCode.FINISHED and wanted in (*REQUEUE_CODES, *LOST_CODES):
        return RetryDecision(outcome)  # it was done before the word reached it
    if wanted in REQUEUE_CODES:
        return RetryDecision(wanted, requeues=True)
    if wanted and wanted not in LOST_CODES:
        return RetryDecision(wanted)
    if outcome in HOST_SETUP_CODES:
        return RetryDecision(outcome, requeues=True, wait_seconds=HOST_SETUP_RETRY_SECONDS)
    if _ends_with_member(workload, outcome):
        return RetryDecision(outcome if outcome in LOST_CODES else wanted or outcome)
    if outcome in LOST_CODES or wanted in LOST_CODES:
        code = outcome if outcome in LOST_CODES else wanted
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
    wants_that = gangs.is_gang(workload) and workload.if_member_ends == IfMemberEnds.END
    return wants_that and outcome not in (ReasonCode.START_FAILED, *HOST_SETUP_CODES)


def _backoff_seconds(times_before: int) -> int:
    return int(min(BACKOFF_INITIAL_SECONDS * 2**times_before, BACKOFF_MAX_SECONDS))
