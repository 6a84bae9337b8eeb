"""Compare the plan's refusals with workload rows, and write reasons in bulk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from scheduler.core.model.plan import Placement, Refusal
from scheduler.core.reasons import ReasonNumbers

EXPECTED_START_RESOLUTION_SECONDS = 60  # an estimate that moved by less is not worth a write


@dataclass(frozen=True, slots=True)
class ChangedRefusal:
    """A refusal that says something else than the row of its workload does."""

    refusal: Refusal
    public_id: object
    code_before: str
    is_first_start: bool  # there was no expected start before


REASON_FIELDS = ["reason_code", "reason_numbers", "position", "expected_start", "blockers"]


def may_differ(told: Refusal | None, refusal: Refusal) -> bool:
    """Might the row say something else? ``told`` is what it is known to say."""
    if told is None or _reported_fields(told) != _reported_fields(refusal):
        return True
    if told.expected_start is None or refusal.expected_start is None:
        return told.expected_start != refusal.expected_start
    return abs(told.expected_start - refusal.expected_start) >= EXPECTED_START_RESOLUTION_SECONDS


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
SET reason_code = said.reason_code, reason_numbers = said.reason_numbers, position = said.position,
    expected_start = to_timestamp(said.expected_start), blockers = said.blockers
FROM json_to_recordset(%s::json) AS said(
    id bigint, reason_code text, reason_numbers jsonb, position integer, expected_start bigint, blockers bigint[]
)
WHERE workload.id = said.id
"""


def write_reasons(refusals: Sequence[Refusal]) -> None:
    """In one statement: a busy pool's queue changes by hundreds of rows, and one CASE per row and column takes a second."""
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
SET reason_code = said.reason_code, reason_numbers = said.reason_numbers, borrowed_slots = said.borrowed_slots
FROM json_to_recordset(%s::json) AS said(id bigint, reason_code text, reason_numbers jsonb, borrowed_slots integer)
WHERE workload.id = said.id
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
    """As they come back from JSON: tuples are lists there."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in numbers}
