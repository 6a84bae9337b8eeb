"""Detect hosts on which runs of different workloads keep failing.

The health rule ``breaker:attempts`` sets the number of failures, the window and the action. The default
action closes the host for new work.

Failures are counted by independent source, because a fault of the workload is no evidence against the host:

- Failures of a workload that failed on several hosts do not count.
- Failures of one array count once.
- Failed programs and failed starts of one owner count once, because they may share a broken environment, a
  full home or a missing file.
- A failed prolog is the host's own fault and always counts.
- A workload that later ran on another host is not broken. Its failure on this host counts separately, unless
  the program itself failed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from scheduler.core.reasons import ReasonCode
from scheduler.models import Host, HostStateChange, Run
from scheduler.runs.attempts import failed_immediately
from scheduler.state.states import AdminState
from telemetry.models import HealthEvent, HealthRule

BREAKER_CODE = "breaker:attempts"
HOST_FAULT_OUTCOMES = (ReasonCode.START_FAILED, ReasonCode.GPU_ERROR, ReasonCode.PROLOG_FAILED)


def record_failing_hosts(now: datetime) -> int:
    """Record an event for each host in service that has too many recent failures.

    Returns the number of new events.
    """
    rule = HealthRule.objects.filter(code=BREAKER_CODE).first()
    if rule is None:
        return 0
    since = now - timedelta(seconds=rule.window_seconds)
    failed = _recent_failed_runs(since)
    everywhere = _failing_on_several_hosts(failed)
    went_well = _ran_elsewhere_afterwards(failed)
    by_host: dict[int, list[Run]] = defaultdict(list)
    for run in failed:
        if run.outcome == ReasonCode.PROLOG_FAILED or run.workload_id not in everywhere:
            by_host[run.host_id].append(run)
    found = 0
    for host in Host.objects.filter(pk__in=list(by_host), admin_state=AdminState.IN_SERVICE).order_by("pk"):
        back = _last_return_to_service(host, since)
        runs = [run for run in by_host[host.pk] if back is None or (run.ended_at and run.ended_at > back)]
        different = {_failure_source(run, went_well) for run in runs}
        if len(different) >= rule.repeats:
            found += _record_breaker_event(host, runs, len(different), rule, now)
    return found


def _recent_failed_runs(since: datetime) -> list[Run]:
    """Return the runs that ended after ``since`` and may have failed because of the host.

    The workloads of the runs are loaded in the same query.
    """
    rows = Run.objects.filter(
        ended_at__gt=since, outcome__in=(*HOST_FAULT_OUTCOMES, ReasonCode.FAILED), workload__simulated=False
    ).select_related("workload")
    return [
        run for run in rows.order_by("pk") if run.outcome in HOST_FAULT_OUTCOMES or failed_immediately(run)
    ]


def _failing_on_several_hosts(failed: Iterable[Run]) -> set[int]:
    """Return the ids of workloads that failed on more than one host."""
    hosts: dict[int, set[int]] = defaultdict(set)
    for run in failed:
        if run.outcome != ReasonCode.PROLOG_FAILED:
            hosts[run.workload_id].add(run.host_id)
    return {workload for workload, places in hosts.items() if len(places) > 1}


def _ran_elsewhere_afterwards(failed: list[Run]) -> set[int]:
    """Return the ids of failed runs whose workload later ran on another host without failing at once."""
    bad = {run.pk for run in failed}
    ran: dict[int, list[Run]] = defaultdict(list)
    for run in Run.objects.filter(workload__in={run.workload_id for run in failed}, running_at__isnull=False):
        if run.pk not in bad:
            ran[run.workload_id].append(run)
    return {
        run.pk
        for run in failed
        if any(other.host_id != run.host_id and other.attempt > run.attempt for other in ran[run.workload_id])
    }


def _failure_source(run: Run, went_well: set[int]) -> tuple[str, int]:
    """Return the source of a failure. Failures with equal sources count once.

    ``went_well`` contains the ids of runs whose workload later ran on another host. Failures of programs
    count once for each owner. Owners can make their programs fail on a host of their choice, and one owner
    alone must not be able to close a host.
    """
    if run.pk in went_well and run.outcome != ReasonCode.FAILED:
        return "workload", run.workload_id
    if run.outcome == ReasonCode.PROLOG_FAILED:
        return "run", run.pk
    if run.outcome in (ReasonCode.FAILED, ReasonCode.START_FAILED):
        return "owner", run.workload.owner_id
    if run.workload.array_id is not None:
        return "array", run.workload.array_id
    return "workload", run.workload_id


def _last_return_to_service(host: Host, since: datetime) -> datetime | None:
    """Return the time at which the host last returned to service after it had been closed.

    Failures before this time do not count, because operators have examined them. Returns None if the host did
    not return after ``since``.
    """
    changes = HostStateChange.objects.filter(host=host)
    closed = changes.exclude(admin_state=AdminState.IN_SERVICE).order_by("-at", "-pk").first()
    if closed is None:
        return None
    back = changes.filter(admin_state=AdminState.IN_SERVICE, pk__gt=closed.pk).order_by("pk").first()
    return None if back is None or back.at < since else back.at


def _record_breaker_event(
    host: Host, runs: list[Run], different: int, rule: HealthRule, now: datetime
) -> bool:
    """Record one event for a host and its last failed run. Return True if the event is new.

    ``different`` is the number of independent sources of the failures.
    """
    counts = Counter(run.outcome for run in runs)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    _, created = HealthEvent.objects.get_or_create(
        host=host,
        event_id=f"breaker:{runs[-1].pk}",
        defaults={
            "source": "gpupool",
            "code": BREAKER_CODE,
            "detail": f"{len(runs)} attempts of {different} different sources failed"
            f" within {rule.window_seconds // 60} min ({outcomes})",
            "at": now,
            "received_at": now,
        },
    )
    return created
