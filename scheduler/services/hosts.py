"""Add hosts, and change the states of hosts and GPUs.

Each change of state is recorded with its time and reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from django.db import transaction
from django.db.models import QuerySet

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonCode
from scheduler.core.rejection import OperationRejected
from scheduler.models import (
    Gpu,
    GpuStateChange,
    Host,
    HostStateChange,
    MaintenanceWindow,
    Pool,
    Run,
    Workload,
)
from scheduler.runs import commands
from scheduler.services.removed_rows import reject_if_pool_removed
from scheduler.state import nudge
from scheduler.state.states import TRANSITIONS, AdminState, RepairState, RunState, WorkloadState, change_state

DISK_PROBLEM_PREFIX = "its agent cannot write its disk: "
MAX_REASON_LENGTH = 300  # maximum characters of a host's state_reason


@transaction.atomic
def add_host(*, pool: Pool, name: str, now: datetime, labels: Mapping[str, str] | None = None) -> Host:
    """Add a host to a pool. The host can be used after its agent has joined.

    Raises IntegrityError if the name is taken. Raises OperationRejected ``pool_is_removed`` if the pool is
    removed.
    """
    host = Host.objects.create(pool=pool, name=name, labels=dict(labels or {}), created_at=now)
    reject_if_pool_removed(pool)
    record_host_change(host, "added", now)
    return host


def cordon_host(host: Host, *, reason: str, now: datetime) -> bool:
    """Close a host for new work. Running work continues.

    Return False if the host's state does not allow the change.
    """
    return _change_admin(host, AdminState.CORDONED, reason, now)


@transaction.atomic
def cordon_for_fault(host: Host, gpu: Gpu | None, *, reason: str, now: datetime) -> bool:
    """Close a host for new work because of a fault, and evict its preemptible work.

    If ``gpu`` is given, the GPU is quarantined and its work is stopped. If the host is already cordoned or
    draining, it keeps this state, and ``reason`` is added to its reason. Return False if nothing changed.
    """
    fresh = locks.hosts([host.pk])[host.pk]
    if _is_closed(fresh):
        cordoned = _add_reason(fresh, reason, now)
    else:
        cordoned = _change(fresh, "admin_state", AdminState.CORDONED, reason, now)
    quarantined = gpu is not None and _quarantine_gpu(gpu, reason, now)
    if cordoned:
        drain_workloads(fresh, now=now, also_unpreemptible=False)
    _copy_states(fresh, host)
    return cordoned or quarantined


def follow_disk_problem(host: Host, problem: str, *, now: datetime) -> bool:
    """Close a host for new work while its agent cannot write its disk. Running work continues.

    The host returns to service by itself when ``problem`` is empty. A host that is closed for another reason
    stays closed. The caller has locked the host. Return False if nothing changed.
    """
    if problem and host.admin_state == AdminState.IN_SERVICE:
        reason = f"{DISK_PROBLEM_PREFIX}{problem[:100]}"
        return _change(host, "admin_state", AdminState.CORDONED, reason, now)
    is_closed_for_it = host.state_reason.startswith(DISK_PROBLEM_PREFIX) and ";" not in host.state_reason
    if not problem and host.admin_state == AdminState.CORDONED and is_closed_for_it:
        return _change(
            host, "admin_state", AdminState.IN_SERVICE, "its agent can write its disk again", now, ""
        )
    return False


@transaction.atomic
def drain_for_fault(host: Host, *, reason: str, now: datetime) -> bool:
    """Drain a host because of a fault.

    If the host is already cordoned or draining, ``reason`` is added to its reason. Return False if nothing
    changed.
    """
    fresh = locks.hosts([host.pk])[host.pk]
    added = _is_closed(fresh) and _add_reason(fresh, reason, now)
    combined_reason = fresh.state_reason if _is_closed(fresh) else reason
    drained = _change(fresh, "admin_state", AdminState.DRAINING, combined_reason, now)
    if drained:
        drain_workloads(fresh, now=now, also_unpreemptible=False)
    _copy_states(fresh, host)
    return added or drained


def _is_closed(host: Host) -> bool:
    return host.admin_state in (AdminState.CORDONED, AdminState.DRAINING)


def _add_reason(host: Host, reason: str, now: datetime) -> bool:
    """Add a reason to a closed host, so that the operator who returns the host sees both reasons.

    The caller has locked the host. Return False if the host already has this reason.
    """
    if reason in host.state_reason:
        return False
    host.state_reason = join_reasons(host.state_reason, reason)
    Host.objects.filter(pk=host.pk).update(state_reason=host.state_reason)
    record_host_change(host, reason, now)
    return True


def join_reasons(before: str, reason: str) -> str:
    """Join two reasons into one text of at most MAX_REASON_LENGTH characters.

    If the text is too long, the earlier reason is cut.
    """
    available = MAX_REASON_LENGTH - len(reason) - 2
    return f"{before[:available]}; {reason}" if before and available > 0 else reason[:MAX_REASON_LENGTH]


@transaction.atomic
def drain_host(host: Host, *, reason: str, now: datetime) -> bool:
    """Close a host for new work and evict its preemptible work. Other work runs to its end."""
    if not _change_admin(host, AdminState.DRAINING, reason, now):
        return False
    drain_workloads(host, now=now, also_unpreemptible=False)
    return True


@transaction.atomic
def return_host(host: Host, *, reason: str = "", now: datetime) -> bool:
    """Return a host to service and mark it as well. Call this after somebody has checked the host.

    Return False if the host was already in service and well.
    """
    fresh = locks.hosts([host.pk])[host.pk]
    was_closed = _change(fresh, "admin_state", AdminState.IN_SERVICE, reason, now)
    was_ill = _change(fresh, "repair_state", RepairState.WELL, reason, now)
    if fresh.tripped_at is not None:
        Host.objects.filter(pk=fresh.pk).update(tripped_at=None)
        host.tripped_at = None
    _copy_states(fresh, host)
    return was_closed or was_ill


@transaction.atomic
def trip_host(host: Host, *, reason: str, now: datetime) -> bool:
    """Close a host for new work because too many attempts failed on it.

    The host stays closed until an operator returns it or the diagnostics of its GPUs pass.
    """
    if not _change_admin(host, AdminState.CORDONED, reason, now):
        return False
    Host.objects.filter(pk=host.pk).update(tripped_at=now)
    host.tripped_at = now
    return True


def check_maintenance(host: Host, *, start: datetime, end: datetime) -> None:
    """Raise OperationRejected ``windows_overlap`` if another maintenance window of the host overlaps.

    The numbers of the rejection are the host, and the id, start, end and reason of the other window.
    """
    other = (
        MaintenanceWindow.objects.filter(host=host, start__lt=end, end__gt=start)
        .order_by("start", "pk")
        .first()
    )
    if other is not None:
        times = (("start", other.start.isoformat()), ("end", other.end.isoformat()))
        raise OperationRejected(
            "windows_overlap",
            (("host", host.name), *times, ("reason", other.reason), ("window", other.pk)),
            field="start",
        )


@transaction.atomic
def set_maintenance(
    host: Host, *, start: datetime, end: datetime, reason: str, now: datetime
) -> MaintenanceWindow:
    """Add a maintenance window to a host.

    Work that could still run at the start of the window is not placed on the host. The work on the host is
    drained before the window starts. Raises OperationRejected ``host_is_removed`` or the rejection of
    ``check_maintenance``.
    """
    if locks.hosts([host.pk])[host.pk].removed_at is not None:
        raise OperationRejected("host_is_removed", (("host", host.name),))
    check_maintenance(host, start=start, end=end)
    window = MaintenanceWindow.objects.create(host=host, start=start, end=end, reason=reason, created_at=now)
    nudge.engine()
    nudge.pages(nudge.HOSTS, nudge.CALENDAR)
    return window


@transaction.atomic
def cancel_maintenance(window: MaintenanceWindow, *, now: datetime) -> bool:
    """Delete a maintenance window. If the window has started, the host leaves maintenance.

    Return False if the window was already deleted.
    """
    host = locks.hosts([window.host_id])[window.host_id]
    removed, _ = MaintenanceWindow.objects.filter(pk=window.pk).delete()
    if removed and not host.maintenance_windows.filter(start__lte=now, end__gt=now).exists():
        _leave_maintenance(host, "its maintenance window was cancelled", now)
    nudge.engine()
    nudge.pages(nudge.HOSTS, nudge.CALENDAR)
    return bool(removed)


@transaction.atomic
def enter_maintenance(host: Host, *, reason: str, now: datetime) -> bool:
    """Put a host into maintenance at the start of its window.

    A host that was already closed for another reason keeps that reason.
    """
    fresh = locks.hosts([host.pk])[host.pk]
    is_open = fresh.admin_state == AdminState.IN_SERVICE and fresh.repair_state == RepairState.WELL
    kept = "" if is_open else fresh.state_reason
    changed = _change(fresh, "admin_state", AdminState.MAINTENANCE, reason, now, kept or reason)
    _copy_states(fresh, host)
    return changed


@transaction.atomic
def leave_maintenance(host: Host, *, now: datetime) -> bool:
    """End a host's maintenance after its window and restore its earlier admin state.

    A host that was closed before its maintenance stays closed, because nobody has checked it.
    """
    fresh = locks.hosts([host.pk])[host.pk]
    changed = _leave_maintenance(fresh, "its maintenance window is over", now)
    _copy_states(fresh, host)
    return changed


def _leave_maintenance(host: Host, reason: str, now: datetime) -> bool:
    """End the maintenance of a host that the caller has locked. Return False if it is not in maintenance."""
    if host.admin_state != AdminState.MAINTENANCE:
        return False
    before = host.state_changes.exclude(admin_state=AdminState.MAINTENANCE).order_by("-pk").first()
    back = AdminState(before.admin_state) if before else AdminState.IN_SERVICE
    is_open = back == AdminState.IN_SERVICE and host.repair_state == RepairState.WELL
    return _change(host, "admin_state", back, reason, now, reason if is_open else host.state_reason)


@transaction.atomic
def quarantine_host(host: Host, *, reason: str, now: datetime) -> bool:
    """Quarantine a host until it is returned to service, and evict its preemptible work.

    Return False if the host's state does not allow the change.
    """
    fresh = locks.hosts([host.pk])[host.pk]
    changed = _change(fresh, "repair_state", RepairState.QUARANTINED, reason, now)
    if changed:
        drain_workloads(fresh, now=now, also_unpreemptible=False)
    _copy_states(fresh, host)
    return changed


@transaction.atomic
def quarantine_gpu(gpu: Gpu, *, reason: str, now: datetime) -> bool:
    """Quarantine a GPU until it is returned to service. The work on the GPU is stopped and starts elsewhere.

    Return False if the GPU was already quarantined or taken out.
    """
    locks.hosts([gpu.host_id])
    return _quarantine_gpu(gpu, reason, now)


def _quarantine_gpu(gpu: Gpu, reason: str, now: datetime) -> bool:
    """Quarantine a GPU. The caller has locked its host."""
    fresh = Gpu.objects.get(pk=gpu.pk)
    if not change_gpu_repair(fresh, RepairState.QUARANTINED, reason, now):
        return False
    _stop_gpu_holders(fresh, now)
    gpu.repair_state, gpu.state_reason = fresh.repair_state, fresh.state_reason
    return True


@transaction.atomic
def take_out_gpu(gpu: Gpu, *, reason: str, now: datetime) -> bool:
    """Take a broken GPU out of service. The work on the GPU is stopped and starts elsewhere.

    Return False if the GPU was already out.
    """
    locks.hosts([gpu.host_id])
    fresh = Gpu.objects.get(pk=gpu.pk)
    if not change_gpu_repair(fresh, RepairState.OUT, reason, now):
        return False
    _stop_gpu_holders(fresh, now)
    gpu.repair_state, gpu.state_reason = fresh.repair_state, fresh.state_reason
    return True


def _stop_gpu_holders(gpu: Gpu, now: datetime) -> None:
    holders = Workload.objects.filter(allocations__unit__gpu=gpu, allocations__period__upper_inf=True)
    for workload in locks.workloads(holders.values_list("pk", flat=True)).values():
        commands.order_stop(
            workload, code=ReasonCode.GPU_ERROR, grace_seconds=workload.pool.grace_seconds, now=now
        )


@transaction.atomic
def return_gpu(gpu: Gpu, *, reason: str = "", now: datetime) -> bool:
    """Put a GPU back into service. Return False if the GPU was already well."""
    locks.hosts([gpu.host_id])
    fresh = Gpu.objects.get(pk=gpu.pk)
    changed = change_gpu_repair(fresh, RepairState.WELL, reason, now)
    gpu.repair_state, gpu.state_reason = fresh.repair_state, fresh.state_reason
    return changed


def drain_workloads(host: Host, *, now: datetime, also_unpreemptible: bool) -> None:
    """Evict the work on a host. Running work gets a notice, and work that has not started is stopped at once.

    Evicted work is requeued. Work that is not preemptible is evicted only if ``also_unpreemptible`` is True.
    The caller has locked the host.
    """
    here = Run.objects.filter(host=host).exclude(state=RunState.ENDED)
    live = Workload.objects.filter(runs__in=here, state__in=commands.LIVE_STATES)
    if not also_unpreemptible:
        live = live.filter(preemptible=True)
    _evict(live, host.pool, now)


def drain_gpu_workloads(gpu: Gpu, *, now: datetime) -> None:
    """Evict the preemptible work on one GPU. Other work runs to its end. The caller has locked the host."""
    holders = Workload.objects.filter(
        allocations__unit__gpu=gpu,
        allocations__period__upper_inf=True,
        state__in=commands.LIVE_STATES,
        preemptible=True,
    )
    _evict(holders, gpu.host.pool, now)


def _evict(live: QuerySet[Workload], pool: Pool, now: datetime) -> None:
    for workload in locks.workloads(live.values_list("pk", flat=True)).values():
        if workload.state == WorkloadState.RUNNING:
            stop_at = now + timedelta(seconds=pool.notice_seconds)
            commands.give_notice(
                workload, code=ReasonCode.DRAINED, stop_at=stop_at, grace_seconds=pool.grace_seconds, now=now
            )
        # This function is called at each tick, so a workload that already has a notice keeps it.
        elif workload.state != WorkloadState.NOTICE:
            commands.order_stop(workload, code=ReasonCode.DRAINED, grace_seconds=pool.grace_seconds, now=now)


def record_host_change(host: Host, reason: str, now: datetime) -> None:
    """Record the host's three states (lease, admin and repair). Nudge the engine and the pages."""
    HostStateChange.objects.create(
        host=host,
        lease_state=host.lease_state,
        admin_state=host.admin_state,
        repair_state=host.repair_state,
        reason=reason,
        at=now,
    )
    nudge.engine()
    nudge.pages(nudge.HOSTS)


