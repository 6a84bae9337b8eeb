"""Reconcile charges with the cost of the GPUs, per pool, month and currency.

This equation must hold exactly, to the last decimal of the ledger:

``charged - margin + uncharged + idle + overhead == cost``

- ``charged``: the charges to teams, with the idle time that they share.
- ``margin``: the price of the charged lines less their cost. A discount makes it negative.
- ``uncharged``: the cost of work that was lost to preemption or hardware.
- ``idle``: the cost of time in which nobody held the GPU, if teams do not share it.
- ``overhead``: the cost of unhealthy time and maintenance.
- ``cost``: the cost of the GPUs, computed from the rate card and the charged time of each GPU. The charge
  lines are not used.

A month has one currency. A correction of a month with another currency has a row of its own. Its cost is 0,
because a correction only moves cost between payers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

from django.contrib.postgres.fields import ArrayField
from django.db.models import BigIntegerField, Count, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Greatest, Least

from telemetry.core.amounts import ZERO, round_amount
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.core.charge_pieces import asset_cost
from telemetry.core.currencies import smallest_unit
from telemetry.models import ChargeBucketChoices, ChargedUntil, StatementLine
from telemetry.money.billing_months import month_bounds
from telemetry.money.pricing.billing_currencies import currency_of_month
from telemetry.money.rate_card import load_rates

UNCHARGED_BUCKETS = (ChargeBucketChoices.PREEMPTED, ChargeBucketChoices.HARDWARE_LOST)
IDLE_BUCKETS = (ChargeBucketChoices.UNALLOCATED,)
OVERHEAD_BUCKETS = (ChargeBucketChoices.UNHEALTHY, ChargeBucketChoices.MAINTENANCE)


@dataclass(frozen=True)
class CostTerms:
    """The terms of the left side of the module's equation."""

    charged: Decimal = ZERO
    margin: Decimal = ZERO
    uncharged: Decimal = ZERO
    idle: Decimal = ZERO
    overhead: Decimal = ZERO

    @property
    def total(self) -> Decimal:
        """Return charged - margin + uncharged + idle + overhead."""
        return self.charged - self.margin + self.uncharged + self.idle + self.overhead


@dataclass(frozen=True)
class CostReconciliation:
    """The reconciliation of one pool, month and currency.

    ``exact`` has the decimals of the ledger, and ``cents`` are sums of the cents of the statement lines.
    ``cost`` is the exact right side of the equation.
    """

    pool: int
    pool_name: str
    currency: str
    exact: CostTerms
    cents: CostTerms
    cost: Decimal

    @property
    def total(self) -> Decimal:
        return self.exact.total

    @property
    def holds(self) -> bool:
        """Return True if both sides of the equation are equal to the last decimal."""
        return self.exact.total == self.cost


def reconciliation_in_cents(pools: Sequence[CostReconciliation]) -> list[dict[str, str]]:
    """Return one row per pool, with amounts in cents, as strings.

    All terms are sums of the cents of statement lines. If the equation holds for the exact amounts, it also
    holds for the row. Otherwise the cost shows the difference.
    """
    return [
        {
            "pool": pool.pool_name,
            "currency": pool.currency,
            "charged": str(pool.cents.charged),
            "margin": str(pool.cents.margin),
            "uncharged": str(pool.cents.uncharged),
            "idle": str(pool.cents.idle),
            "overhead": str(pool.cents.overhead),
            "cost": str(pool.cents.total - _imbalance_in_cents(pool)),
        }
        for pool in pools
    ]


def _imbalance_in_cents(pool: CostReconciliation) -> Decimal:
    """Return the left side of the equation minus the right side, rounded to cents.

    If the sides differ, the result is at least one cent in absolute value, so that rounding cannot hide the
    difference.
    """
    by, cent = pool.total - pool.cost, smallest_unit(pool.currency)
    rounded = round_amount(by, cent)
    return ZERO if pool.holds else max(cent, rounded) if by > 0 else min(-cent, rounded)


class LineSums(NamedTuple):
    """The sums of the statement lines of a month with the same pool, currency, bucket and kind.

    ``has_cost_centre`` is False for lines without a cost centre. ``pool`` is None for adjustments. ``is_own``
    is False for corrections of earlier months. ``lines`` is the number of lines, and ``not_free`` the number
    of those with a charge. ``cost_centres`` and ``charged_cost_centres`` are numbers of the whole month, the
    same in each row (see ``LineCounts``).
    """

    has_cost_centre: bool
    pool: int | None
    pool_name: str | None
    currency: str
    bucket: str
    idle_share: bool
    shared_out: bool
    is_own: bool
    slot_seconds: int
    cost: Decimal
    charged: Decimal
    cost_cents: Decimal
    charged_cents: Decimal
    covered_slot_seconds: float
    lines: int
    not_free: int
    cost_centres: int
    charged_cost_centres: int


