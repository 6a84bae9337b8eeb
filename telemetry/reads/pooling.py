"""Estimate how many GPUs teams would need without a shared pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from itertools import accumulate

import numpy as np
from django.db import connection

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.amounts import HOURS_PER_MONTH, ZERO, round_amount
from telemetry.core.currencies import smallest_unit
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_over_time import held_over_time, slot_seconds_per_step, step_edges
from telemetry.reads.usage_rows import HeldInterval, UsageRows


@dataclass(frozen=True)
class PoolingSavings:
    """The GPUs that separate teams would need, compared with the GPUs that the shared pool needs.

    A need is the 95th percentile of the hourly held GPUs. ``by_team`` has the rows (team id, name, need).
    ``dedicated`` is the sum of the teams' needs, and ``pooled`` is the need of all teams together.

    ``per_month`` is the price of the saved GPUs for a month, at the mean price of charged GPU-hours. It is
    None if nothing was charged.
    """

    by_team: list[tuple[int, str, float]]
    dedicated: float
    pooled: float
    gpus_owned: OwnedGpus
    per_month: Decimal | None

    @property
    def owned(self) -> float:
        """Return the highest number of GPUs that existed at once in the period."""
        return self.gpus_owned.most

    @property
    def gpus(self) -> float:
        """Return the number of GPUs saved."""
        return self.dedicated - self.pooled


@dataclass(frozen=True)
class OwnedGpus:
    """The GPUs of a period. ``lives`` are (start, end, number of GPUs); times are seconds since the epoch."""

    start: float
    end: float
    lives: list[tuple[float, float, int]]

    @property
    def most(self) -> float:
        changes = sorted(
            change for start, end, count in self.lives for change in ((start, count), (end, -count))
        )
        return float(max(accumulate((count for _, count in changes), initial=0)))

    def per_step(self, edges: Sequence[float]) -> list[float]:
        """Return the mean number of GPUs between each two adjacent edges.

        Of a step that is partly outside the period, the part inside counts.
        """
        lives = [HeldInterval(None, "", start, end, count, False) for start, end, count in self.lives]
        if not lives:
            return [0.0] * (len(edges) - 1)
        inside = np.clip(np.asarray(edges), self.start, self.end)
        seconds, lengths = slot_seconds_per_step(lives, list(inside)), np.diff(inside)
        gpus = np.divide(seconds, lengths, out=np.zeros_like(seconds), where=lengths > 0)
        return [float(value) for value in gpus]


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
    return PoolingSavings(by_team, dedicated, pooled, owned_gpus(filters), saved)


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(np.asarray(values), percent)) if values else 0.0


def _mean_gpu_hour_price(reads: UsageRows) -> Decimal | None:
    """Return the mean price of a GPU-hour, weighted by held time; None if nothing was charged."""
    used = [part for part in reads.charges if part.bucket == "used"]
    if seconds := sum(part.whole_seconds for part in used):
        charged = sum((part.whole_charged for part in used), ZERO)
        return charged * SLOT_SECONDS_PER_GPU_HOUR / Decimal(seconds)
    return None


_OWNED_SQL = """
SELECT extract(epoch FROM greatest(%(start)s, created_at))::float8,
    extract(epoch FROM least(%(end)s, coalesce(retired_at, %(end)s)))::float8, count(*)::int
FROM scheduler_gpu
WHERE (retired_at IS NULL OR retired_at > %(start)s) AND created_at < %(end)s
    AND (%(pool)s::bigint IS NULL OR pool_id = %(pool)s) AND (%(model)s = '' OR model = %(model)s)
GROUP BY 1, 2
"""


def owned_gpus(filters: UsageFilters) -> OwnedGpus:
    """Return the GPUs of the period that match the filters' pool and model. Runs one query."""
    values = {"start": filters.start, "end": filters.end, "pool": filters.pool, "model": filters.model}
    with connection.cursor() as cursor:
        cursor.execute(_OWNED_SQL, values)
        return OwnedGpus(filters.start.timestamp(), filters.end.timestamp(), cursor.fetchall())
