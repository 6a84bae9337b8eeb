"""Limit the number of queued workloads of one user and of one team in a pool.

Every planning cycle considers all queued work. Without a limit, one user could slow decisions for everyone.
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
    """The number of queued notebooks and jobs in a pool, including array tasks that are held back."""

    by_user: int
    by_team: int


def queued_counts(pool: Pool, *, person: int, team: int) -> QueuedCounts:
    """Return how many workloads of a user and of a team are queued in a pool. This takes one query."""
    rows = Workload.objects.filter(pool=pool, state=WorkloadState.QUEUED)
    counts = rows.aggregate(
        person=Count("pk", filter=Q(owner=person)), team=Count("pk", filter=Q(project__team=team))
    )
    return QueuedCounts(counts["person"], counts["team"])


def queue_limit_exceeded(pool: Pool, *, person: int, team: int, more: int) -> ReasonNumbers | None:
    """Return the numbers of the limit that ``more`` new workloads would exceed, or None if there is none.

    The limits apply to new submissions only. Workloads that are requeued after an eviction or a failure are
    never rejected.
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
    """Return ``queue_limit_exceeded`` after locking the team and the user.

    The locks block other submissions of this team and user until the transaction ends.
    """
    locks.submitters(team=team, person=person)
    return queue_limit_exceeded(pool, person=person, team=team, more=more)
