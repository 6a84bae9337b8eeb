"""Read the costs of workloads and the spending of teams, with a fixed number of queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db.models import F, Q, Sum

from scheduler.models import Allocation, Team
from telemetry.core.amounts import round_amount
from telemetry.models import Charge, ChargeCell, StatementLine
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
    cells = ChargeCell.objects.filter(**these).values_list(f"{of}_id")
    sums: dict[int, Decimal] = dict(cells.annotate(sum=Sum("charged_cents")))
    unknown = set(Charge.objects.filter(**these, price=None).values_list(f"{of}_id", flat=True))
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
    lines = StatementLine.objects.filter(team__in=teams, statement__month=month)
    return dict(lines.values_list("team_id").annotate(sum=Sum("charged_cents")))


def charge_lines_of(workload: int) -> list[dict[str, Any]]:
    """Return a workload's charges in cents, summed by day, model, bucket and corrected month.

    A bucket says how the time was used. ``corrected`` is the month that the charges correct; None for other
    charges. Charges that were reversed within their month are left out.
    """
    rows = (
        ChargeCell.objects.filter(workload=workload)
        .values("day", bucket=F("line__bucket"), model=F("line__model"), corrected=F("line__corrected_month"))
        .annotate(seconds=Sum("slot_seconds"), amount=Sum("charged_cents"))
        .order_by("day", "bucket", "model", "corrected")
    )
    return [dict(row) for row in rows if row["seconds"] or row["amount"]]
