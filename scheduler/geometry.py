"""Splitting a GPU otherwise: who wants it, the way until nothing holds the GPU, what its host is told, and what follows.

The GPU takes nothing new from the moment on in which it is wanted (``reshaping``). Preemptible work gets its notice, the rest runs
to its end. Only when nothing holds any of it, and no reservation is bound to it, its host is told; its units are replaced by what
the host reports then (``scheduler.inventory``), and it goes back into service. What fails leaves the old geometry, or quarantines
the GPU where nobody can say how it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from agent.protocol import GeometryPart, GeometrySeen, GeometryWanted
from scheduler import locks, nudge
from scheduler.core import geometry as rule
from scheduler.core.model import PoolKind
from scheduler.inventory import NOT_REPORTED
from scheduler.models import Allocation, BoundUnit, Diagnostic, GeometryChange, Gpu, Host, Unit
from scheduler.services.hosts import change_gpu, move_work_off_gpu
from scheduler.services.refused import Refused
from scheduler.states import DiagnosticState, GeometryState, LeaseState, RepairState, change_state
from scheduler.wire_values import public_id

OPEN = (GeometryState.DRAINING, GeometryState.CHANGING)
DEADLINE_SECONDS = 120.0  # for the driver: switching MIG on may reset the GPU
NO_ANSWER_MARGIN = timedelta(seconds=120)  # beyond it, for a host that waits for the GPU's lock or was away
KEPT_DETAIL = 300


@dataclass(frozen=True, slots=True)
class Offer:
    """A profile as the GPU's host reports it, with the memory of one instance."""

    profile: rule.Profile
    memory_mib: int


def offers(host: Host, gpu: Gpu) -> dict[str, Offer]:
    """What the GPU can be split into, by name, as its driver says; empty where it can't be, or where its agent does not tell."""
    told = ((host.hardware.get("reported") or {}).get("mig_profiles") or {}).get(gpu.model) or []
    return {
        one["name"]: Offer(
            rule.Profile(one["name"], one["slices"], one["most"], one["size"], tuple(one["starts"])), one["memory_mib"]
        )
        for one in told
    }


def present(host: Host, gpu: Gpu) -> list[str] | None:
    """Profiles of the units that it has; empty: one whole GPU. None: it is split, and has no units."""
    units = _reported(host, gpu).get("units")
    return None if not units else [one["profile"] for one in units if one["profile"]]


def _reported(host: Host, gpu: Gpu) -> dict[str, Any]:
    gpus = (host.hardware.get("reported") or {}).get("gpus") or []
    found: dict[str, Any] = next((one for one in gpus if one.get("uuid") == gpu.uuid), {})
    return found


def arranged(host: Host, gpu: Gpu, profiles: Sequence[str]) -> tuple[rule.Part, ...]:
    """Where the instances would lie, when the GPU may be split so. Reads only.

    Raises Refused ``gpu_is_not_reported``, ``gpu_has_no_mig``, ``pool_is_static``, ``geometry_does_not_fit`` or
    ``geometry_is_the_same``.
    """
    named = (("gpu", gpu.index), ("host", host.name))
    if gpu.retired_at is not None or gpu.state_reason == NOT_REPORTED:
        raise Refused("gpu_is_not_reported", named)
    if host.pool.kind == PoolKind.STATIC:
        raise Refused("pool_is_static", (*named, ("pool", host.pool.name)))
    offered = offers(host, gpu)
    if not offered:
        raise Refused("gpu_has_no_mig", (*named, ("model", gpu.model)))
    found = rule.arrange(profiles, {name: offer.profile for name, offer in offered.items()})
    if isinstance(found, rule.Misfit):
        told = (("why", found.why), ("profile", found.profile), ("asked", found.asked), ("allowed", found.allowed))
        raise Refused("geometry_does_not_fit", (*named, *told, ("offered", sorted(offered))))
    now_there = present(host, gpu)
    if now_there is not None and sorted(now_there) == sorted(profiles):
        raise Refused("geometry_is_the_same", (*named, ("geometry", rule.described(profiles))))
    return found


