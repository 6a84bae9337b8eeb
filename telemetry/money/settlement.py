"""Correct charges after late facts: host state changes and allocation ends.

To settle a fact means to compare it once with the ledger. Differences are corrected by reversals and new
lines. No line is edited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Sum

from scheduler.models import Allocation, HostStateChange, WorkloadKind
from telemetry.core.amounts import ZERO
from telemetry.core.charge_model import ChargeBucket, ChargeKey, ChargePiece, floor_to_second
from telemetry.core.charge_pieces import lost_time
from telemetry.core.corrections import ChargeCorrection, LedgerLine, find_corrections
from telemetry.models import (
    Charge,
    ChargeBucketChoices,
    ChargedUntil,
    SettledAllocation,
    SettledStateChange,
)
from telemetry.money.billing_months import billing_calendar
from telemetry.money.charge_rows import ChargeDraft, charge_rows, insert_charges, months_not_open
from telemetry.money.charging_inputs import GpuChargingInputs, load_charging_inputs
from telemetry.money.correction_causes import (
    CorrectionCause,
    allocation_cause,
    host_state_cause,
)
from telemetry.money.evidence_locks import lock_for_new_lines
from telemetry.money.refund_limits import RefundLimits, load_refund_limits
from telemetry.money.statements import create_missing_statements
from telemetry.rollups.due_marks import mark_rollups_past_end

SETTLEMENTS_PER_RUN = 500
PieceKey = tuple[int, datetime, datetime, int, ChargeKey]  # GPU, start, end, slots, owner


def settle_state_changes(now: datetime) -> int:
    """Settle new host state changes. Return the number of reversed lines.

    A change is late if it lies in time that is already charged. Only late changes need corrections.
    """
    waiting = list(
        HostStateChange.objects.filter(settledstatechange=None)
        .select_related("host")
        .order_by("pk")[:SETTLEMENTS_PER_RUN]
    )
    charged: dict[int, list[tuple[int, datetime]]] = defaultdict(list)  # host id -> (GPU id, charged until)
    untils = ChargedUntil.objects.filter(gpu__host__in={change.host_id for change in waiting})
    for host, gpu, until in untils.order_by("gpu").values_list("gpu__host_id", "gpu_id", "until"):
        charged[host].append((gpu, until))
    late = {
        change.pk: [entry for entry in charged[change.host_id] if entry[1] > change.at] for change in waiting
    }
    # Hundreds of changes may arrive at once, and few of them are late. Mark the changes that are not late in
    # one query.
    _mark_settled([change for change in waiting if not late[change.pk]], now)
    corrected = 0
    for change in waiting:
        if not late[change.pk]:
            continue
        cause = host_state_cause(change)
        for gpu, until in late[change.pk]:
            corrected += correct_gpu_charges(gpu, change.at, until, now, cause)
        _mark_settled([change], now)
    return corrected


def _mark_settled(changes: Sequence[HostStateChange], now: datetime) -> None:
    rows = [SettledStateChange(change=change, settled_at=now) for change in changes]
    SettledStateChange.objects.bulk_create(rows, ignore_conflicts=True)


def settle_allocations(now: datetime) -> int:
    """Settle ended allocations. Return the number of reversed lines.

    The charges of an ended allocation are compared with its final facts. Charges are wrong if work was lost,
    or if the end became known after the charge.
    """
    ended = (
        Allocation.objects.filter(settledallocation=None, period__endswith__isnull=False)
        # An allocation may end at a fraction of a second, but charges end at whole seconds. Allow for the
        # difference.
        .filter(unit__gpu__charged__until__gt=F("period__endswith") - timedelta(seconds=1))
        .select_related("run", "workload", "unit__gpu")
        .order_by("pk")[:SETTLEMENTS_PER_RUN]
    )
    waiting = list(ended)
    mark_rollups_past_end({allocation.pk: allocation.period.upper for allocation in waiting}, now)
    written = _charged_totals([allocation.pk for allocation in waiting])
    limits = load_refund_limits({allocation.unit.gpu.pool_id for allocation in waiting})
    corrected = 0
    for allocation in waiting:
        slot_seconds, last = written.get(allocation.pk, (0, None))
        lost = _lost_time_of(allocation, limits)
        # If no work was lost and all time is charged, the lines need not be loaded.
        if lost is not None or not _is_fully_charged(allocation, slot_seconds):
            until = max(allocation.period.upper, last or allocation.period.upper)
            begin = ChargedUntil.objects.get(gpu=allocation.unit.gpu_id).since
            corrected += correct_gpu_charges(
                allocation.unit.gpu_id,
                max(begin, allocation.period.lower),
                until,
                now,
                allocation_cause(allocation, lost),
            )
    SettledAllocation.objects.bulk_create(
        [SettledAllocation(allocation=allocation, settled_at=now) for allocation in waiting],
        ignore_conflicts=True,
    )
    return corrected


def _charged_totals(allocations: Sequence[int]) -> dict[int, tuple[int, datetime | None]]:
    """Return (charged slot-seconds after reversals, end of the last line) by allocation id.

    The end is None for an allocation without lines.
    """
    rows = Charge.objects.filter(allocation__in=allocations, bucket=ChargeBucketChoices.USED).values(
        "allocation"
    )
    lasts: dict[int, datetime] = {}
    for allocation, end in Charge.objects.filter(allocation__in=allocations, reversal=False).values_list(
        "allocation", "end"
    ):
        lasts[allocation] = max(end, lasts.get(allocation, end))
    sums = {row["allocation"]: row["total"] for row in rows.annotate(total=Sum("slot_seconds"))}
    return {allocation: (sums.get(allocation, 0), lasts.get(allocation)) for allocation in allocations}


def _lost_time_of(allocation: Allocation, limits: RefundLimits) -> tuple[datetime, ChargeBucket] | None:
    """Return (start, bucket) of the lost part of an ended allocation; None if no work was lost."""
    return lost_time(
        end_code=allocation.end_code,
        started=floor_to_second(allocation.period.lower),
        ended=floor_to_second(allocation.period.upper),
        checkpoint=allocation.run.checkpoint_at,
        keeps_state=allocation.workload.kind == WorkloadKind.NOTEBOOK,
        forgiven=limits.at(allocation.unit.gpu.pool_id, allocation.period.upper),
    )


def _is_fully_charged(allocation: Allocation, slot_seconds: int) -> bool:
    """Return True if ``slot_seconds`` is the whole time of the allocation."""
    start, end = floor_to_second(allocation.period.lower), floor_to_second(allocation.period.upper)
    slots = allocation.slots.upper - allocation.slots.lower
    return bool(slot_seconds == slots * int((end - start).total_seconds()))


def copy_of(line: Charge, now: datetime, **changes: Any) -> Charge:
    """Return an unsaved line with the columns of ``line``, except ``changes``. It corrects ``line``."""
    columns = {
        entry.attname: getattr(line, entry.attname)
        for entry in Charge._meta.concrete_fields
        if entry.attname not in ("id", "corrects_id", "reversal", "created_at")
    }
    return Charge(**columns | changes, corrects_id=line.pk, created_at=now)


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
    set_cause(rows, cause)
    insert_charges(rows, now)


def set_cause(rows: Sequence[Charge], cause: CorrectionCause) -> None:
    for row in rows:
        row.cause_code, row.cause_numbers = cause.code, cause.numbers


def _first_overlapping_line(piece: ChargePiece, originals: Sequence[Charge]) -> Charge:
    """Return the first reversed line that overlaps ``piece``. The new line refers to it by ``corrects``."""
    return next(line for line in originals if line.start < piece.end and line.end > piece.start)


def reversal_of(line: Charge, closed: set[date], now: datetime) -> Charge:
    """Return an unsaved line that cancels ``line``.

    If the month of ``line`` is in ``closed``, the new line gets the current month.
    """
    row = copy_of(line, now, reversal=True)
    row.month = billing_calendar().month_of(now) if line.month in closed else line.month
    row.slots, row.slot_seconds = -line.slots, -line.slot_seconds
    row.cost, row.charged = -line.cost, -line.charged
    return row