def month_line_sums(month: date) -> list[LineSums]:
    """Return the sums of the statement lines of a month. Runs one query."""
    lines = StatementLine.objects.filter(statement__month=month).order_by()
    groups = lines.annotate(has_cost_centre=~Q(cost_centre=""), is_own=Q(corrected_month=None)).values_list(
        "has_cost_centre", "pool", "pool__name", "currency", "bucket", "idle_share", "shared_out", "is_own"
    )
    columns = ("slot_seconds", "cost", "charged", "cost_cents", "charged_cents")
    rows = groups.annotate(
        **{f"{name}_sum": Sum(name) for name in columns},
        covered_sum=Sum("covered_slot_seconds", default=0.0),
        lines=Count("pk"),
        not_free=Count("pk", filter=~Q(charged_cents=0)),
        cost_centres=_CostCentreCounts(_cost_centres_of(lines)),
    )
    return [LineSums(*row, *counts) for *row, counts in rows]


def _cost_centres_of(lines: QuerySet[StatementLine]) -> QuerySet[Any, Any]:
    """Return the cost centres of a month's lines, each with the number of its lines that it pays."""
    pays = (Q(bucket__in=CHARGED_BUCKETS) | Q(idle_share=True)) & ~Q(cost_centre="")
    shown = lines.filter(shared_out=False).values("cost_centre")
    return shown.annotate(paid_lines=Count("pk", filter=pays)).values("cost_centre", "paid_lines")


class _CostCentreCounts(Subquery):
    """The number of cost centres, and the number of those that pay, as an array.

    The lines are read once and hashed. COUNT(DISTINCT) would read and sort them for each number.
    """

    template = (
        "(SELECT ARRAY[count(*), count(*) FILTER (WHERE paid_lines > 0)] FROM (%(subquery)s) AS counted)"
    )
    output_field = ArrayField(BigIntegerField())


def reconcile_costs(
    month: date, own: str | None = None, lines: Iterable[LineSums] | None = None
) -> list[CostReconciliation]:
    """Return the reconciliation of each pool that has GPUs or charges in the month, in order of pool name.

    A pool has one row per currency, that of the month first. The left side is summed from statement lines.
    Before the close, a check compares these with the charges. ``own`` is the currency of the month, and
    ``lines`` are its ``month_line_sums``, if the caller has them.
    """
    own = own or currency_of_month(month)
    names: dict[int, str] = {}
    rows: dict[tuple[int, str], list[LineSums]] = defaultdict(list)
    for line in month_line_sums(month) if lines is None else lines:
        if line.pool is not None and not line.shared_out:
            rows[line.pool, line.currency].append(line)
            names[line.pool] = line.pool_name or ""
    costs: dict[tuple[int, str], Decimal] = {}
    for pool, name, cost in _asset_costs(month):
        costs[pool, own], names[pool] = cost, name
    return [
        CostReconciliation(
            pool=pool,
            pool_name=names[pool],
            currency=currency,
            exact=_terms((each.bucket, each.idle_share, each.charged, each.cost) for each in found),
            cents=_terms(
                (each.bucket, each.idle_share, each.charged_cents, each.cost_cents) for each in found
            ),
            cost=costs.get((pool, currency), ZERO),
        )
        for pool, currency in sorted(
            {*rows, *costs}, key=lambda key: (names[key[0]], key[0], key[1] != own, key[1])
        )
        for found in [rows[pool, currency]]
    ]


def _terms(lines: Iterable[tuple[str, bool, Decimal, Decimal]]) -> CostTerms:
    """Return the terms of one pool. ``lines`` are (bucket, ``idle_share``, charge, cost)."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for bucket, idle_share, charged, cost in lines:
        term = _term_of(bucket, idle_share)
        sums[term] += cost
        if term == "charged":
            sums["price"] += charged
    return CostTerms(
        charged=sums["price"],
        margin=sums["price"] - sums["charged"],
        uncharged=sums["uncharged"],
        idle=sums["idle"],
        overhead=sums["overhead"],
    )


def _term_of(bucket: str, idle_share: bool) -> str:
    """Return the term of the equation to which a statement line belongs. Teams pay for their idle shares."""
    if idle_share or bucket in CHARGED_BUCKETS:
        return "charged"
    if bucket in UNCHARGED_BUCKETS:
        return "uncharged"
    return "idle" if bucket in IDLE_BUCKETS else "overhead"


def _asset_costs(month: date) -> list[tuple[int, str, Decimal]]:
    """Return the id and the name of each pool, and the cost of its GPUs over the charged part of the month.

    The cost is computed from the rate card, without the charge lines.
    """
    start, end = month_bounds(month)
    # Most GPUs of a pool are charged for the same part of the month.
    gpus = list(
        ChargedUntil.objects.filter(since__lt=end, until__gt=start)
        .order_by()
        .values_list(
            "gpu__pool",
            "gpu__pool__name",
            "gpu__model",
            Greatest("since", Value(start)),
            Least("until", Value(end)),
        )
        .annotate(gpus=Count("pk"))
    )
    rates = load_rates({(pool, model) for pool, _, model, *_ in gpus})
    names = {pool: name for pool, name, *_ in gpus}
    costs: dict[int, Decimal] = defaultdict(Decimal)
    for pool, _, model, since, until, count in gpus:
        costs[pool] += count * asset_cost(rates[pool, model], since, until)
    return [(pool, names[pool], cost) for pool, cost in costs.items()]
