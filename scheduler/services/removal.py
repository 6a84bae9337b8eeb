"""Remove hosts, pools and teams, and move hosts to other pools.

Removed rows stay in the database, because charges, runs and audit records refer to them. Each ``check_…``
function raises OperationRejected with the names of the rows that prevent the operation. A preview calls the
check, and the operation calls the same check again under its locks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import NumericRange
from django.db.models import Q, QuerySet

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonNumbers
from scheduler.core.rejection import OperationRejected
from scheduler.core.what_if import drain
from scheduler.cycle import core_values, snapshot
from scheduler.models import (
    Command,
    Gpu,
    GpuStateChange,
    Host,
    MaintenanceWindow,
    Pool,
    Project,
    Quota,
    Reservation,
    Team,
    Unit,
    Workload,
)
from scheduler.services.guarantee_history import remove_quotas
from scheduler.services.host_credentials import revoke_credential
from scheduler.services.hosts import record_host_change
from scheduler.state import nudge
from scheduler.state.states import (
    OPEN_RESERVATION_STATES,
    DiagnosticState,
    GeometryState,
    RepairState,
    ReservationState,
    RunState,
    WorkloadState,
    change_state,
)

MAX_NAMED = 20  # maximum number of names in a rejection
HOST_WAS_REMOVED = "its host was removed"
OPEN_GEOMETRY_STATES = (GeometryState.DRAINING, GeometryState.CHANGING)
OPEN_DIAGNOSTIC_STATES = (DiagnosticState.WANTED, DiagnosticState.RUNNING)


# -- checks ---------------------------------------------------------------------------------------------


def workloads_on_host(host: Host) -> QuerySet[Workload]:
    """Return the workloads that run on a host or hold a unit of it."""
    runs = Q(runs__in=host.runs.exclude(state=RunState.ENDED))
    holds = Q(allocations__unit__gpu__host=host, allocations__period__upper_inf=True)
    return Workload.objects.filter(runs | holds).distinct().order_by("pk")


def reservations_on_host(host: Host, now: datetime) -> QuerySet[Reservation]:
    """Return the active reservations that are bound to units of a host."""
    bound = Reservation.objects.filter(
        state=ReservationState.ACTIVE,
        bound_units__unit__gpu__host=host,
        bound_units__period__endswith__gt=now,
    )
    return bound.distinct().order_by("pk")


def check_host_removal(host: Host) -> None:
    """Raise OperationRejected if the host cannot be removed.

    The code is ``host_has_work`` if a workload is on the host, and ``host_is_removed`` if the host is already
    removed.
    """
    if host.removed_at is not None:
        raise OperationRejected("host_is_removed", (("host", host.name),))
    if work := _names("work", workloads_on_host(host)):
        raise OperationRejected("host_has_work", (("host", host.name), *work))


def check_host_move(host: Host, pool: Pool, now: datetime) -> None:
    """Raise OperationRejected if the host cannot move to ``pool`` now.

    The codes are ``host_is_in_pool``, ``host_has_reserved_units``, ``host_is_in_repair``,
    ``host_is_reserved`` and the codes of ``check_host_removal``. ``host_is_reserved`` means that a
    reservation could not be kept without the host.
    """
    check_host_removal(host)
    if host.pool_id == pool.pk:
        raise OperationRejected("host_is_in_pool", (("host", host.name), ("pool", pool.name)))
    if reserved := _names("reservations", reservations_on_host(host, now)):
        raise OperationRejected("host_has_reserved_units", (("host", host.name), *reserved))
    changing = host.geometry_changes.filter(state__in=OPEN_GEOMETRY_STATES)
    diagnosed = host.diagnostics.filter(state__in=OPEN_DIAGNOSTIC_STATES)
    gpus = {index for rows in (changing, diagnosed) for index in rows.values_list("gpu__index", flat=True)}
    if gpus:
        raise OperationRejected("host_is_in_repair", (("host", host.name), ("gpus", sorted(gpus))))
    broken = Reservation.objects.filter(pk__in=_reservations_broken_without(host, now))
    if needed := _names("reservations", broken.order_by("start", "pk")):
        raise OperationRejected("host_is_reserved", (("host", host.name), *needed))


def _reservations_broken_without(host: Host, now: datetime) -> tuple[int, ...]:
    """Return the ids of reservations that the pool can keep with this host in service, but not without it."""
    taken = snapshot.take_snapshot([host.pool_id], now)
    hosts = (
        replace(row, schedulable=True, closed_code="") if row.id == host.pk else row for row in taken.hosts
    )
    units = {unit.id for unit in taken.units if unit.host == host.pk}
    return drain.reservations_broken_without(
        replace(taken, hosts=tuple(hosts)), host.pool_id, units, core_values.epoch_seconds(now)
    )


def check_pool_removal(pool: Pool, now: datetime) -> None:
    """Raise OperationRejected if the pool cannot be removed.

    The codes are ``pool_has_hosts``, ``pool_has_work``, ``pool_has_reservations`` and ``pool_is_removed``.
    """
    if pool.removed_at is not None:
        raise OperationRejected("pool_is_removed", (("pool", pool.name),))
    if hosts := _names("hosts", Host.objects.filter(pool=pool).order_by("name")):
        raise OperationRejected("pool_has_hosts", (("pool", pool.name), *hosts))
    if work := _names("work", _open_workloads(pool=pool)):
        raise OperationRejected("pool_has_work", (("pool", pool.name), *work))
    if reservations := _names("reservations", _open_reservations(now, pool=pool)):
        raise OperationRejected("pool_has_reservations", (("pool", pool.name), *reservations))


def check_team_removal(team: Team, now: datetime) -> None:
    """Raise OperationRejected if the team cannot be removed.

    The codes are ``team_has_pools``, ``team_has_work``, ``team_has_reservations`` and ``team_is_removed``.
    """
    if team.removed_at is not None:
        raise OperationRejected("team_is_removed", (("team", team.name),))
    if pools := _names("pools", Pool.objects.filter(team=team).order_by("name")):
        raise OperationRejected("team_has_pools", (("team", team.name), *pools))
    if work := _names("work", _open_workloads(project__team=team)):
        raise OperationRejected("team_has_work", (("team", team.name), *work))
    if reservations := _names("reservations", _open_reservations(now, project__team=team)):
        raise OperationRejected("team_has_reservations", (("team", team.name), *reservations))


def _open_workloads(**of: Pool | Team) -> QuerySet[Workload]:
    return Workload.objects.filter(**of).exclude(state=WorkloadState.ENDED).order_by("pk")


def _open_reservations(now: datetime, **of: Pool | Team) -> QuerySet[Reservation]:
    rows = Reservation.objects.filter(state__in=OPEN_RESERVATION_STATES, end__gt=now, **of)
    return rows.order_by("start", "pk")


def _names(
    what: str, rows: QuerySet[Workload] | QuerySet[Reservation] | QuerySet[Host] | QuerySet[Pool]
) -> ReasonNumbers:
    """Return the number of rows and up to MAX_NAMED of their names, as numbers of a rejection.

    Return an empty tuple if there are no rows. ``what`` is the key of the names.
    """
    count = rows.count()
    names = [str(name) for name in rows.values_list("name", flat=True)[:MAX_NAMED]]
    return (("count", count), (what, names)) if count else ()


# -- the operations ---------------------------------------------------------------------------------------


@transaction.atomic
def remove_host(host: Host, *, reason: str, now: datetime) -> None:
    """Remove a host: revoke its credential, retire its GPUs, and cancel its maintenance windows.

    Reservations that are bound to the host's units get other units. The host's name may be used again.
    Raises the rejections of ``check_host_removal``.
    """
    fresh = locks.hosts([host.pk])[host.pk]
    check_host_removal(fresh)
    revoke_credential(fresh, now=now)
    _end_repairs(fresh, now)
    gpus = list(Gpu.objects.filter(host=fresh, retired_at__isnull=True))
    _retire_gpus(gpus, now)
    Gpu.objects.filter(host=fresh).update(missing_since=None)
    Command.objects.filter(host=fresh, done_at__isnull=True).update(done_at=now)
    MaintenanceWindow.objects.filter(host=fresh, start__gte=now).delete()
    MaintenanceWindow.objects.filter(host=fresh, end__gt=now).update(end=now)
    Host.objects.filter(pk=fresh.pk).update(removed_at=now)
    host.removed_at = fresh.removed_at = now
    record_host_change(fresh, reason, now)
    nudge.hosts([fresh.pk])
    nudge.pages(nudge.CALENDAR)


@transaction.atomic
def move_host(host: Host, pool: Pool, *, reason: str, now: datetime) -> None:
    """Move a host to another pool. Its agent stays connected.

    The host's GPUs get new rows in the new pool, so that their earlier use and charges stay with the earlier
    pool. Raises the rejections of ``check_host_move``, and ``pool_is_removed`` if the new pool is removed.
    """
    locked = locks.pools([host.pool_id, pool.pk])
    fresh = locks.hosts([host.pk])[host.pk]
    if locked[pool.pk].removed_at is not None:
        raise OperationRejected("pool_is_removed", (("pool", pool.name),))
    if fresh.pool_id != host.pool_id:  # another operator has moved the host to a pool that is not locked here
        raise OperationRejected("host_is_in_pool", (("host", fresh.name), ("pool", fresh.pool.name)))
    check_host_move(fresh, pool, now)
    Host.objects.filter(pk=fresh.pk).update(pool=pool)
    fresh.pool = host.pool = pool
    _move_gpus(fresh, now)
    record_host_change(fresh, reason, now)
    nudge.hosts([fresh.pk])
    nudge.pages(nudge.CALENDAR)


@transaction.atomic
def remove_pool(pool: Pool, *, now: datetime) -> None:
    """Remove a pool and its quotas. Raises the rejections of ``check_pool_removal``."""
    fresh = locks.pool_for_removal(pool.pk)
    check_pool_removal(fresh, now)
    remove_quotas(Quota.objects.filter(pool=fresh), now)
    Pool.objects.filter(pk=fresh.pk).update(removed_at=now)
    pool.removed_at = now
    _notify_of_teams_and_pools()


@transaction.atomic
def remove_team(team: Team, *, now: datetime) -> None:
    """Remove a team and its quotas, and close its projects.

    Raises the rejections of ``check_team_removal``.
    """
    # Lock the pools before the team. The confirmation of a reservation takes these locks in the same order,
    # so the two operations cannot deadlock.
    locks.pools(Pool.objects.values_list("pk", flat=True))
    fresh = locks.team_for_removal(team.pk)
    check_team_removal(fresh, now)
    remove_quotas(Quota.objects.filter(team=fresh), now)
    Project.objects.filter(team=fresh).update(active=False)
    Team.objects.filter(pk=fresh.pk).update(removed_at=now)
    team.removed_at = now
    _notify_of_teams_and_pools()


def _notify_of_teams_and_pools() -> None:
    nudge.engine()
    nudge.pages(nudge.HOSTS, nudge.QUEUE, nudge.CALENDAR)


def _end_repairs(host: Host, now: datetime) -> None:
    """End the open diagnostics and MIG geometry changes of a host that is being removed."""
    for diagnostic in host.diagnostics.filter(state__in=OPEN_DIAGNOSTIC_STATES):
        old = DiagnosticState(diagnostic.state)
        change_state(
            diagnostic, "state", old=old, new=DiagnosticState.STOPPED, detail=HOST_WAS_REMOVED, ended_at=now
        )
    for change in host.geometry_changes.filter(state__in=OPEN_GEOMETRY_STATES):
        state = GeometryState(change.state)
        change_state(
            change, "state", old=state, new=GeometryState.FAILED, detail=HOST_WAS_REMOVED, ended_at=now
        )


def _retire_gpus(gpus: Iterable[Gpu], now: datetime) -> None:
    ids = [gpu.pk for gpu in gpus]
    Unit.objects.filter(gpu__in=ids, retired_at__isnull=True).update(retired_at=now)
    Gpu.objects.filter(pk__in=ids).update(retired_at=now)


def _move_gpus(host: Host, now: datetime) -> None:
    """Retire the GPU rows of a host that has moved, and create equal GPU rows in its new pool."""
    before = list(Gpu.objects.filter(host=host, retired_at__isnull=True).order_by("index"))
    units = list(Unit.objects.filter(gpu__in=before, retired_at__isnull=True).order_by("slots"))
    _retire_gpus(before, now)
    made = Gpu.objects.bulk_create(_copy_of_gpu(gpu, host, now) for gpu in before)
    new_gpu = {old.pk: new for old, new in zip(before, made, strict=True)}
    Unit.objects.bulk_create(_copy_of_unit(unit, new_gpu[unit.gpu_id], now) for unit in units)
    GpuStateChange.objects.bulk_create(
        GpuStateChange(gpu=gpu, repair_state=gpu.repair_state, reason=gpu.state_reason, at=now)
        for gpu in made
        if gpu.repair_state != RepairState.WELL
    )


def _copy_of_gpu(gpu: Gpu, host: Host, now: datetime) -> Gpu:
    kept = {
        field.attname: getattr(gpu, field.attname)
        for field in Gpu._meta.concrete_fields
        if not field.primary_key
    }
    return Gpu(**{**kept, "pool_id": host.pool_id, "retired_at": None, "created_at": now})


def _copy_of_unit(unit: Unit, gpu: Gpu, now: datetime) -> Unit:
    shift = gpu.first_slot - Gpu(pk=unit.gpu_id).first_slot
    return Unit(
        gpu=gpu,
        profile=unit.profile,
        uuid=unit.uuid,
        slots=NumericRange(unit.slots.lower + shift, unit.slots.upper + shift),
        memory_mib=unit.memory_mib,
        created_at=now,
    )
