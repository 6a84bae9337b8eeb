"""Order hosts by the preferences of an ask or workload: labels, spreading, and hosts to avoid or to prefer.

Preferences order only the hosts that suffice. They never delay work.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints, Mask
from scheduler.core.model.hardware import PoolHardware
from scheduler.core.model.snapshot import Ask, QueuedWorkload


def rank_by_preferences(hardware: PoolHardware, ask: Ask, hosts: Ints, counts: Ints, ranks: Ints) -> Ints:
    """Return the hosts' ranks: preferences come first, then the placement rule's ``ranks``.

    Hosts that miss the fewest preferred labels come first, then, for work to be spread, hosts with the most
    free units.
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
    """Return the hosts for work to be spread, best first: one host of each rack, then a second host of each
    rack, and so on.
    """
    taken: dict[str, int] = {}
    rounds = []
    for host in hosts:
        rack = hardware.rack_of[int(host)]
        rounds.append(taken.get(rack, 0) if rack else 0)
        taken[rack] = taken.get(rack, 0) + 1
    return hosts[np.argsort(np.array(rounds), kind="stable")]


def preferred_unit_masks(hardware: PoolHardware, queued: QueuedWorkload, now: int) -> list[Mask | None]:
    """Return the sets of units on which the workload is tried, in order of preference. The last is None,
    which stands for all units.

    Hosts on which the workload could not start are only in the last set. Among the other hosts, hosts with
    the storage of the workload's checkpoint come first.
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
    """Return the units that are not on these hosts."""
    if not hosts:
        return units
    remaining = units.copy()
    for host in hosts:
        remaining[hardware.first_unit[host] : hardware.first_unit[host + 1]] = False
    return remaining
