"""Split the time of a GPU into charge pieces and price them.

The time of a GPU is cut wherever its holder, reservation, condition, price or price factor changes, and at
each midnight of the billing calendar. Between two cuts, each of the 840 slots of the GPU is in exactly one
piece. The pieces therefore always sum to the whole GPU. All cuts are at whole seconds: the time of each event
is rounded down to the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Generic, TypeVar

from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.core.amounts import MICRO, ZERO, split_amount, value_between
from telemetry.core.charge_model import (
    CHARGED_BUCKETS,
    HARDWARE_FAULT_END_CODES,
    PREEMPTION_END_CODES,
    ChargeBucket,
    ChargeKey,
    ChargePiece,
    GpuCondition,
    GpuConditionChange,
    GpuHold,
    GpuTimeline,
    Rate,
    ReservedSlots,
    WorkFactor,
    floor_to_second,
)

Span = TypeVar("Span", GpuHold, ReservedSlots)


def lost_time(
    *,
    end_code: str,
    started: datetime,
    ended: datetime,
    checkpoint: datetime | None,
    keeps_state: bool,
    forgiven: timedelta | None,
) -> tuple[datetime, ChargeBucket] | None:
    """Return (start, bucket) of the uncharged part of an ended hold; None if everything is charged.

    The uncharged part lasts until the end of the hold. A preemption or a hardware fault loses the work since
    the last checkpoint. Without a checkpoint, it loses all work of the hold. ``forgiven`` is the longest
    possible length of the uncharged part; None means no limit. ``keeps_state`` is True for notebooks: their
    files survive, so nothing is lost.
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
    if forgiven is not None:
        since = max(since, ended - forgiven)
    return (since, bucket) if since < ended else None


def charge_pieces(gpu: GpuTimeline, start: datetime, end: datetime) -> list[ChargePiece]:
    """Return unpriced pieces that cover every slot-second of ``[start, end)`` exactly once.

    The pieces are sorted by start and charge key. All pieces are cut at midnights and price changes. Any
    other change cuts a piece only if it changes the charge key, the number of slots or the price factor of
    the piece.
    """
    start, end = floor_to_second(start), floor_to_second(end)
    if start >= end:
        return []
    gpu = _floor_timeline(gpu)
    price_and_day_cuts = set(_price_and_day_cuts(gpu, start, end))
    cuts = _cut_points(gpu, start, end, price_and_day_cuts)
    hard = {start, *price_and_day_cuts}
    done: list[ChargePiece] = []
    open_: dict[ChargeKey, ChargePiece] = {}
    holds = _InForce(gpu.holds)
    bounds = _InForce(gpu.bounds)
    for low, high in zip(cuts, cuts[1:], strict=False):
        if low in hard:
            done += open_.values()
            open_ = {}
            day, rate = gpu.calendar.day_of(low), _rate_at(gpu.rates, low)
        held = holds.at(low)
        factors = _factors_at(held, low) if held else {}
        going: dict[ChargeKey, ChargePiece] = {}
        for owner, count in _slots_by_charge_key(gpu, held, bounds.at(low), low).items():
            before = open_.pop(owner, None)
            factor = factors.get(owner.allocation) if owner.bucket == ChargeBucket.USED else None
            if before is not None and (before.slots, before.factor) == (count, factor):
                going[owner] = before._replace(end=high)
                continue
            if before is not None:
                done.append(before)
            going[owner] = ChargePiece(day, low, high, count, owner, rate, factor=factor)
        done += open_.values()
        open_ = going
    done += open_.values()
    return sorted(done, key=lambda piece: (piece.start, piece.owner, piece.end))


