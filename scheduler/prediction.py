"""How long a job will probably run, said once at its submission (docs/scheduling.md, "Order")."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from django.db.models import F, QuerySet

from scheduler.core.reasons import Code
from scheduler.models import Pool, Team, Workload
from scheduler.states import WorkloadState

LOOKED_AT = 200  # finished jobs
LEAST_SIMILAR = 5
LIMIT_FACTOR = 3


def predict_seconds(*, pool: Pool, team: Team, owner_id: int, total_units: int, max_runtime_seconds: int) -> int:
    """Seconds, between 1 and ``max_runtime_seconds``: the median of similar finished jobs of the user, else of the team,
    else the limit times the pool's median of runtime / limit, else the limit."""
    similar = _similar(pool, team, total_units, max_runtime_seconds)
    for candidates in (similar.filter(owner_id=owner_id), similar):
        seconds = _runtimes(candidates)
        if len(seconds) >= LEAST_SIMILAR:
            return _within(statistics.median(seconds), max_runtime_seconds)
    return _within(max_runtime_seconds * _median_ratio(_finished(pool)), max_runtime_seconds)


def _finished(pool: Pool) -> QuerySet[Workload]:
    found = Workload.objects.filter(
        pool=pool, state=WorkloadState.ENDED, outcome=Code.FINISHED, started_at__isnull=False
    )
    return found.order_by("-ended_at", "-pk")


def _similar(pool: Pool, team: Team, total_units: int, limit: int) -> QuerySet[Workload]:
    """Of the team, of the same power-of-two size, with a limit within a factor of three."""
    smallest = 1 << (total_units.bit_length() - 1)
    return (
        _finished(pool)
        .alias(total=F("units") * F("hosts"))
        .filter(
            project__team=team,
            total__gte=smallest,
            total__lt=2 * smallest,
            max_runtime_seconds__gte=limit / LIMIT_FACTOR,
            max_runtime_seconds__lte=limit * LIMIT_FACTOR,
        )
    )


def _runtimes(jobs: QuerySet[Workload]) -> list[float]:
    return [(ended - started).total_seconds() for started, ended in _times(jobs.values_list("started_at", "ended_at"))]


def _median_ratio(jobs: QuerySet[Workload]) -> float:
    rows = jobs.values_list("started_at", "ended_at", "max_runtime_seconds")[:LOOKED_AT]
    ratios = [
        (ended - started).total_seconds() / limit for started, ended, limit in rows if started and ended and limit
    ]
    return statistics.median(ratios) if len(ratios) >= LEAST_SIMILAR else 1.0


def _times(rows: Iterable[tuple]) -> list[tuple]:  # type: ignore[type-arg]
    return [(started, ended) for started, ended in list(rows[:LOOKED_AT]) if started and ended]  # type: ignore[index]


def _within(seconds: float, limit: int) -> int:
    return max(1, min(limit, round(seconds)))
