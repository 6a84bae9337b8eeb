"""What the search dialog finds: workloads, reservations, hosts, teams and projects, a few of each."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Case, IntegerField, Q, Value, When

from portal import policy
from portal.models import User
from portal.selectors.work import filtered_by_words
from scheduler.models import Host, Reservation, Team, Workload
from scheduler.states import WorkloadState

MOST = 6
SHORTEST = 2


@dataclass(frozen=True)
class Found:
    workloads: list[Workload]
    reservations: list[Reservation]
    hosts: list[Host]
    teams: list[Team]


def search(user: User, words: str) -> Found:
    """Rows that the person may see whose name contains the words; a few of each, those that run first."""
    if len(words) < SHORTEST:
        return Found([], [], [], [])
    workloads = filtered_by_words(policy.visible_workloads(user), words).select_related("project__team", "pool")
    hosts = policy.visible_hosts(user).select_related("pool")
    alive = Case(When(state=WorkloadState.ENDED, then=Value(1)), default=Value(0), output_field=IntegerField())
    return Found(
        workloads=list(workloads.order_by(alive, "-submitted_at", "-pk")[:MOST]),
        reservations=list(
            policy.visible_reservations(user).filter(name__icontains=words).order_by("-start", "-pk")[:MOST]
        ),
        hosts=list(hosts.filter(name__icontains=words).order_by("name")[:MOST]),
        teams=list(
            policy.visible_teams(user)
            .filter(Q(name__icontains=words) | Q(slug__icontains=words))
            .order_by("name")[:MOST]
        ),
    )
