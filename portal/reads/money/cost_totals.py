"""Read the costs of workloads and the spending of teams, with a fixed number of queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db.models import Count, F, Q, Sum
from django.db.models.functions import Trunc

from scheduler.models import Allocation, Team
from telemetry.core.amounts import round_amount
from telemetry.models import Charge
from telemetry.reads.prices import CurrentPrices, load_current_prices

Prices = CurrentPrices


prices = load_current_prices


def rounded_sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Return the rounded sum; None if one of the amounts is None (unknown)."""
    total = Decimal(0)
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return round_amount(total)


def workload_costs(
    ids: Collection[int], now: datetime, card: Prices, *, of: str = "workload"
) -> dict[int, Decimal]:
    """Return the cost of each workload so far, by id. Time that is not charged yet has the current price.

    With ``of="workload__array"``, the ids are ids of arrays instead of workloads. A workload that held units
    without a price is absent from the result, because its cost is unknown.
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
        "unit__gpu__pool_id",
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


def team_spending(teams: Iterable[Team], month: date) -> dict[int, Decimal]:
    """Return the sum of the charges of each team in a month so far, by team id."""
    rows = (
        Charge.objects.filter(team__in=teams, month=month).values_list("team_id").annotate(sum=Sum("charged"))
    )
    return {team: round_amount(Decimal(amount)) for team, amount in rows}


def charge_lines_of(workload: int) -> list[dict[str, Any]]:
    """Return a workload's charges, summed by day, model and bucket.

    A bucket says how the time was used. Reversed charges have sums of their own.
    """
    rows = (
        Charge.objects.filter(workload=workload)
        .annotate(day=Trunc("start", "day"))
        .values("day", "bucket", "model", "reversal")
        .annotate(
            slot_seconds=Sum("slot_seconds"), used=Sum("evidence__used_slot_seconds"), amount=Sum("charged")
        )
        .order_by("day", "bucket", "reversal")
    )
    return [dict(row) for row in rows]
