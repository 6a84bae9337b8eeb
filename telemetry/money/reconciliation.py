"""Reconcile charges with the cost of the GPUs, per pool and month.

This equation must hold exactly, to the last decimal of the ledger:

``charged - margin + uncharged + idle + overhead == cost``

- ``charged``: the charges to teams.
- ``margin``: the price of the charged lines less their cost. A discount makes it negative.
- ``uncharged``: the cost of work that was lost to preemption or hardware.
- ``idle``: the cost of time in which nobody held the GPU.
- ``overhead``: the cost of unhealthy time and maintenance.
- ``cost``: the cost of the GPUs, computed from the rate card and the charged time of each GPU. The charge
  lines are not used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from django.db.models import Sum

from scheduler.models import Pool
from telemetry.core.amounts import CENT, ZERO, round_amount, round_parts, round_parts_to_total
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.core.charge_pieces import asset_cost
from telemetry.models import Charge, ChargeBucketChoices, ChargedUntil
from telemetry.money.billing_months import month_bounds
from telemetry.money.rate_card import load_rates

UNCHARGED_BUCKETS = (ChargeBucketChoices.PREEMPTED, ChargeBucketChoices.HARDWARE_LOST)
IDLE_BUCKETS = (ChargeBucketChoices.UNALLOCATED,)
OVERHEAD_BUCKETS = (ChargeBucketChoices.UNHEALTHY, ChargeBucketChoices.MAINTENANCE)


@dataclass(frozen=True)
class CostReconciliation:
    """The reconciliation of one pool and month. Amounts have the decimals of the ledger.

    ``holds`` is True if both sides of the module's equation are equal.
    """

    pool: int
    pool_name: str
    charged: Decimal
    margin: Decimal
    uncharged: Decimal
    idle: Decimal
    overhead: Decimal
    cost: Decimal

    @property
    def total(self) -> Decimal:
        """Return the left side of the equation: charged - margin + uncharged + idle + overhead."""
        return self.charged - self.margin + self.uncharged + self.idle + self.overhead

    @property
    def holds(self) -> bool:
        return self.total == self.cost


def reconciliation_in_cents(pools: Sequence[CostReconciliation]) -> list[dict[str, str]]:
    """Return one row per pool, with amounts rounded to cents, as strings.

    If the equation holds for the exact amounts, it also holds for the rounded amounts of the row. The sums of
    ``charged`` and ``cost`` over the pools equal the month's totals (``statement_totals``) to the cent. The
    other columns absorb the rounding difference.
    """
    charged = round_parts([pool.charged for pool in pools])
    costs = round_parts([pool.cost for pool in pools])
    return [_reconciliation_line_in_cents(*each) for each in zip(pools, charged, costs, strict=True)]


def _imbalance_in_cents(pool: CostReconciliation) -> Decimal:
    """Return the left side of the equation minus the right side, rounded to cents.

    If the sides differ, the result is at least one cent in absolute value, so that rounding cannot hide the
    difference.
    """
    by = pool.total - pool.cost
    return ZERO if pool.holds else max(CENT, round_amount(by)) if by > 0 else min(-CENT, round_amount(by))


def _reconciliation_line_in_cents(
    pool: CostReconciliation, charged: Decimal, cost: Decimal
) -> dict[str, str]:
    parts = [-pool.margin, pool.uncharged, pool.idle, pool.overhead]
    rest = round_parts_to_total(parts, cost - charged + _imbalance_in_cents(pool))
    return {
        "pool": pool.pool_name,
        "charged": str(charged),
        "margin": str(-rest[0]),
        "uncharged": str(rest[1]),
        "idle": str(rest[2]),
        "overhead": str(rest[3]),
        "cost": str(cost),
    }


def reconcile_costs(month: date) -> list[CostReconciliation]:
    """Return the reconciliation of each pool that has GPUs or charges in the month, in order of pool name."""
    sums: dict[int, dict[str, tuple[Decimal, Decimal]]] = defaultdict(dict)
    rows = (
        Charge.objects.filter(month=month).values("pool", "bucket").annotate(c=Sum("cost"), p=Sum("charged"))
    )
    for row in rows:
        sums[row["pool"]][row["bucket"]] = (row["c"], row["p"])
    costs = asset_cost_by_pool(month)
    pools = Pool.with_removed.filter(pk__in={*sums, *costs}).order_by("name", "pk")
    return [_reconcile_pool(pool, sums[pool.pk], costs.get(pool.pk, ZERO)) for pool in pools]


def _reconcile_pool(
    pool: Pool, by_bucket: dict[str, tuple[Decimal, Decimal]], cost: Decimal
) -> CostReconciliation:
    def cost_of(buckets: Iterable[str]) -> Decimal:
        return sum((by_bucket.get(bucket, (ZERO, ZERO))[0] for bucket in buckets), ZERO)

    charged = sum((by_bucket.get(bucket, (ZERO, ZERO))[1] for bucket in CHARGED_BUCKETS), ZERO)
    return CostReconciliation(
        pool=pool.pk,
        pool_name=pool.name,
        charged=charged,
        margin=charged - cost_of(CHARGED_BUCKETS),
        uncharged=cost_of(UNCHARGED_BUCKETS),
        idle=cost_of(IDLE_BUCKETS),
        overhead=cost_of(OVERHEAD_BUCKETS),
        cost=cost,
    )


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
