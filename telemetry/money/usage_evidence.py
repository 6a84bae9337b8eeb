"""Keep the usage evidence of charge lines in step with the rollups, until the month of the line is closed.

Evidence is written with its line. Rollups that change later mark the host and the hour as due, and
``update_due_evidence`` computes the evidence of the lines of that hour again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import connection, transaction

from telemetry.core.cost_shares import WHOLE_PERCENT
from telemetry.core.rollup import HOUR
from telemetry.core.usage_evidence import (
    NOT_MEASURED,
    HeldUsage,
    MeasuredUse,
    UsageByBucket,
    hour_parts,
    measured_use,
    needs_minutes,
)
from telemetry.ledger.locks import lock_ledger
from telemetry.ledger.new_charges import NewCharge
from telemetry.ledger.sums import update_measured_use
from telemetry.models import EvidenceDue, Rollup
from telemetry.models.rollups import CONTAINER_SECONDS
from telemetry.money.evidence_locks import lock_for_update, lock_open_months
from telemetry.sql_values import array_text

HOURS_PER_TRANSACTION = 500
HOURS_PER_RUN = 5_000

# Lines are cut at midnight, and a local day may have 25 hours: no line is longer than 26 hours.
_LINES_OF_DUE_HOURS_SQL = """
SELECT DISTINCT line.id, line.allocation_id, line.start, line."end",
    line.slots * line.share_percent / 100, line.month
FROM unnest(%s::bigint[], %s::timestamptz[]) AS due (host_id, hour)
JOIN scheduler_gpu AS gpu ON gpu.host_id = due.host_id
JOIN telemetry_charge AS line ON line.gpu_id = gpu.id
    AND line.start < due.hour + interval '1 hour' AND line."end" > due.hour
    AND line.start > due.hour - interval '26 hours'
WHERE line.allocation_id IS NOT NULL AND NOT line.reversal
"""
# The ids are a constant: a join would expand the arrays of all allocations.
_USAGE_SQL = """
SELECT allocation_id, extract(epoch FROM bucket)::bigint, held_seconds, covered_seconds, utilisation_seconds
FROM telemetry_rollup
WHERE allocation_id = ANY(%(allocations)s::bigint[]) AND resolution = %(resolution)s
    AND bucket >= to_timestamp(%(first)s) AND bucket < to_timestamp(%(end)s)
    AND container >= to_timestamp(%(first_container)s) AND container < to_timestamp(%(end)s)
"""
_STORE_SQL = """
INSERT INTO telemetry_chargeevidence AS evidence
    (charge_id, used_slot_seconds, covered_slot_seconds, updated_at)
SELECT measured.*, %s FROM unnest(%s::bigint[], %s::float8[], %s::float8[]) AS measured
ON CONFLICT (charge_id) DO UPDATE SET used_slot_seconds = excluded.used_slot_seconds,
    covered_slot_seconds = excluded.covered_slot_seconds, updated_at = excluded.updated_at
WHERE (evidence.used_slot_seconds, evidence.covered_slot_seconds)
    IS DISTINCT FROM (excluded.used_slot_seconds, excluded.covered_slot_seconds)
"""
_STORE_REVERSED_SQL = """
INSERT INTO telemetry_chargeevidence AS evidence
    (charge_id, used_slot_seconds, covered_slot_seconds, updated_at)
SELECT reversal.id, -original.used_slot_seconds, -original.covered_slot_seconds, %s
FROM telemetry_charge AS reversal
JOIN telemetry_chargeevidence AS original ON original.charge_id = reversal.corrects_id
WHERE reversal.reversal AND reversal.corrects_id = ANY(%s::bigint[])
ON CONFLICT (charge_id) DO UPDATE SET used_slot_seconds = excluded.used_slot_seconds,
    covered_slot_seconds = excluded.covered_slot_seconds, updated_at = excluded.updated_at
WHERE (evidence.used_slot_seconds, evidence.covered_slot_seconds)
    IS DISTINCT FROM (excluded.used_slot_seconds, excluded.covered_slot_seconds)
