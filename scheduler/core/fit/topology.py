"""Find GPUs that NVLink connects, and hosts that are near each other.

An NVLink island is a group of GPUs within one host that NVLink connects (``UnitInfo.nvlink_group``). If
NVLink connects several hosts, they have equal values of the host label ``island``. Hosts of one rack have
equal values of the host label ``rack``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.arrays import Ints
from scheduler.core.model.hardware import PoolHardware
from scheduler.core.model.slots import WHOLE_GPU_PROFILE

PROXIMITY_LABELS = ("island", "rack")  # hosts with equal values of a label are near each other
NO_PLACE = -1


@dataclass(frozen=True, slots=True)
class NvlinkIslands:
    """The NVLink islands within the hosts of a pool.

    ``of[unit]`` is the number of the unit's island, or NO_PLACE if the unit has no NVLink. ``host[island]``
    is the host of an island. ``matter`` is False if all GPUs of each host are in one island, or if the pool
    has no NVLink. The choice of an island then has no effect.
    """

    of: Ints
    host: Ints
    matter: bool


def nvlink_islands(hardware: PoolHardware) -> NvlinkIslands:
    """Return the NVLink islands within the hosts of a pool. The result is cached with the hardware."""
    cached = hardware.derived.get("islands")
    if isinstance(cached, NvlinkIslands):
        return cached
    numbers: dict[tuple[int, int], int] = {}
    of = [
        NO_PLACE if unit.nvlink_group is None else numbers.setdefault((host, unit.nvlink_group), len(numbers))
        for unit, host in zip(hardware.units, hardware.host_of.tolist(), strict=True)
    ]
    hosts = np.array([host for host, _ in numbers], dtype=np.int64)
    some_without_nvlink = any(
        island == NO_PLACE and unit.profile == WHOLE_GPU_PROFILE
        for island, unit in zip(of, hardware.units, strict=True)
    )
    hosts_have_several = len(numbers) > len(set(hosts.tolist()))
    islands = NvlinkIslands(
        np.array(of, dtype=np.int64), hosts, bool(numbers) and (some_without_nvlink or hosts_have_several)
    )
    hardware.derived["islands"] = islands
    return islands


def host_places(hardware: PoolHardware, label: str) -> Ints | None:
    """Return, for each host, the number of its place.

    A place is a group of hosts with equal values of ``label``, for example a rack. Places are numbered in
    alphabetical order of the values. A host without the label gets NO_PLACE. The result is None if no host
    has the label.
    """
    key = "places", label
    if key not in hardware.derived:
        names = [dict(host.labels).get(label, "") for host in hardware.hosts]
        index = {name: i for i, name in enumerate(sorted({name for name in names if name}))}
        numbers = np.array([index.get(name, NO_PLACE) for name in names], dtype=np.int64)
        hardware.derived[key] = numbers if index else None
    places: Ints | None = hardware.derived[key]
    return places


def order_by_proximity(hardware: PoolHardware, hosts_needed: int, hosts: Ints) -> Ints:
    """Return the hosts in the order in which a gang (a workload on several hosts) takes them.

    ``hosts`` is ordered from best to worst. An island is a group of hosts with equal values of the host label
    ``island``. If an island has at least ``hosts_needed`` of these hosts, its hosts come first. Otherwise, if
    a rack has this many, its hosts come first. If several islands or racks are large enough, the smallest is
    chosen. The larger islands and racks then stay free for larger gangs. If none is large enough, the order
    uses as few racks (or islands, if no host has a rack) as possible.
    """
    if hosts_needed == 1:
        return hosts
    coarsest: Ints | None = None
    for label in PROXIMITY_LABELS:
        numbers = host_places(hardware, label)
        if numbers is None:
            continue
        coarsest = numbers[hosts]
        members = np.bincount(coarsest[coarsest >= 0], minlength=1)
        if members.max() >= hosts_needed:
            fullest = int(np.where(members >= hosts_needed, members, len(hosts) + 1).argmin())
            return np.concatenate((hosts[coarsest == fullest], hosts[coarsest != fullest]))
    return hosts if coarsest is None else _fewest_places(coarsest, hosts_needed, hosts)


def _fewest_places(numbers: Ints, hosts_needed: int, hosts: Ints) -> Ints:
    """Return the hosts in an order in which a gang uses few places (islands or racks).

    The places with the most hosts come first, then the smallest place that has enough hosts for the rest.
    Example: for 5 hosts and places with 4, 3 and 2 hosts, the first places are those with 4 and 2 hosts.
    Hosts of other places, or without a place, come last.
    """
    members = np.bincount(numbers[numbers >= 0], minlength=1)
    order: list[int] = []
    while hosts_needed > 0 and members.max() > 0:
        sufficient = np.flatnonzero(members >= hosts_needed)
        place_number = (
            int(sufficient[members[sufficient].argmin()]) if len(sufficient) else int(members.argmax())
        )
        order.append(place_number)
        hosts_needed -= int(members[place_number])
        members[place_number] = 0
    taken = [hosts[numbers == place_number] for place_number in order]
    return np.concatenate((*taken, hosts[~np.isin(numbers, np.array(order, dtype=np.int64))]))
