"""Find the matter of a notice. Pages show notices about one matter as one line."""

from __future__ import annotations

from collections.abc import Sequence

from portal.models import Notification
from scheduler.models import Workload

MAX_MATTER_LENGTH = 120
# Kinds of notices about an object that is named in their numbers: the number that names it.
MATTER_NUMBERS = {
    "budget_reached": "name",
    "month_waits": "month",
    "statements_made": "month",
    "spend_question": "spend",
    "adjustment_proposed": "number",
    "adjustment_decided": "number",
    "alerts_began": "pool",
}
# Kinds that share their matter with another kind.
SAME_MATTER = {"adjustment_decided": "adjustment_proposed", "statements_made": "month_waits"}


def set_matters(rows: Sequence[Notification]) -> None:
    """Set the matter of each notice. Takes one query for the arrays of the workloads."""
    workloads = {row.workload_id for row in rows if row.workload_id is not None}
    tasks = Workload.objects.filter(pk__in=workloads).exclude(array=None)
    arrays: dict[int, int | None] = dict(tasks.values_list("pk", "array_id")) if workloads else {}
    for row in rows:
        row.matter = _matter(row, arrays.get(row.workload_id or 0))[:MAX_MATTER_LENGTH]


def _matter(row: Notification, array: int | None) -> str:
    """Return the key of the matter: the row that the notice is about, otherwise what its numbers name."""
    if array is not None:
        return f"array:{array}"
    for kind, key in (
        ("workload", row.workload_id),
        ("reservation", row.reservation_id),
        ("submission", row.submission_id),
    ):
        if key is not None:
            return f"{kind}:{key}"
    if row.numbers.get("host"):
        return f"host:{row.numbers['host']}"
    named = row.numbers.get(MATTER_NUMBERS.get(row.kind, ""))
    return f"{SAME_MATTER.get(row.kind, row.kind)}:{named}" if named else row.source
