"""Read the factors by which the price of work is multiplied, by its priority and its workload type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from decimal import Decimal

from scheduler.core.model.snapshot import PoolKind
from scheduler.models import Pool
from telemetry.core.charge_model import WorkFactor
from telemetry.models import PriceFactor

NO_FACTOR = Decimal(1)


class PriceFactors:
    """The price factors of priorities and workload types over time.

    If a pool has its own factors for a priority or a type, they replace the factors for all shared pools,
    from the date of the pool's first own factor. Work in a dedicated pool has no factor.
    """

    def __init__(self, rows: Iterable[PriceFactor], dedicated_pools: Collection[int] = ()) -> None:
        """Group ``rows`` by pool and work. The rows must be in order of time."""
        self._rows: dict[tuple[int | None, int | None, str], list[PriceFactor]] = defaultdict(list)
        for row in rows:
            self._rows[row.pool_id, row.priority, row.workload_type].append(row)
        self._dedicated_pools = frozenset(dedicated_pools)
        self._steps: dict[tuple[int, int, str], tuple[WorkFactor, ...]] = {}

    def steps(self, pool: int, priority: int, workload_type: str) -> tuple[WorkFactor, ...]:
        """Return the factors of work outside of reservations, in order of time. The result may be empty."""
        key = (pool, priority, workload_type)
        if key not in self._steps:
            self._steps[key] = () if pool in self._dedicated_pools else self._merged_steps(*key)
        return self._steps[key]

    def at(self, pool: int, priority: int, workload_type: str, moment: datetime) -> Decimal:
        """Return the factor of work outside of reservations at ``moment``; 1 if the work has no factor."""
        steps = [step for step in self.steps(pool, priority, workload_type) if step.since <= moment]
        return steps[-1].factor if steps else NO_FACTOR

    def _merged_steps(self, pool: int, priority: int, workload_type: str) -> tuple[WorkFactor, ...]:
        by_priority = self._in_force(pool, priority, "")
        by_type = self._in_force(pool, None, workload_type)
        merged = []
        for since in sorted({row.valid_from for row in (*by_priority, *by_type)}):
            first, second = _last_until(by_priority, since), _last_until(by_type, since)
            merged.append(
                WorkFactor(
                    since,
                    (first.factor if first else NO_FACTOR) * (second.factor if second else NO_FACTOR),
                    first.pk if first else None,
                    second.pk if second else None,
                )
            )
        return tuple(merged)

    def _in_force(self, pool: int, priority: int | None, workload_type: str) -> list[PriceFactor]:
        """Return the general factors until the pool's first own factor, and then the pool's own factors."""
        own = self._rows.get((pool, priority, workload_type), [])
        general = self._rows.get((None, priority, workload_type), [])
        return [row for row in general if not own or row.valid_from < own[0].valid_from] + own


def _last_until(rows: Iterable[PriceFactor], moment: datetime) -> PriceFactor | None:
    found = None
    for row in rows:
        if row.valid_from <= moment:
            found = row
    return found


def load_price_factors() -> PriceFactors:
    """Return all price factors. Runs one query, or two if there are factors."""
    rows = list(PriceFactor.objects.order_by("valid_from", "pk"))
    static = Pool.with_removed.filter(kind=PoolKind.STATIC).values_list("pk", flat=True)
    return PriceFactors(rows, set(static) if rows else ())
