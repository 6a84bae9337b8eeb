"""A pool's hardware as arrays: what stays the same from cycle to cycle until hosts or units change.

Units are ordered by host, GPU and id, so that an index is a stable name and the units of a host lie together; every
choice that is otherwise equal falls to the lower index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from scheduler.core.arrays import Ints, Mask
from scheduler.core.model.snapshot import Ask, HostInfo, UnitInfo
from scheduler.core.scoring.demand_mix import MILLI_PER_GPU, NodeDemand

FAR_FUTURE = 1 << 60  # later than every time the planner meets
MAX_CACHED_ASKS = 50_000  # asks numbered before the numbering starts over, so that it does not grow for ever


@dataclass(frozen=True, slots=True, order=True)
class UnitKind:
    """Units that are the same to an ask."""

    memory_mib: int
    compute_capability: int
    model: str
    profile: str
    slots: int


@dataclass(frozen=True, slots=True)
class ResolvedAsk:
    """What the hardware says about an ask, worked out once for all equal asks."""

    number: int  # the same for equal asks
    kinds: list[int]  # that serve it, in its order of preference; without a wish the least capable first
    slots: list[int]  # of each kind of the ground: what it would hold of it
    is_share: bool  # of a GPU, by time
    need: NodeDemand  # on each host


_kind_of = attrgetter("memory_mib", "compute_capability", "model", "profile", "slots")
_hardware_order = attrgetter("host", "gpu", "id")


class PoolHardware:
    """The hosts and units of one pool. Nothing here depends on time, or on who holds what."""

    def __init__(self, hosts: Iterable[HostInfo], units: Iterable[UnitInfo]) -> None:
        self.hosts: list[HostInfo] = sorted(hosts, key=attrgetter("id"))
        self.host_index = {host.id: i for i, host in enumerate(self.hosts)}
        self.units: list[UnitInfo] = sorted(
            (u for u in units if u.host in self.host_index), key=_hardware_order
        )
        self.unit_index = {unit.id: i for i, unit in enumerate(self.units)}
        self._read_units()
        self._read_hosts()
        self.everything: Mask = np.ones(len(self.units), dtype=np.bool_)
        self.derived: dict[
            Any, Any
        ] = {}  # what else follows from the hardware alone; whoever puts it there names the key
        self._roomy: dict[tuple[frozenset[tuple[str, str]], int, int], Mask] = {}
        self._label_masks: dict[frozenset[tuple[str, str]], Mask] = {}
        self._of_kinds: dict[tuple[int, ...], Mask] = {}
        self._sharing_homes: dict[int, Mask] = {}
        self._asks: dict[Ask, ResolvedAsk] = {}
        self._asks_by_row: dict[int, tuple[ResolvedAsk, Ask]] = {}

    def _read_units(self) -> None:
        kinds = [_kind_of(unit) for unit in self.units]
        self.kinds = [UnitKind(*kind) for kind in sorted(set(kinds))]
        self.models = sorted({kind.model for kind in self.kinds})
        self.kind = _indices(kinds, [_kind_of(kind) for kind in self.kinds])
        self.model_of_kind = [self.models.index(kind.model) for kind in self.kinds]  # index into ``models``
        self.model_of_unit: Ints = np.array(self.model_of_kind, dtype=np.int64)[self.kind]
        self.host_of: Ints = np.array([self.host_index[u.host] for u in self.units], dtype=np.int64)
        gpus = [unit.gpu for unit in self.units]
        self.gpus = sorted(set(gpus))
        self.gpu_of = _indices(gpus, self.gpus)
        self.slots: Ints = np.array([kind.slots for kind in self.kinds], dtype=np.int64)[self.kind]
        self.well: Mask = np.array([u.well for u in self.units], dtype=np.bool_)
        self.first_unit: Ints = np.searchsorted(self.host_of, np.arange(len(self.hosts) + 1))
        # The same as lists: single elements of arrays are slow to read.
        self.host_list, self.gpu_list = self.host_of.tolist(), self.gpu_of.tolist()
        self.slots_list, self.kind_list = self.slots.tolist(), self.kind.tolist()
        self.units_of_kind = [np.flatnonzero(self.kind == kind) for kind in range(len(self.kinds))]
        shares = np.array([kind.profile.startswith("share") for kind in self.kinds], dtype=np.bool_)
        self.time_sliced_units: Ints = np.flatnonzero(shares[self.kind])  # the units that are declared shares

    def _read_hosts(self) -> None:
        self.accepts: Mask = np.array([h.accepts for h in self.hosts], dtype=np.bool_)
        self.in_service: Mask = (
            self.well & self.accepts[self.host_of]
        )  # takes work, maintenance apart, which has an end
        self.cpu_whole: Ints = np.array([h.cpu_milli or FAR_FUTURE for h in self.hosts], dtype=np.int64)
        self.memory_whole: Ints = np.array([h.memory_mib or FAR_FUTURE for h in self.hosts], dtype=np.int64)
        self.rack_of = [dict(host.labels).get("rack", "") for host in self.hosts]
        self.has_racks = any(self.rack_of)

    def label_mask(self, labels: frozenset[tuple[str, str]]) -> Mask:
        """Which hosts carry every one of these labels."""
        known = self._label_masks.get(labels)
        if known is None:
            known = self._label_masks[labels] = np.array(
                [labels <= h.labels for h in self.hosts], dtype=np.bool_
            )
        return known

    def units_sharing_home_storage(self, homes: int) -> Mask:
        """Which units are on hosts with these homes."""
        known = self._sharing_homes.get(homes)
        if known is None:
            hosts = np.array([host.homes == homes for host in self.hosts], dtype=np.bool_)
            known = self._sharing_homes[homes] = hosts[self.host_of]
        return known

    def hosts_with_capacity(self, ask: Ask) -> Mask:
        """Hosts with the labels, and with the CPU and memory when nobody else is there."""
        beside = ask.labels, ask.cpu_milli, ask.memory_mib
        known = self._roomy.get(beside)
        if known is None:
            known = (self.cpu_whole >= ask.cpu_milli) & (self.memory_whole >= ask.memory_mib)
            known = self._roomy[beside] = known & self.label_mask(ask.labels)
        return known

    def wanted(self, ask: Ask) -> ResolvedAsk:
        """The same object for equal asks. Found by the ask's own first: hashing an ask took a tenth of a cycle."""
        known = self._asks_by_row.get(id(ask))
        if known is not None:
            return known[0]
        wanted = self._asks.get(ask)
        if wanted is None:
            wanted = self._asks[ask] = self._look_up(ask)
        self._asks_by_row[id(ask)] = wanted, ask  # the ask is kept, so that no other object gets its id
        return wanted

    def _look_up(self, ask: Ask) -> ResolvedAsk:
        fitting = [
            i
            for i, kind in enumerate(self.kinds)
            if kind.profile == ask.profile
            and kind.memory_mib >= ask.min_memory_mib
            and kind.compute_capability >= ask.min_compute_capability
            and (not ask.models or kind.model in ask.models)
        ]
        if ask.models:
            fitting.sort(key=lambda i: (ask.models.index(self.kinds[i].model), i))
        need = NodeDemand(ask.units, MILLI_PER_GPU, ask.cpu_milli, ask.memory_mib)
        slots = [ask.total_units * kind.slots for kind in self.kinds]
        return ResolvedAsk(len(self._asks), fitting, slots, ask.profile.startswith("share"), need)

    def ask_number(self, ask: Ask) -> int:
        """The same for equal asks."""
        known = self._asks_by_row.get(id(ask))
        return (known[0] if known is not None else self.wanted(ask)).number

    @property
    def ask_cache_is_full(self) -> bool:
        return len(self._asks_by_row) > MAX_CACHED_ASKS

    def clear_ask_cache(self) -> None:
        """Start the numbering over. Only between cycles."""
        for known in (self._asks, self._asks_by_row, self._roomy):
            known.clear()

    def kinds_for(self, ask: Ask) -> list[int]:
        """The kinds that serve an ask, in its order of preference; without a wish the least capable first."""
        return self.wanted(ask).kinds

    def fitting(self, ask: Ask) -> Mask:
        """The units of every kind that serves an ask."""
        return self.of_kinds(self.wanted(ask).kinds)

    def of_kinds(self, kinds: list[int]) -> Mask:
        """The units of these kinds."""
        key = tuple(kinds)
        known = self._of_kinds.get(key)
        if known is None:
            known = self._of_kinds[key] = np.isin(self.kind, np.array(kinds, dtype=np.int64))
        return known


def _indices(values: list[Any], known: list[Any]) -> Ints:
    """Where each value stands in a list of all that occur."""
    index = {value: i for i, value in enumerate(known)}
    return np.array([index[value] for value in values], dtype=np.int64)
