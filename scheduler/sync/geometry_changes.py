"""Change the MIG geometry of a GPU: drain the GPU, order the change, and act on the result.

From the request on, the GPU has the repair state ``reshaping`` and takes no new work. Preemptible work on it
gets a notice, and other work runs to its end. The host gets the order only when no workload holds a part of
the GPU and no reservation is bound to it. After the change, the GPU gets the units that the host reports
(``scheduler.sync.host_inventory``) and returns to service. If the change fails, the GPU keeps its old
geometry. If its geometry is then unknown, the GPU is quarantined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from agent.protocol import GeometryPart, GeometrySeen, GeometryWanted
from scheduler.coordination import locks
from scheduler.core.fit import mig_layout as rule
from scheduler.core.model.snapshot import PoolKind
from scheduler.core.rejection import OperationRejected
from scheduler.models import Allocation, BoundUnit, Diagnostic, GeometryChange, Gpu, Host, Unit
from scheduler.services.hosts import change_gpu_repair, drain_gpu_workloads
from scheduler.state import nudge
from scheduler.state.states import DiagnosticState, GeometryState, LeaseState, RepairState, change_state
from scheduler.sync.host_inventory import NOT_REPORTED
from scheduler.sync.wire_values import parse_public_id

OPEN_GEOMETRY_STATES = (GeometryState.DRAINING, GeometryState.CHANGING)
GEOMETRY_TIMEOUT_SECONDS = 120.0  # time limit of the driver's work; switching MIG on may reset the GPU
# The server waits for the timeout plus this margin, because the host may wait for the GPU's lock or may be
# offline for a short time.
GEOMETRY_ANSWER_MARGIN = timedelta(seconds=120)
MAX_DETAIL_LENGTH = 300


@dataclass(frozen=True, slots=True)
class OfferedProfile:
    """A MIG profile that the GPU's host reports, and the memory of one instance."""

    profile: rule.MigProfileSpec
    memory_mib: int


def offered_profiles(host: Host, gpu: Gpu) -> dict[str, OfferedProfile]:
    """Return the MIG profiles that the GPU's driver offers, by name.

    The result is empty if the GPU has no profiles or its agent does not report them.
    """
    told = ((host.hardware.get("reported") or {}).get("mig_profiles") or {}).get(gpu.model) or []
    return {
        one["name"]: OfferedProfile(
            rule.MigProfileSpec(one["name"], one["slices"], one["most"], one["size"], tuple(one["starts"])),
            one["memory_mib"],
        )
        for one in told
    }


def current_profiles(host: Host, gpu: Gpu) -> list[str] | None:
    """Return the profiles of the units that the host reports for the GPU.

    The list is empty for one whole GPU. Return None if the report has no units for the GPU. This is the case
    for a GPU with MIG that has no instances.
    """
    units = _reported(host, gpu).get("units")
    return None if not units else [one["profile"] for one in units if one["profile"]]


def _reported(host: Host, gpu: Gpu) -> dict[str, Any]:
    gpus = (host.hardware.get("reported") or {}).get("gpus") or []
    found: dict[str, Any] = next((row for row in gpus if row.get("uuid") == gpu.uuid), {})
    return found


def planned_layout(host: Host, gpu: Gpu, profiles: Sequence[str]) -> tuple[rule.MigInstancePlacement, ...]:
    """Return the places that instances of these profiles would get on the GPU. This changes no row.

    Raises OperationRejected ``gpu_is_not_reported``, ``gpu_has_no_mig``, ``pool_is_static``,
    ``geometry_does_not_fit`` or ``geometry_is_the_same``.
    """
    named = (("gpu", gpu.index), ("host", host.name))
    if gpu.retired_at is not None or gpu.state_reason == NOT_REPORTED:
        raise OperationRejected("gpu_is_not_reported", named)
    if host.pool.kind == PoolKind.STATIC:
        raise OperationRejected("pool_is_static", (*named, ("pool", host.pool.name)))
    offered = offered_profiles(host, gpu)
    if not offered:
        raise OperationRejected("gpu_has_no_mig", (*named, ("model", gpu.model)))
    found = rule.place_instances(profiles, {name: offer.profile for name, offer in offered.items()})
    if isinstance(found, rule.MigLayoutProblem):
        told = (
            ("why", found.why),
            ("profile", found.profile),
            ("asked", found.asked),
            ("allowed", found.allowed),
        )
        raise OperationRejected("geometry_does_not_fit", (*named, *told, ("offered", sorted(offered))))
    now_there = current_profiles(host, gpu)
    if now_there is not None and sorted(now_there) == sorted(profiles):
        raise OperationRejected("geometry_is_the_same", (*named, ("geometry", rule.layout_text(profiles))))
    return found


