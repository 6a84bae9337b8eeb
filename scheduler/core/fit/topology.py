"""Find GPUs in one NVLink island, and hosts that share an island or a rack by their labels.

An island is an NVLink group within a host (``UnitInfo.nvlink_group``). If NVLink spans several hosts, these
hosts have the same label ``island``. Hosts of one rack have the same label ``rack``.
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
    """The NVLink islands of a pool.

    ``of[unit]`` is the unit's island, NO_PLACE without NVLink. ``host[island]`` is its host. ``matter`` is
    False if the choice of an island has no effect: each host is one island, or there is no NVLink.
    """

    of: Ints
    host: Ints
    matter: bool


def nvlink_islands(hardware: PoolHardware) -> NvlinkIslands:
    """Return the NVLink islands within hosts."""
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
    """Return the number of each host's place, or None if no host has the label.

    A place is the group of hosts with one value of the label. Places are numbered in the order of these
    values. Hosts without the label get NO_PLACE.
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
    """Return the hosts in the order in which a gang of ``hosts_needed`` hosts takes them. ``hosts`` is
    ordered from best to worst.

    If one island can hold the gang, its hosts come first; otherwise the hosts of one rack that can hold the
    gang. The place with the fewest suitable hosts is chosen, so that the other places stay whole. If no place
    can hold the gang, the gang takes as few places as possible.
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
    """Return the hosts ordered by place: the largest places first, then the smallest place that can hold the
    rest. Hosts of other places or without a place come last.
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
