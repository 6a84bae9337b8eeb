"""Return usage by team, project, user, GPU model or another dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR, SLOTS_PER_GPU
from scheduler.models import Quota
from telemetry.core.amounts import ZERO, round_parts
from telemetry.core.currencies import smallest_unit
from telemetry.reads.usage.charge_sums import ChargeSums, charge_sums, shared_dimensions
from telemetry.reads.usage_filters import CUBE_DIMENSIONS, USAGE_DIMENSIONS, UsageFilters, to_gpu_hours
from telemetry.reads.usage_rows import USAGE_MEASURES, HeldInterval, UsageRows


@dataclass(frozen=True)
class GroupUsage:
    """The GPU-hours that one group held, and their use. None means unknown.

    A group is a team, project, user, type, model, pool, host, GPU or workload. Fields without another unit
    are in GPU-hours. ``known`` is the time whose utilisation is known, ``used`` is this time weighted by
    utilisation, and ``busy`` is the time with a utilisation of 5 % or more.
    ``guarantee`` is a number of GPUs, for teams only. ``borrowed`` is unknown for a long period.
    """

    key: Any
    name: str
    held: float
    mean_gpus: float
    known: float | None
    used: float | None
    busy: float | None
    idle: float | None
    empty: float | None
    sm_active: float | None
    tensor_active: float | None
    borrowed: float | None
    lost: float
    guarantee: float | None
    coverage: float | None
    energy_kwh: float | None
    charged: Decimal

    @property
    def utilisation(self) -> float | None:
        """Return the mean utilisation of the measured held time, 0 to 1; None if unknown."""
        return min(1.0, self.used / self.known) if self.used is not None and self.known else None

    @property
    def known_held(self) -> float:
        """Return the part of the held GPU-hours whose utilisation is known.

        Rollups have whole hours, so ``known`` may be longer than the held part of the period.
        """
        return min(self.held, self.known or 0.0) if self.used is not None else 0.0


@dataclass(frozen=True)
class UsageTable:
    """The groups in order of held GPU-hours, highest first, and the length of the period in hours."""

    groups: list[GroupUsage]
    hours: float


def usage_by(dimension: str, filters: UsageFilters, reads: UsageRows | None = None) -> UsageTable:
    """Return held, used, borrowed and lost GPU-hours by ``dimension`` (a key of USAGE_DIMENSIONS)."""
    check_dimension(dimension)
    money, lost = _charged_and_lost(dimension, _charge_lines(dimension, filters, reads))
    reads = reads or UsageRows(filters)
    measured = reads.sums(dimension)
    held, names, borrowed = _held_and_borrowed(dimension, filters, reads)
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
                known=_known(hours),
                mean_gpus=to_gpu_hours(seconds) / filters.hours,
                used=hours["utilisation_seconds"],
                busy=hours["busy_seconds"],
                idle=hours["idle_seconds"],
                empty=hours["empty_seconds"],
                sm_active=hours["sm_active_seconds"],
                tensor_active=hours["tensor_active_seconds"],
                borrowed=_known_hours(borrowed, key),
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


def mean_gpus_by(dimension: str, reads: UsageRows) -> dict[Any, float]:
    """Return the mean held GPUs of each group of ``dimension`` in the period of ``reads``."""
    check_dimension(dimension)
    held, _, _ = _held_and_borrowed(dimension, reads.filters, reads)
    return {key: to_gpu_hours(seconds) / reads.filters.hours for key, seconds in held.items()}


def _charge_lines(dimension: str, filters: UsageFilters, reads: UsageRows | None) -> list[ChargeSums]:
    if reads is not None and dimension in shared_dimensions(filters):
        return reads.charges
    return charge_sums([filters], (dimension,))[0]


def _known(hours: dict[str, float | None]) -> float | None:
    """Return the covered hours whose utilisation is known; None without samples."""
    covered = hours["covered_seconds"]
    return None if covered is None else covered - (hours["utilisation_unknown_seconds"] or 0.0)


def _known_hours(sums: dict[Any, float] | None, key: Any) -> float | None:
    return None if sums is None else to_gpu_hours(sums.get(key))


def _held_and_borrowed(
    dimension: str, filters: UsageFilters, reads: UsageRows
) -> tuple[dict[Any, float], dict[Any, str], dict[Any, float] | None]:
    """Return by group: held slot-seconds, names, and borrowed slot-seconds; None if these are unknown."""
    if filters.is_long:
        check_long_dimension(dimension)
        measured = reads.sums(dimension)
        held = {key: row["held_seconds"] or 0.0 for key, row in measured.items()}
        return held, {key: row["name"] for key, row in measured.items()}, None
    held, names = _held_slot_seconds(reads.holds(dimension))
    borrowed, _ = _held_slot_seconds(hold for hold in reads.holds(dimension) if hold.borrowed)
    return held, names, borrowed


def check_dimension(dimension: str) -> None:
    """Raise ValueError unless ``dimension`` is a key of USAGE_DIMENSIONS."""
    if dimension not in USAGE_DIMENSIONS:
        raise ValueError(f"dimension: {dimension!r} is not one of {', '.join(USAGE_DIMENSIONS)}")


def check_long_dimension(dimension: str) -> None:
    """Raise ValueError unless cubes have the dimension. A long period is read from cubes alone."""
    if dimension not in CUBE_DIMENSIONS:
        allowed = ", ".join(sorted(CUBE_DIMENSIONS))
        raise ValueError(f"dimension: {dimension!r} is not one of {allowed}, for over 62 days")


def _held_slot_seconds(holds: Iterable[HeldInterval]) -> tuple[dict[Any, float], dict[Any, str]]:
    """Return two dicts: the held slot-seconds by group, and the names of the groups."""
    sums: dict[Any, float] = defaultdict(float)
    names: dict[Any, str] = {}
    for hold in holds:
        sums[hold.group] += (hold.end - hold.start) * hold.slots
        names[hold.group] = hold.name
    return dict(sums), names


def _charged_and_lost(
    dimension: str, charges: Iterable[ChargeSums]
) -> tuple[dict[Any, Decimal], dict[Any, float]]:
    """Return two dicts by group: the charged money, and the lost slot-seconds.

    Time is lost if a preemption or a hardware fault made its work useless.
    """
    charged: dict[Any, Decimal] = defaultdict(Decimal)
    lost: dict[Any, float] = defaultdict(float)
    for part in charges:
        key = part.keys[dimension]
        charged[key] += part.charged
        if part.bucket in ("preempted", "hardware_lost"):
            lost[key] += part.seconds
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
