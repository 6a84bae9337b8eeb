"""Read the costs of workloads and the spending of teams, with a fixed number of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db.models import F, Q, QuerySet, Sum, Value

from scheduler.models import Allocation, Team
from telemetry.core.amounts import round_amount
from telemetry.core.currencies import smallest_unit
from telemetry.models import Charge, ChargeCell, StatementLine
from telemetry.reads.prices import CurrentPrices, load_current_prices

Prices = CurrentPrices
CurrencySums = dict[str, Decimal]  # amounts by currency

prices = load_current_prices


def rounded_sum(amounts: Iterable[Decimal | None], currency: str) -> Decimal | None:
    """Return the sum rounded to the decimals of a currency; None if one of the amounts is None (unknown)."""
    total = Decimal(0)
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return round_amount(total, smallest_unit(currency))


def workload_costs(
    ids: Collection[int], now: datetime, card: Prices, *, of: str = "workload"
) -> dict[int, CurrencySums]:
    """Return the cost of each workload so far, by id. Time that is not charged yet has the current price.

    With ``of="workload__array"``, return the cost of each array, by its id. A workload that held units
    without a price is absent from the result, because its cost is unknown.
    """
    these = {f"{of}__in": ids}
    sums, unknown = _charged_so_far(these, f"{of}_id")
    held = Allocation.objects.filter(**these).filter(
        Q(period__upper_inf=True)
        | Q(unit__gpu__charged__isnull=True)
        | Q(period__endswith__gt=F("unit__gpu__charged__until"))
    )
    for pk, seconds, price in _uncharged_time(held, f"{of}_id", now, card):
        if price is None:
            unknown.add(pk)
        elif seconds > 0:
            sums[pk][card.currency] = sums[pk].get(card.currency, Decimal(0)) + price * seconds / 3600
    return {
        pk: {currency: round_amount(amount, smallest_unit(currency)) for currency, amount in costs.items()}
        for pk, costs in sums.items()
        if pk not in unknown
    }


def _charged_so_far(these: Mapping[str, Any], key: str) -> tuple[dict[int, CurrencySums], set[int]]:
    """Return the charged amounts by ``key``, and the keys with a charge line that has no price."""
    cells = ChargeCell.objects.filter(**these).values_list(key, "line__currency")
    unpriced = Charge.objects.filter(**these, price=None).values_list(key, Value("")).distinct()
    sums: dict[int, CurrencySums] = defaultdict(dict)
    unknown = set()
    rows = cells.annotate(sum=Sum("charged_cents")).union(unpriced.annotate(sum=Value(Decimal(0))), all=True)
    for pk, currency, amount in sorted(rows):
        if currency:
            sums[pk][currency] = amount
        else:
            unknown.add(pk)
    return sums, unknown


def _uncharged_time(
    held: QuerySet[Allocation], key: str, now: datetime, card: Prices
) -> Iterator[tuple[int, int, Decimal | None]]:
    """Yield (key, seconds, price per hour) of the uncharged time of each allocation."""
    columns = (
        key,
        "period",
        "slots",
        "reservation_id",
        "workload__priority",
        "workload__type",
        "unit__gpu__model",
        "unit__gpu__pool_id",
        "unit__gpu__charged__until",
    )
    for pk, period, slots, reservation, priority, kind, model, pool, until in held.values_list(*columns):
        start = max(period.lower, until) if until else period.lower
        size, in_reservation = slots.upper - slots.lower, reservation is not None
        price = card.of_work(pool, model, (priority, kind), size, in_reservation=in_reservation)
        yield pk, int((min(period.upper or now, now) - start).total_seconds()), price


def team_spending(teams: Iterable[Team], month: date) -> dict[int, Decimal]:
    """Return the sum of the charges of each team in a month so far, by team id, in the month's currency."""
    lines = StatementLine.objects.filter(team__in=teams, statement__month=month)
    lines = lines.filter(currency=F("statement__currency"))
    return dict(lines.values_list("team_id").annotate(sum=Sum("charged_cents")))


def charge_lines_of(workload: int) -> list[dict[str, Any]]:
    """Return a workload's charges in cents, summed by day, model, bucket, corrected month and
    currency.

    A bucket says how the time was used. ``corrected`` is the month that the charges correct; None for other
    charges. Charges that were reversed within their month are left out.
    """
    rows = (
        ChargeCell.objects.filter(workload=workload)
        .values(
            "day",
            bucket=F("line__bucket"),
            model=F("line__model"),
            corrected=F("line__corrected_month"),
            currency=F("line__currency"),
        )
        .annotate(seconds=Sum("slot_seconds"), amount=Sum("charged_cents"))
        .order_by("day", "bucket", "model", "corrected", "currency")
    )
    return [dict(row) for row in rows if row["seconds"] or row["amount"]]
