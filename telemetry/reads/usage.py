"""Where GPU-hours go, who uses them, how long people wait, and what pooling saves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
from django.db import connection
from django.db.models import F, Sum

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from scheduler.models import Quota
from telemetry.core.amounts import CENT, MICRO, ZERO, round_amount, round_parts, split_amount
from telemetry.core.charging import PREEMPTION_END_CODES, SLOTS_PER_GPU
from telemetry.models import Charge
from telemetry.reads.usage_filters import HELD_BUCKETS, USAGE_DIMENSIONS, UsageFilters, to_gpu_hours
from telemetry.reads.usage_rows import USAGE_MEASURES, HeldInterval, UsageRows

HOURS_PER_MONTH = Decimal(730)


@dataclass(frozen=True)
class WaterfallStep:
    """One row of the waterfall. ``key``: unhealthy, maintenance, unallocated, reserved_unused, lost, empty, idle, inefficient,
    unmeasured or productive. ``share`` of the capacity."""

    key: str
    gpu_hours: float
    cost: Decimal
    share: float


@dataclass(frozen=True)
class UsageWaterfall:
    """From capacity to productive use. The steps sum to ``to_gpu_hours`` and, to the cent, to ``cost``.

    ``coverage``: the part of held time that samples speak for; None when nothing was held. ``charged_until``: the last moment it
    knows of within the period, None when nothing of it is charged yet.
    """

    gpu_hours: float
    cost: Decimal
    steps: list[WaterfallStep]
    coverage: float | None
    charged_until: datetime | None

    @property
    def productive_share(self) -> float | None:
        """The productive part of the capacity; None when there was none."""
        return (
            next((step.share for step in self.steps if step.key == "productive"), None)
            if self.gpu_hours
            else None
        )


@dataclass(frozen=True)
class GroupUsage:
    """What one team, project, user, type, model, pool, host or GPU held and did with it. GPU-hours; None is unknown.

    ``used`` is utilisation-weighted, ``busy`` counts time in which anything ran. ``guarantee`` in GPUs, of teams only.
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
        """Mean utilisation of the covered held time, 0 to 1."""
        if self.used is None or not self.coverage or not self.held:
            return None
        return min(1.0, self.used / (self.held * self.coverage))


@dataclass(frozen=True)
class UsageTable:
    """Groups, the most holding first, and their period in hours."""

    groups: list[GroupUsage]
    hours: float


@dataclass(frozen=True)
class UsageSeries:
    """Mean GPUs per step of time for one group. ``busy`` is utilisation-weighted, None where nothing is measured."""

    key: Any
    name: str
    starts: list[datetime]
    held: list[float]
    busy: list[float | None]


@dataclass(frozen=True)
class PoolingSavings:
    """GPUs that teams would have to own to meet their own p95 demand, against the p95 of everyone together. By the hour.

    ``per_month`` is the difference at the mean price of what was charged; None without any price.
    """

    by_team: list[tuple[int, str, float]]
    dedicated: float
    pooled: float
    owned: float
    per_month: Decimal | None

    @property
    def gpus(self) -> float:
        """GPUs fewer."""
        return self.dedicated - self.pooled


@dataclass(frozen=True)
class GroupWaitTimes:
    """How long a group's workloads waited from submission to their first GPU, in seconds; those still waiting are counted apart."""

    key: Any
    name: str
    started: int
    p50: float | None
    p95: float | None
    longest: float | None
    still_waiting: int
    preemptions: int


