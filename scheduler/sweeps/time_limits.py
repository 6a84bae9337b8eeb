"""What time alone brings about: ends of notices, limits and reservations, no-shows, maintenance, hosts that fall silent.

Each function is a level-triggered tick over rows: calling it twice, late or in two processes at once does the same work once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import DurationField, ExpressionWrapper, F, Max, Min, Q, QuerySet, Value
from django.db.models.functions import Coalesce

from scheduler.coordination import clock_correction, leases, locks
from scheduler.core.reasons import ReasonCode
from scheduler.models import (
    BoundUnit,
    Command,
    Host,
    MaintenanceWindow,
    Reservation,
    Run,
    Workload,
    WorkloadKind,
)
from scheduler.runs import commands
from scheduler.services.hosts import drain_workloads, enter_maintenance, leave_maintenance, record_host_change
from scheduler.services.reservations import close_reservation, rebind_reservation
from scheduler.services.workloads import request_stop
from scheduler.state import nudge
from scheduler.state.states import (
    OPEN_RESERVATION_STATES,
    AdminState,
    LeaseState,
    RepairState,
    ReservationState,
    RunState,
    WorkloadState,
    change_state,
)
from scheduler.sync import reconcile

SECOND = timedelta(seconds=1)
START_TIMEOUT = timedelta(seconds=120)  # from placement until the agent names the run
NOTEBOOK_READY_TIMEOUT = timedelta(seconds=300)  # from its start until a notebook answers


# -- work ----------------------------------------------------------------------------------------------------------------


def stop_after_notice(now: datetime) -> None:
    """Work whose notice is over is told to stop."""
    due = Command.objects.filter(verb=Command.Verb.NOTICE, done_at__isnull=True, stop_at__lte=now)
    for pk in (
        due.filter(run__workload__state=WorkloadState.NOTICE)
        .values_list("run__workload_id", flat=True)
        .distinct()
    ):
        with transaction.atomic():
            workload = locks.workloads([pk])[pk]
            if workload.state == WorkloadState.NOTICE:
                commands.order_stop(
                    workload, code=workload.stop_requested, grace_seconds=workload.pool.grace_seconds, now=now
                )


def stop_at_time_limits(now: datetime) -> None:
    """Work that has run as long as it may is told to stop."""
    limit = ExpressionWrapper(F("max_runtime_seconds") * Value(SECOND), output_field=DurationField())
    running = Workload.objects.filter(
        state__in=(WorkloadState.RUNNING, WorkloadState.NOTICE), runs__attempt=F("attempt")
    )
    due = running.annotate(since=Min(Coalesce("runs__running_at", "runs__placed_at")), limit=limit)
    for workload in due.filter(since__lte=now - F("limit")):
        request_stop(workload, code=ReasonCode.TIME_LIMIT, now=now)


def requeue_late_starts(now: datetime) -> None:
    """Work that a living host has not begun to start for too long is taken back from it, and tried again; a gang also where its
    other hosts have begun: they wait for this one."""
    beginning = (WorkloadState.PLACED, WorkloadState.STARTING)
    late = Command.objects.filter(
        verb=Command.Verb.START,
        done_at__isnull=True,
        created_at__lte=now - START_TIMEOUT,
        run__state=RunState.PLACED,
        host__lease_state=LeaseState.ALIVE,
    )
    mute = late.filter(run__workload__state__in=beginning)
    for pk in mute.values_list("run__workload_id", flat=True).distinct():
        with transaction.atomic():
            workload = locks.workloads([pk])[pk]
            if workload.state in beginning and mute.filter(run__workload=workload).exists():
                grace = workload.pool.grace_seconds
                commands.order_stop(workload, code=ReasonCode.START_FAILED, grace_seconds=grace, now=now)


def stop_unready_notebooks(now: datetime) -> None:
    """A notebook that runs and has not answered for too long is stopped: nobody can use it, and nothing else would end it."""
    mute = Run.objects.filter(
        state=RunState.RUNNING,
        running_at__lte=now - NOTEBOOK_READY_TIMEOUT,
        ready_at__isnull=True,
        workload__kind=WorkloadKind.NOTEBOOK,
        workload__state=WorkloadState.RUNNING,
    )
    for workload in Workload.objects.filter(pk__in=mute.values("workload_id")).order_by("pk"):
        request_stop(workload, code=ReasonCode.START_FAILED, now=now)


# -- reservations --------------------------------------------------------------------------------------------------------


def sweep_reservations(now: datetime) -> None:
    """Reservations whose end or no-show limit has come are closed; work inside is given notice so that it is gone by the end."""
    _close_reservations_due(now)
    _warn_before_reservations_end(now)
    rebind_unusable_units(now)
    _nudge_at_starts(now)


def unusable_bound_units(now: datetime) -> QuerySet[BoundUnit]:
    """Units that are bound to a reservation and that nobody can use at present: taken out, retired, or on a host that is closed or
    silent."""
    usable = Q(
        unit__gpu__repair_state=RepairState.WELL,
        unit__gpu__host__repair_state=RepairState.WELL,
        unit__gpu__host__admin_state=AdminState.IN_SERVICE,
        unit__gpu__host__lease_state__in=(LeaseState.ALIVE, LeaseState.SUSPECT),
        unit__retired_at__isnull=True,
    )
    bound = BoundUnit.objects.filter(reservation__state=ReservationState.ACTIVE, period__contains=now)
    return bound.exclude(usable)


def rebind_unusable_units(now: datetime) -> None:
    """A reservation bound to units that nobody can use gets others, once nothing runs inside it; until then its owner knows by a
    notice."""
    ids = unusable_bound_units(now).values_list("reservation_id", flat=True).distinct()
    for reservation in Reservation.objects.filter(pk__in=list(ids)).order_by("pk"):
        unusable = unusable_bound_units(now).filter(reservation=reservation)
        hosts = sorted(set(unusable.values_list("unit__gpu__host__name", flat=True)))
        with transaction.atomic():
            if rebind_reservation(reservation, now=now):
                left = {"moved_at": now, "moved_from": ", ".join(hosts)[:200]}
                Reservation.objects.filter(pk=reservation.pk).update(**left)


def _close_reservations_due(now: datetime) -> None:
    over = Reservation.objects.filter(state__in=OPEN_RESERVATION_STATES, end__lte=now).values_list(
        "pk", "pool_id"
    )
    for pk, pool in list(over):
        with transaction.atomic():
            locks.pools([pool])
            fresh = locks.reservations([pk])[pk]
            if fresh.end <= now and fresh.state in OPEN_RESERVATION_STATES:
                close_reservation(fresh, ReservationState.OVER, now)
    for pk, pool in list(reservation_no_shows(now).values_list("pk", "pool_id")):
        with transaction.atomic():
            locks.pools([pool])
            fresh = locks.reservations([pk])[pk]
            if reservation_no_shows(now).filter(pk=pk).exists():
                close_reservation(fresh, ReservationState.RELEASED, now)


def reservation_no_shows(now: datetime) -> QuerySet[Reservation]:
    """Those that have had their units for as long as their pool waits, and that nothing has used: without units nobody could."""
    limit = ExpressionWrapper(F("pool__no_show_seconds") * Value(SECOND), output_field=DurationField())
    here = Q(bound_units__period__contains=now)
    unused = Reservation.objects.filter(
        state=ReservationState.ACTIVE, first_used_at__isnull=True, end__gt=now
    )
    had = unused.annotate(limit=limit, since=Max(F("bound_units__period__startswith"), filter=here))
    if (steady_since := clock_correction.last_clock_step_at()) is not None:
        had = had.filter(limit__lte=now - steady_since)
    return had.filter(start__lte=now - F("limit"), since__lte=now - F("limit")).order_by("pk")


def _warn_before_reservations_end(now: datetime) -> None:
    inside = Workload.objects.filter(
        state=WorkloadState.RUNNING, reservation__state=ReservationState.ACTIVE, reservation__end__gt=now
    )
    for workload in inside.select_related("reservation", "pool"):
        end = workload.reservation.end if workload.reservation else now
        pool = workload.pool
        if end - timedelta(seconds=pool.notice_seconds + pool.grace_seconds) > now:
            continue
        stop_at = max(now, end - timedelta(seconds=pool.grace_seconds))
        with transaction.atomic():
            fresh = locks.workloads([workload.pk])[workload.pk]
            commands.give_notice(
                fresh,
                code=ReasonCode.RESERVATION_OVER,
                stop_at=stop_at,
                grace_seconds=pool.grace_seconds,
                now=now,
            )


def _nudge_at_starts(now: datetime) -> None:
    """Reservations that begin are bound by the engine's next cycle."""
    if Reservation.objects.filter(state=ReservationState.CONFIRMED, start__lte=now).exists():
        with transaction.atomic():
            nudge.engine()


