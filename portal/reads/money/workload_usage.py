"""What workloads use and cost, for many of them at once. Unknown is None, never zero."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db.models import Count, F, Max, Min, Q, Sum
from django.db.models.functions import Trunc

from scheduler.models import Allocation, Team
from telemetry import reads as telemetry
from telemetry.core.amounts import round_amount
from telemetry.models import Charge, Rollup

UTILISATION_WINDOW = timedelta(hours=2)
UTILISATION_STEP = timedelta(minutes=2)


@dataclass(frozen=True)
class WorkloadUtilisation:
    """Shares of 1, evenly spaced over the last two hours, and the latest reading. None is unknown."""

    values: list[float | None] = field(default_factory=list)
    latest: float | None = None
    sm_active: float | None = None


Prices = telemetry.CurrentPrices
prices = telemetry.load_current_prices


def rounded_sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """The rounded sum; None when a part of it is unknown."""
    total = Decimal(0)
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return round_amount(total)


def workload_costs(
    ids: Collection[int], now: datetime, card: Prices, *, of: str = "workload"
) -> dict[int, Decimal]:
    """What each has cost so far: its charges, and what it held since they were last written, at today's price. ``ids`` are
    those of workloads, or of whole arrays (``of="workload__array"``).

    One that held what has no price is left out: what it costs is unknown, not less.
    """
    these = {f"{of}__in": ids}
    lines = Charge.objects.filter(**these).values_list(f"{of}_id")
    rows = list(lines.annotate(sum=Sum("charged"), unpriced=Count("pk", filter=Q(price=None))))
    sums: dict[int, Decimal] = {pk: Decimal(amount) for pk, amount, _ in rows}
    unknown = {pk for pk, _, unpriced in rows if unpriced}
    held = Allocation.objects.filter(**these).filter(
        Q(period__upper_inf=True)
        | Q(unit__gpu__charged__isnull=True)
        | Q(period__endswith__gt=F("unit__gpu__charged__until"))
    )
    columns = (
        f"{of}_id",
        "period",
        "slots",
        "unit__gpu__model",
        "unit__gpu__host__pool_id",
        "unit__gpu__charged__until",
    )
    for pk, period, slots, model, pool, charged_until in held.values_list(*columns):
        start = max(period.lower, charged_until) if charged_until else period.lower
        seconds = int((min(period.upper or now, now) - start).total_seconds())
        price = card.of(pool, model, slots.upper - slots.lower)
        if price is None:
            unknown.add(pk)
        elif seconds > 0:
            sums[pk] = sums.get(pk, Decimal(0)) + price * seconds / 3600
    return {pk: round_amount(amount) for pk, amount in sums.items() if pk not in unknown}


def utilisation_of(
    workloads: Collection[int], hosts: Collection[int], now: datetime
) -> dict[int, WorkloadUtilisation]:
    """Utilisation of each in the last two hours, from rollups of a minute, and last readings of their ``hosts``: two queries."""
    if not workloads:
        return {}
    since = (now - UTILISATION_WINDOW).replace(second=0, microsecond=0)
    rows = (
        Rollup.objects.filter(
            resolution=Rollup.Resolution.MINUTE, bucket__gte=since, allocation__workload__in=workloads
        )
        .annotate(minute=Trunc("bucket", "minute"))
        .values_list("allocation__workload_id", "minute")
        .annotate(used=Sum("utilisation_seconds"), covered=Sum("covered_seconds"))
        .order_by("minute")
    )
    gathered: dict[int, list[tuple[datetime, float | None, float]]] = {}
    for workload, minute, used, covered in rows:
        gathered.setdefault(workload, []).append((minute, used, covered or 0.0))
    readings = latest_utilisation(workloads, hosts, now)
    return {
        pk: WorkloadUtilisation(_values(gathered.get(pk, []), since), *readings.get(pk, (None, None)))
        for pk in workloads
    }


def latest_utilisation(
    workloads: Collection[int], hosts: Collection[int], now: datetime
) -> dict[int, tuple[float | None, float | None]]:
    """By workload: the mean of its units' last utilisation, and of their SM activity, as shares of 1."""
    by_workload: dict[int, list[telemetry.LiveUnitReading]] = {}
    for unit in telemetry.live_unit_readings(now, hosts=hosts):
        if unit.workload in workloads and unit.workload is not None:
            by_workload.setdefault(unit.workload, []).append(unit)
    return {
        pk: (
            _mean(u.utilisation if u.utilisation is not None else u.sm_active for u in units),
            _mean(u.sm_active for u in units),
        )
        for pk, units in by_workload.items()
    }


def _mean(per_cent: Iterable[float | None]) -> float | None:
    known = [value for value in per_cent if value is not None]
    return min(1.0, sum(known) / len(known) / 100) if known else None


def _values(readings: Sequence[tuple[datetime, float | None, float]], since: datetime) -> list[float | None]:
    steps = int(UTILISATION_WINDOW / UTILISATION_STEP)
    used: list[float] = [0.0] * steps
    covered: list[float] = [0.0] * steps
    for minute, used_seconds, covered_seconds in readings:
        if used_seconds is not None and covered_seconds > 0:
            step = min(steps - 1, int((minute - since) / UTILISATION_STEP))
            used[step] += used_seconds
            covered[step] += covered_seconds
    values = [min(1.0, u / c) if c else None for u, c in zip(used, covered, strict=True)]
    # The newest step is often not rolled up yet: it is not a gap in the telemetry.
    while values and values[-1] is None and len(values) > steps - 2:
        values.pop()
    return values


def utilisation_history(workload: int, now: datetime) -> list[tuple[datetime, float | None, float | None]]:
    """(hour or minute, share of utilisation, memory in MiB at its highest) over a workload's life, for its chart.

    By minute for the last six hours of it, else by hour.
    """
    first = Allocation.objects.filter(workload=workload).aggregate(first=Min("period__startswith"))["first"]
    resolution = (
        Rollup.Resolution.MINUTE
        if first is None or now - first < timedelta(hours=6)
        else Rollup.Resolution.HOUR
    )
    rows = (
        Rollup.objects.filter(resolution=resolution, allocation__workload=workload)
        .values_list("bucket")
        .annotate(
            used=Sum("utilisation_seconds"), covered=Sum("covered_seconds"), memory=Max("memory_used_max_mib")
        )
        .order_by("-bucket")[:1500]
    )
    found = [
        (bucket, used / covered if used is not None and covered else None, memory)
        for bucket, used, covered, memory in rows
    ]
    return found[::-1]


def team_spending(teams: Iterable[Team], month: date) -> dict[int, Decimal]:
    """What each team was charged in a month so far."""
    rows = (
        Charge.objects.filter(team__in=teams, month=month).values_list("team_id").annotate(sum=Sum("charged"))
    )
    return {team: round_amount(Decimal(amount)) for team, amount in rows}


def charge_lines_of(workload: int) -> list[dict[str, Any]]:
    """A workload's charge lines by day and bucket."""
    rows = (
        Charge.objects.filter(workload=workload)
        .annotate(day=Trunc("start", "day"))
        .values("day", "bucket", "model", "reversal")
        .annotate(slot_seconds=Sum("slot_seconds"), used=Sum("used_slot_seconds"), amount=Sum("charged"))
        .order_by("day", "bucket", "reversal")
    )
    return [dict(row) for row in rows]
