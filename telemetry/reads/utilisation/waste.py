"""Rank workloads, projects and people by the GPU-hours that they held or reserved and did not use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from telemetry.core.amounts import ZERO, round_parts
from telemetry.core.currencies import smallest_unit
from telemetry.reads.usage_filters import UsageFilters, to_gpu_hours
from telemetry.reads.usage_rows import UsageRows
from telemetry.reads.waterfall import WorkKey, WorkPart, use_dimension, use_group

# The steps of the waterfall that are waste, and that people who hold GPUs can change.
WASTE_STEPS = ("empty", "idle", "inefficient", "reserved_unused")
RANKINGS = ("user", "project", "workload")
TREND_POINTS = 8
# A trend reads the use of each hour by workload, so long periods have none.
MAX_TREND_HOURS = 31 * 24


@dataclass(frozen=True)
class WasteRow:
    """The waste of one workload (or unused reservation), project or person.

    ``hours`` has the GPU-hours of each step of WASTE_STEPS. ``busy`` and ``sm_active`` are means of the held
    time in which they are known, 0 to 1; None if unknown. ``trend`` has the empty, idle and inefficient
    GPU-hours of equal parts of the period, None where no activity is known; it is empty for a long period.
    """

    work: WorkKey
    hours: dict[str, float]
    cost: Decimal
    held_hours: float
    busy: float | None
    sm_active: float | None
    trend: list[float | None]

    @property
    def wasted_hours(self) -> float:
        return sum(self.hours.values())

    def used_units(self, units: int) -> int:
        """Return how many of ``units`` requested GPUs were used on average: neither empty nor idle."""
        unused = self.hours["empty"] + self.hours["idle"]
        return max(0, round(units * (1 - unused / self.held_hours))) if self.held_hours else units

    @property
    def main_step(self) -> str:
        """Return the step with most of the waste."""
        return max(WASTE_STEPS, key=lambda step: self.hours[step])


def waste_by(
    ranking: str,
    filters: UsageFilters,
    parts: Iterable[WorkPart],
    reads: UsageRows,
    steps: Collection[str] = WASTE_STEPS,
) -> list[WasteRow]:
    """Return a row for each work, project or person that wasted time, in order of wasted GPU-hours.

    ``parts`` are those of the waterfall, so the rows sum to its steps, to the cent. ``ranking`` is one of
    RANKINGS. Only ``steps`` count. A long period has no ranking by workload.
    """
    if ranking == "workload" and filters.is_long:
        raise ValueError(f"ranking: 'workload' is not one of {', '.join(RANKINGS[:2])}, for over 62 days")
    hours: dict[WorkKey, dict[str, float]] = defaultdict(lambda: dict.fromkeys(WASTE_STEPS, 0.0))
    costs: dict[WorkKey, Decimal] = defaultdict(Decimal)
    held: dict[WorkKey, float] = defaultdict(float)
    group_of_use: dict[Any, WorkKey] = {}
    for part in parts:
        group = _group(ranking, part.work)
        if part.work.workload or (filters.is_long and part.held):
            group_of_use[use_group(filters, part.work)] = group
        if part.held:
            held[group] += to_gpu_hours(part.slot_seconds)
        if part.key in steps and group != WorkKey():
            hours[group][part.key] += to_gpu_hours(part.slot_seconds)
            costs[group] += part.cost
    measured = _measured(reads, group_of_use)
    trends = _trends(filters, reads, group_of_use)
    groups = sorted(hours, key=lambda group: (-sum(hours[group].values()), group))
    cents = round_parts([costs[group] for group in groups], smallest_unit(filters.currency))
    return [
        WasteRow(
            group,
            hours[group],
            cost,
            held[group],
            *measured.get(group, (None, None)),
            trends.get(group, []),
        )
        for group, cost in zip(groups, cents, strict=True)
        if sum(hours[group].values()) > 0
    ]


def rank_of_person(
    parts: Iterable[WorkPart], user: int, steps: Collection[str] = WASTE_STEPS, *, by_cost: bool = False
) -> tuple[int | None, int]:
    """Return the place of a person among all people who wasted time, and the number of these people.

    The place is None if the person wasted nothing. The order is that of wasted GPU-hours, or of their cost.
    """
    hours: dict[int, float] = defaultdict(float)
    costs: dict[int, Decimal] = defaultdict(Decimal)
    for part in parts:
        if part.key in steps and part.work.user:
            hours[part.work.user] += part.slot_seconds
            costs[part.work.user] += part.cost
    wasted: dict[int, Any] = {
        each: costs[each] if by_cost else hours[each] for each in hours if hours[each] > 0
    }
    rank = 1 + sum(value > wasted[user] for value in wasted.values()) if user in wasted else None
    return rank, len(wasted)


def wasted_cost(rows: Iterable[WasteRow]) -> Decimal:
    return sum((row.cost for row in rows), ZERO)


def _group(ranking: str, work: WorkKey) -> WorkKey:
    if ranking == "workload":
        return work
    if ranking == "project":
        return WorkKey(project=work.project)
    if ranking == "user":
        return WorkKey(user=work.user)
    raise ValueError(f"ranking: {ranking!r} is not one of {', '.join(RANKINGS)}")


def _measured(
    reads: UsageRows, groups: dict[Any, WorkKey]
) -> dict[WorkKey, tuple[float | None, float | None]]:
    """Return the mean utilisation and SM activity by group, of the time in which each is known."""
    used: dict[WorkKey, list[float]] = defaultdict(lambda: [0.0, 0.0])
    active: dict[WorkKey, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for _, of_use, row in reads.rollups(use_dimension(reads.filters)):
        if of_use in groups:
            for found, measure, unknown in (
                (used, "utilisation_seconds", "utilisation_unknown_seconds"),
                (active, "sm_active_seconds", "sm_unknown_seconds"),
            ):
                if row[measure] is not None:
                    found[groups[of_use]][0] += row[measure]
                    found[groups[of_use]][1] += (row["covered_seconds"] or 0.0) - (row[unknown] or 0.0)
    return {group: (_share(used.get(group)), _share(active.get(group))) for group in {*used, *active}}


def _share(sums: list[float] | None) -> float | None:
    return min(1.0, sums[0] / sums[1]) if sums and sums[1] else None


def _trends(
    filters: UsageFilters, reads: UsageRows, groups: dict[Any, WorkKey]
) -> dict[WorkKey, list[float | None]]:
    if filters.hours > MAX_TREND_HOURS:
        return {}
    found: dict[WorkKey, list[float | None]] = defaultdict(lambda: [None] * TREND_POINTS)
    start, length = filters.start.timestamp(), (filters.end - filters.start).total_seconds() / TREND_POINTS
    for hour in reads.hours("workload"):
        group = groups.get(hour.group)
        if group is not None and hour.wasted is not None:
            point = min(TREND_POINTS - 1, max(0, int((hour.start - start) // length)))
            found[group][point] = (found[group][point] or 0.0) + to_gpu_hours(hour.wasted)
    return dict(found)
