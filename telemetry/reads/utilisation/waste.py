"""Rank workloads, projects and people by the GPU-hours that they held or reserved and did not use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
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
NOBODY = WorkKey()


@dataclass(frozen=True)
class WasteRow:
    """The waste of one workload (or unused reservation), project or person.

    ``hours`` has the GPU-hours of each step of WASTE_STEPS. ``busy`` and ``sm_active`` are means of the held
    time in which they are known, 0 to 1; None if unknown.
    """

    work: WorkKey
    hours: dict[str, float]
    cost: Decimal
    held_hours: float
    busy: float | None
    sm_active: float | None

    @cached_property
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
    sums = _sums_by_group(ranking, filters, parts, steps)
    measured = _measured(reads, sums.group_of_use)
    hours = {
        group: {step: to_gpu_hours(seconds) for step, seconds in of_steps.items()}
        for group, of_steps in sums.seconds.items()
    }
    wasted = {group: sum(of_steps.values()) for group, of_steps in hours.items()}
    groups = sorted(hours, key=lambda group: (-wasted[group], group))
    cents = round_parts([sums.costs[group] for group in groups], smallest_unit(filters.currency))
    return [
        WasteRow(
            group,
            hours[group],
            cost,
            to_gpu_hours(sums.held[group]),
            *measured.get(group, (None, None)),
        )
        for group, cost in zip(groups, cents, strict=True)
        if wasted[group] > 0
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


@dataclass(frozen=True)
class _GroupSums:
    """The sums of the parts by group: wasted slot-seconds by step, their cost, and held slot-seconds.

    ``group_of_use`` has the group to which each group of ``use_dimension`` belongs.
    """

    seconds: dict[WorkKey, dict[str, float]] = field(
        default_factory=lambda: defaultdict(lambda: dict.fromkeys(WASTE_STEPS, 0.0))
    )
    costs: dict[WorkKey, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    held: dict[WorkKey, float] = field(default_factory=lambda: defaultdict(float))
    group_of_use: dict[int, WorkKey] = field(default_factory=dict)


def _sums_by_group(
    ranking: str, filters: UsageFilters, parts: Iterable[WorkPart], steps: Collection[str]
) -> _GroupSums:
    found = _GroupSums()
    group_of: dict[WorkKey, WorkKey] = {}
    for step, _, work, seconds, cost, is_held in parts:
        group = group_of.get(work)
        if group is None:
            group = group_of[work] = _group(ranking, work)
        if work.workload or (filters.is_long and is_held):
            found.group_of_use[use_group(filters, work)] = group
        if is_held:
            found.held[group] += seconds
        if step in steps and group != NOBODY:
            found.seconds[group][step] += seconds
            found.costs[group] += cost
    return found


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


def waste_trends(
    ranking: str, reads: UsageRows, works: Iterable[WorkKey]
) -> dict[WorkKey, list[float | None]]:
    """Return the empty, idle and inefficient GPU-hours of TREND_POINTS equal parts of the period, by work.

    A point is None where no activity is known. Works without a known point are left out.
    """
    work_of = {getattr(work, ranking): work for work in works if getattr(work, ranking)}
    found: dict[WorkKey, list[float | None]] = defaultdict(lambda: [None] * TREND_POINTS)
    for key, point, slot_seconds in reads.wasted_parts(ranking, list(work_of), TREND_POINTS):
        known = found[work_of[key]]
        known[point] = (known[point] or 0.0) + to_gpu_hours(slot_seconds)
    return dict(found)