@transaction.atomic
def want(gpu: Gpu, profiles: Sequence[str], *, now: datetime) -> GeometryChange:
    """Have a GPU split into these profiles; none: one whole GPU. It takes nothing new from now on, and its work is told to leave.

    Raises Refused like ``arranged``, and ``geometry_is_changing``, ``gpu_is_not_well``, ``diagnostic_is_open`` or
    ``host_does_not_answer``.
    """
    host = locks.hosts([gpu.host_id])[gpu.host_id]
    fresh = Gpu.objects.select_related("host__pool").get(pk=gpu.pk)
    named = (("gpu", fresh.index), ("host", host.name))
    parts = arranged(host, fresh, profiles)
    if host.lease_state != LeaseState.ALIVE:
        raise Refused("host_does_not_answer", named[1:])
    if GeometryChange.objects.filter(gpu=fresh, state__in=OPEN).exists():
        raise Refused("geometry_is_changing", named)
    if _is_looked_at(fresh):
        raise Refused("diagnostic_is_open", named)
    if fresh.repair_state != RepairState.WELL:
        raise Refused("gpu_is_not_well", (*named, ("repair_state", fresh.repair_state)))
    change_gpu(fresh, RepairState.RESHAPING, f"becomes {rule.described(profiles) or 'one whole GPU'}", now)
    made = GeometryChange.objects.create(
        host=host, gpu=fresh, before=present(host, fresh) or [],
        parts=[{"profile": part.profile, "start": part.start} for part in parts], created_at=now,
    )  # fmt: skip
    move_work_off_gpu(fresh, now=now)
    gpu.repair_state, gpu.state_reason = fresh.repair_state, fresh.state_reason
    nudge.pages(nudge.HOSTS)
    return made


@transaction.atomic
def withdraw(gpu: Gpu, *, now: datetime) -> GeometryChange:
    """Take it back while the GPU is still being drained. What was told to leave leaves, and comes back by the queue.

    Raises Refused ``geometry_is_not_changing`` or ``geometry_is_with_its_host``.
    """
    host = locks.hosts([gpu.host_id])[gpu.host_id]
    named = (("gpu", gpu.index), ("host", host.name))
    row = GeometryChange.objects.filter(gpu=gpu, state__in=OPEN).select_related("gpu").first()
    if row is None:
        raise Refused("geometry_is_not_changing", named)
    if row.state != GeometryState.DRAINING:
        raise Refused("geometry_is_with_its_host", named)
    _end(row, GeometryState.WITHDRAWN, "", RepairState.WELL, "the change of its geometry was taken back", now)
    return row


def wanted_of(host: Host) -> list[GeometryWanted]:
    """What a host is told: changes of GPUs that nothing holds any more."""
    rows = GeometryChange.objects.filter(host=host, state=GeometryState.CHANGING).select_related("gpu").order_by("pk")
    return [
        GeometryWanted(
            str(row.public_id), row.gpu.uuid, [GeometryPart(p["profile"], p["start"]) for p in row.parts], DEADLINE_SECONDS
        )
        for row in rows
    ]


def take_in(host: Host, seen: Iterable[GeometrySeen], now: datetime) -> None:
    """What a host says of its changes, after its inventory was taken in. The host is locked by the caller."""
    told = {key: one for one in seen if (key := public_id(one.change)) is not None}
    if not told:
        return
    rows = GeometryChange.objects.filter(host=host, public_id__in=list(told), state=GeometryState.CHANGING)
    for row in rows.select_related("gpu").order_by("pk"):
        one = told[row.public_id]
        detail = one.detail[:KEPT_DETAIL]
        if one.state == GeometryState.DONE:
            if _has(row.gpu, row.profiles):  # else its new units are not taken over yet
                _end(row, GeometryState.DONE, detail, RepairState.WELL, "it has its new geometry", now)
        elif one.state == GeometryState.FAILED and _has(row.gpu, row.before):
            _end(row, GeometryState.FAILED, detail, RepairState.WELL, "its geometry stays as it was", now)
        elif one.state in (GeometryState.FAILED, "unsure"):
            reason = f"its geometry could not be changed, and is not as it was: {detail}"
            _end(row, GeometryState.FAILED, detail, RepairState.QUARANTINED, reason[:KEPT_DETAIL], now)
        elif detail != row.detail:
            GeometryChange.objects.filter(pk=row.pk).update(detail=detail)
            nudge.pages(nudge.HOSTS)


