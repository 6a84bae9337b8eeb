"""What an ask would rather have: labels it prefers, and places that share as little as can be. Wishes order the hosts that
would do; they never keep work waiting."""

from __future__ import annotations

import numpy as np

from scheduler.core.ground import Ground, Ints
from scheduler.core.model import Ask


def wished_for(ground: Ground, ask: Ask, hosts: Ints, counts: Ints, ranks: Ints) -> Ints:
    """The candidates' ranks with the wishes before the placement rule: fewest preferred labels missing, then, when it is to
    be spread, most units free; what is equal in both stays in the order of ``ranks``."""
    if not ask.labels_preferred and not ask.spread:
        return ranks
    missing = np.zeros(len(hosts), dtype=np.int64)
    for label in sorted(ask.labels_preferred):
        missing += ~ground.label_mask(frozenset({label}))[hosts]
    crowded = -counts if ask.spread else np.zeros(len(hosts), dtype=np.int64)
    order = np.lexsort((hosts, ranks, crowded, missing))
    place = np.empty(len(hosts), dtype=np.int64)
    place[order] = np.arange(len(hosts))
    return place


def apart(ground: Ground, hosts: Ints) -> Ints:
    """The hosts of a gang that is to be spread, best first: one of each rack, then a second of each, and so on."""
    taken: dict[str, int] = {}
    turns = []
    for host in hosts:
        rack = ground.rack_of[int(host)]
        turns.append(taken.get(rack, 0) if rack else 0)
        taken[rack] = taken.get(rack, 0) + 1
    return hosts[np.argsort(np.array(turns), kind="stable")]