def usage_waterfall(filters: UsageFilters, reads: UsageRows | None = None) -> UsageWaterfall:
    """Capacity -> what was out of service, free, reserved in vain, lost, held empty or idle or inefficiently -> productive.

    With a filter on holders it begins with what they held or reserved. ``reads``, here and below: rows of the same filters that
    other answers are made of too.
    """
    sums = _bucket_sums(filters)
    use = (reads or UsageRows(filters)).sums_by_model()
    parts: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[Decimal]] = defaultdict(list)
    covered = held_measured = 0.0
    for model in sorted({model for _, model in sums}):
        for bucket, key in (
            ("unhealthy", "unhealthy"),
            ("maintenance", "maintenance"),
            ("unallocated", "unallocated"),
            ("reserved_unused", "reserved_unused"),
            ("preempted", "lost"),
            ("hardware_lost", "lost"),
        ):
            seconds, cost = sums.get((bucket, model), (0.0, ZERO))
            parts[key].append(seconds)
            costs[key].append(cost)
        seconds, cost = sums.get(("used", model), (0.0, ZERO))
        row = use.get(model)
        pieces = _split_used_time(seconds, row)
        weights = [int(piece) for piece in pieces.values()]
        for key, piece, part in zip(
            pieces, pieces.values(), split_amount(round_amount(cost, MICRO), weights, MICRO), strict=True
        ):
            parts[key].append(piece)
            costs[key].append(part)
        if row:
            covered += row["covered_seconds"] or 0.0
        held_measured += sum(sums.get((bucket, model), (0.0, ZERO))[0] for bucket in HELD_BUCKETS)
    order = [key for key in WATERFALL_ORDER if sum(parts[key]) > 0 or key not in ("lost", "unmeasured")]
    total = sum(sum(parts[key]) for key in order)
    cents = round_parts([sum(costs[key], ZERO) for key in order])
    return UsageWaterfall(
        gpu_hours=to_gpu_hours(total),
        cost=sum(cents, ZERO),
        steps=[
            WaterfallStep(key, to_gpu_hours(sum(parts[key])), cost, sum(parts[key]) / total if total else 0.0)
            for key, cost in zip(order, cents, strict=True)
        ],
        coverage=min(1.0, covered / held_measured) if held_measured else None,
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


def _split_used_time(seconds: float, row: dict[str, float | None] | None) -> dict[str, float]:
    """Held slot-seconds in what was done with them; they sum to ``seconds``. What no sample speaks for stays unmeasured."""
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
        # Rollups also hold what was lost, and whole hours at the period's edges: never more than was charged as used.
        total = sum(known.values())
        share = min(1.0, seconds / total) if total else 0.0
    parts = {key: value * share for key, value in known.items()}
    return {"unmeasured": max(0.0, seconds - sum(parts.values())), **parts}


def _bucket_sums(filters: UsageFilters) -> dict[tuple[str, str], tuple[float, Decimal]]:
    """(bucket, model) to (slot-seconds, cost) within the period; a line across its edge counts by its part."""
    sums: dict[tuple[str, str], tuple[float, Decimal]] = {}
    lines = filters.charges()
    inside = lines.filter(start__gte=filters.start, end__lte=filters.end)
    for bucket, model, seconds, cost in inside.values_list("bucket", "model").annotate(
        seconds=Sum("slot_seconds"), amount=Sum("cost")
    ):
        sums[bucket, model] = (float(seconds), cost)
    for line in lines.exclude(start__gte=filters.start, end__lte=filters.end):
        part = _overlap_share(line, filters)
        seconds, cost = sums.get((line.bucket, line.model), (0.0, ZERO))
        sums[line.bucket, line.model] = (
            seconds + line.slot_seconds * part,
            cost + line.cost * Decimal(str(part)),
        )
    return sums


def _overlap_share(line: Charge, filters: UsageFilters) -> float:
    inside = min(line.end, filters.end) - max(line.start, filters.start)
    return inside / (line.end - line.start)


def _charged_until(filters: UsageFilters) -> datetime | None:
    last = filters.charges().order_by("-end").values_list("end", flat=True).first()
    return None if last is None else min(last, filters.end)


def usage_by(dimension: str, filters: UsageFilters, reads: UsageRows | None = None) -> UsageTable:
    """Held, used, borrowed and lost GPU-hours by ``dimension`` (one of DIMENSIONS), guarantee beside them for teams."""
    _check_dimension(dimension)
    reads = reads or UsageRows(filters)
    held, names = _held_slot_seconds(reads.holds(dimension))
    measured = reads.sums(dimension)
    money, lost = _charged_and_lost(dimension, filters)
    borrowed, _ = _held_slot_seconds(hold for hold in reads.holds(dimension) if hold.borrowed)
    guarantees = _guaranteed_gpus(filters) if dimension == "team" else {}
    charges = dict(zip(money, round_parts(list(money.values())), strict=True))
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


def _check_dimension(dimension: str) -> None:
    if dimension not in USAGE_DIMENSIONS:
        raise ValueError(f"dimension: {dimension!r} is not one of {', '.join(USAGE_DIMENSIONS)}")


def _held_slot_seconds(holds: Iterable[HeldInterval]) -> tuple[dict[Any, float], dict[Any, str]]:
    """Held slot-seconds by group, and the groups' names."""
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
    """What was charged, and the slot-seconds that were lost to preemption or hardware, by group."""
    charged: dict[Any, Decimal] = defaultdict(Decimal)
    lost: dict[Any, float] = defaultdict(float)
    column = CHARGE_COLUMNS[dimension]
    lines = filters.charges()
    inside = lines.filter(start__gte=filters.start, end__lte=filters.end)
    grouped = inside.values_list(column, "bucket").annotate(
        amount=Sum("charged"), seconds=Sum("slot_seconds")
    )
    rows = [(key, bucket, amount, float(seconds)) for key, bucket, amount, seconds in grouped]
    for line in lines.exclude(start__gte=filters.start, end__lte=filters.end).annotate(group_key=F(column)):
        part = _overlap_share(line, filters)
        rows.append(
            (line.group_key, line.bucket, line.charged * Decimal(str(part)), line.slot_seconds * part)
        )
    for key, bucket, amount, seconds in rows:
        charged[key] += amount
        if bucket in ("preempted", "hardware_lost"):
            lost[key] += seconds
    return dict(charged), dict(lost)


def _guaranteed_gpus(filters: UsageFilters) -> dict[int, tuple[str, float]]:
    """Guaranteed GPUs of each team, in the pool and model asked about."""
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


def usage_over_time(
    filters: UsageFilters,
    *,
    step: timedelta | None = None,
    dimension: str | None = None,
    reads: UsageRows | None = None,
) -> list[UsageSeries]:
    """Mean held and busy GPUs per ``step`` (a whole number of hours; a suitable one when None), by ``dimension`` or all in one."""
    step = step or _default_step(filters)
    hours = step / timedelta(hours=1)
    if hours < 1 or hours != int(hours):
        raise ValueError(f"step: {step} is not a whole number of hours")
    if dimension is not None:
        _check_dimension(dimension)
    reads = reads or UsageRows(filters)
    edges = _step_edges(filters, step)
    starts = [datetime.fromtimestamp(start, filters.start.tzinfo) for start in edges[:-1]]
    busy = _busy_over_time(reads, edges, dimension)
    length = SLOTS_PER_GPU * step.total_seconds()
    series = []
    for group, name, held in _held_over_time(reads, edges, dimension):
        used = busy.get(group, {})
        known = [used[index] / length if index in used else None for index in range(len(starts))]
        series.append(UsageSeries(key=group, name=name, starts=starts, held=held, busy=known))
    return series


def _held_over_time(
    reads: UsageRows, edges: Sequence[float], dimension: str | None
) -> list[tuple[Any, str, list[float]]]:
    """(group, name, mean GPUs held between each two edges), by name; one group of all without a dimension."""
    holds: dict[Any, list[HeldInterval]] = defaultdict(list)
    for hold in reads.holds(dimension or "pool"):
        holds[hold.group if dimension else None].append(hold)
    length = SLOTS_PER_GPU * (edges[1] - edges[0])
    named = [(group, some[0].name if dimension else "", some) for group, some in holds.items()]
    return [
        (group, name, [value / length for value in _slot_seconds_per_step(some, edges)])
        for group, name, some in sorted(named, key=lambda each: (each[1], str(each[0])))
    ]


def _default_step(filters: UsageFilters) -> timedelta:
    """At most about 400 points."""
    for hours in (1, 2, 3, 6, 12, 24):
        if filters.hours / hours <= 400:
            return timedelta(hours=hours)
    return timedelta(days=max(1, int(filters.hours / 24 / 400) + 1))


def _step_edges(filters: UsageFilters, step: timedelta) -> list[float]:
    """Edges of whole steps since the epoch that cover the period."""
    length = step.total_seconds()
    low, high = filters.start.timestamp(), filters.end.timestamp()
    first, last = int(low // length), int(-(-high // length))
    return [number * length for number in range(first, last + 1)]


def _slot_seconds_per_step(holds: Sequence[HeldInterval], edges: Sequence[float]) -> list[float]:
    """Slot-seconds held between each two edges: the integral of a step function, in one pass over its sorted steps."""
    starts = np.array([hold.start for hold in holds])
    ends = np.array([hold.end for hold in holds])
    slots = np.array([hold.slots for hold in holds], dtype=float)
    moments = np.concatenate([starts, ends])
    changes = np.concatenate([slots, -slots])
    order = np.argsort(moments, kind="stable")
    moments, level = moments[order], np.cumsum(changes[order])
    integral = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(moments))])
    at_edges = np.interp(np.asarray(edges), moments, integral, left=0.0, right=float(integral[-1]))
    return [float(value) for value in np.diff(at_edges)]


