"""Which bucket each second of each slot of a GPU lands in, and what it is worth. Plain values, no clock, no rows.

A GPU's time is cut wherever anything changes (who holds it, what it is reserved for, whether it is well, a new day, a new price).
In each stretch every one of its 840 slots is in exactly one piece, so pieces always sum to the GPU.
Boundaries are whole seconds: everything that happens is moved back to the beginning of its second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from telemetry.core.amounts import MICRO, ZERO, split_amount, value_between

SLOTS_PER_GPU = 840  # scheduler.core.model.snapshot says the same; a test holds the two together

PREEMPTION_END_CODES = frozenset(
    {
        "checkpointed",
        "killed_at_grace",
        "drained",
        "evicted_for_guarantee",
        "evicted_for_priority",
        "evicted_for_reservation",
    }
)
HARDWARE_FAULT_END_CODES = frozenset(
    {"gpu_error", "host_lost", "lease_lost", "prolog_failed", "host_full", "gpu_unreadable"}
)


class ChargeBucket(StrEnum):
    USED = "used"
    RESERVED_UNUSED = "reserved_unused"
    PREEMPTED = "preempted"
    HARDWARE_LOST = "hardware_lost"
    UNALLOCATED = "unallocated"
    UNHEALTHY = "unhealthy"
    MAINTENANCE = "maintenance"


CHARGED_BUCKETS = frozenset({ChargeBucket.USED, ChargeBucket.RESERVED_UNUSED})


class GpuCondition(StrEnum):
    """How a GPU is, apart from who holds it."""

    WELL = "well"
    UNHEALTHY = "unhealthy"  # quarantined or being repaired: what still runs on it is served
    SILENT = "silent"  # its agent does not answer: what ran on it is lost
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class GpuHold:
    """Slots ``[low, high)`` of the GPU, 0 to 840, held over ``[start, end)``; ``end`` None: still held.

    ``lost_from``: from here to the end the time is not charged, as ``lost_as`` says (Bucket.PREEMPTED or HARDWARE_LOST)."""

    allocation: int
    low: int
    high: int
    start: datetime
    end: datetime | None = None
    reservation: int | None = None
    lost_from: datetime | None = None
    lost_bucket: ChargeBucket | None = None


@dataclass(frozen=True, slots=True)
class ReservedSlots:
    """Slots bound to a reservation over ``[start, end)``."""

    reservation: int
    low: int
    high: int
    start: datetime
    end: datetime | None = None


@dataclass(frozen=True, slots=True)
class GpuConditionChange:
    """From ``at`` on the GPU is in ``condition``."""

    at: datetime
    condition: GpuCondition


@dataclass(frozen=True, slots=True)
class Rate:
    """A line of the rate card in force from ``since`` until the next one. Per whole GPU and hour."""

    since: datetime
    cost: Decimal
    price: Decimal
    id: int | None = None


@dataclass(frozen=True, slots=True)
class GpuTimeline:
    """Everything that decides how one GPU's time is charged. ``changes`` and ``rates`` in order of time.

    ``owned``: the GPU stands in a static pool, whose team pays for it also while nobody holds it."""

    holds: tuple[GpuHold, ...] = ()
    bounds: tuple[ReservedSlots, ...] = ()
    changes: tuple[GpuConditionChange, ...] = ()
    rates: tuple[Rate, ...] = ()
    owned: bool = False


@dataclass(frozen=True, slots=True, order=True)
class ChargeKey:
    """What makes two stretches the same line."""

    bucket: str
    allocation: int = 0  # 0: none
    reservation: int = 0  # 0: none


@dataclass(frozen=True, slots=True)
class ChargePiece:
    """``slots`` of the GPU over ``[start, end)`` for one owner; ``cost`` and ``charged`` once it is priced."""

    start: datetime
    end: datetime
    slots: int
    owner: ChargeKey
    rate: Rate | None = None
    cost: Decimal = ZERO
    charged: Decimal = ZERO

    @property
    def seconds(self) -> int:
        return int((self.end - self.start).total_seconds())

    @property
    def slot_seconds(self) -> int:
        return self.slots * self.seconds


def floor_to_second(moment: datetime) -> datetime:
    """The beginning of the second ``moment`` lies in, in UTC."""
    return moment.astimezone(UTC).replace(microsecond=0)


def next_midnight(moment: datetime) -> datetime:
    """The first midnight (UTC) after ``moment``."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def lost_time(
    *, end_code: str, started: datetime, ended: datetime, checkpoint: datetime | None, keeps_state: bool
) -> tuple[datetime, ChargeBucket] | None:
    """From when on the time of a hold that ended so is not charged, and as what; None when all of it is.

    What a preemption or a hardware fault threw away is the work since the last checkpoint, or since the start without one.
    ``keeps_state``: a notebook's files survive it, so nothing is thrown away.
    """
    if keeps_state:
        return None
    if end_code in PREEMPTION_END_CODES:
        bucket = ChargeBucket.PREEMPTED
    elif end_code in HARDWARE_FAULT_END_CODES:
        bucket = ChargeBucket.HARDWARE_LOST
    else:
        return None
    since = started if checkpoint is None else min(max(checkpoint, started), ended)
    return (since, bucket) if since < ended else None


