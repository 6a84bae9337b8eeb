"""Hold a pool's hardware as arrays.

A cycle is one run of the planner. Later cycles reuse the arrays until hosts or units change.

A unit is a whole GPU, a MIG slice or a declared share of a GPU. Units are sorted by host, GPU and id, so the
units of one host are adjacent. Code refers to a unit by its index in this order. If the planner has two
equally good choices, it takes the lower index.
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

FAR_FUTURE = 1 << 60  # later than every time that the planner handles
# The cache of asks is cleared when it has more entries than this, so that it does not grow without limit.
MAX_CACHED_ASKS = 50_000


@dataclass(frozen=True, slots=True, order=True)
class UnitKind:
    """A kind of unit.

    Units of one kind have the same memory, compute capability, model, profile and slots. An ask (the hardware
    that a workload requests) therefore cannot tell them apart.
    """

    memory_mib: int
    compute_capability: int
    model: str
    profile: str
    slots: int


@dataclass(frozen=True, slots=True)
class ResolvedAsk:
    """The kinds of units that serve an ask, and the slots that it would hold. Equal asks share one object."""

    number: int  # equal asks have equal numbers
    # The kinds that serve the ask, in the order of its list of models. If the ask lists no models, the least
    # capable kind comes first.
    kinds: list[int]
    slots: list[int]  # for each kind of the pool: the slots that the ask would hold on units of that kind
    is_share: bool  # True if the ask is for time-sliced shares
    need: NodeDemand  # the units, CPU and memory that the ask needs on each of its hosts


_kind_of = attrgetter("memory_mib", "compute_capability", "model", "profile", "slots")
_hardware_order = attrgetter("host", "gpu", "id")


class PoolHardware:
    """The hosts and units of one pool.

    No value depends on the time or on running work.
    """

    def __init__(self, hosts: Iterable[HostInfo], units: Iterable[UnitInfo]) -> None:
        self.hosts: list[HostInfo] = sorted(hosts, key=attrgetter("id"))
        self.host_index = {host.id: i for i, host in enumerate(self.hosts)}
        self.units: list[UnitInfo] = sorted(
            (u for u in units if u.host in self.host_index), key=_hardware_order
        )
        self.unit_index = {unit.id: i for i, unit in enumerate(self.units)}
        self._read_units()
        self._read_hosts()
        self.all_units: Mask = np.ones(len(self.units), dtype=np.bool_)
        # Values that other modules derive from the hardware alone. Each module chooses its own keys.
        self.derived: dict[Any, Any] = {}
        self._hosts_with_capacity: dict[tuple[frozenset[tuple[str, str]], int, int], Mask] = {}
        self._label_masks: dict[frozenset[tuple[str, str]], Mask] = {}
        self._units_of_kinds: dict[tuple[int, ...], Mask] = {}
        self._units_by_home_storage: dict[int, Mask] = {}
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
        self.healthy: Mask = np.array([u.healthy for u in self.units], dtype=np.bool_)
        self.first_unit: Ints = np.searchsorted(self.host_of, np.arange(len(self.hosts) + 1))
        # Copies of the arrays as lists, because reading single elements of a numpy array is slow.
        self.host_list, self.gpu_list = self.host_of.tolist(), self.gpu_of.tolist()
        self.slots_list, self.kind_list = self.slots.tolist(), self.kind.tolist()
        self.units_of_kind = [np.flatnonzero(self.kind == kind) for kind in range(len(self.kinds))]
        shares = np.array([kind.profile.startswith("share") for kind in self.kinds], dtype=np.bool_)
        self.time_sliced_units: Ints = np.flatnonzero(shares[self.kind])  # units that are declared shares

    def _read_hosts(self) -> None:
        self.schedulable: Mask = np.array([h.schedulable for h in self.hosts], dtype=np.bool_)
        # Units that may take new work, except in maintenance. Maintenance depends on the time, so each cycle
        # checks it separately.
        self.in_service: Mask = self.healthy & self.schedulable[self.host_of]
        self.cpu_capacity: Ints = np.array([h.cpu_milli or FAR_FUTURE for h in self.hosts], dtype=np.int64)
        self.memory_capacity: Ints = np.array(
            [h.memory_mib or FAR_FUTURE for h in self.hosts], dtype=np.int64
        )
        self.rack_of = [dict(host.labels).get("rack", "") for host in self.hosts]
        self.has_racks = any(self.rack_of)

    def label_mask(self, labels: frozenset[tuple[str, str]]) -> Mask:
        """Return the mask of hosts that have all of these labels."""
        cached = self._label_masks.get(labels)
        if cached is None:
            cached = self._label_masks[labels] = np.array(
                [labels <= h.labels for h in self.hosts], dtype=np.bool_
            )
        return cached

    def units_sharing_home_storage(self, home_storage: int) -> Mask:
        """Return the mask of units on the hosts that use this storage for home folders."""
        cached = self._units_by_home_storage.get(home_storage)
        if cached is None:
            hosts = np.array([host.home_storage == home_storage for host in self.hosts], dtype=np.bool_)
            cached = self._units_by_home_storage[home_storage] = hosts[self.host_of]
        return cached

    def hosts_with_capacity(self, ask: Ask) -> Mask:
        """Return the mask of hosts that have the ask's labels and enough total CPU and memory.

        CPU and memory that running work holds count as available.
        """
        key = ask.labels, ask.cpu_milli, ask.memory_mib
        cached = self._hosts_with_capacity.get(key)
        if cached is None:
            cached = (self.cpu_capacity >= ask.cpu_milli) & (self.memory_capacity >= ask.memory_mib)
            cached = self._hosts_with_capacity[key] = cached & self.label_mask(ask.labels)
        return cached

    def resolve_ask(self, ask: Ask) -> ResolvedAsk:
        """Return the kinds of units that serve an ask, and its slots on each kind.

        Equal asks share one result. The first cache uses ``id(ask)`` as its key, because hashing asks took a
        tenth of a cycle's time.
        """
        cached = self._asks_by_row.get(id(ask))
        if cached is not None:
            return cached[0]
        resolved = self._asks.get(ask)
        if resolved is None:
            resolved = self._asks[ask] = self._resolve(ask)
        # The cache stores the ask itself too. This keeps the ask alive, so no other object can get its id.
        self._asks_by_row[id(ask)] = resolved, ask
        return resolved

    def _resolve(self, ask: Ask) -> ResolvedAsk:
        serving = [
            i
            for i, kind in enumerate(self.kinds)
            if kind.profile == ask.profile
            and kind.memory_mib >= ask.min_memory_mib
            and kind.compute_capability >= ask.min_compute_capability
            and (not ask.models or kind.model in ask.models)
        ]
        if ask.models:
            serving.sort(key=lambda i: (ask.models.index(self.kinds[i].model), i))
        need = NodeDemand(ask.units, MILLI_PER_GPU, ask.cpu_milli, ask.memory_mib)
        slots = [ask.total_units * kind.slots for kind in self.kinds]
        return ResolvedAsk(len(self._asks), serving, slots, ask.profile.startswith("share"), need)

    def ask_number(self, ask: Ask) -> int:
        """Return the number of an ask. Equal asks have equal numbers."""
        cached = self._asks_by_row.get(id(ask))
        return (cached[0] if cached is not None else self.resolve_ask(ask)).number

    @property
    def ask_cache_is_full(self) -> bool:
        """Return True if the cache of asks has more than ``MAX_CACHED_ASKS`` entries."""
        return len(self._asks_by_row) > MAX_CACHED_ASKS

    def clear_ask_cache(self) -> None:
        """Clear the cache of asks and restart their numbers at 0. Call it only between cycles."""
        for cached in (self._asks, self._asks_by_row, self._hosts_with_capacity):
            cached.clear()

    def kinds_for(self, ask: Ask) -> list[int]:
        """Return the kinds that serve an ask, in the order of its list of models.

        If the ask lists no models, the least capable kind comes first.
        """
        return self.resolve_ask(ask).kinds

    def units_serving(self, ask: Ask) -> Mask:
        """Return the mask of units whose kind serves an ask."""
        return self.units_of_kinds(self.resolve_ask(ask).kinds)

    def units_of_kinds(self, kinds: list[int]) -> Mask:
        """Return the mask of units of these kinds."""
        key = tuple(kinds)
        cached = self._units_of_kinds.get(key)
        if cached is None:
            cached = self._units_of_kinds[key] = np.isin(self.kind, np.array(kinds, dtype=np.int64))
        return cached


def _indices(values: list[Any], distinct: list[Any]) -> Ints:
    """Return the index of each value in the list of distinct values."""
    index = {value: i for i, value in enumerate(distinct)}
    return np.array([index[value] for value in values], dtype=np.int64)
