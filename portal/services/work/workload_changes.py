"""Cancel workloads, extend their runtime, and postpone the stop of idle ones."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.services import audit
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected
from scheduler.models import JobArray, Workload, WorkloadKind
from scheduler.requests import MIN_RUNTIME_SECONDS
from telemetry.alerts import alert_rows
from telemetry.alerts.alert_locks import lock_alerts_of_job
from telemetry.alerts.postponements import planned_stops

MAX_KEEP_SECONDS = 24 * 3600
SECONDS_PER_MINUTE = 60


def cancel_array(*, actor: User, array: JobArray, now: datetime, why: str = "", via: str = "web") -> int:
    """Cancel every task of an array that has not ended. Return the number of cancelled tasks.

    Raises Invalid, NotAllowed. Raises OperationRejected if all tasks have ended.
    """
    policy.require(actor, "workload.change", array)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        cancelled = scheduling.cancel_array(array, now=now)
        if not cancelled:
            raise OperationRejected("array_has_ended", {"name": array.name})
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="cancel_array",
            target=array,
            why=why,
            after={"tasks": cancelled},
        )
    return cancelled


def cancel_workload(
    *, actor: User, workload: Workload, now: datetime, why: str = "", via: str = "web"
) -> Workload:
    """Stop a running workload, or remove a waiting one from the queue.

    Raises Invalid, NotAllowed. Raises OperationRejected if the workload has ended.
    """
    policy.require(actor, "workload.change", workload)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(workload, "state")
        if not scheduling.cancel_workload(workload, now=now):
            raise OperationRejected("workload_has_ended", {"name": workload.name})
        workload.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="cancel_workload",
            target=workload,
            why=why,
            before=before,
            after=audit.audited_fields(workload, "state", "stop_requested"),
        )
    return workload


def extend_workload(
    *, actor: User, workload: Workload, seconds: int, now: datetime, via: str = "web"
) -> Workload:
    """Extend the runtime limit of a workload by ``seconds``. The pool's limit still applies.

    Raises Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "workload.change", workload)
    longest = workload.pool.longest_runtime_seconds
    remaining = longest - workload.max_runtime_seconds
    if remaining < MIN_RUNTIME_SECONDS:
        numbers = {"name": workload.name, "pool": workload.pool.name, "seconds": longest}
        raise OperationRejected("runtime_is_longest", numbers)
    checks = InputChecks()
    seconds = checks.count("seconds", seconds, MIN_RUNTIME_SECONDS, remaining, "seconds")
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(workload, "max_runtime_seconds")
        try:
            extended = scheduling.extend_workload(workload, seconds=seconds, now=now)
        except OperationRejected as refused:
            # Another request has just extended the workload, or a reservation needs its GPUs.
            numbers = {**refused.numbers, "name": workload.name}
            raise OperationRejected(
                refused.code, numbers, field="seconds", operation="extend_workload"
            ) from None
        if not extended:
            raise OperationRejected("ends_before_extension", {"name": workload.name})
        workload.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="extend_workload",
            target=workload,
            before=before,
            after=audit.audited_fields(workload, "max_runtime_seconds"),
        )
    return workload


def keep_workload(
    *, actor: User, workload: Workload, seconds: int, now: datetime, via: str = "web"
) -> Workload:
    """Protect a notebook from the idle stop, or postpone the planned stop of an unused job.

    Both hold for ``seconds`` from now. The alert rule of the pool says how often and how long the stop of a
    job may be postponed. Raises Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "workload.change", workload)
    if workload.kind != WorkloadKind.NOTEBOOK:
        return _postpone_stop(actor=actor, workload=workload, seconds=seconds, now=now, via=via)
    checks = InputChecks()
    seconds = checks.count("seconds", seconds, MIN_RUNTIME_SECONDS, MAX_KEEP_SECONDS, "seconds")
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(workload, "keep_until")
        if not scheduling.postpone_idle_stop(workload, until=now + timedelta(seconds=seconds)):
            raise OperationRejected("ends_before_keep", {"name": workload.name})
        workload.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="keep_workload",
            target=workload,
            before=before,
            after=audit.audited_fields(workload, "keep_until"),
        )
    return workload


def _postpone_stop(*, actor: User, workload: Workload, seconds: int, now: datetime, via: str) -> Workload:
    with transaction.atomic():
        lock_alerts_of_job(workload.pk)
        stop = planned_stops([workload.pk]).get(workload.pk)
        if stop is None:
            raise OperationRejected("no_stop_is_planned", {"name": workload.name})
        if not stop.left:
            numbers = {"name": workload.name, "pool_name": workload.pool.name, "times": stop.times}
            raise OperationRejected("stop_postponed_too_often", numbers)
        checks = InputChecks()
        longest = stop.minutes * SECONDS_PER_MINUTE
        seconds = checks.count("seconds", seconds, MIN_RUNTIME_SECONDS, longest, "seconds")
        checks.done()
        before = {**audit.audited_fields(workload, "keep_until"), "postponed": stop.used}
        if not scheduling.postpone_idle_stop(workload, until=now + timedelta(seconds=seconds)):
            raise OperationRejected("ends_before_keep", {"name": workload.name})
        alert_rows.postpone_stops(stop.alerts)
        workload.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="postpone_stop",
            target=workload,
            before=before,
            after={**audit.audited_fields(workload, "keep_until"), "postponed": stop.used + 1},
        )
    return workload