def charge_pieces(gpu: GpuTimeline, start: datetime, end: datetime) -> list[ChargePiece]:
    """Every slot-second of ``[start, end)`` in exactly one piece, unpriced, in order of time and owner.

    Cut at days and price changes; joined across everything else that changes nothing for the owner.
    """
    start, end = floor_to_second(start), floor_to_second(end)
    if start >= end:
        return []
    gpu = _floor_timeline(gpu)
    cuts = _cut_points(gpu, start, end)
    hard = set(_price_and_day_cuts(gpu, start, end))
    done: list[ChargePiece] = []
    open_: dict[ChargeKey, ChargePiece] = {}
    for low, high in zip(cuts, cuts[1:], strict=False):
        slots = _slots_by_charge_key(gpu, low)
        rate = _rate_at(gpu.rates, low)
        going: dict[ChargeKey, ChargePiece] = {}
        for owner, count in slots.items():
            before = open_.pop(owner, None)
            if before is not None and before.slots == count and low not in hard:
                going[owner] = replace(before, end=high)
                continue
            if before is not None:
                done.append(before)
            going[owner] = ChargePiece(low, high, count, owner, rate)
        done.extend(open_.values())
        open_ = going
    done.extend(open_.values())
    return sorted(done, key=lambda piece: (piece.start, piece.owner, piece.end))


def price_pieces(
    parts: Sequence[ChargePiece], totals: Sequence[tuple[datetime, datetime, Decimal]] | None = None
) -> list[ChargePiece]:
    """``parts`` with cost and charged amount, in their order. They cover each of their spans (a day, a price) with all slots.

    The whole GPU's value over a span is split by slot-seconds, so costs sum to the asset's cost exactly. ``totals`` gives the
    cost of spans to be split instead, when lines that were written before are replaced: what they cost stays what it was.
    A piece without a rate costs nothing, and the close of its month says so.
    """
    spans: dict[tuple[datetime, int | None], list[int]] = defaultdict(list)
    for index, piece in enumerate(parts):
        since = piece.rate.since if piece.rate else None
        spans[(since or piece.start, _pricing_span(piece, totals))].append(index)
    result = list(parts)
    for (_, span), indexes in spans.items():
        chosen = [parts[index] for index in indexes]
        rate = chosen[0].rate
        if rate is None:
            continue
        weights = [piece.slot_seconds for piece in chosen]
        low, high = min(p.start for p in chosen), max(p.end for p in chosen)
        cost = value_between(low, high, rate.cost, rate.since)
        if totals is not None and span is not None:
            cost = totals[span][2]
        costs = split_amount(cost, weights, MICRO)
        prices = (
            costs
            if rate.price == rate.cost
            else split_amount(value_between(low, high, rate.price, rate.since), weights, MICRO)
        )
        for index, piece_cost, price in zip(indexes, costs, prices, strict=True):
            charged = price if parts[index].owner.bucket in CHARGED_BUCKETS else ZERO
            result[index] = replace(parts[index], cost=piece_cost, charged=charged)
    return result


