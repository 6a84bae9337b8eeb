"""Search workloads, reservations, hosts and teams by name.

Workloads are also found by owner, project and team.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Case, IntegerField, Q, Value, When

from portal import policy
from portal.models import User
from portal.reads.work.workload_details import filter_by_text
from scheduler.models import Host, Reservation, Team, Workload
from scheduler.state.states import WorkloadState

MAX_RESULTS_PER_KIND = 6
MIN_QUERY_LENGTH = 2


@dataclass(frozen=True)
class SearchResults:
    workloads: list[Workload]
    reservations: list[Reservation]
    hosts: list[Host]
    teams: list[Team]


def search(user: User, words: str) -> SearchResults:
    """Return a few visible rows of each kind whose name contains ``words``.

    Workloads are also found by owner, project and team, and teams by slug. Workloads that have not ended come
    first.
    """
    if len(words) < MIN_QUERY_LENGTH:
        return SearchResults([], [], [], [])
    workloads = filter_by_text(policy.visible_workloads(user), words).select_related("project__team", "pool")
    hosts = policy.visible_hosts(user).select_related("pool")
    alive = Case(
        When(state=WorkloadState.ENDED, then=Value(1)), default=Value(0), output_field=IntegerField()
    )
    return SearchResults(
        workloads=list(workloads.order_by(alive, "-submitted_at", "-pk")[:MAX_RESULTS_PER_KIND]),
        reservations=list(
            policy.visible_reservations(user)
            .filter(name__icontains=words)
            .order_by("-start", "-pk")[:MAX_RESULTS_PER_KIND]
        ),
        hosts=list(hosts.filter(name__icontains=words).order_by("name")[:MAX_RESULTS_PER_KIND]),
        teams=list(
            policy.visible_teams(user)
            .filter(Q(name__icontains=words) | Q(slug__icontains=words))
            .order_by("name")[:MAX_RESULTS_PER_KIND]
        ),
    )