def price_pieces(
    parts: Sequence[ChargePiece], totals: Sequence[tuple[datetime, datetime, Decimal]] | None = None
) -> list[ChargePiece]:
    """Return ``parts`` in the same order, with ``cost`` and ``charged`` set.

    All pieces of a pricing span are priced together. A pricing span is one day at one rate, or one entry of
    ``totals``. ``parts`` must cover all slots of each span. The cost of the whole GPU over the span is split
    by slot-seconds, so the costs of the pieces sum exactly to the cost of the GPU.

    An entry (start, end, cost) of ``totals`` sets the cost of the GPU over a span, in place of the rate. A
    correction uses such an entry to keep the total cost of the replaced lines. A piece without a rate costs
    nothing. The checks at the close of the month report such a piece.

    The price of a piece is the price of its rate, multiplied by its factor. The charge of a piece is its part
    of the charge of the whole GPU at this price. So the charges of adjacent spans with one factor sum
    exactly.
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
        known_cost = totals[span][2] if totals is not None and span is not None else None
        for index, piece in zip(indexes, _price_span(chosen, rate, known_cost), strict=True):
            result[index] = piece
    return result


def _price_span(chosen: list[ChargePiece], rate: Rate, known_cost: Decimal | None) -> Iterator[ChargePiece]:
    """Yield the pieces of one pricing span with ``cost`` and ``charged`` set.

    ``known_cost`` is the cost of the whole GPU over the span. If it is None, ``rate`` determines the cost.
    """
    weights = [piece.slot_seconds for piece in chosen]
    low, high = min(p.start for p in chosen), max(p.end for p in chosen)
    cost = value_between(low, high, rate.cost, rate.since) if known_cost is None else known_cost
    costs = split_amount(cost, weights, MICRO)
    charges = {rate.cost: costs}
    for index, (piece, piece_cost) in enumerate(zip(chosen, costs, strict=True)):
        if piece.owner.bucket not in CHARGED_BUCKETS:
            yield piece._replace(cost=piece_cost)
            continue
        price = rate.price if piece.factor is None else rate.price_with(piece.factor.factor)
        if price not in charges:
            charges[price] = split_amount(value_between(low, high, price, rate.since), weights, MICRO)
        yield piece._replace(cost=piece_cost, charged=charges[price][index])


def asset_cost(rates: Sequence[Rate], start: datetime, end: datetime) -> Decimal:
    """Return the cost of one whole GPU over ``[start, end)``, computed from the rate card alone.

    Time before the first rate costs nothing.
    """
    total = ZERO
    for index, rate in enumerate(rates):
        until = rates[index + 1].since if index + 1 < len(rates) else end
        low, high = max(rate.since, start), min(until, end)
        if low < high:
            total += value_between(low, high, rate.cost, rate.since)
    return total


def _pricing_span(
    piece: ChargePiece, totals: Sequence[tuple[datetime, datetime, Decimal]] | None
) -> int | None:
    """Return the key of the pricing span that contains the start of ``piece``.

    With ``totals``, the key is the index of an entry, or None if no entry contains the start. Without
    ``totals``, the key is the number of the billing day (``date.toordinal``).
    """
    if totals is None:
        # Without totals, a span is a day. Because of value_between, the costs of the days of one rate sum
        # exactly.
        return piece.day.toordinal()
    return next((index for index, (low, high, _) in enumerate(totals) if low <= piece.start < high), None)


def _floor_timeline(gpu: GpuTimeline) -> GpuTimeline:
    """Return the timeline with every time floored to the second."""
    return replace(
        gpu,
        holds=tuple(map(_floor_hold, gpu.holds)),
        bounds=tuple(replace(b, start=floor_to_second(b.start), end=_floor(b.end)) for b in gpu.bounds),
        changes=tuple(replace(c, at=floor_to_second(c.at)) for c in gpu.changes),
        rates=tuple(replace(r, since=floor_to_second(r.since)) for r in gpu.rates),
    )


def _floor_hold(hold: GpuHold) -> GpuHold:
    # ``replace`` takes several times as long, and a run has millions of holds.
    return GpuHold(
        hold.allocation,
        hold.low,
        hold.high,
        floor_to_second(hold.start),
        _floor(hold.end),
        hold.reservation,
        _floor(hold.lost_from),
        hold.lost_bucket,
        tuple(replace(factor, since=floor_to_second(factor.since)) for factor in hold.factors),
    )


def _floor(moment: datetime | None) -> datetime | None:
    return None if moment is None else floor_to_second(moment)


def _price_and_day_cuts(gpu: GpuTimeline, start: datetime, end: datetime) -> Iterable[datetime]:
    """Yield the midnights and price changes inside ``(start, end)``."""
    midnight = gpu.calendar.next_midnight(start)
    while midnight < end:
        yield midnight
        midnight = gpu.calendar.next_midnight(midnight)
    for rate in gpu.rates:
        if start < rate.since < end:
            yield rate.since


def _cut_points(
    gpu: GpuTimeline, start: datetime, end: datetime, price_and_day_cuts: Iterable[datetime]
) -> list[datetime]:
    """Return all times in ``[start, end]`` at which the state of the GPU may change, in order."""
    moments: set[datetime | None] = {start, end, *price_and_day_cuts}
    for hold in gpu.holds:
        moments |= {hold.start, hold.end, hold.lost_from}
        moments |= {factor.since for factor in hold.factors}
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


def _factors_at(holds: Sequence[GpuHold], moment: datetime) -> dict[int, WorkFactor]:
    """Return the factors in force by allocation id. Allocations without a factor are absent."""
    found: dict[int, WorkFactor] = {}
    for hold in holds:
        for factor in hold.factors:
            if factor.since <= moment:
                found[hold.allocation] = factor
    return found


def _condition_at(changes: Sequence[GpuConditionChange], moment: datetime) -> GpuCondition:
    found = GpuCondition.WELL
    for change in changes:
        if change.at <= moment:
            found = change.condition
    return found


class _InForce(Generic[Span]):
    """Finds the holds or the reserved slots in force at a time. Calls pass times in ascending order."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._later: list[Span] = sorted(spans, key=lambda span: span.start, reverse=True)
        self._now: list[Span] = []

    def at(self, moment: datetime) -> list[Span]:
        while self._later and self._later[-1].start <= moment:
            self._now.append(self._later.pop())
        self._now = [span for span in self._now if span.end is None or moment < span.end]
        return self._now


def _slots_by_charge_key(
    gpu: GpuTimeline, holds: Sequence[GpuHold], bounds: Sequence[ReservedSlots], moment: datetime
) -> dict[ChargeKey, int]:
    """Return the number of slots per charge key at ``moment``. The numbers sum to SLOTS_PER_GPU.

    ``holds`` and ``bounds`` are those in force at ``moment``.
    """
    condition = _condition_at(gpu.changes, moment)
    if not bounds and (not holds or holds[0].high - holds[0].low == SLOTS_PER_GPU):
        # Most GPUs are free or held as a whole.
        hold = holds[0] if holds else None
        return {_charge_key(gpu, hold, None, condition, moment): SLOTS_PER_GPU}
    spans = [*((h.low, h.high) for h in holds), *((b.low, b.high) for b in bounds)]
    edges = sorted({0, SLOTS_PER_GPU, *(edge for span in spans for edge in span)})
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
