"""How much one person, and one team, may have waiting in a pool. Every cycle looks at everything that waits, so who submits
without end would make decisions slow for everybody."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Q

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonNumbers
from scheduler.models import Pool, Workload
from scheduler.state.states import WorkloadState


@dataclass(frozen=True, slots=True)
class QueuedCounts:
    """Notebooks and jobs in a pool's queue, tasks that their array holds back among them."""

    of_person: int
    of_team: int


def queued_counts(pool: Pool, *, person: int, team: int) -> QueuedCounts:
    """What waits now. One query."""
    rows = Workload.objects.filter(pool=pool, state=WorkloadState.QUEUED)
    found = rows.aggregate(
        person=Count("pk", filter=Q(owner=person)), team=Count("pk", filter=Q(project__team=team))
    )
    return QueuedCounts(found["person"], found["team"])


def queue_limit_exceeded(pool: Pool, *, person: int, team: int, more: int) -> ReasonNumbers | None:
    """Why ``more`` may not be added; None when they may. What comes back after an eviction or a failure is never refused."""
    now = queued_counts(pool, person=person, team=team)
    for of, have, limit in (
        ("person", now.of_person, pool.most_waiting_per_user),
        ("team", now.of_team, pool.most_waiting_per_team),
    ):
        if have + more > limit:
            return ("limit", limit), ("more", more), ("of", of), ("waiting", have)
    return None


def queue_limit_exceeded_locked(pool: Pool, *, person: int, team: int, more: int) -> ReasonNumbers | None:
    """The same, holding until the end of the transaction whoever else submits for this team or person."""
    locks.submitters(team=team, person=person)
    return queue_limit_exceeded(pool, person=person, team=team, more=more)
