"""Correct charges after late facts: host state changes.

To settle a fact means to compare it once with the ledger. Differences are corrected by reversals and new
lines. No line is edited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from django.db import IntegrityError, connection, transaction

from scheduler.models import HostStateChange
from telemetry.core.amounts import ZERO
from telemetry.core.charge_model import ChargeKey, ChargePiece, floor_to_second
from telemetry.core.corrections import ChargeCorrection, LedgerLine, find_corrections
from telemetry.ledger.new_charges import NewCharge
from telemetry.models import (
    Charge,
    ChargedUntil,
    SettledStateChange,
)
from telemetry.money.billing_months import billing_calendar
from telemetry.money.charge_rows import ChargeDraft, charge_rows, insert_charges, months_not_open
from telemetry.money.charging_inputs import GpuChargingInputs, load_charging_inputs
from telemetry.money.correction_causes import (
    CorrectionCause,
    host_state_cause,
)
from telemetry.money.evidence_locks import lock_for_new_lines
from telemetry.money.statements import create_missing_statements

SETTLEMENTS_PER_RUN = 500
# Marks a change as settled if no GPU of its host is charged for time after the change.
_MARK_NOT_LATE_SQL = """
INSERT INTO telemetry_settledstatechange (change_id, settled_at)
SELECT change.id, %s FROM scheduler_hoststatechange AS change
WHERE NOT EXISTS (SELECT FROM telemetry_settledstatechange AS settled WHERE settled.change_id = change.id)
    AND NOT EXISTS (
        SELECT FROM scheduler_gpu AS gpu JOIN telemetry_chargeduntil AS charged ON charged.gpu_id = gpu.id
        WHERE gpu.host_id = change.host_id AND charged."until" > change.at)
ORDER BY change.id ON CONFLICT DO NOTHING"""
PieceKey = tuple[int, datetime, datetime, int, ChargeKey]  # GPU, start, end, slots, owner


def settle_state_changes(now: datetime) -> int:
    """Settle new host state changes. Return the number of reversed lines.

    A change is late if it lies in time that is already charged. Only late changes need corrections, at most
    SETTLEMENTS_PER_RUN in one run. All other changes are marked before they could become late.
    """
    with connection.cursor() as cursor:
        cursor.execute(_MARK_NOT_LATE_SQL, [now])
    late = list(
        HostStateChange.objects.filter(settledstatechange=None)
        .select_related("host")
        .order_by("pk")[:SETTLEMENTS_PER_RUN]
    )
    charged: dict[int, list[tuple[int, datetime]]] = defaultdict(list)  # host id -> (GPU id, charged until)
    untils = ChargedUntil.objects.filter(gpu__host__in={change.host_id for change in late})
    for host, gpu, until in untils.order_by("gpu").values_list("gpu__host_id", "gpu_id", "until"):
        charged[host].append((gpu, until))
    corrected = 0
    for change in late:
        cause = host_state_cause(change)
        for gpu, until in charged[change.host_id]:
            if until > change.at:
                corrected += correct_gpu_charges(gpu, change.at, until, now, cause)
        SettledStateChange.objects.bulk_create(
            [SettledStateChange(change=change, settled_at=now)], ignore_conflicts=True
        )
    return corrected


def copy_of(line: Charge, now: datetime, **changes: Any) -> NewCharge:
    """Return a new line with the columns of ``line``, except ``changes``. It corrects ``line``."""
    columns = {name: getattr(line, name) for name in NewCharge._fields}
    own = {"corrects_id": line.pk, "reversal": False, "created_at": now}
    return NewCharge(**columns | own | changes)


def correct_gpu_charges(
    gpu_id: int, start: datetime, end: datetime, now: datetime, cause: CorrectionCause
) -> int:
    """Make the ledger of one GPU match the facts in ``[start, end)``. Return the number of reversed lines.

    ``cause`` is the late fact. It is stored with the lines of the correction.
    """
    start, end = floor_to_second(start), floor_to_second(end)
    if start >= end:
        return 0
    calendar = billing_calendar()
    day_start, day_end = calendar.start_of_day(start), calendar.next_midnight(end)
    gpu = load_charging_inputs([gpu_id], day_start, day_end)[gpu_id]
    pieces = _standing_pieces(gpu_id, day_start, day_end)
    standing = [_ledger_line(lines) for lines in pieces.values()]
    reversed_count = 0
    for correction in find_corrections(gpu.time, standing, start, end):
        originals = [line for pk in correction.reversed_line_ids for line in pieces[pk]]
        try:
            with transaction.atomic():
                _write_correction(gpu, correction, originals, now, cause)
        except IntegrityError:
            # A concurrent run has reversed one of these lines and has written the same correction.
            continue
        reversed_count += len(originals)
    return reversed_count


def _standing_pieces(gpu_id: int, start: datetime, end: datetime) -> dict[int, list[Charge]]:
    """Return the unreversed lines of a GPU that overlap ``[start, end)``, by piece.

    A piece that several cost centres share has one line for each. The key is the id of its first line.
    """
    lines = Charge.objects.filter(gpu=gpu_id, start__lt=end, end__gt=start, reversal=False)
    pieces: dict[PieceKey, list[Charge]] = defaultdict(list)
    for line in lines.exclude(corrections__reversal=True).order_by("start", "pk"):
        pieces[piece_key(line)].append(line)
    return {lines[0].pk: lines for lines in pieces.values()}


def _ledger_line(lines: Sequence[Charge]) -> LedgerLine:
    """Return the lines of one piece as one line of the ledger."""
    first = lines[0]
    cost = sum((line.cost for line in lines), ZERO)
    return LedgerLine(first.pk, first.start, first.end, first.slots, _charge_key_of(first), cost)


def piece_key(line: Charge) -> PieceKey:
    """Return the key that all lines of one piece of a GPU's time share."""
    return (line.gpu_id, line.start, line.end, line.slots, _charge_key_of(line))


