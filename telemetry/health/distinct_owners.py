"""Whose work may stand behind hardware events that a program can bring about.

Of one person's programs however many such events count as one: what one person can do alone takes no GPU from the others. Where
several people were on a GPU, nothing says whose program it was: the fewest people that could have brought about all of it count. An
event of a GPU on which nobody was counts by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from scheduler.models import Allocation
from telemetry.models import HealthEvent

TIMESTAMP_TOLERANCE = timedelta(
    minutes=2
)  # how far a host's clock may be off, and the driver's word behind the deed
MAX_EVENTS = 50  # events; the newest
MAX_EXACT_OWNERS = (
    3  # people: whether so many could have done it all is tried out; of more only how many at the least
)

OwnerIds = frozenset[int]


def count_distinct_causes(events: Sequence[HealthEvent], enough: int) -> int:
    """How many different causes these events of one GPU, or of one host, have at the least, counted up to ``enough``. One query."""
    looked_at = sorted(events, key=lambda event: (event.at, event.pk))[-max(MAX_EVENTS, enough) :]
    people = _owners_of_events(looked_at)
    alone = sum(not those for those in people)
    return min(
        enough, alone + minimum_hitting_set_size((those for those in people if those), max(0, enough - alone))
    )


def _owners_of_events(events: Sequence[HealthEvent]) -> list[OwnerIds]:
    """Of each event the owners of what held the GPU, or without one the host, from a little before it came until it was told."""
    if not events:
        return []
    times = [(event.at - TIMESTAMP_TOLERANCE, max(event.at, event.received_at)) for event in events]
    around = (min(begin for begin, _ in times), max(end for _, end in times))
    held = Allocation.objects.filter(period__overlap=around, unit__gpu__host=events[0].host_id)
    if events[0].gpu_id is not None:
        held = held.filter(unit__gpu=events[0].gpu_id)
    owners: dict[int, list[tuple[datetime, datetime | None]]] = {}
    for owner, period in held.values_list("workload__owner_id", "period"):
        owners.setdefault(owner, []).append((period.lower, period.upper))
    return [
        frozenset(
            owner
            for owner, periods in owners.items()
            if any(_overlaps(*period, begin, end) for period in periods)
        )
        for begin, end in times
    ]


def _overlaps(lower: datetime, upper: datetime | None, begin: datetime, end: datetime) -> bool:
    return lower < end and (upper is None or upper > begin)


def minimum_hitting_set_size(events: Iterable[OwnerIds], enough: int) -> int:
    """The fewest people of whom every event had one, counted up to ``enough``; where more than MOST_SEARCHED would be needed, at
    least so many. It never takes long, however many events and people there are."""
    groups = _minimal_owner_sets(events)
    least = _count_disjoint(groups)
    while least < enough and least <= MAX_EXACT_OWNERS and not _has_hitting_set(groups, least):
        least += 1
    return min(enough, least)


def _minimal_owner_sets(events: Iterable[OwnerIds]) -> list[OwnerIds]:
    """Those events that say most: whoever is behind one of them is behind every event that had the same people and more."""
    kept: list[OwnerIds] = []
    for those in sorted(set(events), key=lambda those: (len(those), sorted(those))):
        if not any(some <= those for some in kept):
            kept.append(those)
    return kept


def _count_disjoint(groups: Sequence[OwnerIds]) -> int:
    """How many events share nobody: each of them took another person."""
    seen: set[int] = set()
    count = 0
    for those in groups:
        if not those & seen:
            seen |= those
            count += 1
    return count


def _has_hitting_set(groups: Sequence[OwnerIds], count: int) -> bool:
    """Could ``count`` people have brought about all of it?"""
    if _count_disjoint(groups) > count:
        return False
    if not groups:
        return True
    return any(
        _has_hitting_set([those for those in groups if person not in those], count - 1)
        for person in sorted(groups[0])
    )