# -- hosts ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MassSilence:
    """So many hosts are quiet at once that the network or this site is suspected rather than they: nobody's work is given up."""

    quiet: int
    hosts: int
    since: datetime


def mass_silence(now: datetime) -> MassSilence | None:
    """Whether that is so now. One query, and another when any host is quiet."""
    quiet = _overdue_hosts(now)
    hosts = _reporting_hosts().count() if quiet else 0
    if not leases.is_mass_silence(len(quiet), hosts):
        return None
    return MassSilence(len(quiet), hosts, max(host.last_sync_at or host.created_at for host in quiet))


def _reporting_hosts() -> QuerySet[Host]:
    """The hosts that have spoken and are not known to be silent."""
    return Host.objects.exclude(lease_state=LeaseState.JOINING).exclude(lease_state=LeaseState.SILENT)


def _overdue_hosts(now: datetime) -> list[Host]:
    """Those of them that are quiet for too long."""
    spoke = Coalesce("last_sync_at", "created_at")
    late = now - timedelta(seconds=leases.lease_rules().suspect_seconds)
    return list(
        _reporting_hosts().annotate(spoke=spoke).filter(spoke__lt=late).select_related("pool").order_by("pk")
    )


def sweep_silent_hosts(now: datetime) -> None:
    """Hosts that stopped speaking become suspect, then silent and their work lost; unless most of them did so at once."""
    quiet = _overdue_hosts(now)
    for host in quiet:
        if host.lease_state == LeaseState.ALIVE:
            _suspect(host, now)
    patience = leases.silence_limits_seconds(quiet) if quiet else {}
    overdue = [host for host in quiet if _silent_seconds(host, now) > patience[host.pk]]
    if overdue and leases.is_mass_silence(len(quiet), _reporting_hosts().count()):
        return  # operators are told by the pages: ``mass_silence``
    for host in overdue:
        _declare_silent(host, now)
    _end_remaining_runs(now)


