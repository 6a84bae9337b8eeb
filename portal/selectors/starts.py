"""Expected starts as ranges, and how good the ranges of a pool were."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from scheduler import estimates
from scheduler.core.estimates import PastStarts
from scheduler.models import Workload
from scheduler.states import WorkloadState

Likely = tuple[datetime, datetime]


@dataclass(frozen=True)
class Starts:
    """The records of some pools at a moment."""

    records: dict[int, PastStarts]
    now: datetime

    def likely(self, workload: Workload) -> Likely | None:
        """From when and by when a waiting workload likely starts; None where no start or too little record is known."""
        if workload.state != WorkloadState.QUEUED:
            return None
        return estimates.range_of(self.past(workload.pool_id), workload.expected_start, self.now)

    def past(self, pool: int) -> PastStarts:
        """How good expected starts were in a pool."""
        return self.records.get(pool, PastStarts())


def of(workloads: Iterable[Workload], now: datetime) -> Starts:
    """The records of the pools in which these wait for a start that is expected; one question, none where nobody does."""
    pools = {w.pool_id for w in workloads if w.state == WorkloadState.QUEUED and w.expected_start is not None}
    return Starts(estimates.records(pools, now), now)


def of_pools(pools: Iterable[int], now: datetime) -> Starts:
    """The records of these pools."""
    return Starts(estimates.records(set(pools), now), now)
