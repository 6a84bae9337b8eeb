"""Rank a pool's hosts for an ask by the placement rule.

A host with free units, CPU and memory is a node of the rule. The gain of placing an ask on it is

    waste before - waste after - model price - slot price

where waste is the GPU capacity that the expected asks could not use (``ExpectedWaste``), and the prices are
those of scarce models and of space for several GPUs (``ScarcityPrices``). The host with the largest gain
ranks first.

Units are held as a whole, so a host is, to the rule, a number of free units of one kind, with CPU and memory.
CPU and memory are rounded to ``RESOURCE_LEVELS`` levels of what the pool's asks could use on a full host; all
larger amounts are equal. The waste of hosts is therefore a small table for each mix of asks, and an ask's
ranks are looked up in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scheduler.core.arrays import Ints
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import Ask
from scheduler.core.scoring.demand_mix import (
    MILLI_PER_GPU,
    UNLIMITED_AMOUNT,
    DemandMix,
    NodeDemand,
    round_weights,
)
from scheduler.core.scoring.expected_waste import ExpectedWaste
from scheduler.core.scoring.scarcity_prices import (
    PRICE_REFRESH_PLACEMENTS,
    SCORE_UNITS_PER_MILLI,
    ScarcityPrices,
)

RESOURCE_LEVELS = 8
# The demand that is assumed before a pool had any: (units per host, weight). It stays in the mix, where real
# demand soon outweighs it.
PRIOR_DEMAND = ((1, 8), (2, 2), (4, 2), (8, 1))


@dataclass(frozen=True, slots=True)
class PlacementTerms:
    """The rule's terms for one placement, in thousandths of a unit: why the host was chosen."""

    waste_before: int
    waste_after: int
    model_price: int
    slot_price: int

    def __add__(self, other: PlacementTerms) -> PlacementTerms:
        return PlacementTerms(
            self.waste_before + other.waste_before,
            self.waste_after + other.waste_after,
            self.model_price + other.model_price,
            self.slot_price + other.slot_price,
        )

    @property
    def gain(self) -> int:
        """Return the gain of the placement."""
        return self.waste_before - self.waste_after - self.model_price - self.slot_price