def _charge_key_of(line: Charge) -> ChargeKey:
    return ChargeKey(line.bucket, line.allocation_id or 0, line.reservation_id or 0)


def _write_correction(
    gpu: GpuChargingInputs,
    correction: ChargeCorrection,
    originals: Sequence[Charge],
    now: datetime,
    cause: CorrectionCause,
) -> None:
    """Write the reversals and the new lines of one correction."""
    lock_for_new_lines()
    closed = months_not_open({line.month for line in originals})
    reversals = [reversal_of(line, closed, now) for line in originals]
    instead = [
        ChargeDraft(gpu, piece, _first_overlapping_line(piece, originals).pk) for piece in correction.instead
    ]
    rows = reversals + charge_rows(instead, now)
    create_missing_statements({row.month for row in rows})
    insert_charges(with_cause(rows, cause), now)


def with_cause(rows: Sequence[NewCharge], cause: CorrectionCause) -> list[NewCharge]:
    """Return the lines with the late fact that caused them."""
    return [row._replace(cause_code=cause.code, cause_numbers=cause.numbers) for row in rows]


def _first_overlapping_line(piece: ChargePiece, originals: Sequence[Charge]) -> Charge:
    """Return the first reversed line that overlaps ``piece``. The new line refers to it by ``corrects``."""
    return next(line for line in originals if line.start < piece.end and line.end > piece.start)


def reversal_of(line: Charge, closed: set[date], now: datetime) -> NewCharge:
    """Return a new line that cancels ``line``.

    If the month of ``line`` is in ``closed``, the new line gets the current month.
    """
    return copy_of(
        line,
        now,
        reversal=True,
        month=billing_calendar().month_of(now) if line.month in closed else line.month,
        slots=-line.slots,
        slot_seconds=-line.slot_seconds,
        cost=-line.cost,
        charged=-line.charged,
    )
