"""Compare the plan's refusals with workload rows, and write the reasons that changed in bulk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from scheduler.core.model.plan import Placement, Refusal
from scheduler.core.reasons import ReasonNumbers

EXPECTED_START_RESOLUTION_SECONDS = 60  # a smaller change of an estimate is not written


@dataclass(frozen=True, slots=True)
class ChangedRefusal:
    """A refusal that differs from the row of its workload."""

    refusal: Refusal
    public_id: object
    code_before: str
    is_first_start: bool  # True if the row had no expected start before


REASON_FIELDS = ["reason_code", "reason_numbers", "position", "expected_start", "blockers"]


def may_differ(reported: Refusal | None, refusal: Refusal) -> bool:
    """Return True if the row may differ from ``refusal``.

    ``reported`` is the refusal that the row is known to show, or None if this is unknown.
    """
    if reported is None or _reported_fields(reported) != _reported_fields(refusal):
        return True
    if reported.expected_start is None or refusal.expected_start is None:
        return reported.expected_start != refusal.expected_start
    return abs(reported.expected_start - refusal.expected_start) >= EXPECTED_START_RESOLUTION_SECONDS


def _reported_fields(refusal: Refusal) -> tuple[object, ...]:
    return refusal.code, refusal.numbers, refusal.position, refusal.blockers


def row_differs(row: Mapping[str, Any], refusal: Refusal) -> bool:
    return (
        row["reason_code"] != refusal.code
        or row["reason_numbers"] != json_numbers(refusal.numbers)
        or row["position"] != refusal.position
        or row["blockers"] != list(refusal.blockers)
        or _start_moved(row["expected_start"], refusal.expected_start)
    )


def _start_moved(known: datetime | None, expected: int | None) -> bool:
    if known is None or expected is None:
        return (known is None) != (expected is None)
    return abs(known.timestamp() - expected) >= EXPECTED_START_RESOLUTION_SECONDS


WRITE_REASONS_SQL = """
UPDATE scheduler_workload AS workload
SET reason_code = changed.reason_code, reason_numbers = changed.reason_numbers, position = changed.position,
    expected_start = to_timestamp(changed.expected_start), blockers = changed.blockers
FROM json_to_recordset(%s::json) AS changed(
    id bigint, reason_code text, reason_numbers jsonb, position integer, expected_start bigint,
    blockers bigint[]
)
WHERE workload.id = changed.id
"""


def write_reasons(refusals: Sequence[Refusal]) -> None:
    """Write the reasons in one statement.

    A busy pool changes hundreds of rows. Django's ``bulk_update``, which generates one CASE per row and
    column, would take a second.
    """
    rows = [
        {
            "id": refusal.workload,
            "reason_code": str(refusal.code),
            "reason_numbers": json_numbers(refusal.numbers),
            "position": refusal.position,
            "expected_start": refusal.expected_start,
            "blockers": list(refusal.blockers),
        }
        for refusal in refusals
    ]
    with connection.cursor() as cursor:
        cursor.execute(WRITE_REASONS_SQL, [json.dumps(rows, default=str)])


WRITE_PLACEMENT_REASONS_SQL = """
UPDATE scheduler_workload AS workload
SET reason_code = changed.reason_code, reason_numbers = changed.reason_numbers,
    borrowed_slots = changed.borrowed_slots
FROM json_to_recordset(%s::json) AS changed(
    id bigint, reason_code text, reason_numbers jsonb, borrowed_slots integer
)
WHERE workload.id = changed.id
"""


def write_placement_reasons(placements: Sequence[Placement]) -> None:
    rows = [
        {
            "id": placement.workload,
            "reason_code": str(placement.code),
            "reason_numbers": json_numbers(placement.numbers),
            "borrowed_slots": placement.borrowed_slots,
        }
        for placement in placements
    ]
    with connection.cursor() as cursor:
        cursor.execute(WRITE_PLACEMENT_REASONS_SQL, [json.dumps(rows, default=str)])


def json_numbers(numbers: ReasonNumbers) -> dict[str, Any]:
    """Return the numbers as a dict with lists instead of tuples.

    Numbers that are read from a JSON column have the same form, so that both can be compared.
    """
    return {name: list(value) if isinstance(value, tuple) else value for name, value in numbers}
