"""Count the independent causes of hardware events that a program can cause.

Events that one owner's programs can explain count as one cause, because one person alone must not be able to
take GPUs out of use. If several owners held the GPU, any of them may be the cause. The result is then the
smallest number of owners that explains all events (a minimum hitting set). Each event that happened while
nobody held the GPU counts as a separate cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from scheduler.models import Allocation
from telemetry.models import HealthEvent

# An owner who held the GPU within this time before an event may have caused the event. The tolerance covers
# clock skew and the delay of the driver's log.
TIMESTAMP_TOLERANCE = timedelta(minutes=2)
MAX_EVENTS = 50  # this many of the newest events are examined, or ``enough`` if that is more
MAX_EXACT_OWNERS = 3  # for more owners, the result is a lower bound

OwnerIds = frozenset[int]


def count_distinct_causes(events: Sequence[HealthEvent], enough: int) -> int:
    """Return the smallest number of causes that can explain the events, or ``enough`` if that is smaller.

    All events belong to one GPU, or all belong to one host. Runs one query.
    """
    examined = sorted(events, key=lambda event: (event.at, event.pk))[-max(MAX_EVENTS, enough) :]
    owner_sets = _owners_of_events(examined)
    alone = sum(not owners for owners in owner_sets)
    return min(
        enough,
        alone + minimum_hitting_set_size((owners for owners in owner_sets if owners), max(0, enough - alone)),
    )


def _owners_of_events(events: Sequence[HealthEvent]) -> list[OwnerIds]:
    """Return, for each event, the owners who held the GPU (or a GPU of the host) around the event.

    The relevant time lasts from TIMESTAMP_TOLERANCE before the event until the event was received.
    """
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
    """Return the size of the smallest set of owners that explains every event, or ``enough`` if smaller.

    An event is given as the set of its possible owners. A result above MAX_EXACT_OWNERS is only a lower
    bound. This limits the computing time.
    """
    groups = _minimal_owner_sets(events)
    least = _count_disjoint(groups)
    while least < enough and least <= MAX_EXACT_OWNERS and not _has_hitting_set(groups, least):
        least += 1
    return min(enough, least)


def _minimal_owner_sets(events: Iterable[OwnerIds]) -> list[OwnerIds]:
    """Return the owner sets that have no proper subset among the owner sets.

    The supersets can be left out, because an owner who explains a subset also explains its supersets.
    """
    kept: list[OwnerIds] = []
    for owners in sorted(set(events), key=lambda owners: (len(owners), sorted(owners))):
        if not any(subset <= owners for subset in kept):
            kept.append(owners)
    return kept


def _count_disjoint(groups: Sequence[OwnerIds]) -> int:
    """Return the number of pairwise disjoint sets that a greedy search finds.

    The number is a lower bound of the size of a hitting set.
    """
    seen: set[int] = set()
    count = 0
    for owners in groups:
        if not owners & seen:
            seen |= owners
            count += 1
    return count


def _has_hitting_set(groups: Sequence[OwnerIds], count: int) -> bool:
    """Return True if ``count`` owners can explain every event."""
    if _count_disjoint(groups) > count:
        return False
    if not groups:
        return True
    return any(
        _has_hitting_set([owners for owners in groups if person not in owners], count - 1)
        for person in sorted(groups[0])
    )
