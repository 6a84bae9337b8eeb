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
from typing import Any

from django.db.models import Sum

from scheduler.models import Pool
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


def reconcile_costs(month: date) -> list[CostReconciliation]:
    """Return the reconciliation of each pool that has GPUs or charges in the month, in order of pool name.

    A pool has one row per currency, that of the month first. The left side is summed from statement lines.
    Before the close, a check compares these with the charges.
    """
    own = currency_of_month(month)
    rows: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    lines = StatementLine.objects.filter(statement__month=month, shared_out=False, pool__isnull=False)
    for row in lines.values("pool", "currency", "bucket", "idle_share").annotate(
        exact_cost=Sum("cost"),
        exact_charged=Sum("charged"),
        cents_of_cost=Sum("cost_cents"),
        cents_of_charge=Sum("charged_cents"),
    ):
        rows[row["pool"], row["currency"]].append(dict(row))
    costs = {(pool, own): cost for pool, cost in asset_cost_by_pool(month).items()}
    names = dict(
        Pool.with_removed.filter(pk__in={pool for pool, _ in {*rows, *costs}}).values_list("pk", "name")
    )
    return [
        CostReconciliation(
            pool=pool,
            pool_name=names[pool],
            currency=currency,
            exact=_terms(rows[pool, currency], "exact_charged", "exact_cost"),
            cents=_terms(rows[pool, currency], "cents_of_charge", "cents_of_cost"),
            cost=costs.get((pool, currency), ZERO),
        )
        for pool, currency in sorted(
            {*rows, *costs}, key=lambda key: (names[key[0]], key[0], key[1] != own, key[1])
        )
    ]


def _terms(rows: Iterable[dict[str, Any]], charged: str, cost: str) -> CostTerms:
    """Return the terms of one pool. ``charged`` and ``cost`` name the columns of ``rows`` to add."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        term = _term_of(row["bucket"], row["idle_share"])
        sums[term] += row[cost]
        if term == "charged":
            sums["price"] += row[charged]
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


def asset_cost_by_pool(month: date) -> dict[int, Decimal]:
    """Return the cost of each pool's GPUs over the charged part of the month, by pool id.

    The cost is computed from the rate card, without the charge lines.
    """
    start, end = month_bounds(month)
    gpus = list(
        ChargedUntil.objects.filter(since__lt=end, until__gt=start).values_list(
            "gpu__pool", "gpu__model", "since", "until"
        )
    )
    rates = load_rates({(pool, model) for pool, model, _, _ in gpus})
    costs: dict[int, Decimal] = defaultdict(Decimal)
    for pool, model, since, until in gpus:
        costs[pool] += asset_cost(rates[pool, model], max(since, start), min(until, end))
    return dict(costs)