@transaction.atomic
def request_geometry(gpu: Gpu, profiles: Sequence[str], *, now: datetime) -> GeometryChange:
    """Request that a GPU is split into these profiles, and drain the GPU.

    An empty ``profiles`` means one whole GPU. Raises the rejections of ``planned_layout``. Also raises
    OperationRejected ``geometry_is_changing``, ``gpu_is_not_well``, ``diagnostic_is_open`` or
    ``host_does_not_answer``.
    """
    host = locks.hosts([gpu.host_id])[gpu.host_id]
    fresh = Gpu.objects.select_related("host__pool").get(pk=gpu.pk)
    named = (("gpu", fresh.index), ("host", host.name))
    parts = planned_layout(host, fresh, profiles)
    if host.lease_state != LeaseState.ALIVE:
        raise OperationRejected("host_does_not_answer", named[1:])
    if GeometryChange.objects.filter(gpu=fresh, state__in=OPEN_GEOMETRY_STATES).exists():
        raise OperationRejected("geometry_is_changing", named)
    if _is_diagnosed(fresh):
        raise OperationRejected("diagnostic_is_open", named)
    if fresh.repair_state != RepairState.WELL:
        raise OperationRejected("gpu_is_not_well", (*named, ("repair_state", fresh.repair_state)))
    change_gpu_repair(
        fresh, RepairState.RESHAPING, f"becomes {rule.layout_text(profiles) or 'one whole GPU'}", now
    )
    made = GeometryChange.objects.create(
        host=host,
        gpu=fresh,
        before=current_profiles(host, fresh) or [],
        parts=[{"profile": part.profile, "start": part.start} for part in parts],
        created_at=now,
    )
    drain_gpu_workloads(fresh, now=now)
    gpu.repair_state, gpu.state_reason = fresh.repair_state, fresh.state_reason
    nudge.pages(nudge.HOSTS)
    return made


@transaction.atomic
def withdraw_geometry(gpu: Gpu, *, now: datetime) -> GeometryChange:
    """Withdraw a change while the GPU is still being drained. Work with a notice still ends and is requeued.

    Raises OperationRejected ``geometry_is_not_changing`` or ``geometry_is_with_its_host``.
    """
    host = locks.hosts([gpu.host_id])[gpu.host_id]
    named = (("gpu", gpu.index), ("host", host.name))
    row = GeometryChange.objects.filter(gpu=gpu, state__in=OPEN_GEOMETRY_STATES).select_related("gpu").first()
    if row is None:
        raise OperationRejected("geometry_is_not_changing", named)
    if row.state != GeometryState.DRAINING:
        raise OperationRejected("geometry_is_with_its_host", named)
    _end(row, GeometryState.WITHDRAWN, "", RepairState.WELL, "the change of its geometry was cancelled", now)
    return row


def desired_geometries(host: Host) -> list[GeometryWanted]:
    """Return the changes that a host should apply now. Their GPUs are free."""
    rows = (
        GeometryChange.objects.filter(host=host, state=GeometryState.CHANGING)
        .select_related("gpu")
        .order_by("pk")
    )
    return [
        GeometryWanted(
            str(row.public_id),
            row.gpu.uuid,
            [GeometryPart(p["profile"], p["start"]) for p in row.parts],
            GEOMETRY_TIMEOUT_SECONDS,
        )
        for row in rows
    ]


def store_geometries(host: Host, seen: Iterable[GeometrySeen], now: datetime) -> None:
    """Store a host's reports of its geometry changes.

    The caller has locked the host and has stored the inventory of the same report.
    """
    told = {key: one for one in seen if (key := parse_public_id(one.change)) is not None}
    if not told:
        return
    rows = GeometryChange.objects.filter(host=host, public_id__in=list(told), state=GeometryState.CHANGING)
    for row in rows.select_related("gpu").order_by("pk"):
        one = told[row.public_id]
        detail = one.detail[:MAX_DETAIL_LENGTH]
        if one.state == GeometryState.DONE:
            if _has_profiles(row.gpu, row.profiles):  # otherwise a later report will contain the new units
                _end(row, GeometryState.DONE, detail, RepairState.WELL, "its new geometry is applied", now)
        elif one.state == GeometryState.FAILED and _has_profiles(row.gpu, row.before):
            _end(row, GeometryState.FAILED, detail, RepairState.WELL, "its geometry is unchanged", now)
        elif one.state in (GeometryState.FAILED, "unsure"):
            reason = f"its geometry could not be changed or restored: {detail}"
            _end(row, GeometryState.FAILED, detail, RepairState.QUARANTINED, reason[:MAX_DETAIL_LENGTH], now)
        elif detail != row.detail:
            GeometryChange.objects.filter(pk=row.pk).update(detail=detail)
            nudge.pages(nudge.HOSTS)


