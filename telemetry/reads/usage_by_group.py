"""Return usage by team, project, user, GPU model or another dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import F, Sum

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR, SLOTS_PER_GPU
from scheduler.models import Quota
from telemetry.core.amounts import ZERO, round_parts
from telemetry.core.currencies import smallest_unit
from telemetry.reads.usage_filters import USAGE_DIMENSIONS, UsageFilters, to_gpu_hours
from telemetry.reads.usage_rows import USAGE_MEASURES, HeldInterval, UsageRows
from telemetry.reads.waterfall import overlap_share


@dataclass(frozen=True)
class GroupUsage:
    """The GPU-hours that one group held, and their use. None means unknown.

    A group is a team, project, user, type, model, pool, host, GPU or workload. Fields without another unit
    are in GPU-hours. ``used`` is weighted by utilisation, and ``busy`` counts time with any activity.
    ``guarantee`` is a number of GPUs, for teams only.
    """

    key: Any
    name: str
    held: float
    mean_gpus: float
    used: float | None
    busy: float | None
    idle: float | None
    empty: float | None
    sm_active: float | None
    tensor_active: float | None
    borrowed: float
    lost: float
    guarantee: float | None
    coverage: float | None
    energy_kwh: float | None
    charged: Decimal

    @property
    def utilisation(self) -> float | None:
        """Return the mean utilisation of the measured held time, 0 to 1; None if unknown."""
        if self.used is None or not self.coverage or not self.held:
            return None
        return min(1.0, self.used / (self.held * self.coverage))


@dataclass(frozen=True)
class UsageTable:
    """The groups in order of held GPU-hours, highest first, and the length of the period in hours."""

    groups: list[GroupUsage]
    hours: float


def usage_by(dimension: str, filters: UsageFilters, reads: UsageRows | None = None) -> UsageTable:
    """Return held, used, borrowed and lost GPU-hours by ``dimension`` (a key of USAGE_DIMENSIONS)."""
    check_dimension(dimension)
    reads = reads or UsageRows(filters)
    held, names = _held_slot_seconds(reads.holds(dimension))
    measured = reads.sums(dimension)
    money, lost = _charged_and_lost(dimension, filters)
    borrowed, _ = _held_slot_seconds(hold for hold in reads.holds(dimension) if hold.borrowed)
    guarantees = _guaranteed_gpus(filters) if dimension == "team" else {}
    charges = dict(
        zip(money, round_parts(list(money.values()), smallest_unit(filters.currency)), strict=True)
    )
    groups = []
    for key in {*held, *guarantees}:
        row = measured.get(key, {})
        seconds = held.get(key, 0.0)
        mix_held, covered = row.get("held_seconds") or 0.0, row.get("covered_seconds")
        hours = {
            measure: None if row.get(measure) is None else row[measure] / SLOT_SECONDS_PER_GPU_HOUR
            for measure in USAGE_MEASURES
        }
        groups.append(
            GroupUsage(
                key=key,
                name=names.get(key) or guarantees.get(key, ("", 0.0))[0],
                held=to_gpu_hours(seconds),
                mean_gpus=to_gpu_hours(seconds) / filters.hours,
                used=hours["utilisation_seconds"],
                busy=hours["busy_seconds"],
                idle=hours["idle_seconds"],
                empty=hours["empty_seconds"],
                sm_active=hours["sm_active_seconds"],
                tensor_active=hours["tensor_active_seconds"],
                borrowed=to_gpu_hours(borrowed.get(key)),
                lost=to_gpu_hours(lost.get(key)),
                guarantee=guarantees[key][1] if key in guarantees else None,
                coverage=min(1.0, covered / max(seconds, mix_held))
                if covered is not None and seconds
                else None,
                energy_kwh=None if row.get("energy_mj") is None else float(row["energy_mj"]) / 3.6e9,
                charged=charges.get(key, ZERO),
            )
        )
    groups.sort(key=lambda group: (-group.held, group.name, str(group.key)))
    return UsageTable(groups, filters.hours)


def check_dimension(dimension: str) -> None:
    """Raise ValueError unless ``dimension`` is a key of USAGE_DIMENSIONS."""
    if dimension not in USAGE_DIMENSIONS:
        raise ValueError(f"dimension: {dimension!r} is not one of {', '.join(USAGE_DIMENSIONS)}")


def _held_slot_seconds(holds: Iterable[HeldInterval]) -> tuple[dict[Any, float], dict[Any, str]]:
    """Return two dicts: the held slot-seconds by group, and the names of the groups."""
    sums: dict[Any, float] = defaultdict(float)
    names: dict[Any, str] = {}
    for hold in holds:
        sums[hold.group] += (hold.end - hold.start) * hold.slots
        names[hold.group] = hold.name
    return dict(sums), names


CHARGE_COLUMNS = {
    "team": "team",
    "project": "project",
    "user": "user",
    "type": "workload_type",
    "model": "model",
    "pool": "pool",
    "host": "gpu__host",
    "gpu": "gpu",
    "workload": "workload",
}


def _charged_and_lost(dimension: str, filters: UsageFilters) -> tuple[dict[Any, Decimal], dict[Any, float]]:
    """Return two dicts by group: the charged money, and the lost slot-seconds.

    Time is lost if a preemption or a hardware fault made its work useless.
    """
    charged: dict[Any, Decimal] = defaultdict(Decimal)
    lost: dict[Any, float] = defaultdict(float)
    column = CHARGE_COLUMNS[dimension]
    lines = filters.charges()
    inside = lines.filter(start__gte=filters.start, end__lte=filters.end)
    grouped = inside.values_list(column, "bucket").annotate(
        amount=filters.sum_of("charged"), seconds=Sum("slot_seconds")
    )
    rows = [(key, bucket, amount, float(seconds)) for key, bucket, amount, seconds in grouped]
    for line in lines.exclude(start__gte=filters.start, end__lte=filters.end).annotate(group_key=F(column)):
        part = overlap_share(line, filters)
        amount = line.charged * Decimal(str(part)) if filters.has_currency(line) else ZERO
        rows.append((line.group_key, line.bucket, amount, line.slot_seconds * part))
    for key, bucket, amount, seconds in rows:
        charged[key] += amount
        if bucket in ("preempted", "hardware_lost"):
            lost[key] += seconds
    return dict(charged), dict(lost)


def _guaranteed_gpus(filters: UsageFilters) -> dict[int, tuple[str, float]]:
    """Return (name, guaranteed GPUs) by team id, for the quotas that match the filters."""
    quotas = Quota.objects.filter(guaranteed_slots__gt=0)
    if filters.pool is not None:
        quotas = quotas.filter(pool=filters.pool)
    if filters.model:
        quotas = quotas.filter(model=filters.model)
    if filters.team is not None:
        quotas = quotas.filter(team=filters.team)
    if filters.teams is not None:
        quotas = quotas.filter(team__in=filters.teams)
    found: dict[int, tuple[str, float]] = {}
    for team, name, slots in quotas.values_list("team_id", "team__name", "guaranteed_slots"):
        found[team] = (name, found.get(team, ("", 0.0))[1] + slots / SLOTS_PER_GPU)
    return found
