"""Divide the GPU-hours of a period into parts, such as free, lost, idle and productive time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from telemetry.core.amounts import MICRO, ZERO, round_amount, round_parts, split_amount
from telemetry.core.charge_model import HELD_BUCKETS
from telemetry.core.currencies import smallest_unit
from telemetry.reads.usage.charge_sums import ChargeSums
from telemetry.reads.usage_filters import PERSON_BITS, UsageFilters, to_gpu_hours
from telemetry.reads.usage_rows import Floats, UsageRows


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
    filters: UsageFilters, reads: UsageRows | None = None, *, with_parts: bool = True
) -> UsageWaterfall:
    """Return the parts of the capacity of a period, in the order of WATERFALL_ORDER.

    If the filters select a team, project, user or type, the capacity is only the time that this selection
    held or reserved. ``reads`` are rows that were loaded for the same filters, so that several queries share
    these rows. If ``with_parts`` is False, the result has no ``parts``, no coverage and no costs, which takes
    a fifth of the time.
    """
    reads = reads or UsageRows(filters)
    works = work_parts(filters, reads) if with_parts else []
    seconds, costs = _sums_of_parts(works) if with_parts else (_seconds_of_steps(filters, reads), {})
    order = [key for key in WATERFALL_ORDER if seconds.get(key, 0.0) > 0 or key not in PARTS_SHOWN_IF_ANY]
    total = sum(seconds.get(key, 0.0) for key in order)
    cents = round_parts([costs.get(key, ZERO) for key in order], smallest_unit(filters.currency))
    return UsageWaterfall(
        gpu_hours=to_gpu_hours(total),
        cost=sum(cents, ZERO),
        steps=[
            _step(key, seconds.get(key, 0.0), cost, total) for key, cost in zip(order, cents, strict=True)
        ],
        coverage=_coverage(works, reads) if with_parts else None,
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


def work_parts(filters: UsageFilters, reads: UsageRows) -> list[WorkPart]:
    """Return the parts of each step by workload, so that sums over workloads equal the waterfall.

    The parts of a long period are by person and project.
    """
    sums = _bucket_sums(reads)
    keys = sorted(sums)
    pieces_of = iter(_pieces_of_used_time(filters, reads, sums, keys).tolist())
    found = []
    for key in keys:
        (bucket, model, work), (seconds, cost) = key, sums[key]
        held = bucket in HELD_BUCKETS
        if bucket != "used":
            found.append(WorkPart(PART_BY_BUCKET[bucket], model, work, seconds, cost, held))
            continue
        pieces = next(pieces_of)
        amounts = split_amount(round_amount(cost, MICRO), [int(piece) for piece in pieces], MICRO)
        found += [
            WorkPart(step, model, work, piece, amount, held)
            for step, piece, amount in zip(USED_STEPS, pieces, amounts, strict=True)
            if piece or amount
        ]
    return found


def _sums_of_parts(works: Iterable[WorkPart]) -> tuple[dict[str, float], dict[str, Decimal]]:
    """Return the slot-seconds and the costs of each step."""
    seconds: dict[str, float] = defaultdict(float)
    costs: dict[str, Decimal] = defaultdict(Decimal)
    for part in works:
        seconds[part.key] += part.slot_seconds
        costs[part.key] += part.cost
    return seconds, costs


def _seconds_of_steps(filters: UsageFilters, reads: UsageRows) -> dict[str, float]:
    """Return the slot-seconds of each step, without the parts by workload."""
    sums = _bucket_sums(reads)
    pieces = _pieces_of_used_time(filters, reads, sums, list(sums)).sum(axis=0)
    found: dict[str, float] = defaultdict(float, zip(USED_STEPS, pieces.tolist(), strict=True))
    for (bucket, _, _), (seconds, _) in sums.items():
        if bucket != "used":
            found[PART_BY_BUCKET[bucket]] += seconds
    return found


def use_dimension(filters: UsageFilters) -> str:
    """Return the dimension by which the use of a period is read."""
    return "project_user" if filters.is_long else "work"


def use_group(filters: UsageFilters, work: WorkKey) -> int:
    """Return the group of ``use_dimension`` to which a work belongs."""
    return (work.project << PERSON_BITS) + work.user if filters.is_long else work.workload


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


# The steps of time that was charged as used, in the order of the columns of _pieces_of_used_time.
USED_STEPS = ("unmeasured", "empty", "idle", "inefficient", "sm_unmeasured", "productive")
_SPLIT_MEASURES = (
    *("empty_seconds", "idle_seconds", "busy_seconds", "inefficient_seconds", "sm_unmeasured_seconds"),
)
_NOTHING_MEASURED = [0.0] * len(_SPLIT_MEASURES)
# (bucket, model, work); a bucket is a charge bucket or DEDICATED_UNUSED
BucketKey = tuple[str, str, WorkKey]
BucketSums = dict[BucketKey, tuple[float, Decimal]]


def _pieces_of_used_time(
    filters: UsageFilters, reads: UsageRows, sums: BucketSums, keys: Sequence[BucketKey]
) -> Floats:
    """Split the slot-seconds that were charged as used by activity, one row for each key of this bucket.

    The columns are those of USED_STEPS, and sum to the charged slot-seconds. Time without samples is
    ``unmeasured``.
    """
    use = {(model, group): row for model, group, row in reads.rollups(use_dimension(filters))}
    used = [key for key in keys if key[0] == "used"]
    charged = np.array([max(0.0, sums[key][0]) for key in used])
    measured = np.array(
        [
            [row[measure] or 0.0 for measure in _SPLIT_MEASURES]
            if (row := use.get((model, use_group(filters, work)))) and row["held_seconds"]
            else _NOTHING_MEASURED
            for _, model, work in used
        ],
        dtype=np.float64,
    ).reshape(-1, len(_SPLIT_MEASURES))
    empty, idle, busy, inefficient, sm_unmeasured = measured.T
    inefficient = np.minimum(busy, inefficient)
    sm_unmeasured = np.minimum(busy - inefficient, sm_unmeasured)
    known = np.stack([empty, idle, inefficient, sm_unmeasured, busy - inefficient - sm_unmeasured], axis=1)
    # The measured use includes lost time, and whole hours at the edges of the period. Scale it down to the
    # time that is charged as used.
    total = known.sum(axis=1)
    share = np.minimum(1.0, np.divide(charged, total, out=np.zeros_like(total), where=total > 0))
    known *= share[:, np.newaxis]
    return np.column_stack([np.maximum(0.0, charged - known.sum(axis=1)), known])


def _bucket_sums(reads: UsageRows) -> BucketSums:
    """Return (slot-seconds, cost) by (bucket, model, work).

    A bucket is a charge bucket or DEDICATED_UNUSED.
    """
    sums: BucketSums = {}
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
