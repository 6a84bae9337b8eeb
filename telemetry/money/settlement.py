"""Correct charges after late facts: host state changes, allocation ends and first cost centres.

To settle a fact means to compare it once with the ledger. Differences are corrected by reversals and new
lines. No line is edited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Case, F, OuterRef, Subquery, Sum, When

from scheduler.models import Allocation, HostStateChange, WorkloadKind
from telemetry.core.charge_model import ChargeBucket, ChargeKey, ChargePiece, floor_to_second
from telemetry.core.charge_pieces import lost_time
from telemetry.core.corrections import ChargeCorrection, LedgerLine, find_corrections
from telemetry.models import (
    UNMAPPED_LINE,
    Charge,
    ChargeBucketChoices,
    ChargedUntil,
    CostCentre,
    SettledAllocation,
    SettledStateChange,
    Statement,
    StatementState,
)
from telemetry.money.billing_months import billing_calendar
from telemetry.money.charge_rows import ChargeDraft, charge_rows, insert_charges, months_not_open
from telemetry.money.charging_inputs import GpuChargingInputs, load_charging_inputs
from telemetry.money.correction_causes import (
    CorrectionCause,
    allocation_cause,
    cost_centre_cause,
    host_state_cause,
)
from telemetry.money.evidence_locks import lock_for_new_lines
from telemetry.money.refund_limits import RefundLimits, load_refund_limits
from telemetry.money.statements import create_missing_statements
from telemetry.rollups.due_marks import mark_rollups_past_end

SETTLEMENTS_PER_RUN = 500


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


def settle_cost_centres(now: datetime) -> int:
    """Correct lines of open months that have no cost centre, but for which one was named later.

    Returns the number of reversed lines.
    """
    centres = CostCentre.objects.filter(valid_from__lte=OuterRef("start")).order_by("-valid_from", "-pk")
    by_project = centres.filter(project=OuterRef("project")).values("code")[:1]
    by_pool = centres.filter(pool=OuterRef("pool")).values("code")[:1]
    open_months = Statement.objects.filter(state=StatementState.OPEN).values("month")
    lines = (
        Charge.objects.filter(UNMAPPED_LINE, month__in=open_months)
        .exclude(corrections__reversal=True)
        .annotate(named=Case(When(project=None, then=Subquery(by_pool)), default=Subquery(by_project)))
        .exclude(named=None)
        .order_by("pk")[:SETTLEMENTS_PER_RUN]
    )
    found = [(line, str(line.named)) for line in lines]
    try:
        with transaction.atomic():
            lock_for_new_lines()
            insert_charges([row for line, code in found for row in _with_cost_centre(line, code, now)], now)
    except IntegrityError:
        # A concurrent run has reversed one of these lines. The next run corrects the others.
        return 0
    return len(found)


def _with_cost_centre(line: Charge, code: str, now: datetime) -> list[Charge]:
    """Return the unsaved reversal of ``line``, and a copy of it with the cost centre ``code``."""
    row = Charge(**_copied_columns(line), corrects_id=line.pk, created_at=now)
    row.cost_centre = code
    rows = [_reversal_of(line, set(), now), row]
    _set_cause(rows, cost_centre_cause(code))
    return rows


def _copied_columns(line: Charge) -> dict[str, Any]:
    return {
        entry.attname: getattr(line, entry.attname)
        for entry in Charge._meta.concrete_fields
        if entry.attname not in ("id", "corrects_id", "reversal", "created_at")
    }


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
    lines = {line.pk: line for line in _standing_lines(gpu_id, day_start, day_end)}
    standing = [
        LedgerLine(line.pk, line.start, line.end, line.slots, _charge_key_of(line), line.cost)
        for line in lines.values()
    ]
    found = find_corrections(gpu.time, standing, start, end)
    reversed_count = 0
    for correction in found:
        try:
            with transaction.atomic():
                _write_correction(gpu, correction, lines, now, cause)
        except IntegrityError:
            # A concurrent run has reversed one of these lines and has written the same correction.
            continue
        reversed_count += len(correction.reversed_line_ids)
    return reversed_count


def _standing_lines(gpu_id: int, start: datetime, end: datetime) -> list[Charge]:
    """Return the unreversed lines of a GPU that overlap ``[start, end)``."""
    lines = Charge.objects.filter(gpu=gpu_id, start__lt=end, end__gt=start, reversal=False)
    return list(lines.exclude(corrections__reversal=True).order_by("start", "pk"))


def _charge_key_of(line: Charge) -> ChargeKey:
    return ChargeKey(line.bucket, line.allocation_id or 0, line.reservation_id or 0)


def _write_correction(
    gpu: GpuChargingInputs,
    correction: ChargeCorrection,
    lines: dict[int, Charge],
    now: datetime,
    cause: CorrectionCause,
) -> None:
    """Write the reversals and the new lines of one correction."""
    lock_for_new_lines()
    originals = [lines[pk] for pk in correction.reversed_line_ids]
    closed = months_not_open({line.month for line in originals})
    reversals = [_reversal_of(line, closed, now) for line in originals]
    instead = [
        ChargeDraft(gpu, piece, _first_overlapping_line(piece, originals).pk) for piece in correction.instead
    ]
    rows = reversals + charge_rows(instead, now)
    create_missing_statements({row.month for row in rows})
    _set_cause(rows, cause)
    insert_charges(rows, now)


def _set_cause(rows: Sequence[Charge], cause: CorrectionCause) -> None:
    for row in rows:
        row.cause_code, row.cause_numbers = cause.code, cause.numbers


def _first_overlapping_line(piece: ChargePiece, originals: Sequence[Charge]) -> Charge:
    """Return the first reversed line that overlaps ``piece``. The new line refers to it by ``corrects``."""
    return next(line for line in originals if line.start < piece.end and line.end > piece.start)


def _reversal_of(line: Charge, closed: set[date], now: datetime) -> Charge:
    """Return an unsaved line that cancels ``line``.

    If the month of ``line`` is in ``closed``, the new line gets the current month.
    """
    row = Charge(**_copied_columns(line), corrects_id=line.pk, reversal=True, created_at=now)
    row.month = billing_calendar().month_of(now) if line.month in closed else line.month
    row.slots, row.slot_seconds = -line.slots, -line.slot_seconds
    row.cost, row.charged = -line.cost, -line.charged
    return row