"""


@dataclass(frozen=True, slots=True)
class _HeldLine:
    id: int
    allocation: int
    start: int  # seconds since the epoch
    end: int
    slots: float  # slots of the line's share of the unit


def write_evidence(ids: Sequence[int], lines: Sequence[NewCharge], now: datetime) -> None:
    """Write the evidence of new charge lines. Call this in the transaction that inserts the lines.

    Reversals and lines without an allocation are left out. ``ids`` are the ids of the lines.
    """
    held = [
        _held_line(pk, line.allocation_id, line.start, line.end, _slots_of(line))
        for pk, line in zip(ids, lines, strict=True)
        if not line.reversal
    ]
    _store([line for line in held if line is not None], now)


def _slots_of(line: NewCharge) -> Decimal | int:
    """Return the slots that the cost centre of a line pays."""
    whole = line.share_percent == WHOLE_PERCENT
    return line.slots if whole else line.slots * line.share_percent / WHOLE_PERCENT


def write_reversed_evidence(original_ids: Collection[int], now: datetime) -> None:
    """Write the evidence of the reversals of these lines: the negative of the evidence of the lines."""
    with connection.cursor() as cursor:
        cursor.execute(_STORE_REVERSED_SQL, [now, array_text(sorted(original_ids))])


def update_due_evidence(now: datetime, *, max_hours: int = HOURS_PER_RUN) -> int:
    """Compute the evidence of the lines of due hours again. Return the number of computed lines.

    One run takes at most about ``max_hours`` marks. Lines of months that are not open keep their evidence.
    """
    lines = hours = 0
    while hours < max_hours:
        with transaction.atomic():
            lock_for_update()
            lock_ledger()
            marks = _claim_due_hours()
            lines += _update_lines_of(marks, now)
        hours += len(marks)
        if len(marks) < HOURS_PER_TRANSACTION:
            break
    return lines


def _claim_due_hours() -> list[tuple[int, datetime]]:
    """Delete the oldest marks, and return the (host id, hour) of each."""
    oldest = EvidenceDue.objects.order_by("hour", "host").values_list("pk", flat=True)[:HOURS_PER_TRANSACTION]
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM telemetry_evidencedue WHERE id = ANY(%s) RETURNING host_id, hour", [list(oldest)]
        )
        return sorted(cursor.fetchall())


def _update_lines_of(marks: Sequence[tuple[int, datetime]], now: datetime) -> int:
    if not marks:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            _LINES_OF_DUE_HOURS_SQL,
            [[host for host, _ in marks], [hour for _, hour in marks]],
        )
        rows = cursor.fetchall()
    open_months = lock_open_months({row[-1] for row in rows})
    lines = [_held_line(*values) for *values, month in rows if month in open_months]
    held = sorted((line for line in lines if line is not None), key=lambda line: line.id)
    _store(held, now)
    write_reversed_evidence([line.id for line in held], now)
    update_measured_use([line.id for line in held])
    return len(held)


def _held_line(
    pk: int, allocation: int | None, start: datetime, end: datetime, slots: Decimal | int
) -> _HeldLine | None:
    if allocation is None:
        return None
    return _HeldLine(pk, allocation, int(start.timestamp()), int(end.timestamp()), float(slots))


def _store(lines: Sequence[_HeldLine], now: datetime) -> None:
    if not lines:
        return
    hours = _load_usage(lines, Rollup.Resolution.HOUR)
    divided = [line for line in lines if _needs_minutes(line, hours.get(line.allocation))]
    minutes = _load_usage(divided, Rollup.Resolution.MINUTE)
    uses = [_use_of(line, hours.get(line.allocation), minutes.get(line.allocation)) for line in lines]
    pairs = list(zip(lines, uses, strict=True))
    ids = array_text(line.id for line in lines)
    used = array_text(None if use.used is None else use.used * line.slots for line, use in pairs)
    covered = array_text(use.covered * line.slots for line, use in pairs)
    with connection.cursor() as cursor:
        cursor.execute(_STORE_SQL, [now, ids, used, covered])


def _needs_minutes(line: _HeldLine, hours: UsageByBucket | None) -> bool:
    """Return True if the rollups of hours alone do not tell the use of a line."""
    if not hours:
        return True
    parts = hour_parts(line.start, line.end)
    return any(needs_minutes(low, high, hours.get(hour)) for hour, low, high in parts)


def _use_of(line: _HeldLine, hours: UsageByBucket | None, minutes: UsageByBucket | None) -> MeasuredUse:
    if not hours and not minutes:
        return NOT_MEASURED
    return measured_use(line.start, line.end, hours or {}, minutes or {})


def _load_usage(lines: Sequence[_HeldLine], resolution: int) -> dict[int, dict[int, HeldUsage]]:
    """Return the rollups of the lines' allocations by allocation id and start of the bucket, in one query."""
    found: dict[int, dict[int, HeldUsage]] = defaultdict(dict)
    if not lines:
        return found
    first = min(line.start for line in lines)
    with connection.cursor() as cursor:
        cursor.execute(
            _USAGE_SQL,
            {
                "allocations": array_text({line.allocation for line in lines}),
                "resolution": int(resolution),
                "first": first - first % HOUR,
                "first_container": first - first % CONTAINER_SECONDS[resolution],
                "end": max(line.end for line in lines) + HOUR,
            },
        )
        for allocation, bucket, held, covered, used in cursor.fetchall():
            found[allocation][bucket] = HeldUsage(held, covered, used)
    return found
