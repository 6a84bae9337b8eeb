"""Search workloads, reservations, hosts, teams and people by name, the best match first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import Case, F, IntegerField, Model, Q, QuerySet, Value, When

from portal import policy
from portal.models import User
from portal.reads.work.workload_details import filter_by_text
from scheduler.models import Host, Reservation, Team, Workload
from scheduler.state.states import WorkloadState

MAX_RESULTS_PER_KIND = 6
MIN_QUERY_LENGTH = 2
# Ranks of a match; a lower rank is better.
EXACT, BEGINS, WORD_BEGINS, CONTAINS, OTHER_FIELD = range(5)
WORD_SEPARATORS = " -_./"
Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True)
class SearchResults:
    """The best matches of each kind, in the order of their ranks."""

    workloads: list[Workload]
    reservations: list[Reservation]
    hosts: list[Host]
    teams: list[Team]
    people: list[User]


def match_rank(name: str, words: str, *others: str) -> int | None:
    """Return how well ``words`` match a name, and otherwise the other texts; None without a match."""
    name, words = name.lower(), words.lower()
    if name == words:
        return EXACT
    if name.startswith(words):
        return BEGINS
    if any(f"{separator}{words}" in name for separator in WORD_SEPARATORS):
        return WORD_BEGINS
    if words in name:
        return CONTAINS
    return OTHER_FIELD if any(words in other.lower() for other in others) else None


def search(user: User, words: str) -> SearchResults:
    """Return a few visible rows of each kind that match ``words``, the best match first.

    Workloads are also found by owner, project and team, and teams by slug. Among equal matches, workloads
    that have not ended come first. People are found by those who may change accounts.
    """
    if len(words) < MIN_QUERY_LENGTH:
        return SearchResults([], [], [], [], [])
    workloads = filter_by_text(policy.visible_workloads(user), words).select_related(
        "project__team", "pool", "owner"
    )
    alive = Case(
        When(state=WorkloadState.ENDED, then=Value(1)), default=Value(0), output_field=IntegerField()
    )
    reservations = policy.visible_reservations(user).filter(name__icontains=words)
    hosts = policy.visible_hosts(user).select_related("pool").filter(name__icontains=words)
    teams = policy.visible_teams(user).filter(Q(name__icontains=words) | Q(slug__icontains=words))
    finds_people = policy.may(user, "user.change")  # the pages of people are for operators
    people = policy.visible_users(user).filter(service_team=None) if finds_people else User.objects.none()
    named = Q(username__icontains=words) | Q(first_name__icontains=words) | Q(last_name__icontains=words)
    return SearchResults(
        workloads=_best(workloads, words, "name", alive, F("submitted_at").desc()),
        reservations=_best(reservations, words, "name", F("start").desc()),
        hosts=_best(hosts, words, "name", F("name").asc()),
        teams=_best(teams, words, "name", F("name").asc()),
        people=_best(people.filter(named), words, "username", F("username").asc()),
    )


def _best(rows: QuerySet[Row], words: str, field: str, *order: Any) -> list[Row]:
    """Return the first rows by the rank of the match in ``field``, then by ``order``."""
    at_word = Q()
    for separator in WORD_SEPARATORS:
        at_word |= Q(**{f"{field}__icontains": f"{separator}{words}"})
    rank = Case(
        When(**{f"{field}__iexact": words}, then=Value(EXACT)),
        When(**{f"{field}__istartswith": words}, then=Value(BEGINS)),
        When(at_word, then=Value(WORD_BEGINS)),
        When(**{f"{field}__icontains": words}, then=Value(CONTAINS)),
        default=Value(OTHER_FIELD),
        output_field=IntegerField(),
    )
    return list(rows.order_by(rank, *order, "pk")[:MAX_RESULTS_PER_KIND])