def _has_profiles(gpu: Gpu, profiles: Sequence[str]) -> bool:
    """Return True if the GPU's units have these profiles."""
    units = Unit.objects.filter(gpu=gpu, retired_at=None).values_list("profile", flat=True)
    return sorted(units) == sorted(profiles or [""])


def _end(
    row: GeometryChange, new: GeometryState, detail: str, repair: RepairState, reason: str, now: datetime
) -> None:
    """End a change and set the GPU's repair state to ``repair``. The caller has locked the host.

    A GPU that was quarantined or taken out during the change keeps that state.
    """
    if not change_state(row, "state", old=GeometryState(row.state), new=new, detail=detail, ended_at=now):
        return
    gpu = Gpu.objects.get(pk=row.gpu_id)
    if gpu.repair_state == RepairState.RESHAPING:
        change_gpu_repair(gpu, repair, reason, now)
    _notify(row.host_id)


# -- sweep ------------------------------------------------------------------------------------------


def sweep_geometry_changes(now: datetime) -> None:
    """Order the changes of GPUs that are free now, and end changes that no host reports.

    This function is level-triggered: it reads the open rows and does the work that is due.
    """
    for pk, host_id in (
        GeometryChange.objects.filter(state__in=OPEN_GEOMETRY_STATES)
        .order_by("pk")
        .values_list("pk", "host_id")
    ):
        with transaction.atomic():
            host = locks.hosts([host_id])[host_id]
            row = GeometryChange.objects.select_related("gpu").get(pk=pk)
            if row.state == GeometryState.DRAINING:
                _order_when_idle(row, host, now)
            elif row.state == GeometryState.CHANGING:
                _end_overdue(row, host, now)


def _order_when_idle(row: GeometryChange, host: Host, now: datetime) -> None:
    if row.gpu.repair_state != RepairState.RESHAPING or row.gpu.retired_at is not None:
        detail = f"the GPU is {row.gpu.repair_state} meanwhile: {row.gpu.state_reason}"
        _end(row, GeometryState.FAILED, detail[:MAX_DETAIL_LENGTH], RepairState.WELL, "", now)
        return
    if host.lease_state != LeaseState.ALIVE or is_in_use(row.gpu, now) or _is_diagnosed(row.gpu):
        return
    if change_state(row, "state", old=GeometryState.DRAINING, new=GeometryState.CHANGING, told_at=now):
        _notify(host.pk)


def is_in_use(gpu: Gpu, now: datetime) -> bool:
    """Return True if a workload holds a part of the GPU, or if a part is bound to a reservation."""
    held = Allocation.objects.filter(unit__gpu=gpu, period__upper_inf=True)
    bound = BoundUnit.objects.filter(unit__gpu=gpu, period__contains=now)
    return held.exists() or bound.exists()


def _is_diagnosed(gpu: Gpu) -> bool:
    return Diagnostic.objects.filter(
        gpu=gpu, state__in=(DiagnosticState.WANTED, DiagnosticState.RUNNING)
    ).exists()


def _end_overdue(row: GeometryChange, host: Host, now: datetime) -> None:
    """End a change if its live host has not reported the result in time.

    The change of a host that does not report stays open, because the host continues it when it is back.
    """
    late = (
        row.told_at is not None
        and now - row.told_at > timedelta(seconds=GEOMETRY_TIMEOUT_SECONDS) + GEOMETRY_ANSWER_MARGIN
    )
    if late and host.lease_state == LeaseState.ALIVE:
        why = "its host did not answer"
        reason = f"its geometry change failed: {why}"
        _end(row, GeometryState.FAILED, why, RepairState.QUARANTINED, reason, now)


def _notify(host_id: int) -> None:
    nudge.hosts([host_id])
    nudge.engine()
    nudge.pages(nudge.HOSTS)
