"""Order hosts by preferences: labels, spreading over hosts and racks, and hosts to avoid or to prefer.

The preferences come from the ask (the hardware that a workload requests) or from the workload's earlier
attempts. Preferences only order the hosts on which the ask fits. They never delay work.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints, Mask
from scheduler.core.model.hardware import PoolHardware
from scheduler.core.model.snapshot import Ask, QueuedWorkload


def rank_by_preferences(hardware: PoolHardware, ask: Ask, hosts: Ints, counts: Ints, ranks: Ints) -> Ints:
    """Return ranks in which the ask's preferences have more weight than the given ``ranks`` of the hosts.

    A host with fewer missing preferred labels comes first. If several hosts are equal in this point and the
    ask is to be spread, the host with the most free units (``counts``) comes first. The last criterion is
    ``ranks``, which come from the placement rule.
    """
    if not ask.labels_preferred and not ask.spread:
        return ranks
    missing = np.zeros(len(hosts), dtype=np.int64)
    for label in sorted(ask.labels_preferred):
        missing += ~hardware.label_mask(frozenset({label}))[hosts]
    fullness = -counts if ask.spread else np.zeros(len(hosts), dtype=np.int64)
    order = np.lexsort((hosts, ranks, fullness, missing))
    position = np.empty(len(hosts), dtype=np.int64)
    position[order] = np.arange(len(hosts))
    return position


def spread_over_racks(hardware: PoolHardware, hosts: Ints) -> Ints:
    """Return the hosts reordered for work that is to be spread over racks.

    The first round has one host of each rack, the second round has a second host of each rack, and so on.
    ``hosts`` is ordered from best to worst, and each round keeps this order.
    """
    taken: dict[str, int] = {}
    rounds = []
    for host in hosts:
        rack = hardware.rack_of[int(host)]
        rounds.append(taken.get(rack, 0) if rack else 0)
        taken[rack] = taken.get(rack, 0) + 1
    return hosts[np.argsort(np.array(rounds), kind="stable")]


def preferred_unit_masks(hardware: PoolHardware, queued: QueuedWorkload, now: int) -> list[Mask | None]:
    """Return the masks of units on which the planner tries to place a workload, in order of preference.

    1. The units of hosts that have the storage with the workload's checkpoint, except the hosts to avoid.
    2. The units of all hosts except the hosts to avoid.
    3. None, which means all units.

    The hosts to avoid are the hosts on which the workload recently failed to start or ran low on disk. A mask
    that would exclude no unit is left out. The first mask is also left out if no host has the storage.
    """
    avoided = (
        [hardware.host_index[host] for host in queued.avoids if host in hardware.host_index]
        if now < queued.avoids_until
        else []
    )
    same_storage = (
        None
        if queued.checkpoint_storage is None
        else hardware.units_sharing_home_storage(queued.checkpoint_storage)
    )
    masks: list[Mask | None] = []
    if same_storage is not None and same_storage.any() and not same_storage.all():
        masks.append(_without(hardware, same_storage, avoided))
    if avoided:
        masks.append(_without(hardware, hardware.all_units, avoided))
    return [*masks, None]


def _without(hardware: PoolHardware, units: Mask, hosts: list[int]) -> Mask:
    """Return the mask ``units`` without the units on ``hosts``."""
    if not hosts:
        return units
    remaining = units.copy()
    for host in hosts:
        remaining[hardware.first_unit[host] : hardware.first_unit[host + 1]] = False
    return remaining
