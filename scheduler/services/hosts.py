"""Hosts and GPUs: made known, taken out and given back. Each change of a state leaves a row with its time and reason."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from django.db import transaction
from django.db.models import QuerySet

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonCode
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
from scheduler.services.rejection import OperationRejected
from scheduler.state import nudge
from scheduler.state.states import TRANSITIONS, AdminState, RepairState, RunState, WorkloadState, change_state

MAX_REASON_LENGTH = 300  # characters, of what is kept beside a host's states


@transaction.atomic
def add_host(*, pool: Pool, name: str, now: datetime, labels: Mapping[str, str] | None = None) -> Host:
    """A host that is known, and joins when its agent speaks. Raises IntegrityError when the name is taken."""
    host = Host.objects.create(pool=pool, name=name, labels=dict(labels or {}), created_at=now)
    record_host_change(host, "added", now)
    return host


def cordon_host(host: Host, *, reason: str, now: datetime) -> bool:
    """Nothing new is placed on it; what runs goes on. False when it can't become cordoned from what it is."""
    return _change_admin(host, AdminState.CORDONED, reason, now)


@transaction.atomic
def cordon_for_fault(host: Host, gpu: Gpu | None, *, reason: str, now: datetime) -> bool:
    """Nothing new comes, what ran on the broken GPU is stopped and starts elsewhere, and what else can go, goes. A host that a
    person has closed stays as that one wanted it, and says this beside. False when nothing of it is new."""
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


@transaction.atomic
def drain_for_fault(host: Host, *, reason: str, now: datetime) -> bool:
    """The host is drained. One that a person has closed keeps that reason, and says this beside. False when none of it is new."""
    fresh = locks.hosts([host.pk])[host.pk]
    noted = _is_closed(fresh) and _add_reason(fresh, reason, now)
    why = fresh.state_reason if _is_closed(fresh) else reason
    drained = _change(fresh, "admin_state", AdminState.DRAINING, why, now)
    if drained:
        drain_workloads(fresh, now=now, also_unpreemptible=False)
    _copy_states(fresh, host)
    return noted or drained


def _is_closed(host: Host) -> bool:
    return host.admin_state in (AdminState.CORDONED, AdminState.DRAINING)


def _add_reason(host: Host, reason: str, now: datetime) -> bool:
    """What happened to a host that is closed, beside why it was: who returns it for that has to see this, too. The host is locked.
    False where it says so already."""
    if reason in host.state_reason:
        return False
    host.state_reason = join_reasons(host.state_reason, reason)
    Host.objects.filter(pk=host.pk).update(state_reason=host.state_reason)
    record_host_change(host, reason, now)
    return True


def join_reasons(before: str, reason: str) -> str:
    """Two reasons in one, the later one whole."""
    room = MAX_REASON_LENGTH - len(reason) - 2
    return f"{before[:room]}; {reason}" if before and room > 0 else reason[:MAX_REASON_LENGTH]


@transaction.atomic
def drain_host(host: Host, *, reason: str, now: datetime) -> bool:
    """Nothing new is placed on it; preemptible work gets its notice and goes elsewhere, the rest runs to its end."""
    if not _change_admin(host, AdminState.DRAINING, reason, now):
        return False
    drain_workloads(host, now=now, also_unpreemptible=False)
    return True


@transaction.atomic
def return_host(host: Host, *, reason: str = "", now: datetime) -> bool:
    """Back in service and well: whoever calls this has looked at it. False when it was both already."""
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
    """Too many attempts failed on it: nothing new is placed there until a person returns it or its diagnostics pass."""
    if not _change_admin(host, AdminState.CORDONED, reason, now):
        return False
    Host.objects.filter(pk=host.pk).update(tripped_at=now)
    host.tripped_at = now
    return True


def check_maintenance(host: Host, *, start: datetime, end: datetime) -> None:
    """Raise Refused ("windows_overlap", with the host and the id, start, end and reason of the other window) where one of this host
    has a part of that time."""
    other = (
        MaintenanceWindow.objects.filter(host=host, start__lt=end, end__gt=start)
        .order_by("start", "pk")
        .first()
    )
    if other is not None:
        times = (("start", other.start.isoformat()), ("end", other.end.isoformat()))
        raise OperationRejected(
            "windows_overlap", (("host", host.name), *times, ("reason", other.reason), ("window", other.pk))
        )


@transaction.atomic
def set_maintenance(
    host: Host, *, start: datetime, end: datetime, reason: str, now: datetime
) -> MaintenanceWindow:
    """Announce a window: nothing is placed that would run into it, and the host's work is moved off in time for its start.

    Raises OperationRejected as ``check_maintenance``.
    """
    locks.hosts([host.pk])
    check_maintenance(host, start=start, end=end)
    window = MaintenanceWindow.objects.create(host=host, start=start, end=end, reason=reason, created_at=now)
    nudge.engine()
    nudge.pages(nudge.HOSTS, nudge.CALENDAR)
    return window


@transaction.atomic
def cancel_maintenance(window: MaintenanceWindow, *, now: datetime) -> bool:
    """Take a window back; one that has begun is over with that, and its host what it was before. False when it was gone already."""
    host = locks.hosts([window.host_id])[window.host_id]
    removed, _ = MaintenanceWindow.objects.filter(pk=window.pk).delete()
    if removed and not host.maintenance_windows.filter(start__lte=now, end__gt=now).exists():
        _leave_maintenance(host, "its maintenance window was taken back", now)
    nudge.engine()
    nudge.pages(nudge.HOSTS, nudge.CALENDAR)
    return bool(removed)


