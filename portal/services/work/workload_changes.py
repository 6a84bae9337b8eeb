"""Verbs that cancel, extend and keep workloads."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from portal import policy
from portal.errors import Conflict
from portal.input_checks import InputChecks
from portal.models import User
from portal.services import audit
from portal.services.work.request_checks import MIN_RUNTIME_SECONDS
from portal.wording import reason_texts
from scheduler import services as engine
from scheduler.core.reasons import ReasonCode
from scheduler.models import JobArray, Workload, WorkloadKind

MAX_KEEP_SECONDS = 24 * 3600


def cancel_array(*, actor: User, array: JobArray, now: datetime, why: str = "", via: str = "web") -> int:
    """Cancel every task that has not ended; return their number.

    Raises Conflict if no task is open, NotAllowed, Invalid.
    """
    policy.require(actor, "workload.change", array)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        cancelled = engine.cancel_array(array, now=now)
        if not cancelled:
            raise Conflict(
                f"Every task of {array.name} has ended or is stopping; there is nothing to cancel."
            )
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
    """Stop a workload or remove it from the queue. Raises Conflict if it has ended, NotAllowed, Invalid."""
    policy.require(actor, "workload.change", workload)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(workload, "state")
        if not engine.cancel_workload(workload, now=now):
            raise Conflict(f"{workload.name} has already ended; there is nothing to cancel.")
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
    """Extend the runtime by ``seconds``, up to the pool's limit. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "workload.change", workload)
    longest = workload.pool.longest_runtime_seconds
    remaining = longest - workload.max_runtime_seconds
    if remaining < MIN_RUNTIME_SECONDS:
        raise Conflict(
            f"{workload.name} already has the longest runtime of {workload.pool.name}, {longest:,} seconds."
        )
    checks = InputChecks()
    seconds = checks.count("seconds", seconds, MIN_RUNTIME_SECONDS, remaining, "seconds")
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(workload, "max_runtime_seconds")
        try:
            extended = engine.extend_workload(workload, seconds=seconds, now=now)
        except engine.OperationRejected as refused:
            # Another request extended it meanwhile, or its GPUs are promised.
            too_much = refused.code == ReasonCode.OVER_RUNTIME_CAP
            what = "was extended just now, so this is too much" if too_much else "can't be extended so far"
            message = f"{workload.name} {what}. {reason_texts.reason_sentence(refused.code, refused.numbers)}"
            raise Conflict(message, field="seconds", code=refused.code, numbers=refused.numbers) from None
        if not extended:
            raise Conflict(
                f"{workload.name} is ending or has ended; it can't be extended. Launch it again instead."
            )
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
    """Protect a notebook from the idle stop for ``seconds``. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "workload.change", workload)
    checks = InputChecks()
    seconds = checks.count("seconds", seconds, MIN_RUNTIME_SECONDS, MAX_KEEP_SECONDS, "seconds")
    checks.done()
    if workload.kind != WorkloadKind.NOTEBOOK:
        raise Conflict(f"{workload.name} is a job; only notebooks are stopped when they are idle.")
    with transaction.atomic():
        before = audit.audited_fields(workload, "keep_until")
        if not engine.postpone_idle_stop(workload, until=now + timedelta(seconds=seconds)):
            raise Conflict(f"{workload.name} is ending or has ended; it can't be kept.")
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