def _busy_over_time(
    reads: UsageRows, edges: Sequence[float], dimension: str | None
) -> dict[Any, dict[int, float]]:
    """Group to step number to utilisation-weighted slot-seconds."""
    first, length = edges[0], edges[1] - edges[0]
    found: dict[Any, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for hour in reads.hours(dimension) if dimension else reads.hours_any_dimension():
        if hour.used is not None:
            found[hour.group if dimension else None][int((hour.start - first) // length)] += hour.used
    return found


def pooling_savings(filters: UsageFilters, reads: UsageRows | None = None) -> PoolingSavings:
    """What pooling saves: the sum of each team's own p95 of hourly held GPUs, minus the p95 of all of them together."""
    teams = _held_over_time(reads or UsageRows(filters), _step_edges(filters, timedelta(hours=1)), "team")
    by_team = [(key, name, _percentile(held, 95)) for key, name, held in teams]
    together = [sum(values) for values in zip(*(held for _, _, held in teams), strict=True)]
    dedicated, pooled = sum(demand for _, _, demand in by_team), _percentile(together, 95)
    price = _mean_gpu_hour_price(filters)
    saved = (
        None
        if price is None
        else round_amount(price * HOURS_PER_MONTH * Decimal(str(round(dedicated - pooled, 6))), CENT)
    )
    return PoolingSavings(by_team, dedicated, pooled, _owned_gpus(filters), saved)


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(np.asarray(values), percent)) if values else 0.0


def _mean_gpu_hour_price(filters: UsageFilters) -> Decimal | None:
    """The price of a GPU-hour, weighted by what was held; of the rate card's newest when nothing was charged yet."""
    sums = (
        filters.charges().filter(bucket="used").aggregate(amount=Sum("charged"), seconds=Sum("slot_seconds"))
    )
    if sums["seconds"]:
        return Decimal(sums["amount"]) * SLOT_SECONDS_PER_GPU_HOUR / Decimal(sums["seconds"])
    return None


def _owned_gpus(filters: UsageFilters) -> float:
    """GPUs there are in what was asked about."""
    where, values = "", []
    if filters.pool is not None:
        where, values = " AND h.pool_id = %s", [filters.pool]
    if filters.model:
        where, values = f"{where} AND g.model = %s", [*values, filters.model]  # type: ignore[list-item]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM scheduler_gpu g JOIN scheduler_host h ON h.id = g.host_id"
            f" WHERE (g.retired_at IS NULL OR g.retired_at > %s) AND g.created_at < %s{where}",
            [filters.start, filters.end, *values],
        )
        return float(cursor.fetchone()[0])


WAIT_DIMENSIONS: dict[str, tuple[str, str]] = {
    "team": USAGE_DIMENSIONS["team"],
    "project": USAGE_DIMENSIONS["project"],
    "model": ("coalesce(w.models_wanted[1], '')", "coalesce(w.models_wanted[1], '')"),
    "size": ("w.units * w.hosts", "(w.units * w.hosts)::text"),
    "type": USAGE_DIMENSIONS["type"],
}


def wait_times(by: str, filters: UsageFilters) -> list[GroupWaitTimes]:
    """How long workloads submitted in the period waited for their first GPU, by team, project, model, size or type."""
    if by not in WAIT_DIMENSIONS:
        raise ValueError(f"by: {by!r} is not one of {', '.join(WAIT_DIMENSIONS)}")
    key, name = WAIT_DIMENSIONS[by]
    where, values = filters.sql()
    # Model and pool are asked of the workload here: one that waits has no GPU yet.
    where = where.replace("h.pool_id", "w.pool_id").replace("g.model = %s", "%s = ANY(w.models_wanted)")
    waited = "extract(epoch FROM first.placed_at - w.submitted_at)::float8"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {key}, {name}, count(first.placed_at),"
            f" percentile_cont(0.5) WITHIN GROUP (ORDER BY {waited}), percentile_cont(0.95) WITHIN GROUP (ORDER BY {waited}),"
            f" max({waited}), count(*) FILTER (WHERE w.state = 'queued' AND first.placed_at IS NULL),"
            " sum(coalesce(first.preemptions, 0))::int"
            " FROM scheduler_workload w JOIN scheduler_project p ON p.id = w.project_id JOIN scheduler_team t ON t.id = p.team_id"
            " LEFT JOIN LATERAL (SELECT min(r.placed_at) AS placed_at,"
            "   count(DISTINCT r.attempt) FILTER (WHERE held.end_code = ANY(%s)) AS preemptions"
            "   FROM scheduler_run r JOIN scheduler_allocation held ON held.run_id = r.id"
            "   WHERE r.workload_id = w.id) first ON true"
            f" WHERE w.submitted_at >= %s AND w.submitted_at < %s{where} GROUP BY 1, 2 ORDER BY 2, 1",
            [sorted(PREEMPTION_END_CODES), filters.start, filters.end, *values],
        )
        return [GroupWaitTimes(*row) for row in cursor.fetchall()]


def utilisation_heatmap(filters: UsageFilters, reads: UsageRows | None = None) -> list[list[float | None]]:
    """When GPUs work: mean utilisation of held GPUs by weekday (Monday first) and hour (UTC), 0 to 1; None is unknown."""
    used: dict[tuple[int, int], float] = defaultdict(float)
    covered: dict[tuple[int, int], float] = defaultdict(float)
    for hour in (reads or UsageRows(filters)).hours_any_dimension():
        if hour.used is not None and hour.covered:
            at = datetime.fromtimestamp(hour.start, UTC)
            used[at.weekday(), at.hour] += hour.used
            covered[at.weekday(), at.hour] += hour.covered
    cells: list[list[float | None]] = [[None] * 24 for _ in range(7)]
    for (day, of_day), seconds in covered.items():
        cells[day][of_day] = min(1.0, used[day, of_day] / seconds)
    return cells
