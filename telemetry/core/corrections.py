"""Find the ledger lines that no longer match the known facts, and compute their replacements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from telemetry.core.amounts import ZERO
from telemetry.core.charge_model import ChargeKey, ChargePiece, GpuTimeline, floor_to_second
from telemetry.core.charge_pieces import charge_pieces, price_pieces


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A charge line in the ledger that is still valid, because no reversal has cancelled it."""

    id: int
    start: datetime
    end: datetime
    slots: int
    owner: ChargeKey
    cost: Decimal


@dataclass(frozen=True, slots=True)
class ChargeCorrection:
    """The ledger lines to reverse, and the pieces that replace them over ``[start, end)``.

    The total cost of the pieces in ``instead`` equals the total cost of the reversed lines.
    """

    start: datetime
    end: datetime
    reversed_line_ids: tuple[int, ...]
    instead: tuple[ChargePiece, ...] = field(default=())


def find_corrections(
    gpu: GpuTimeline, standing: Sequence[LedgerLine], start: datetime, end: datetime
) -> list[ChargeCorrection]:
    """Return the corrections, at most one per billing day, that make the ledger match the timeline of a GPU.

    ``standing`` must contain every unreversed line of the GPU on the days that ``[start, end)`` touches.
    Returns [] if the ledger of ``[start, end)`` already matches.
    """
    found = []
    day = floor_to_second(start)
    while day < end:
        until = min(gpu.calendar.next_midnight(day), end)
        correction = _find_day_correction(gpu, standing, day, until)
        if correction is not None:
            found.append(correction)
        day = until
    return found


def _find_day_correction(
    gpu: GpuTimeline, standing: Sequence[LedgerLine], start: datetime, end: datetime
) -> ChargeCorrection | None:
    """Return the correction of ``[start, end)``, an interval within one day.

    Returns None if the ledger already matches, or if it has no lines in the interval.
    """
    lines = [line for line in standing if line.start < end and line.end > start]
    if not lines:
        return None
    start, end = max(start, min(line.start for line in lines)), min(end, max(line.end for line in lines))
    hull = _difference_interval(charge_pieces(gpu, start, end), lines, start, end)
    if hull is None:
        return None
    # A line of another slice may be outside of [start, end) but inside the widened interval. Such a line is
    # replaced too.
    low, high = _widen_to_line_edges(hull, standing)
    back = sorted(
        (line for line in standing if line.start < high and line.end > low),
        key=lambda line: (line.start, line.id),
    )
    wanted = charge_pieces(gpu, low, high)
    edges = sorted({low, high, *(rate.since for rate in gpu.rates if low < rate.since < high)})
    totals = [
        (a, b, sum((line.cost for line in back if a <= line.start < b), ZERO))
        for a, b in zip(edges, edges[1:], strict=False)
    ]
    return ChargeCorrection(low, high, tuple(line.id for line in back), tuple(price_pieces(wanted, totals)))


def _difference_interval(
    wanted: Sequence[ChargePiece], lines: Sequence[LedgerLine], start: datetime, end: datetime
) -> tuple[datetime, datetime] | None:
    """Return the smallest interval that contains every difference between ``wanted`` and ``lines``.

    A difference is a time at which a charge key has different numbers of slots in the pieces and in the
    ledger. Returns None if there is no difference.
    """
    steps: dict[ChargeKey, dict[datetime, int]] = defaultdict(lambda: defaultdict(int))
    for sign, parts in ((1, wanted), (-1, lines)):
        for part in parts:
            steps[part.owner][max(part.start, start)] += sign * part.slots
            steps[part.owner][min(part.end, end)] -= sign * part.slots
    low: datetime | None = None
    high: datetime | None = None
    for changes in steps.values():
        level = 0
        for moment in sorted(changes):
            if level:
                high = moment if high is None or moment > high else high
            level += changes[moment]
            if level and (low is None or moment < low):
                low = moment
    return None if low is None or high is None else (low, high)


def _widen_to_line_edges(
    hull: tuple[datetime, datetime], lines: Sequence[LedgerLine]
) -> tuple[datetime, datetime]:
    """Return ``hull``, widened until each line is either completely inside or completely outside."""
    low, high = hull
    while True:
        touched = [line for line in lines if line.start < high and line.end > low]
        wider = (min([low, *(line.start for line in touched)]), max([high, *(line.end for line in touched)]))
        if wider == (low, high):
            return wider
        low, high = wider
