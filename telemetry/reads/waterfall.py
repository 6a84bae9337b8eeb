"""Divide the GPU-hours of a period into parts, such as free, lost, idle and productive time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import Sum

from telemetry.core.amounts import MICRO, ZERO, round_amount, round_parts, split_amount
from telemetry.core.charge_model import HELD_BUCKETS
from telemetry.core.currencies import smallest_unit
from telemetry.models import Charge
from telemetry.reads.usage_filters import UsageFilters, to_gpu_hours
from telemetry.reads.usage_rows import UsageRows


@dataclass(frozen=True)
class WaterfallStep:
    """One row of the waterfall. ``key`` is one of WATERFALL_ORDER.

    ``share`` is the row's part of the capacity, 0 to 1.
    """

    key: str
    gpu_hours: float
    cost: Decimal
    share: float


@dataclass(frozen=True)
class UsageWaterfall:
    """The parts of the capacity of a period. The steps sum to ``gpu_hours`` and, to the cent, to ``cost``.

    ``coverage`` is the part of held time with samples; None if nothing was held. ``charged_until`` is the end
    of the charged time within the period; None if no time of the period is charged.
    """

    gpu_hours: float
    cost: Decimal
    steps: list[WaterfallStep]
    coverage: float | None
    charged_until: datetime | None

    @property
    def productive_share(self) -> float | None:
        """Return the productive part of the capacity, 0 to 1; None if there was no capacity."""
        return (
            next((step.share for step in self.steps if step.key == "productive"), None)
            if self.gpu_hours
            else None
        )


def usage_waterfall(filters: UsageFilters, reads: UsageRows | None = None) -> UsageWaterfall:
    """Return the parts of the capacity of a period, in the order of WATERFALL_ORDER.

    If the filters select a team, project, user or type, the capacity is only the time that this selection
    held or reserved. ``reads`` are rows that were loaded for the same filters, so that several queries share
    these rows.
    """
    sums = _bucket_sums(filters)
    use = (reads or UsageRows(filters)).sums_by_model()
    parts: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[Decimal]] = defaultdict(list)
    for model in sorted({model for _, model in sums}):
        for key, seconds, cost in _model_parts(sums, model, use.get(model)):
            parts[key].append(seconds)
            costs[key].append(cost)
    order = [key for key in WATERFALL_ORDER if sum(parts[key]) > 0 or key not in PARTS_SHOWN_IF_ANY]
    total = sum(sum(parts[key]) for key in order)
    cents = round_parts([sum(costs[key], ZERO) for key in order], smallest_unit(filters.currency))
    return UsageWaterfall(
        gpu_hours=to_gpu_hours(total),
        cost=sum(cents, ZERO),
        steps=[_step(key, sum(parts[key]), cost, total) for key, cost in zip(order, cents, strict=True)],
        coverage=_coverage(sums, use),
        charged_until=_charged_until(filters),
    )


WATERFALL_ORDER = (
    "unhealthy",
    "maintenance",
    "unallocated",
    "reserved_unused",
    "lost",
    "unmeasured",
    "empty",
    "idle",
    "inefficient",
    "productive",
)


def _step(key: str, slot_seconds: float, cost: Decimal, total: float) -> WaterfallStep:
    return WaterfallStep(key, to_gpu_hours(slot_seconds), cost, slot_seconds / total if total else 0.0)


# The charge buckets whose whole time is one part of the waterfall. The bucket "used" is split by activity.
PART_BY_BUCKET = {
    "unhealthy": "unhealthy",
    "maintenance": "maintenance",
    "unallocated": "unallocated",
    "reserved_unused": "reserved_unused",
    "preempted": "lost",
    "hardware_lost": "lost",
}


def _model_parts(
    sums: Mapping[tuple[str, str], tuple[float, Decimal]], model: str, row: dict[str, float | None] | None
) -> Iterator[tuple[str, float, Decimal]]:
    """Yield (part, slot-seconds, cost) of one model.

    ``row`` has the model's measured use; None if nothing was measured.
    """
    for bucket, key in PART_BY_BUCKET.items():
        yield key, *sums.get((bucket, model), (0.0, ZERO))
    seconds, cost = sums.get(("used", model), (0.0, ZERO))
    pieces = _split_used_time(seconds, row)
    weights = [int(piece) for piece in pieces.values()]
    yield from zip(
        pieces, pieces.values(), split_amount(round_amount(cost, MICRO), weights, MICRO), strict=True
    )


def _coverage(
    sums: Mapping[tuple[str, str], tuple[float, Decimal]], use: Mapping[str, dict[str, float | None]]
) -> float | None:
    """Return the part of held time that samples cover; None if nothing was held."""
    models = {model for _, model in sums}
    covered = sum(row["covered_seconds"] or 0.0 for model, row in use.items() if model in models)
    held = sum(seconds for (bucket, _), (seconds, _) in sums.items() if bucket in HELD_BUCKETS)
    return min(1.0, covered / held) if held else None


PARTS_SHOWN_IF_ANY = {"lost", "unmeasured"}


def _split_used_time(seconds: float, row: dict[str, float | None] | None) -> dict[str, float]:
    """Split the slot-seconds that were charged as used by activity. The parts sum to ``seconds``.

    ``row`` has the measured use. Time without samples is the part ``unmeasured``.
    """
    known = {"empty": 0.0, "idle": 0.0, "inefficient": 0.0, "productive": 0.0}
    share = 0.0
    if row and row["held_seconds"]:
        busy, inefficient = row["busy_seconds"] or 0.0, row["inefficient_seconds"] or 0.0
        known = {
            "empty": row["empty_seconds"] or 0.0,
            "idle": row["idle_seconds"] or 0.0,
            "inefficient": min(busy, inefficient),
            "productive": max(0.0, busy - inefficient),
        }
        # The measured use includes lost time, and whole hours at the edges of the period. Scale it down to
        # the time that is charged as used.
        total = sum(known.values())
        share = min(1.0, seconds / total) if total else 0.0
    parts = {key: value * share for key, value in known.items()}
    return {"unmeasured": max(0.0, seconds - sum(parts.values())), **parts}


def _bucket_sums(filters: UsageFilters) -> dict[tuple[str, str], tuple[float, Decimal]]:
    """Return (slot-seconds, cost) by (bucket, model).

    If a line crosses an edge of the period, only its part inside the period counts.
    """
    sums: dict[tuple[str, str], tuple[float, Decimal]] = {}
    lines = filters.charges()
    inside = lines.filter(start__gte=filters.start, end__lte=filters.end)
    for bucket, model, seconds, cost in inside.values_list("bucket", "model").annotate(
        seconds=Sum("slot_seconds"), amount=filters.sum_of("cost")
    ):
        sums[bucket, model] = (float(seconds), cost)
    for line in lines.exclude(start__gte=filters.start, end__lte=filters.end):
        part = overlap_share(line, filters)
        seconds, cost = sums.get((line.bucket, line.model), (0.0, ZERO))
        sums[line.bucket, line.model] = (
            seconds + line.slot_seconds * part,
            cost + (line.cost * Decimal(str(part)) if filters.has_currency(line) else ZERO),
        )
    return sums


def overlap_share(line: Charge, filters: UsageFilters) -> float:
    """Return the part of a line that lies within the period, 0 to 1."""
    inside = min(line.end, filters.end) - max(line.start, filters.start)
    return inside / (line.end - line.start)


def _charged_until(filters: UsageFilters) -> datetime | None:
    last = filters.charges().order_by("-end").values_list("end", flat=True).first()
    return None if last is None else min(last, filters.end)
