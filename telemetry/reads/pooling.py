"""Estimate how many GPUs teams would need without a shared pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

import numpy as np
from django.db import connection

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.amounts import HOURS_PER_MONTH, ZERO, round_amount
from telemetry.core.currencies import smallest_unit
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_over_time import held_over_time, step_edges
from telemetry.reads.usage_rows import UsageRows


@dataclass(frozen=True)
class PoolingSavings:
    """The GPUs that separate teams would need, compared with the GPUs that the shared pool needs.

    A need is the 95th percentile of the hourly held GPUs. ``by_team`` has the rows (team id, name, need).
    ``dedicated`` is the sum of the teams' needs, and ``pooled`` is the need of all teams together. ``owned``
    is the number of GPUs in the period.

    ``per_month`` is the price of the saved GPUs for a month, at the mean price of charged GPU-hours. It is
    None if nothing was charged.
    """

    by_team: list[tuple[int, str, float]]
    dedicated: float
    pooled: float
    owned: float
    per_month: Decimal | None

    @property
    def gpus(self) -> float:
        """Return the number of GPUs saved."""
        return self.dedicated - self.pooled


def pooling_savings(filters: UsageFilters, reads: UsageRows | None = None) -> PoolingSavings:
    """Return the GPUs that the teams would need separately and together, and the savings."""
    reads = reads or UsageRows(filters)
    teams = held_over_time(reads, step_edges(filters, timedelta(hours=1)), "team")
    by_team = [(key, name, _percentile(held, 95)) for key, name, held in teams]
    together = [sum(values) for values in zip(*(held for _, _, held in teams), strict=True)]
    dedicated, pooled = sum(demand for _, _, demand in by_team), _percentile(together, 95)
    price = _mean_gpu_hour_price(reads)
    gpus = Decimal(str(round(dedicated - pooled, 6)))
    unit = smallest_unit(filters.currency)
    saved = None if price is None else round_amount(price * HOURS_PER_MONTH * gpus, unit)
    return PoolingSavings(by_team, dedicated, pooled, _owned_gpus(filters), saved)


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(np.asarray(values), percent)) if values else 0.0


def _mean_gpu_hour_price(reads: UsageRows) -> Decimal | None:
    """Return the mean price of a GPU-hour, weighted by held time; None if nothing was charged."""
    used = [part for part in reads.charges if part.bucket == "used"]
    if seconds := sum(part.whole_seconds for part in used):
        charged = sum((part.whole_charged for part in used), ZERO)
        return charged * SLOT_SECONDS_PER_GPU_HOUR / Decimal(seconds)
    return None


def _owned_gpus(filters: UsageFilters) -> float:
    """Return the number of GPUs in the period that match the filters' pool and model."""
    where, values = "", []
    if filters.pool is not None:
        where, values = " AND g.pool_id = %s", [filters.pool]
    if filters.model:
        where, values = f"{where} AND g.model = %s", [*values, filters.model]  # type: ignore[list-item]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(DISTINCT g.uuid) FROM scheduler_gpu g"
            f" WHERE (g.retired_at IS NULL OR g.retired_at > %s) AND g.created_at < %s{where}",
            [filters.start, filters.end, *values],
        )
        return float(cursor.fetchone()[0])
