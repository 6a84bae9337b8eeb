"""Limit the queued workloads of one user and one team in a pool.

Every cycle considers all queued work, so unlimited submission would slow decisions for everyone.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Q

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonNumbers
from scheduler.models import Pool, Workload
from scheduler.state.states import WorkloadState


@dataclass(frozen=True, slots=True)
class QueuedCounts:
    """Queued notebooks and jobs in a pool, including tasks that their array holds back."""

    by_user: int
    by_team: int


def queued_counts(pool: Pool, *, person: int, team: int) -> QueuedCounts:
    """Return the present counts of a user and a team in a pool. One query."""
    rows = Workload.objects.filter(pool=pool, state=WorkloadState.QUEUED)
    counts = rows.aggregate(
        person=Count("pk", filter=Q(owner=person)), team=Count("pk", filter=Q(project__team=team))
    )
    return QueuedCounts(counts["person"], counts["team"])


def queue_limit_exceeded(pool: Pool, *, person: int, team: int, more: int) -> ReasonNumbers | None:
    """Return the numbers of the exceeded limit if ``more`` were queued, or None.

    Workloads that are requeued after an eviction or a failure are never rejected.
    """
    counts = queued_counts(pool, person=person, team=team)
    for owner, queued, limit in (
        ("person", counts.by_user, pool.most_waiting_per_user),
        ("team", counts.by_team, pool.most_waiting_per_team),
    ):
        if queued + more > limit:
            return ("limit", limit), ("more", more), ("of", owner), ("waiting", queued)
    return None


def queue_limit_exceeded_locked(pool: Pool, *, person: int, team: int, more: int) -> ReasonNumbers | None:
    """Block submissions of this team and user until the transaction ends, and return
    ``queue_limit_exceeded``.
    """
    locks.submitters(team=team, person=person)
    return queue_limit_exceeded(pool, person=person, team=team, more=more)
