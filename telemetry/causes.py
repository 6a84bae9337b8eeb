"""Whose work may stand behind hardware events that a program can bring about.

Of one person's programs however many such events count as one: what one person can do alone takes no GPU from the others. Where
several people were on a GPU, nothing says whose program it was: the fewest people that could have brought about all of it count. An
event of a GPU on which nobody was counts by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from itertools import combinations

from scheduler.models import Allocation
from telemetry.models import HealthEvent

AROUND = timedelta(minutes=2)  # how far a host's clock may be off, and the driver's word behind the deed
MOST_LOOKED_AT = 50  # events; the newest


def different(events: Sequence[HealthEvent], enough: int) -> int:
    """How many different causes these events of one GPU have at the least, counted up to ``enough``."""
    looked_at = sorted(events, key=lambda event: (event.at, event.pk))[-MOST_LOOKED_AT:]
    people = [_people_of(event) for event in looked_at]
    alone = sum(not those for those in people)
    return min(enough, alone + _fewest([those for those in people if those], max(0, enough - alone)))


def _people_of(event: HealthEvent) -> frozenset[int]:
    """The owners of what held the GPU, or without one the host, when the event came: from a little before until it was told."""
    period = (event.at - AROUND, max(event.at, event.received_at))
    held = Allocation.objects.filter(period__overlap=period, unit__gpu__host=event.host_id)
    if event.gpu_id is not None:
        held = held.filter(unit__gpu=event.gpu_id)
    return frozenset(held.values_list("workload__owner_id", flat=True))


def _fewest(events: Collection[frozenset[int]], enough: int) -> int:
    """The fewest people of whom every event had one, or ``enough`` where fewer would not do."""
    if not events:
        return 0
    everybody = sorted(set().union(*events))
    for count in range(1, min(enough, len(everybody) + 1)):
        if any(all(those & set(some) for those in events) for some in combinations(everybody, count)):
            return count
    return enough
