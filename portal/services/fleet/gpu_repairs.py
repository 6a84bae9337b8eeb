"""Run diagnostics on GPUs, return GPUs to service or take them out, and set the repair policy of a pool."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks, checked_reason
from portal.models import User
from portal.services import audit
from portal.wording.problems import administration_problems
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected
from scheduler.models import Diagnostic, DiagnosticTool, Gpu, Host, Pool, StrayAction
from scheduler.state import nudge
from scheduler.state.states import RepairState
from scheduler.sync import gpu_diagnostics, host_inventory

REPAIR_POLICY_FIELDS = (
    "stray_action",
    "diagnostic_tool",
    "diagnostic_seconds",
    "diagnose_after_quarantine",
    "diagnose_every_hours",
)
MIN_DIAGNOSTIC_SECONDS, MAX_DIAGNOSTIC_SECONDS = 30, 4 * 3600
MAX_DIAGNOSTIC_INTERVAL_HOURS = 24 * 365


def gpu_by_index(host: Host, index: Any) -> Gpu:
    """Return the GPU with this index. Raises Invalid."""
    checks = InputChecks()
    there = {str(gpu.index): gpu for gpu in host.gpus.filter(retired_at=None).order_by("index")}
    name = checks.choice("gpu", str(index), list(there))
    checks.done()
    return there[name]


def diagnose_gpu(
    *, actor: User, host: Host, gpu: Any, now: datetime, why: str = "", via: str = "web"
) -> Diagnostic:
    """Run a diagnostic on one idle GPU of a host. A GPU that is in service stays in service.

    Raises Invalid, NotAllowed, OperationRejected.
    """
    policy.require(actor, "host.change")
    row, why = gpu_by_index(host, gpu), checked_reason(why)
    with transaction.atomic():
        made = gpu_diagnostics.request_diagnostic(row, why=Diagnostic.Why.OPERATOR, now=now)
        audit.record(
            actor=actor, via=via, now=now, verb="diagnose_gpu", target=host, after={"gpu": row.index}, why=why
        )
    return made


def diagnose_host(
    *, actor: User, host: Host, now: datetime, why: str = "", via: str = "web"
) -> list[Diagnostic]:
    """Run a diagnostic on every idle GPU of a host.

    Raises Invalid, NotAllowed. Raises OperationRejected if no GPU is idle.
    """
    policy.require(actor, "host.change")
    why = checked_reason(why)
    with transaction.atomic():
        made = gpu_diagnostics.request_host_diagnostics(host, why=Diagnostic.Why.OPERATOR, now=now)
        after = {"gpus": [row.gpu.index for row in made]}
        audit.record(actor=actor, via=via, now=now, verb="diagnose_host", target=host, after=after, why=why)
    return made


def return_gpu(*, actor: User, host: Host, gpu: Any, now: datetime, why: str = "", via: str = "web") -> Gpu:
    """Return a GPU to service, because the operator has checked it. Its last diagnostic does not matter.

    Raises Invalid, NotAllowed, OperationRejected.
    """
    policy.require(actor, "host.change")
    row = gpu_by_index(host, gpu)
    if row.repair_state == RepairState.RESHAPING:
        raise OperationRejected("geometry_change_is_open", {"gpu": row.index, "host": host.name})
    return _change_gpu(actor, host, gpu, why, now, via, "return_gpu", scheduling.return_gpu)


def take_out_gpu(*, actor: User, host: Host, gpu: Any, now: datetime, why: str = "", via: str = "web") -> Gpu:
    """Take a GPU out of service until an operator returns it. Its workloads are requeued.

    Raises Invalid, NotAllowed, OperationRejected.
    """
    return _change_gpu(actor, host, gpu, why, now, via, "take_out_gpu", scheduling.take_out_gpu)


def forget_gpu(*, actor: User, host: Host, gpu: Any, now: datetime, why: str = "", via: str = "web") -> Gpu:
    """Remove a missing GPU from the host's list.

    If the host reports the GPU again, the GPU gets its former state.

    ``gpu`` is the UUID of the GPU. Raises Invalid, NotAllowed. Raises OperationRejected while a workload
    holds the GPU.
    """
    policy.require(actor, "host.change")
    checks = InputChecks()
    there = {row.uuid: row for row in host.gpus.filter(missing_since__isnull=False).order_by("index")}
    name = checks.choice("gpu", str(gpu), list(there))
    checks.done()
    row, why = there[name], checked_reason(why)
    with transaction.atomic():
        if not host_inventory.retire_missing_gpu(row):
            raise OperationRejected("gpu_is_not_missing", {"gpu": row.index, "host": host.name})
        before = {"gpu": row.index, "uuid": row.uuid}
        audit.record(actor=actor, via=via, now=now, verb="forget_gpu", target=host, before=before, why=why)
    return row


def change_repair_policy(*, actor: User, pool: Pool, now: datetime, via: str = "web", **given: Any) -> Pool:
    """Change the actions that a pool takes against stray processes and suspect GPUs.

    ``given`` contains fields of REPAIR_POLICY_FIELDS. Absent fields keep their values. Raises Invalid,
    NotAllowed.
    """
    policy.require(actor, "pool.change")
    checks = InputChecks()
    clean: dict[str, Any] = {}
    for field, value in given.items():
        if field == "stray_action":
            clean[field] = checks.choice(field, value, StrayAction.values)
        elif field == "diagnostic_tool":
            names = [*DiagnosticTool.values, *gpu_diagnostics.operator_diagnostics(pool)]
            # The selected tool may stay selected even if no host has it any more. A host without the tool
            # reports this and runs no other tool.
            clean[field] = value if value == pool.diagnostic_tool else checks.choice(field, value, names)
        elif field == "diagnostic_seconds":
            clean[field] = checks.count(
                field, value, MIN_DIAGNOSTIC_SECONDS, MAX_DIAGNOSTIC_SECONDS, "seconds"
            )
        elif field == "diagnose_every_hours":
            clean[field] = checks.count(field, value, 0, MAX_DIAGNOSTIC_INTERVAL_HOURS, "hours")
        elif field == "diagnose_after_quarantine":
            clean[field] = checks.flag(field, value)
        else:
            checks.note(
                field,
                value,
                administration_problems.REPAIR_FIELD_UNKNOWN.format(
                    field=field, allowed=", ".join(REPAIR_POLICY_FIELDS)
                ),
            )
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(pool, *clean)
        Pool.objects.filter(pk=pool.pk).update(**clean)
        pool.refresh_from_db()
        after = audit.audited_fields(pool, *clean)
        if before != after:
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="change_repair_policy",
                target=pool,
                before=before,
                after=after,
            )
        nudge.hosts(pool.hosts.values_list("pk", flat=True))
    return pool


def _change_gpu(
    actor: User,
    host: Host,
    gpu: Any,
    why: str,
    now: datetime,
    via: str,
    verb: str,
    operation: Callable[..., bool],
) -> Gpu:
    policy.require(actor, "host.change")
    row, why = gpu_by_index(host, gpu), checked_reason(why)
    with transaction.atomic():
        before = audit.audited_fields(row, "index", "repair_state", "state_reason")
        if not operation(row, reason=why, now=now):
            raise OperationRejected(
                "gpu_has_this_state", {"gpu": row.index, "host": host.name, "state": row.repair_state}
            )
        after = audit.audited_fields(row, "index", "repair_state", "state_reason")
        audit.record(
            actor=actor, via=via, now=now, verb=verb, target=host, before=before, after=after, why=why
        )
    return row
