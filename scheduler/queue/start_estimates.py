"""Record the expected start that each workload had when it began to wait, and its actual start.

Each wait has one StartEstimate row. ``apply_plan`` writes the row when an expected start is first known, and
closes it when the workload is placed. The portal shows an expected start as a range of times, computed from
the pool's latest rows (docs/scheduling.md, "Expected start"). The portal also shows the accuracy of past
ranges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from django.db.models import BooleanField, ExpressionWrapper, F, OuterRef, Q, Subquery, Window
from django.db.models.functions import RowNumber

from scheduler.core.explain.start_ranges import (
    MAX_OUTCOMES,
    EstimateAccuracy,
    EstimateOutcome,
    StartRange,
    estimate_accuracy,
)
from scheduler.models import StartEstimate, Workload
from scheduler.state.states import WorkloadState


def past_starts_by_pool(pools: Collection[int], now: datetime) -> dict[int, EstimateAccuracy]:
    """Return the accuracy of past estimates by pool id, in one query.

    The accuracy is based on each pool's ``MAX_OUTCOMES`` latest closed waits. Open waits whose expected start
    has passed count as well, at most ``MAX_OUTCOMES`` for each pool.
    """
    if not pools:
        return {}
    overdue = Q(over_at=None, expected_start__lt=now, workload__state=WorkloadState.QUEUED)
    rows = (
        StartEstimate.objects.filter(Q(over_at__isnull=False) | overdue, pool__in=pools)
        .annotate(is_over=ExpressionWrapper(Q(over_at__isnull=False), BooleanField()))
        .annotate(
            place=Window(
                RowNumber(),
                partition_by=[F("pool"), F("is_over")],
                order_by=[F("over_at").desc(), F("told_at").desc(), F("pk").desc()],
            )
        )
        .filter(place__lte=MAX_OUTCOMES)
        .values_list(
            "pool_id", "told_at", "expected_start", "latest", "over_at", "started", "workload__simulated"
        )
    )
    outcomes: dict[int, list[EstimateOutcome]] = defaultdict(list)
    for pool, told_at, expected, latest, over_at, started, simulated in rows:
        outcomes[pool].append(
            EstimateOutcome(
                int((expected - told_at).total_seconds()),
                None if latest is None else int((latest - told_at).total_seconds()),
                int(((over_at or now) - told_at).total_seconds()),
                started,
                simulated,
            )
        )
    return {pool: estimate_accuracy(outcomes[pool]) for pool in pools}


def likely_range(
    past: EstimateAccuracy, expected_start: datetime | None, now: datetime
) -> tuple[datetime, datetime] | None:
    """Return the earliest and the latest likely start, computed from the accuracy of past estimates.

    Return None if no start is expected, or if there are too few past waits.
    """
    if expected_start is None:
        return None
    likely: StartRange | None = past.range(int(now.timestamp()), int(expected_start.timestamp()))
    return None if likely is None else (_datetime(likely.earliest), _datetime(likely.latest))


def record_first_estimates(expected: Mapping[int, int], now: datetime) -> None:
    """Record expected starts, given in seconds since the epoch by workload id.

    Only the first expected start of each wait is recorded.
    """
    known = StartEstimate.objects.filter(workload__in=expected, attempt=F("workload__attempt")).values(
        "workload"
    )
    rows = list(
        Workload.objects.filter(pk__in=expected).exclude(pk__in=known).values_list("pk", "pool_id", "attempt")
    )
    if not rows:
        return
    past = past_starts_by_pool({pool for _, pool, _ in rows}, now)
    estimates = []
    for pk, pool, attempt in rows:
        at = _datetime(expected[pk])
        likely = likely_range(past[pool], at, now)
        estimates.append(
            StartEstimate(
                workload_id=pk,
                pool_id=pool,
                attempt=attempt,
                told_at=now,
                expected_start=at,
                latest=likely[1] if likely else None,
            )
        )
    StartEstimate.objects.bulk_create(estimates, batch_size=1000)


def close_placed_estimates(workloads: Collection[int], now: datetime) -> None:
    """Close the estimates of workloads that were placed."""
    StartEstimate.objects.filter(workload__in=workloads, over_at=None).update(over_at=now, started=True)


def prune_estimates() -> None:
    """Close the estimates of workloads that ended in the queue. Delete old rows that no range uses."""
    ended_waiting = StartEstimate.objects.filter(over_at=None, workload__state=WorkloadState.ENDED)
    ended = Workload.objects.filter(pk=OuterRef("workload")).values("ended_at")
    ended_waiting.update(over_at=Subquery(ended))
    over = StartEstimate.objects.filter(over_at__isnull=False).annotate(
        place=Window(RowNumber(), partition_by=[F("pool")], order_by=[F("over_at").desc(), F("pk").desc()])
    )
    old = over.filter(place__gt=MAX_OUTCOMES).values_list("pk", flat=True)
    StartEstimate.objects.filter(pk__in=list(old)).delete()


def _datetime(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
