"""Divide the GPU-hours of a period into parts, such as free, lost, idle and productive time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from telemetry.core.amounts import MICRO, ZERO, round_amount, round_parts, split_amount
from telemetry.core.charge_model import HELD_BUCKETS
from telemetry.core.currencies import smallest_unit
from telemetry.reads.usage.charge_sums import ChargeSums
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

    ``coverage`` is the part of held time with samples; None if nothing was held. ``parts`` are the steps
    by workload; of a long period by person and project.
    """

    gpu_hours: float
    cost: Decimal
    steps: list[WaterfallStep]
    coverage: float | None
    parts: list[WorkPart] = field(default_factory=list)

    @property
    def productive_share(self) -> float | None:
        """Return the productive part of the capacity, 0 to 1; None if there was no capacity."""
        return (
            next((step.share for step in self.steps if step.key == "productive"), None)
            if self.gpu_hours
            else None
        )


def usage_waterfall(
    filters: UsageFilters, reads: UsageRows | None = None, *, with_cost: bool = True
) -> UsageWaterfall:
    """Return the parts of the capacity of a period, in the order of WATERFALL_ORDER.

    If the filters select a team, project, user or type, the capacity is only the time that this selection
    held or reserved. ``reads`` are rows that were loaded for the same filters, so that several queries share
    these rows. If ``with_cost`` is False, the costs of used time are 0, which takes half the time.
    """
    reads = reads or UsageRows(filters)
    parts: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[Decimal]] = defaultdict(list)
    works = work_parts(filters, reads, with_cost=with_cost)
    for part in works:
        parts[part.key].append(part.slot_seconds)
        costs[part.key].append(part.cost)
    order = [key for key in WATERFALL_ORDER if sum(parts[key]) > 0 or key not in PARTS_SHOWN_IF_ANY]
    total = sum(sum(parts[key]) for key in order)
    cents = round_parts([sum(costs[key], ZERO) for key in order], smallest_unit(filters.currency))
    return UsageWaterfall(
        gpu_hours=to_gpu_hours(total),
        cost=sum(cents, ZERO),
        steps=[_step(key, sum(parts[key]), cost, total) for key, cost in zip(order, cents, strict=True)],
        coverage=_coverage(works, reads),
        parts=works,
    )


class WorkKey(NamedTuple):
    """The workload or the unused reservation that held time; all fields are 0 if nobody held it.

    In a long period ``workload`` and ``reservation`` are 0: the key is a person in a project.
    """

    workload: int = 0
    reservation: int = 0
    project: int = 0
    user: int = 0


class WorkPart(NamedTuple):
    """The time of one work on one model that belongs to one step of the waterfall.

    ``held`` is True if the charge bucket of the time counts as held. ``cost`` has six decimals.
    """

    key: str
    model: str
    work: WorkKey
    slot_seconds: float
    cost: Decimal
    held: bool


def work_parts(filters: UsageFilters, reads: UsageRows, *, with_cost: bool = True) -> list[WorkPart]:
    """Return the parts of each step by workload, so that sums over workloads equal the waterfall.

    The parts of a long period are by person and project.
    """
    use = {(model, group): sums for model, group, sums in reads.rollups(use_dimension(filters))}
    found = []
    sums = _bucket_sums(reads)
    for bucket, model, work in sorted(sums):
        seconds, cost = sums[bucket, model, work]
        held = bucket in HELD_BUCKETS
        if bucket != "used":
            found.append(WorkPart(PART_BY_BUCKET[bucket], model, work, seconds, cost, held))
            continue
        pieces = _split_used_time(max(0.0, seconds), use.get((model, use_group(filters, work))))
        amounts = [ZERO] * len(pieces)
        if with_cost:
            weights = [int(piece) for piece in pieces.values()]
            amounts = split_amount(round_amount(cost, MICRO), weights, MICRO)
        found += [
            WorkPart(key, model, work, piece, amount, held)
            for (key, piece), amount in zip(pieces.items(), amounts, strict=True)
            if piece or amount
        ]
    return found


def use_dimension(filters: UsageFilters) -> str:
    """Return the dimension by which the use of a period is read."""
    return "project_user" if filters.is_long else "workload"


