"""How much one person, and one team, may have waiting in a pool. Every cycle looks at everything that waits, so who submits
without end would make decisions slow for everybody."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Q

from scheduler import locks
from scheduler.core.model import Numbers
from scheduler.models import Pool, Workload
from scheduler.states import WorkloadState


@dataclass(frozen=True, slots=True)
class Waiting:
    """Notebooks and jobs in a pool's queue, tasks that their array holds back among them."""

    of_person: int
    of_team: int


def waiting(pool: Pool, *, person: int, team: int) -> Waiting:
    """What waits now. One query."""
    rows = Workload.objects.filter(pool=pool, state=WorkloadState.QUEUED)
    found = rows.aggregate(
        person=Count("pk", filter=Q(owner=person)), team=Count("pk", filter=Q(project__team=team))
    )
    return Waiting(found["person"], found["team"])


def too_many(pool: Pool, *, person: int, team: int, more: int) -> Numbers | None:
    """Why ``more`` may not be added; None when they may. What comes back after an eviction or a failure is never refused."""
    now = waiting(pool, person=person, team=team)
    for of, have, limit in (
        ("person", now.of_person, pool.most_waiting_per_user),
        ("team", now.of_team, pool.most_waiting_per_team),
    ):
        if have + more > limit:
            return ("limit", limit), ("more", more), ("of", of), ("waiting", have)
    return None


def too_many_under_lock(pool: Pool, *, person: int, team: int, more: int) -> Numbers | None:
    """The same, holding until the end of the transaction whoever else submits for this team or person."""
    locks.submitters(team=team, person=person)
    return too_many(pool, person=person, team=team, more=more)