def _has(gpu: Gpu, profiles: Sequence[str]) -> bool:
    """Whether the rows of its units are these profiles."""
    units = Unit.objects.filter(gpu=gpu, retired_at=None).values_list("profile", flat=True)
    return sorted(units) == sorted(profiles or [""])


def _end(
    row: GeometryChange, new: GeometryState, detail: str, repair: RepairState, reason: str, now: datetime
) -> None:
    """It is over. A GPU that was quarantined or taken out meanwhile stays so. The host is locked by the caller."""
    if not change_state(row, "state", old=GeometryState(row.state), new=new, detail=detail, ended_at=now):
        return
    gpu = Gpu.objects.get(pk=row.gpu_id)
    if gpu.repair_state == RepairState.RESHAPING:
        change_gpu(gpu, repair, reason, now)
    _tell(row.host_id)


# -- the clock -----------------------------------------------------------------------------------------------------------


def keep(now: datetime) -> None:
    """Tell the hosts of GPUs that nothing holds any more, and give up those that nobody answers. Twice does it once."""
    for pk, host_id in GeometryChange.objects.filter(state__in=OPEN).order_by("pk").values_list("pk", "host_id"):
        with transaction.atomic():
            host = locks.hosts([host_id])[host_id]
            row = GeometryChange.objects.select_related("gpu").get(pk=pk)
            if row.state == GeometryState.DRAINING:
                _go_on(row, host, now)
            elif row.state == GeometryState.CHANGING:
                _give_up_late(row, host, now)


def _go_on(row: GeometryChange, host: Host, now: datetime) -> None:
    if row.gpu.repair_state != RepairState.RESHAPING or row.gpu.retired_at is not None:
        detail = f"the GPU is {row.gpu.repair_state} meanwhile: {row.gpu.state_reason}"
        _end(row, GeometryState.FAILED, detail[:KEPT_DETAIL], RepairState.WELL, "", now)
        return
    if host.lease_state != LeaseState.ALIVE or is_in_use(row.gpu, now) or _is_looked_at(row.gpu):
        return
    if change_state(row, "state", old=GeometryState.DRAINING, new=GeometryState.CHANGING, told_at=now):
        _tell(host.pk)


def is_in_use(gpu: Gpu, now: datetime) -> bool:
    """Whether anybody holds a part of it, or a reservation is bound to one."""
    held = Allocation.objects.filter(unit__gpu=gpu, period__upper_inf=True)
    bound = BoundUnit.objects.filter(unit__gpu=gpu, period__contains=now)
    return held.exists() or bound.exists()


def _is_looked_at(gpu: Gpu) -> bool:
    return Diagnostic.objects.filter(gpu=gpu, state__in=(DiagnosticState.WANTED, DiagnosticState.RUNNING)).exists()


def _give_up_late(row: GeometryChange, host: Host, now: datetime) -> None:
    """A host that speaks and does not say how it went. One that is silent goes on when it is back."""
    late = row.told_at is not None and now - row.told_at > timedelta(seconds=DEADLINE_SECONDS) + NO_ANSWER_MARGIN
    if late and host.lease_state == LeaseState.ALIVE:
        why = "no answer came from its host"
        reason = f"its geometry was to be changed, and {why}"
        _end(row, GeometryState.FAILED, why, RepairState.QUARANTINED, reason, now)


def _tell(host_id: int) -> None:
    nudge.hosts([host_id])
    nudge.engine()
    nudge.pages(nudge.HOSTS)