def use_group(filters: UsageFilters, work: WorkKey) -> Any:
    """Return the group of ``use_dimension`` to which a work belongs."""
    return f"{work.project}/{work.user}" if filters.is_long else work.workload


WATERFALL_ORDER = (
    "unhealthy",
    "maintenance",
    "unallocated",
    "dedicated_unused",
    "reserved_unused",
    "lost",
    "unmeasured",
    "empty",
    "idle",
    "inefficient",
    "sm_unmeasured",
    "productive",
)


def _step(key: str, slot_seconds: float, cost: Decimal, total: float) -> WaterfallStep:
    return WaterfallStep(key, to_gpu_hours(slot_seconds), cost, slot_seconds / total if total else 0.0)


# The unused time of a team's own pool has the charge bucket "reserved_unused", but no reservation.
DEDICATED_UNUSED = "dedicated_unused"

# The charge buckets whose whole time is one part of the waterfall. The bucket "used" is split by activity.
PART_BY_BUCKET = {
    "unhealthy": "unhealthy",
    "maintenance": "maintenance",
    "unallocated": "unallocated",
    DEDICATED_UNUSED: "dedicated_unused",
    "reserved_unused": "reserved_unused",
    "preempted": "lost",
    "hardware_lost": "lost",
}


def _coverage(parts: Iterable[WorkPart], reads: UsageRows) -> float | None:
    """Return the part of held time that samples cover; None if nothing was held."""
    parts = list(parts)
    models = {part.model for part in parts}
    covered = sum(
        sums["covered_seconds"] or 0.0
        for model, _, sums in reads.rollups(use_dimension(reads.filters))
        if model in models
    )
    held = sum(part.slot_seconds for part in parts if part.held)
    return min(1.0, covered / held) if held else None


PARTS_SHOWN_IF_ANY = {"dedicated_unused", "lost", "unmeasured", "sm_unmeasured"}


def _split_used_time(seconds: float, row: dict[str, float | None] | None) -> dict[str, float]:
    """Split the slot-seconds that were charged as used by activity. The parts sum to ``seconds``.

    ``row`` has the measured use. Time without samples is the part ``unmeasured``.
    """
    known = {"empty": 0.0, "idle": 0.0, "inefficient": 0.0, "sm_unmeasured": 0.0, "productive": 0.0}
    share = 0.0
    if row and row["held_seconds"]:
        busy = row["busy_seconds"] or 0.0
        inefficient = min(busy, row["inefficient_seconds"] or 0.0)
        sm_unmeasured = min(busy - inefficient, row["sm_unmeasured_seconds"] or 0.0)
        known = {
            "empty": row["empty_seconds"] or 0.0,
            "idle": row["idle_seconds"] or 0.0,
            "inefficient": inefficient,
            "sm_unmeasured": sm_unmeasured,
            "productive": busy - inefficient - sm_unmeasured,
        }
        # The measured use includes lost time, and whole hours at the edges of the period. Scale it down to
        # the time that is charged as used.
        total = sum(known.values())
        share = min(1.0, seconds / total) if total else 0.0
    parts = {key: value * share for key, value in known.items()}
    return {"unmeasured": max(0.0, seconds - sum(parts.values())), **parts}


def _bucket_sums(reads: UsageRows) -> dict[tuple[str, str, WorkKey], tuple[float, Decimal]]:
    """Return (slot-seconds, cost) by (bucket, model, work).

    A bucket is a charge bucket or DEDICATED_UNUSED.
    """
    sums: dict[tuple[str, str, WorkKey], tuple[float, Decimal]] = {}
    for part in reads.charges:
        unreserved = part.bucket == "reserved_unused" and not part.is_reserved
        key = (DEDICATED_UNUSED if unreserved else part.bucket, part.keys["model"], _work_key(part))
        seconds, cost = sums.get(key, (0.0, ZERO))
        sums[key] = (seconds + part.seconds, cost + part.cost)
    return sums


def _work_key(part: ChargeSums) -> WorkKey:
    return WorkKey(
        part.keys.get("workload") or 0,
        # A workload inside its reservation is one work. The reservation counts while nothing held its units.
        part.reservation if part.is_reserved else 0,
        part.keys["project"] or 0,
        part.keys["user"] or 0,
    )
