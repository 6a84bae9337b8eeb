"""What lies near each other: GPUs in one NVLink island, hosts that share an island or stand in one rack, as labels say.

An island is an NVLink group within a host (``Unit.nvlink_group``); where NVLink spans hosts they carry the same label
``island``. Hosts of one rack carry the same label ``rack``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.arrays import Ints
from scheduler.core.model.hardware import PoolHardware
from scheduler.core.model.slots import WHOLE_GPU_PROFILE

PROXIMITY_LABELS = ("island", "rack")  # labels that say which hosts are near each other
NO_PLACE = -1


@dataclass(frozen=True, slots=True)
class NvlinkIslands:
    """``of[unit]`` is the unit's island, NOWHERE without NVLink; ``host[island]`` its host. ``matter`` is False when it is all
    the same: every host is one island, or there is no NVLink."""

    of: Ints
    host: Ints
    matter: bool


def nvlink_islands(ground: PoolHardware) -> NvlinkIslands:
    """The NVLink islands within hosts."""
    known = ground.derived.get("islands")
    if isinstance(known, NvlinkIslands):
        return known
    numbers: dict[tuple[int, int], int] = {}
    of = [
        NO_PLACE if unit.nvlink_group is None else numbers.setdefault((host, unit.nvlink_group), len(numbers))
        for unit, host in zip(ground.units, ground.host_of.tolist(), strict=True)
    ]
    hosts = np.array([host for host, _ in numbers], dtype=np.int64)
    alone = any(
        island == NO_PLACE and unit.profile == WHOLE_GPU_PROFILE
        for island, unit in zip(of, ground.units, strict=True)
    )
    several = len(numbers) > len(set(hosts.tolist()))
    found = NvlinkIslands(np.array(of, dtype=np.int64), hosts, bool(numbers) and (alone or several))
    ground.derived["islands"] = found
    return found


def host_places(ground: PoolHardware, label: str) -> Ints | None:
    """Which place each host is in by a label, numbered in the order of the places' names; None when no host carries it."""
    key = "places", label
    if key not in ground.derived:
        names = [dict(host.labels).get(label, "") for host in ground.hosts]
        index = {name: i for i, name in enumerate(sorted({name for name in names if name}))}
        numbers = np.array([index.get(name, NO_PLACE) for name in names], dtype=np.int64)
        ground.derived[key] = numbers if index else None
    found: Ints | None = ground.derived[key]
    return found


def order_by_proximity(ground: PoolHardware, wanted: int, hosts: Ints) -> Ints:
    """The hosts in the order in which a gang of ``wanted`` hosts takes them, given the best first.

    Those of the one island that holds the gang come first; else of the one rack; the fuller such a place is, the better,
    since the others stay whole. Where none holds it, from as few places as will do.
    """
    if wanted == 1:
        return hosts
    coarsest: Ints | None = None
    for label in PROXIMITY_LABELS:
        numbers = host_places(ground, label)
        if numbers is None:
            continue
        coarsest = numbers[hosts]
        members = np.bincount(coarsest[coarsest >= 0], minlength=1)
        if members.max() >= wanted:
            fullest = int(np.where(members >= wanted, members, len(hosts) + 1).argmin())
            return np.concatenate((hosts[coarsest == fullest], hosts[coarsest != fullest]))
    return hosts if coarsest is None else _fewest_places(coarsest, wanted, hosts)


def _fewest_places(numbers: Ints, wanted: int, hosts: Ints) -> Ints:
    """The largest place first, until one holds all that is left: of these the smallest. Hosts nowhere come last."""
    members = np.bincount(numbers[numbers >= 0], minlength=1)
    order: list[int] = []
    while wanted > 0 and members.max() > 0:
        enough = np.flatnonzero(members >= wanted)
        place = int(enough[members[enough].argmin()]) if len(enough) else int(members.argmax())
        order.append(place)
        wanted -= int(members[place])
        members[place] = 0
    taken = [hosts[numbers == place] for place in order]
    return np.concatenate((*taken, hosts[~np.isin(numbers, np.array(order, dtype=np.int64))]))
