"""Return the requests behind the waiting times of one size, as far as the viewer may see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal import policy
from portal.errors import Invalid
from portal.input_checks import display_value
from portal.reads.utilisation.query import UtilisationScope
from portal.wording.pages.money import utilisation_texts
from scheduler.models import Workload
from telemetry.reads.wait_times import RequestWait, waits_of_size

MAX_REQUESTS = 5_000
MAX_SIZE = 10_000


@dataclass(frozen=True)
class WaitRequests:
    """The requests of one size. ``total`` counts all of them, ``hidden`` those that have no name here."""

    size: int
    total: int
    hidden: int
    rows: list[RequestWait]


def wait_requests(scope: UtilisationScope, size: str) -> WaitRequests:
    """Return the visible ones of the MAX_REQUESTS requests that waited longest. Raises Invalid."""
    number = _checked_size(size)
    found, total = waits_of_size(number, scope.filters, MAX_REQUESTS)
    visible = policy.visible_workloads(scope.viewer).filter(pk__in=[row.workload for row in found])
    seen = set(visible.values_list("pk", flat=True))
    rows = [row for row in found if row.workload in seen]
    return WaitRequests(number, total, len(found) - len(rows), rows)


def named_requests(rows: Sequence[RequestWait]) -> list[tuple[Workload, RequestWait]]:
    """Return each wait with its workload. The caller has checked that the viewer may see them."""
    related = Workload.objects.select_related("project__team", "owner", "pool")
    workloads = related.in_bulk([row.workload for row in rows])
    return [(workloads[row.workload], row) for row in rows if row.workload in workloads]


def _checked_size(size: str) -> int:
    is_number = size.isascii() and size.isdigit() and len(size) <= len(str(MAX_SIZE))
    if not is_number or not 1 <= int(size) <= MAX_SIZE:
        text = utilisation_texts.SIZE_INVALID.format(given=display_value(size), most=MAX_SIZE)
        raise Invalid({"size": text}, {"size": size})
    return int(size)
