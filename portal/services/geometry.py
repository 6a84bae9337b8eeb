"""Verbs on how GPUs are split into MIG instances: what it would touch, having it done, taking it back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from portal import policy
from portal.models import User
from portal.selectors.hosts import BEGUN_AT
from portal.services import audit, refusals
from portal.services.repairs import gpu_of
from portal.validation import Checks, shown, words_of_why
from portal.wording import host_texts
from scheduler import geometry as engine
from scheduler import selectors
from scheduler.commands import LIVE
from scheduler.core.geometry import described
from scheduler.models import BoundUnit, GeometryChange, Gpu, Host, Reservation, Workload
from scheduler.states import TOLD_TO_GO

WHOLE = "whole"
PART = re.compile(r"([1-9]\d?)x([0-9A-Za-z._-]{1,30})", re.ASCII)


def profiles_of(value: Any) -> list[str]:
    """ "2x3g.40gb+1x1g.10gb" as one name per instance; "whole" as none. Raises Invalid."""
    checks = Checks()
    found: list[tuple[int, str]] = []
    allowed = f"{WHOLE}, or COUNTxPROFILE with + between them, such as 2x3g.40gb or 1x3g.40gb+4x1g.10gb"
    text = value.strip() if isinstance(value, str) else ""
    for piece in text.split("+") if text and text != WHOLE else []:
        # A profile may itself end in "+me": what does not begin with a count belongs to the one before.
        match = PART.fullmatch(piece)
        if match:
            found.append((int(match[1]), match[2]))
        elif found and piece.isalnum():
            found[-1] = (found[-1][0], f"{found[-1][1]}+{piece}")
        else:
            found = []
            break
    if not found and text != WHOLE:
        checks.note("geometry", value, f"geometry is {shown(value)}; allowed: {allowed}.")
    checks.done()
    return [name for count, name in found for _ in range(count)]


@dataclass(frozen=True)
class Leaving:
    """Work on a GPU. ``leaves``: it gets its notice; else it runs to its end. ``by``: gone by then at the latest."""

    workload: Workload
    leaves: bool
    by: datetime


@dataclass(frozen=True)
class Effect:
    """What changing a GPU's geometry touches. ``reservations`` are bound to it; ``unkept`` are to come, can be kept now and could
    not be without it. ``free_by``: when nothing holds it any more at the latest; None: nothing does now."""

    gpu: Gpu
    before: str
    after: str
    profiles: list[str]
    work: list[Leaving]
    reservations: list[Reservation]
    unkept: list[Reservation]
    free_by: datetime | None

    @property
    def bound(self) -> int:
        """How many reservations are bound to it."""
        return len(self.reservations)


def preview(*, actor: User, host: Host, gpu: Any, geometry: Any, now: datetime) -> Effect:
    """What it would touch, when it may be done. Reads only. Raises Invalid, NotAllowed, Conflict."""
    policy.require(actor, "host.change")
    row, profiles = gpu_of(host, gpu), profiles_of(geometry)
    refusals.in_words(lambda: engine.arranged(host, row, profiles), host_texts.GEOMETRY_REFUSED)
    work = holders(row, now)
    bound = BoundUnit.objects.filter(unit__gpu=row, period__contains=now).values("reservation")
    booked = list(Reservation.objects.filter(pk__in=bound).select_related("project__team").order_by("end", "pk"))
    ends = [*(each.by for each in work), *(each.end for each in booked)]
    before = described(engine.present(host, row) or [])
    unkept = Reservation.objects.filter(pk__in=selectors.unkept_without(row, now)).select_related("project__team")
    coming = list(unkept.order_by("start", "pk"))
    return Effect(row, before, described(profiles), profiles, work, booked, coming, max(ends, default=None))


def holders(gpu: Gpu, now: datetime) -> list[Leaving]:
    """Who holds a part of a GPU, soonest gone first."""
    here = Q(allocations__unit__gpu=gpu, allocations__period__upper_inf=True)
    live = Workload.objects.filter(here, state__in=LIVE).annotate(begun_at=BEGUN_AT)
    rows = []
    for workload in live.select_related("project__team", "owner", "pool"):
        told = workload.state in TOLD_TO_GO and workload.gone_by is not None
        seconds = workload.pool.notice_seconds + workload.pool.grace_seconds
        limit = workload.begun_at + timedelta(seconds=workload.max_runtime_seconds)
        leaving = min(limit, now + timedelta(seconds=seconds)) if workload.preemptible else limit
        by = workload.gone_by if told and workload.gone_by is not None else leaving
        rows.append(Leaving(workload, told or workload.preemptible, max(by, now)))
    return sorted(rows, key=lambda row: (row.by, row.workload.pk))


def change_geometry(
    *, actor: User, host: Host, gpu: Any, geometry: Any, now: datetime, why: str = "", via: str = "web"
) -> GeometryChange:
    """Have a GPU split otherwise: it takes nothing new, its work leaves, and then its host does it.

    Raises Invalid, NotAllowed, Conflict.
    """
    policy.require(actor, "host.change")
    row, profiles, why = gpu_of(host, gpu), profiles_of(geometry), words_of_why(why)
    with transaction.atomic():
        made: GeometryChange = refusals.in_words(lambda: engine.want(row, profiles, now=now), host_texts.GEOMETRY_REFUSED)
        before, after = described(made.before) or WHOLE, described(made.profiles) or WHOLE
        audit.record(
            actor=actor, via=via, now=now, verb="change_geometry", target=host, why=why,
            before={"gpu": row.index, "geometry": before}, after={"gpu": row.index, "geometry": after},
        )  # fmt: skip
    return made


def withdraw_geometry(
    *, actor: User, host: Host, gpu: Any, now: datetime, why: str = "", via: str = "web"
) -> GeometryChange:
    """Take it back while the GPU is being drained. Raises Invalid, NotAllowed, Conflict."""
    policy.require(actor, "host.change")
    row, why = gpu_of(host, gpu), words_of_why(why)
    with transaction.atomic():
        taken: GeometryChange = refusals.in_words(lambda: engine.withdraw(row, now=now), host_texts.GEOMETRY_REFUSED)
        told = {"gpu": row.index, "geometry": described(taken.profiles) or WHOLE}
        audit.record(actor=actor, via=via, now=now, verb="withdraw_geometry", target=host, before=told, why=why)
    return taken


def text_of(profiles: Sequence[str]) -> str:
    """As ``profiles_of`` reads it."""
    return described(profiles) or WHOLE