def asset_cost(rates: Sequence[Rate], start: datetime, end: datetime) -> Decimal:
    """What one whole GPU costs its owner over ``[start, end)``, by the rate card alone; time without a rate costs nothing."""
    total = ZERO
    for index, rate in enumerate(rates):
        until = rates[index + 1].since if index + 1 < len(rates) else end
        low, high = max(rate.since, start), min(until, end)
        if low < high:
            total += value_between(low, high, rate.cost, rate.since)
    return total


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A line of the ledger that no reversal has taken back."""

    id: int
    start: datetime
    end: datetime
    slots: int
    owner: ChargeKey
    cost: Decimal


@dataclass(frozen=True, slots=True)
class ChargeCorrection:
    """Lines to take back, and what stands for ``[start, end)`` instead, priced so that the cost stays what it was."""

    start: datetime
    end: datetime
    reversed_line_ids: tuple[int, ...]
    instead: tuple[ChargePiece, ...] = field(default=())


def find_corrections(
    gpu: GpuTimeline, standing: Sequence[LedgerLine], start: datetime, end: datetime
) -> list[ChargeCorrection]:
    """What has to be corrected in ``[start, end)``, day by day, so that the ledger says what is so. [] when it does.

    ``standing`` holds every standing line that overlaps the days of ``[start, end)``.
    """
    found = []
    day = floor_to_second(start)
    while day < end:
        until = min(next_midnight(day), end)
        correction = _find_day_correction(gpu, standing, day, until)
        if correction is not None:
            found.append(correction)
        day = until
    return found


def _find_day_correction(
    gpu: GpuTimeline, standing: Sequence[LedgerLine], start: datetime, end: datetime
) -> ChargeCorrection | None:
    lines = [line for line in standing if line.start < end and line.end > start]
    if not lines:
        return None
    start, end = max(start, min(line.start for line in lines)), min(end, max(line.end for line in lines))
    hull = _difference_interval(charge_pieces(gpu, start, end), lines, start, end)
    if hull is None:
        return None
    low, high = _widen_to_line_edges(hull, lines)
    back = sorted(
        (line for line in lines if line.start < high and line.end > low),
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
    """The hull of the time in which some owner has other slots than the ledger says."""
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
    """The hull, widened until no line lies across one of its ends."""
    low, high = hull
    while True:
        touched = [line for line in lines if line.start < high and line.end > low]
        wider = (min([low, *(line.start for line in touched)]), max([high, *(line.end for line in touched)]))
        if wider == (low, high):
            return wider
        low, high = wider


def _pricing_span(
    piece: ChargePiece, totals: Sequence[tuple[datetime, datetime, Decimal]] | None
) -> int | None:
    if totals is None:
        # Without given totals a span is a day: value_between makes days of one rate add up.
        return piece.start.toordinal()
    return next((index for index, (low, high, _) in enumerate(totals) if low <= piece.start < high), None)


def _floor_timeline(gpu: GpuTimeline) -> GpuTimeline:
    def back(moment: datetime | None) -> datetime | None:
        return None if moment is None else floor_to_second(moment)

    return replace(
        gpu,
        holds=tuple(
            replace(h, start=floor_to_second(h.start), end=back(h.end), lost_from=back(h.lost_from))
            for h in gpu.holds
        ),
        bounds=tuple(replace(b, start=floor_to_second(b.start), end=back(b.end)) for b in gpu.bounds),
        changes=tuple(replace(c, at=floor_to_second(c.at)) for c in gpu.changes),
        rates=tuple(replace(r, since=floor_to_second(r.since)) for r in gpu.rates),
    )


def _price_and_day_cuts(gpu: GpuTimeline, start: datetime, end: datetime) -> Iterable[datetime]:
    day = next_midnight(start)
    while day < end:
        yield day
        day += timedelta(days=1)
    for rate in gpu.rates:
        if start < rate.since < end:
            yield rate.since


def _cut_points(gpu: GpuTimeline, start: datetime, end: datetime) -> list[datetime]:
    moments: set[datetime | None] = {start, end, *_price_and_day_cuts(gpu, start, end)}
    for hold in gpu.holds:
        moments |= {hold.start, hold.end, hold.lost_from}
    for bound in gpu.bounds:
        moments |= {bound.start, bound.end}
    moments |= {change.at for change in gpu.changes}
    return sorted(moment for moment in moments if moment is not None and start <= moment <= end)


def _rate_at(rates: Sequence[Rate], moment: datetime) -> Rate | None:
    found = None
    for rate in rates:
        if rate.since <= moment:
            found = rate
    return found


def _condition_at(changes: Sequence[GpuConditionChange], moment: datetime) -> GpuCondition:
    found = GpuCondition.WELL
    for change in changes:
        if change.at <= moment:
            found = change.condition
    return found


def _slots_by_charge_key(gpu: GpuTimeline, moment: datetime) -> dict[ChargeKey, int]:
    """The owners of all slots at ``moment``; they sum to SLOTS_PER_GPU."""
    holds = [h for h in gpu.holds if h.start <= moment and (h.end is None or moment < h.end)]
    bounds = [b for b in gpu.bounds if b.start <= moment and (b.end is None or moment < b.end)]
    condition = _condition_at(gpu.changes, moment)
    edges = sorted(
        {
            0,
            SLOTS_PER_GPU,
            *(h.low for h in holds),
            *(h.high for h in holds),
            *(b.low for b in bounds),
            *(b.high for b in bounds),
        }
    )
    owners: dict[ChargeKey, int] = defaultdict(int)
    for low, high in zip(edges, edges[1:], strict=False):
        hold = next((h for h in holds if h.low <= low < h.high), None)
        bound = next((b for b in bounds if b.low <= low < b.high), None)
        owners[_charge_key(gpu, hold, bound, condition, moment)] += high - low
    return owners


def _charge_key(
    gpu: GpuTimeline,
    hold: GpuHold | None,
    bound: ReservedSlots | None,
    condition: GpuCondition,
    moment: datetime,
) -> ChargeKey:
    if hold is not None:
        return ChargeKey(_bucket_of_hold(hold, condition, moment), hold.allocation, hold.reservation or 0)
    if condition is GpuCondition.MAINTENANCE:
        return ChargeKey(ChargeBucket.MAINTENANCE)
    if condition is not GpuCondition.WELL:
        return ChargeKey(ChargeBucket.UNHEALTHY)
    if bound is not None:
        return ChargeKey(ChargeBucket.RESERVED_UNUSED, 0, bound.reservation)
    return ChargeKey(ChargeBucket.RESERVED_UNUSED if gpu.owned else ChargeBucket.UNALLOCATED)


def _bucket_of_hold(hold: GpuHold, condition: GpuCondition, moment: datetime) -> ChargeBucket:
    if hold.lost_bucket is not None and hold.lost_from is not None and moment >= hold.lost_from:
        return hold.lost_bucket
    return ChargeBucket.HARDWARE_LOST if condition is GpuCondition.SILENT else ChargeBucket.USED
