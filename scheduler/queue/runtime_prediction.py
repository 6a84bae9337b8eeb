"""Predict the runtime of a job at its submission, from finished jobs in the database.

``scheduler.core.queue.runtime_prediction`` has the rule. docs/scheduling.md explains it under "Queue order".
"""

from __future__ import annotations

from django.db.models import F, QuerySet

from scheduler.core.queue.runtime_prediction import (
    MAX_SIMILAR_JOBS,
    MIN_SIMILAR_JOBS,
    predicted_seconds,
    similar_limits,
    size_class,
)
from scheduler.core.reasons import ReasonCode
from scheduler.models import Pool, Team, Workload
from scheduler.state.states import WorkloadState


def predict_runtime_seconds(
    *, pool: Pool, team: Team, owner_id: int, total_units: int, max_runtime_seconds: int
) -> int:
    """Return the predicted runtime in seconds, from 1 to ``max_runtime_seconds``.

    Similar jobs have the same team, pool and size class, and a similar runtime limit. The prediction is the
    first of these values that has enough finished jobs:

    1. the median runtime of similar jobs of the user;
    2. the median runtime of similar jobs of the team;
    3. ``max_runtime_seconds`` times the median ratio of runtime to limit of the jobs in the pool.

    Otherwise it is ``max_runtime_seconds``.
    """
    similar = _similar(pool, team, total_units, max_runtime_seconds)
    of_user = _runtimes(similar.filter(owner_id=owner_id))
    if len(of_user) >= MIN_SIMILAR_JOBS:
        return predicted_seconds(of_user, (), (), max_runtime_seconds)
    of_team = _runtimes(similar)
    ratios = _ratios(_finished(pool)) if len(of_team) < MIN_SIMILAR_JOBS else []
    return predicted_seconds((), of_team, ratios, max_runtime_seconds)


def _finished(pool: Pool) -> QuerySet[Workload]:
    finished = Workload.objects.filter(
        pool=pool, state=WorkloadState.ENDED, outcome=ReasonCode.FINISHED, started_at__isnull=False
    )
    return finished.order_by("-ended_at", "-pk")


def _similar(pool: Pool, team: Team, total_units: int, limit: int) -> QuerySet[Workload]:
    """Return finished jobs of the team in the pool that have the same size class and a similar limit."""
    smallest, end = size_class(total_units)
    least, greatest = similar_limits(limit)
    return (
        _finished(pool)
        .alias(total=F("units") * F("hosts"))
        .filter(
            project__team=team,
            total__gte=smallest,
            total__lt=end,
            max_runtime_seconds__gte=least,
            max_runtime_seconds__lte=greatest,
        )
    )


def _runtimes(jobs: QuerySet[Workload]) -> list[float]:
    rows = jobs.values_list("started_at", "ended_at")[:MAX_SIMILAR_JOBS]
    return [(ended - started).total_seconds() for started, ended in rows if started and ended]


def _ratios(jobs: QuerySet[Workload]) -> list[float]:
    rows = jobs.values_list("started_at", "ended_at", "max_runtime_seconds")[:MAX_SIMILAR_JOBS]
    return [
        (ended - started).total_seconds() / limit
        for started, ended, limit in rows
        if started and ended and limit
    ]