def _silent_seconds(host: Host, now: datetime) -> float:
    return (now - (host.last_sync_at or host.created_at)).total_seconds()


def _suspect(host: Host, now: datetime) -> None:
    with transaction.atomic():
        fresh = locks.hosts([host.pk])[host.pk]
        if (
            _silent_seconds(fresh, now) > leases.lease_rules().suspect_seconds
            and fresh.lease_state == LeaseState.ALIVE
        ):
            change_state(fresh, "lease_state", old=LeaseState.ALIVE, new=LeaseState.SUSPECT)
            record_host_change(
                fresh, f"its agent has not spoken for {_silent_seconds(fresh, now):.0f} s", now
            )


def _declare_silent(host: Host, now: datetime) -> None:
    with transaction.atomic():
        fresh = locks.hosts([host.pk])[host.pk]
        if _silent_seconds(fresh, now) <= leases.silence_limits_seconds([host])[host.pk]:
            return
        old = LeaseState(fresh.lease_state)
        if old == LeaseState.SILENT or not change_state(
            fresh, "lease_state", old=old, new=LeaseState.SILENT, silent_since=now
        ):
            return
        record_host_change(fresh, "its lease, grace and margin are over", now)
        reconcile.end_runs_of_lost_host(fresh, now)


def _end_remaining_runs(now: datetime) -> None:
    """What was placed there in the very moment in which it fell silent."""
    left = Run.objects.filter(host__lease_state=LeaseState.SILENT).exclude(state=RunState.ENDED)
    for pk in left.values_list("host_id", flat=True).distinct():
        with transaction.atomic():
            host = locks.hosts([pk])[pk]
            if host.lease_state == LeaseState.SILENT:
                reconcile.end_runs_of_lost_host(host, now)


def sweep_maintenance(now: datetime) -> None:
    """Work is moved off in time for a window's start; the host is in maintenance meanwhile, and what it was before after it."""
    for window in MaintenanceWindow.objects.filter(end__gt=now).select_related("host__pool"):
        pool = window.host.pool
        if window.start - timedelta(seconds=pool.notice_seconds + pool.grace_seconds) <= now:
            _prepare_window(window, now)
    for host in Host.objects.filter(admin_state=AdminState.MAINTENANCE):
        if not host.maintenance_windows.filter(start__lte=now, end__gt=now).exists():
            leave_maintenance(host, now=now)


def _prepare_window(window: MaintenanceWindow, now: datetime) -> None:
    if window.start <= now and window.host.admin_state != AdminState.MAINTENANCE:
        enter_maintenance(window.host, reason=window.reason, now=now)
    with transaction.atomic():
        host = locks.hosts([window.host_id])[window.host_id]
        drain_workloads(host, now=now, also_unpreemptible=True)
