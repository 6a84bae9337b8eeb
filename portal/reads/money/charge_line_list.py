"""Read a page of charge lines. Each line has its workload and host if the viewer may open their pages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import QuerySet

from portal import policy
from portal.models import User
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from scheduler.models import Host, Workload
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.models import Charge
from telemetry.reads.chargeback import ChargeTable, charge_lines, charges_by

LINES_PER_PAGE = 50
MAX_LISTED_LINES = 10_000


@dataclass(frozen=True)
class ListedCharge:
    """A charge line. ``workload`` and ``host`` are None if the viewer may not open their pages."""

    line: Charge
    gpu_hours: Decimal
    workload: Workload | None
    host: Host | None


@dataclass(frozen=True)
class ChargeLineList:
    """A page of charge lines, and the sums of all charge lines under the same filters.

    ``table`` has the sums. They are sums of the cents of cells, and include the lines of all pages.
    ``count`` is the number of all lines. It is None if there are more than MAX_LISTED_LINES; the list then
    has the oldest of them.
    ``shows_cost`` is True if the lines are chosen by a bucket that nobody is charged for, and the viewer sees
    the owner's cost of charges.
    """

    page: Page[Charge]
    rows: list[ListedCharge]
    table: ChargeTable
    count: int | None
    shows_cost: bool


def charge_line_list(viewer: User, month: date, where: dict[str, Any], page: str | None) -> ChargeLineList:
    """Return the page of the visible charge lines of a month, oldest first.

    ``where`` are checked filters. ``page`` is the number of the page as a text; an invalid number gives the
    first or the last page.
    """
    found = charge_lines(month, policy.visible_charges(viewer), **where)
    count = found.order_by()[: MAX_LISTED_LINES + 1].count()
    rows = found.select_related("price", "priority_factor", "type_factor", "gpu", "pool")[:MAX_LISTED_LINES]
    pages = Paginator(rows, LINES_PER_PAGE)
    # A count by the paginator would sort all lines first.
    pages.count = min(count, MAX_LISTED_LINES)
    lines = pages.get_page(page)
    buckets = where.get("bucket", ())
    uncharged = set((buckets,) if isinstance(buckets, str) else buckets) - set(map(str, CHARGED_BUCKETS))
    cells = policy.visible_cells(viewer)
    return ChargeLineList(
        page=lines,
        rows=_listed(viewer, list(lines)),
        table=charges_by("bucket", month, cells, charged_only=not uncharged, **where),
        count=None if count > MAX_LISTED_LINES else count,
        shows_cost=bool(uncharged) and policy.sees_cost_of_charges(viewer),
    )


def _listed(viewer: User, lines: list[Charge]) -> list[ListedCharge]:
    workloads = _by_key(policy.visible_workloads(viewer), {line.workload_id for line in lines})
    hosts = _by_key(policy.visible_hosts_with_removed(viewer), {line.gpu.host_id for line in lines})
    return [
        ListedCharge(
            line=line,
            gpu_hours=Decimal(line.slot_seconds) / SLOT_SECONDS_PER_GPU_HOUR,
            workload=workloads.get(line.workload_id),
            host=hosts.get(line.gpu.host_id),
        )
        for line in lines
    ]


def _by_key(rows: QuerySet[Any], keys: set[int | None]) -> dict[int | None, Any]:
    wanted = {key for key in keys if key is not None}
    return {row.pk: row for row in rows.filter(pk__in=wanted)} if wanted else {}