@transaction.atomic
def enter_maintenance(host: Host, *, reason: str, now: datetime) -> bool:
    """The window has begun. Called by the clock. A host that is closed for another reason keeps that one beside its states."""
    fresh = locks.hosts([host.pk])[host.pk]
    is_open = fresh.admin_state == AdminState.IN_SERVICE and fresh.repair_state == RepairState.WELL
    kept = "" if is_open else fresh.state_reason
    changed = _change(fresh, "admin_state", AdminState.MAINTENANCE, reason, now, kept or reason)
    _copy_states(fresh, host)
    return changed


@transaction.atomic
def leave_maintenance(host: Host, *, now: datetime) -> bool:
    """The window is over. Called by the clock: nobody has looked at the host, so it is in service only if it was before, and as
    well as it is."""
    fresh = locks.hosts([host.pk])[host.pk]
    changed = _leave_maintenance(fresh, "its maintenance window is over", now)
    _copy_states(fresh, host)
    return changed


def _leave_maintenance(host: Host, reason: str, now: datetime) -> bool:
    """The same of a host that is locked."""
    if host.admin_state != AdminState.MAINTENANCE:
        return False
    before = host.state_changes.exclude(admin_state=AdminState.MAINTENANCE).order_by("-pk").first()
    back = AdminState(before.admin_state) if before else AdminState.IN_SERVICE
    is_open = back == AdminState.IN_SERVICE and host.repair_state == RepairState.WELL
    return _change(host, "admin_state", back, reason, now, reason if is_open else host.state_reason)


@transaction.atomic
def quarantine_host(host: Host, *, reason: str, now: datetime) -> bool:
    """Out for a fault until somebody returns it; preemptible work gets its notice. False when it was out already."""
    fresh = locks.hosts([host.pk])[host.pk]
    changed = _change(fresh, "repair_state", RepairState.QUARANTINED, reason, now)
    if changed:
        drain_workloads(fresh, now=now, also_unpreemptible=False)
    _copy_states(fresh, host)
    return changed


@transaction.atomic
def quarantine_gpu(gpu: Gpu, *, reason: str, now: datetime) -> bool:
    """A GPU that is not to be trusted: its work is stopped and goes elsewhere, nothing new is placed on it until it is returned.

    False when it was out already.
    """
    locks.hosts([gpu.host_id])
    return _quarantine_gpu(gpu, reason, now)


def _quarantine_gpu(gpu: Gpu, reason: str, now: datetime) -> bool:
    """The same of a GPU whose host is locked."""
    fresh = Gpu.objects.get(pk=gpu.pk)
    if not change_gpu_repair(fresh, RepairState.QUARANTINED, reason, now):
        return False
    _stop_gpu_holders(fresh, now)
    gpu.repair_state, gpu.state_reason = fresh.repair_state, fresh.state_reason
    return True


@transaction.atomic
def take_out_gpu(gpu: Gpu, *, reason: str, now: datetime) -> bool:
    """Broken, or on its way to the vendor: its work is stopped and goes elsewhere. False when it was out already."""
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
    """Well again. False when it was."""
    locks.hosts([gpu.host_id])
    fresh = Gpu.objects.get(pk=gpu.pk)
    changed = change_gpu_repair(fresh, RepairState.WELL, reason, now)
    gpu.repair_state, gpu.state_reason = fresh.repair_state, fresh.state_reason
    return changed


def drain_workloads(host: Host, *, now: datetime, also_unpreemptible: bool) -> None:
    """Jobs on it get a notice (those that had not begun are stopped) and are queued again. Inside a transaction, host locked."""
    here = Run.objects.filter(host=host).exclude(state=RunState.ENDED)
    live = Workload.objects.filter(runs__in=here, state__in=commands.LIVE_STATES)
    if not also_unpreemptible:
        live = live.filter(preemptible=True)
    _evict(live, host.pool, now)


def drain_gpu_workloads(gpu: Gpu, *, now: datetime) -> None:
    """The same for preemptible holders of a part of one GPU; the rest runs to its end. Its host is locked by the caller."""
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
        elif (
            workload.state != WorkloadState.NOTICE
        ):  # asked again at each tick: a notice once given runs out by itself
            commands.order_stop(workload, code=ReasonCode.DRAINED, grace_seconds=pool.grace_seconds, now=now)


def record_host_change(host: Host, reason: str, now: datetime) -> None:
    """Keep what a host's three states are from now on, and wake whoever looks at hosts."""
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
    """``state_reason``: what is kept beside the states, where that is not why this changes."""
    old = type(new)(getattr(host, field))
    if str(new) not in TRANSITIONS[type(new)][str(old)]:
        return False
    kept = reason if state_reason is None else state_reason
    if not change_state(host, field, old=old, new=new, state_reason=kept):
        return False
    record_host_change(host, reason, now)
    return True


def change_host_repair(host: Host, new: RepairState, reason: str, now: datetime) -> bool:
    """The repair state alone. Inside a transaction, host locked. False when there is no way from what it is."""
    return _change(host, "repair_state", new, reason, now)


def change_gpu_repair(gpu: Gpu, new: RepairState, reason: str, now: datetime) -> bool:
    """The same of one GPU; the row kept of it is what its unhealthy time is counted from."""
    old = RepairState(gpu.repair_state)
    if str(new) not in TRANSITIONS[RepairState][str(old)]:
        return False
    if not change_state(gpu, "repair_state", old=old, new=new, state_reason=reason):
        return False
    GpuStateChange.objects.create(gpu=gpu, repair_state=new, reason=reason, at=now)
    nudge.engine()
    nudge.pages(nudge.HOSTS)
    return True


def _copy_states(fresh: Host, given: Host) -> None:
    for name in ("admin_state", "repair_state", "lease_state", "state_reason"):
        setattr(given, name, getattr(fresh, name))
