"""Read expected starts as ranges, and the accuracy of former ranges of a pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from scheduler.core.explain.start_ranges import EstimateAccuracy
from scheduler.models import Workload
from scheduler.queue import start_estimates
from scheduler.state.states import WorkloadState

StartRange = tuple[datetime, datetime]


@dataclass(frozen=True)
class StartRecords:
    """The accuracy of expected starts of some pools at the time ``now``."""

    records: dict[int, EstimateAccuracy]
    now: datetime

    def likely(self, workload: Workload) -> StartRange | None:
        """Return the likely range of a start; None without an expected start or without enough records."""
        if workload.state != WorkloadState.QUEUED:
            return None
        return start_estimates.likely_range(self.past(workload.pool_id), workload.expected_start, self.now)

    def past(self, pool: int) -> EstimateAccuracy:
        """Return the accuracy of expected starts in a pool."""
        return self.records.get(pool, EstimateAccuracy())


def start_records_for(workloads: Iterable[Workload], now: datetime) -> StartRecords:
    """Return the records of the pools in which these workloads expect a start.

    Takes one query, or none if no start is expected.
    """
    pools = {w.pool_id for w in workloads if w.state == WorkloadState.QUEUED and w.expected_start is not None}
    return StartRecords(start_estimates.past_starts_by_pool(pools, now), now)


def start_records_of_pools(pools: Iterable[int], now: datetime) -> StartRecords:
    """Return the records of these pools."""
    return StartRecords(start_estimates.past_starts_by_pool(set(pools), now), now)
