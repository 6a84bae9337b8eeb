"""Preview and change the MIG geometry of GPUs, and withdraw changes.

The geometry is the list of MIG instances into which a GPU is split.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from portal import policy
from portal.input_checks import InputChecks, checked_reason, display_value
from portal.models import User
from portal.reads.fleet.host_details import ATTEMPT_STARTED_AT
from portal.services import audit
from portal.services.fleet.gpu_repairs import gpu_by_index
from portal.wording.problems import administration_problems
from scheduler.core.fit.mig_layout import layout_text
from scheduler.models import BoundUnit, GeometryChange, Gpu, Host, Reservation, Workload
from scheduler.reads import explanations
from scheduler.runs.commands import LIVE_STATES
from scheduler.state.states import TERMINATING_STATES
from scheduler.sync import geometry_changes as engine

WHOLE_GPU_TEXT = "whole"
GEOMETRY_PART_PATTERN = re.compile(r"([1-9]\d?)x([0-9A-Za-z._-]{1,30})", re.ASCII)


def parse_geometry(value: Any) -> list[str]:
    """Return the MIG profile of each instance in a text such as "2x3g.40gb+1x1g.10gb". Raises Invalid.

    This text returns ["3g.40gb", "3g.40gb", "1g.10gb"]. The text "whole" returns an empty list.
    """
    checks = InputChecks()
    found: list[tuple[int, str]] = []
    allowed = (
        f"{WHOLE_GPU_TEXT}, or COUNTxPROFILE with + between them, such as 2x3g.40gb or 1x3g.40gb+4x1g.10gb"
    )
    text = value.strip() if isinstance(value, str) else ""
    for piece in text.split("+") if text and text != WHOLE_GPU_TEXT else []:
        # The name of a profile may end in "+me". So a piece without a count belongs to the previous piece.
        match = GEOMETRY_PART_PATTERN.fullmatch(piece)
        if match:
            found.append((int(match[1]), match[2]))
        elif found and piece.isalnum():
            found[-1] = (found[-1][0], f"{found[-1][1]}+{piece}")
        else:
            found = []
            break
    if not found and text != WHOLE_GPU_TEXT:
        checks.note(
            "geometry",
            value,
            administration_problems.GEOMETRY_INVALID.format(given=display_value(value), allowed=allowed),
        )
    checks.done()
    return [name for count, name in found for _ in range(count)]


@dataclass(frozen=True)
class GpuOccupant:
    """A workload that holds a part of the GPU.

    ``leaves`` is True if the workload gets a notice and is stopped, and False if it runs to its end. ``by``
    is the latest time at which it ends.
    """

    workload: Workload
    leaves: bool
    by: datetime


@dataclass(frozen=True)
class GeometryChangeEffect:
    """The effect of a new geometry on a GPU.

    ``reservations`` are bound to the GPU now. ``unkept`` are future reservations that could not be served
    without the GPU. ``free_by`` is the latest time at which the GPU becomes free; None if it is free now.
    """

    gpu: Gpu
    before: str
    after: str
    profiles: list[str]
    work: list[GpuOccupant]
    reservations: list[Reservation]
    unkept: list[Reservation]
    free_by: datetime | None

    @property
    def bound(self) -> int:
        """Return the number of reservations bound to the GPU."""
        return len(self.reservations)


def preview_geometry_change(
    *, actor: User, host: Host, gpu: Any, geometry: Any, now: datetime
) -> GeometryChangeEffect:
    """Return the effect of a new geometry, and the time at which the GPU is free for the change.

    Changes nothing. Raises Invalid, NotAllowed, OperationRejected.
    """
    policy.require(actor, "host.change")
    row, profiles = gpu_by_index(host, gpu), parse_geometry(geometry)
    engine.planned_layout(host, row, profiles)
    work = gpu_occupants(row, now)
    bound = BoundUnit.objects.filter(unit__gpu=row, period__contains=now).values("reservation")
    booked = list(
        Reservation.objects.filter(pk__in=bound).select_related("project__team").order_by("end", "pk")
    )
    ends = [*(each.by for each in work), *(each.end for each in booked)]
    before = layout_text(engine.current_profiles(host, row) or [])
    unkept = Reservation.objects.filter(
        pk__in=explanations.reservations_broken_without(row, now)
    ).select_related("project__team")
    coming = list(unkept.order_by("start", "pk"))
    return GeometryChangeEffect(
        row, before, layout_text(profiles), profiles, work, booked, coming, max(ends, default=None)
    )


def gpu_occupants(gpu: Gpu, now: datetime) -> list[GpuOccupant]:
    """Return the workloads that hold a part of a GPU, the earliest end first."""
    here = Q(allocations__unit__gpu=gpu, allocations__period__upper_inf=True)
    live = Workload.objects.filter(here, state__in=LIVE_STATES).annotate(begun_at=ATTEMPT_STARTED_AT)
    rows = []
    for workload in live.select_related("project__team", "owner", "pool"):
        has_notice = workload.state in TERMINATING_STATES and workload.gone_by is not None
        seconds = workload.pool.notice_seconds + workload.pool.grace_seconds
        limit = workload.begun_at + timedelta(seconds=workload.max_runtime_seconds)
        leaving = min(limit, now + timedelta(seconds=seconds)) if workload.preemptible else limit
        by = workload.gone_by if has_notice and workload.gone_by is not None else leaving
        rows.append(GpuOccupant(workload, has_notice or workload.preemptible, max(by, now)))
    return sorted(rows, key=lambda row: (row.by, row.workload.pk))


def change_geometry(
    *, actor: User, host: Host, gpu: Any, geometry: Any, now: datetime, why: str = "", via: str = "web"
) -> GeometryChange:
    """Change the MIG geometry of a GPU.

    The GPU accepts no new workloads and drains. Then its host applies the change. Raises Invalid, NotAllowed,
    OperationRejected.
    """
    policy.require(actor, "host.change")
    row, profiles, why = gpu_by_index(host, gpu), parse_geometry(geometry), checked_reason(why)
    with transaction.atomic():
        made = engine.request_geometry(row, profiles, now=now)
        before, after = (
            layout_text(made.before) or WHOLE_GPU_TEXT,
            layout_text(made.profiles) or WHOLE_GPU_TEXT,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="change_geometry",
            target=host,
            why=why,
            before={"gpu": row.index, "geometry": before},
            after={"gpu": row.index, "geometry": after},
        )
    return made


def withdraw_geometry(
    *, actor: User, host: Host, gpu: Any, now: datetime, why: str = "", via: str = "web"
) -> GeometryChange:
    """Withdraw a geometry change while the GPU drains. Raises Invalid, NotAllowed, OperationRejected."""
    policy.require(actor, "host.change")
    row, why = gpu_by_index(host, gpu), checked_reason(why)
    with transaction.atomic():
        taken = engine.withdraw_geometry(row, now=now)
        before = {"gpu": row.index, "geometry": layout_text(taken.profiles) or WHOLE_GPU_TEXT}
        audit.record(
            actor=actor, via=via, now=now, verb="withdraw_geometry", target=host, before=before, why=why
        )
    return taken


def format_geometry(profiles: Sequence[str]) -> str:
    """Return the text of a geometry, such as "2x3g.40gb". ``parse_geometry`` parses this text."""
    return layout_text(profiles) or WHOLE_GPU_TEXT
