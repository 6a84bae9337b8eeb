"""Read the likely range of a workload's start, based on the accuracy of past forecasts in its pool."""

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
    """The accuracy of past start forecasts in some pools, by pool id, at the time ``now``."""

    records: dict[int, EstimateAccuracy]
    now: datetime

    def likely(self, workload: Workload) -> StartRange | None:
        """Return the range (earliest, latest) in which a waiting workload is likely to start.

        Return None if the workload does not wait or has no expected start, or if its pool has too few past
        forecasts.
        """
        if workload.state != WorkloadState.QUEUED:
            return None
        return start_estimates.likely_range(self.past(workload.pool_id), workload.expected_start, self.now)

    def past(self, pool: int) -> EstimateAccuracy:
        """Return the accuracy of past start forecasts in a pool."""
        return self.records.get(pool, EstimateAccuracy())


def start_records_for(workloads: Iterable[Workload], now: datetime) -> StartRecords:
    """Return the accuracy of forecasts in the pools of these workloads.

    Include a pool only if one of its workloads waits and has an expected start. Takes one query, or none if
    there is no such pool.
    """
    pools = {w.pool_id for w in workloads if w.state == WorkloadState.QUEUED and w.expected_start is not None}
    return StartRecords(start_estimates.past_starts_by_pool(pools, now), now)


def start_records_of_pools(pools: Iterable[int], now: datetime) -> StartRecords:
    """Return the accuracy of forecasts in these pools."""
    return StartRecords(start_estimates.past_starts_by_pool(set(pools), now), now)
