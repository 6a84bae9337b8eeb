"""Count the independent causes of hardware events that a program can cause.

Events that one owner's programs can explain count as one cause: one person alone must not be able to take
GPUs out of use. If several owners held the GPU, the cause is unknown. The smallest number of owners that
explains all events counts (a minimum hitting set). An event while nobody held the GPU counts on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from scheduler.models import Allocation
from telemetry.models import HealthEvent

# Covers clock skew of hosts and the delay of the driver's log.
TIMESTAMP_TOLERANCE = timedelta(minutes=2)
MAX_EVENTS = 50  # only the newest are examined
MAX_EXACT_OWNERS = 3  # larger hitting sets are not searched exactly

OwnerIds = frozenset[int]


def count_distinct_causes(events: Sequence[HealthEvent], enough: int) -> int:
    """Return the minimum number of causes of these events of one GPU or one host, at most ``enough``. One
    query.
    """
    examined = sorted(events, key=lambda event: (event.at, event.pk))[-max(MAX_EVENTS, enough) :]
    owner_sets = _owners_of_events(examined)
    alone = sum(not owners for owners in owner_sets)
    return min(
        enough,
        alone + minimum_hitting_set_size((owners for owners in owner_sets if owners), max(0, enough - alone)),
    )


def _owners_of_events(events: Sequence[HealthEvent]) -> list[OwnerIds]:
    """Return for each event the owners of allocations on the GPU (or host) from shortly before the event
    until its receipt.
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
    """Return the size of the smallest set of owners that contains an owner of every event, at most
    ``enough``.

    Above MAX_EXACT_OWNERS the result is a lower bound, so that the time is bounded for any number of events
    and owners.
    """
    groups = _minimal_owner_sets(events)
    least = _count_disjoint(groups)
    while least < enough and least <= MAX_EXACT_OWNERS and not _has_hitting_set(groups, least):
        least += 1
    return min(enough, least)


def _minimal_owner_sets(events: Iterable[OwnerIds]) -> list[OwnerIds]:
    """Return the owner sets that have no proper subset among them. An owner who explains a subset also
    explains its supersets.
    """
    kept: list[OwnerIds] = []
    for owners in sorted(set(events), key=lambda owners: (len(owners), sorted(owners))):
        if not any(subset <= owners for subset in kept):
            kept.append(owners)
    return kept


def _count_disjoint(groups: Sequence[OwnerIds]) -> int:
    """Return the number of pairwise disjoint sets that a greedy search finds: a lower bound of the hitting
    set.
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