@transaction.atomic
def _change_admin(host: Host, new: AdminState, reason: str, now: datetime) -> bool:
    fresh = locks.hosts([host.pk])[host.pk]
    changed = _change(fresh, "admin_state", new, reason, now)
    _copy_states(fresh, host)
    return changed


def _change(
    host: Host, field: str, new: StrEnum, reason: str, now: datetime, state_reason: str | None = None
) -> bool:
    """Change one state of a host that the caller has locked. Return False if this is not allowed.

    ``reason`` is recorded with the change. ``state_reason`` is the reason to store in the host, if it differs
    from ``reason``.
    """
    old = type(new)(getattr(host, field))
    if str(new) not in TRANSITIONS[type(new)][str(old)]:
        return False
    kept = reason if state_reason is None else state_reason
    if not change_state(host, field, old=old, new=new, state_reason=kept):
        return False
    record_host_change(host, reason, now)
    return True


def change_host_repair(host: Host, new: RepairState, reason: str, now: datetime) -> bool:
    """Change only the repair state of a host that the caller has locked.

    Return False if the transition is not allowed.
    """
    return _change(host, "repair_state", new, reason, now)


def change_gpu_repair(gpu: Gpu, new: RepairState, reason: str, now: datetime) -> bool:
    """Change a GPU's repair state and record the change. The records are used to count unhealthy time.

    Return False if the transition is not allowed.
    """
    old = RepairState(gpu.repair_state)
    if str(new) not in TRANSITIONS[RepairState][str(old)]:
        return False
    if not change_state(gpu, "repair_state", old=old, new=new, state_reason=reason):
        return False
    GpuStateChange.objects.create(gpu=gpu, repair_state=new, reason=reason, at=now)
    nudge.engine()
    nudge.pages(nudge.HOSTS)
    return True


def _copy_states(fresh: Host, target: Host) -> None:
    for name in ("admin_state", "repair_state", "lease_state", "state_reason"):
        setattr(target, name, getattr(fresh, name))