class HostWasteTables:
    """The waste of hosts of each class by (CPU level, memory level, free units). Cells are computed on
    demand.
    """

    def __init__(self, mix: DemandMix, max_units: tuple[int, ...]) -> None:
        """``max_units``: the most units of each class on one host."""
        self.max_units = max_units
        self.waste = ExpectedWaste(mix, len(max_units))
        self.cpu_step: list[int] = []
        self.memory_step: list[int] = []
        self.tables: list[Ints] = []  # by class: (CPU level, memory level, free units)
        self._filled = [
            np.zeros((RESOURCE_LEVELS + 1, RESOURCE_LEVELS + 1), dtype=np.bool_) for _ in max_units
        ]
        for unit_class, units in enumerate(max_units):
            table = np.zeros((RESOURCE_LEVELS + 1, RESOURCE_LEVELS + 1, units + 1), dtype=np.int64)
            table[RESOURCE_LEVELS, RESOURCE_LEVELS], cpu, memory = self.waste.of_whole_gpu_nodes(
                unit_class, units, UNLIMITED_AMOUNT, UNLIMITED_AMOUNT
            )
            self._filled[unit_class][RESOURCE_LEVELS, RESOURCE_LEVELS] = True
            self.tables.append(table)
            self.cpu_step.append(-(-cpu // RESOURCE_LEVELS))
            self.memory_step.append(-(-memory // RESOURCE_LEVELS))

    def fill(self, unit_class: int, cpu: Ints, memory: Ints) -> None:
        """Compute the missing cells of a class for the (CPU, memory) levels of some hosts.

        Nearly always none is missing, which one lookup shows.
        """
        if not self._filled[unit_class][cpu, memory].all():
            self.table(unit_class, set(zip(cpu.tolist(), memory.tolist(), strict=True)))

    def table(self, unit_class: int, levels: set[tuple[int, int]]) -> Ints:
        """Return the table of a class, with these (CPU, memory) levels computed."""
        for cpu, memory in sorted(levels):
            if not self._filled[unit_class][cpu, memory]:
                self._filled[unit_class][cpu, memory] = True
                self.tables[unit_class][cpu, memory], _, _ = self.waste.of_whole_gpu_nodes(
                    unit_class,
                    self.max_units[unit_class],
                    self._amount(cpu, self.cpu_step[unit_class]),
                    self._amount(memory, self.memory_step[unit_class]),
                )
        return self.tables[unit_class]

    @staticmethod
    def _amount(level: int, step: int) -> int:
        return UNLIMITED_AMOUNT if level == RESOURCE_LEVELS else level * step


@lru_cache(maxsize=64)
def host_waste_tables(mix: DemandMix, max_units: tuple[int, ...]) -> HostWasteTables:
    """Return the tables of a mix, cached from cycle to cycle: they depend on nothing else."""
    return HostWasteTables(mix, max_units)


class HostRanking:
    """The placement rule for the units of one profile in one pool."""

    def __init__(self, state: PoolState, profile: str) -> None:
        self.state = state
        self.kinds = [i for i, kind in enumerate(state.kinds) if kind.profile == profile]
        self.class_of = {kind: unit_class for unit_class, kind in enumerate(self.kinds)}
        size = len(state.hosts)
        max_units = [
            int(np.bincount(state.host_of[state.kind == kind], minlength=size).max(initial=0))
            for kind in self.kinds
        ]
        self.mix = round_weights(self._demand_mix(profile))
        self.waste_tables = host_waste_tables(self.mix, tuple(max_units))
        self.prices = ScarcityPrices(self.mix, len(self.kinds), self.waste_tables.waste.batches)
        self.slot_values: list[Ints] = []  # by class: the value of a host's slots by (CPU level, free units)
        self._slots = [self._slots_by_state(unit_class) for unit_class in range(len(self.kinds))]
        self._ample_ranks: dict[tuple[int, int], Ints] = {}
        self._terms: dict[tuple[int, int, int, tuple[int, int], tuple[int, int]], PlacementTerms] = {}
        self._priced_at = -PRICE_REFRESH_PLACEMENTS

    def _demand_mix(self, profile: str) -> DemandMix:
        """Return the waiting and running work as asks per host. Running work counts as fitting any model."""
        state, all_classes = self.state, (1 << len(self.kinds)) - 1
        counted_demands = [
            (NodeDemand(units, MILLI_PER_GPU, 0, 0, all_classes), weight) for units, weight in PRIOR_DEMAND
        ]
        for ask, count in state.pool_snapshot.queue.asks():
            classes = (
                sum(1 << self.class_of[kind] for kind in state.kinds_for(ask))
                if ask.profile == profile
                else 0
            )
            if classes:
                counted_demands.append(
                    (
                        NodeDemand(ask.units, MILLI_PER_GPU, ask.cpu_milli, ask.memory_mib, classes),
                        ask.hosts * count,
                    )
                )
        for (kind, units, cpu, memory), count in state.pool_snapshot.running_work.host_demand_counts.items():
            if kind in self.class_of:
                counted_demands.append((NodeDemand(units, MILLI_PER_GPU, cpu, memory, all_classes), count))
        return DemandMix.of(counted_demands)

    def ranks(self, ask: Ask, kind: int, counts: Ints, cpu: Ints, memory: Ints) -> Ints:
        """Return the rank of each host with these free units, CPU and memory, all of which fit the ask;
        lower is better.
        """
        self._refresh_prices()
        unit_class = self.class_of[kind]
        ample_limits = (
            self.waste_tables.cpu_step[unit_class] * RESOURCE_LEVELS,
            self.waste_tables.memory_step[unit_class] * RESOURCE_LEVELS,
        )
        if cpu.min() >= ample_limits[0] + ask.cpu_milli and memory.min() >= ample_limits[1] + ask.memory_mib:
            return self._ranks_with_ample_resources(unit_class, ask.units)[counts]
        cpu_before, memory_before = self._levels(unit_class, cpu, memory)
        cpu_after, memory_after = self._levels(unit_class, cpu - ask.cpu_milli, memory - ask.memory_mib)
        self.waste_tables.fill(unit_class, cpu_before, memory_before)
        self.waste_tables.fill(unit_class, cpu_after, memory_after)
        waste, values, units_left = (
            self.waste_tables.tables[unit_class],
            self.slot_values[unit_class],
            counts - ask.units,
        )
        ranks: Ints = waste[cpu_after, memory_after, units_left] - waste[cpu_before, memory_before, counts]
        ranks *= SCORE_UNITS_PER_MILLI
        ranks += values[cpu_before, counts] - values[cpu_after, units_left]
        return ranks

    def terms(self, ask: Ask, kind: int, count: int, cpu: int, memory: int) -> PlacementTerms:
        """Return the rule's terms for a host with these free units, CPU and memory before the ask is
        placed on it.
        """
        self._refresh_prices()
        unit_class = self.class_of[kind]
        before = self._level(unit_class, cpu, memory)
        after = self._level(unit_class, cpu - ask.cpu_milli, memory - ask.memory_mib)
        key = unit_class, ask.units, count, before, after
        cached = self._terms.get(key)
        if cached is None:
            waste, values, units_left = (
                self.waste_tables.table(unit_class, {before, after}),
                self.slot_values[unit_class],
                count - ask.units,
            )
            batches, unit = self.waste_tables.waste.batches, self.prices.unit
            cached = self._terms[key] = PlacementTerms(
                waste_before=int(waste[before][count]) // batches,
                waste_after=int(waste[after][units_left]) // batches,
                model_price=ask.units * MILLI_PER_GPU * int(self.prices.model_price[unit_class]) // unit,
                slot_price=int(values[before[0], count] - values[after[0], units_left]) // unit,
            )
        return cached

    def model_price(self, kind: int) -> int:
        """Return the cost, in score units, of taking one unit of a kind for the asks that can use no other
        kind.
        """
        self._refresh_prices()
        return int(self.prices.model_price[self.class_of[kind]])

    def _ranks_with_ample_resources(self, unit_class: int, units: int) -> Ints:
        """Return the ranks by free units where CPU and memory are ample."""
        ranks = self._ample_ranks.get((unit_class, units))
        if ranks is None:
            waste, values = (
                self.waste_tables.tables[unit_class][RESOURCE_LEVELS, RESOURCE_LEVELS],
                self.slot_values[unit_class][RESOURCE_LEVELS],
            )
            ranks = np.zeros(len(waste), dtype=np.int64)
            ranks[units:] = (
                SCORE_UNITS_PER_MILLI * (waste[: len(waste) - units] - waste[units:])
                + values[units:]
                - values[: len(waste) - units]
            )
            self._ample_ranks[unit_class, units] = ranks
        return ranks

    def _levels(self, unit_class: int, cpu: Ints, memory: Ints) -> tuple[Ints, Ints]:
        """Return the CPU and memory levels. Negative amounts, possible for asks without CPU and memory,
        count as none.
        """
        return (
            np.minimum(np.maximum(cpu // max(1, self.waste_tables.cpu_step[unit_class]), 0), RESOURCE_LEVELS),
            np.minimum(
                np.maximum(memory // max(1, self.waste_tables.memory_step[unit_class]), 0), RESOURCE_LEVELS
            ),
        )

    def _level(self, unit_class: int, cpu: int, memory: int) -> tuple[int, int]:
        """Return the CPU and memory levels of one host."""
        return (
            max(0, min(cpu // max(1, self.waste_tables.cpu_step[unit_class]), RESOURCE_LEVELS)),
            max(0, min(memory // max(1, self.waste_tables.memory_step[unit_class]), RESOURCE_LEVELS)),
        )

    def _slots_by_state(self, unit_class: int) -> Ints:
        """Return the slots of each shape by (CPU level, free units)."""
        step, units = self.waste_tables.cpu_step[unit_class], self.waste_tables.max_units[unit_class] + 1
        cpu = np.array(
            [level * step for level in range(RESOURCE_LEVELS)] + [UNLIMITED_AMOUNT], dtype=np.int64
        )
        free_units = np.tile(np.arange(units), RESOURCE_LEVELS + 1)
        slots = self.prices.slots(np.full(len(free_units), unit_class), np.repeat(cpu, units), free_units)
        return slots.reshape(RESOURCE_LEVELS + 1, units, len(self.prices.slot_shapes))

    def _refresh_prices(self) -> None:
        """Compute the prices from the free capacity, after every ``PRICE_REFRESH_PLACEMENTS`` placements."""
        state, placed = self.state, len(self.state.placements)
        if placed - self._priced_at < PRICE_REFRESH_PLACEMENTS:
            return
        self._priced_at = placed - placed % PRICE_REFRESH_PLACEMENTS
        free, slots = [], np.zeros(len(self.prices.slot_shapes), dtype=np.int64)
        for unit_class, kind in enumerate(self.kinds):
            counts = state.free_counts[kind]
            free.append(int(counts.sum()) * MILLI_PER_GPU)
            levels = np.minimum(
                state.cpu_free // max(1, self.waste_tables.cpu_step[unit_class]), RESOURCE_LEVELS
            )
            units = self.waste_tables.max_units[unit_class] + 1
            states = np.bincount(
                np.maximum(levels, 0) * units + counts, minlength=(RESOURCE_LEVELS + 1) * units
            )
            slots += (self._slots[unit_class].reshape(len(states), -1) * states[:, None]).sum(axis=0)
        self.prices.refresh(free, slots.tolist())
        self.slot_values = [(table * self.prices.slot_price).sum(axis=2) for table in self._slots]
        self._ample_ranks.clear()
        self._terms.clear()
