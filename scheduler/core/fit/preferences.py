"""What an ask would rather have: labels it prefers, and places that share as little as can be; and where a workload had better
go by what became of its attempts before. Wishes order the hosts that would do; they never keep work waiting."""

from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints, Mask
from scheduler.core.model.hardware import PoolHardware
from scheduler.core.model.snapshot import Ask, QueuedWorkload


def rank_by_preferences(ground: PoolHardware, ask: Ask, hosts: Ints, counts: Ints, ranks: Ints) -> Ints:
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


def spread_over_racks(ground: PoolHardware, hosts: Ints) -> Ints:
    """The hosts of a gang that is to be spread, best first: one of each rack, then a second of each, and so on."""
    taken: dict[str, int] = {}
    turns = []
    for host in hosts:
        rack = ground.rack_of[int(host)]
        turns.append(taken.get(rack, 0) if rack else 0)
        taken[rack] = taken.get(rack, 0) + 1
    return hosts[np.argsort(np.array(turns), kind="stable")]


def preferred_unit_masks(ground: PoolHardware, queued: QueuedWorkload, now: int) -> list[Mask | None]:
    """The units that a workload is tried on first, then those it is tried on where it does not fit there, and so on; None, the
    last, stands for all of them. Away from hosts on which it could not start comes first: there no checkpoint is of use to it;
    then hosts with the homes that its checkpoint lies in."""
    avoided = (
        [ground.host_index[host] for host in queued.avoids if host in ground.host_index]
        if now < queued.avoids_until
        else []
    )
    near = None if queued.homes is None else ground.units_sharing_home_storage(queued.homes)
    found: list[Mask | None] = []
    if near is not None and near.any() and not near.all():
        found.append(_without(ground, near, avoided))
    if avoided:
        found.append(_without(ground, ground.everything, avoided))
    return [*found, None]


def _without(ground: PoolHardware, units: Mask, hosts: list[int]) -> Mask:
    """These units, less those on some hosts."""
    if not hosts:
        return units
    left = units.copy()
    for host in hosts:
        left[ground.first_unit[host] : ground.first_unit[host + 1]] = False
    return left
