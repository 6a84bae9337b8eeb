"""Rank nodes (hosts) by the placement rule. The planner and the placement benchmark use this rule.

A demand is the resources that a request takes on one node. The gain of placing a demand on a node is

    waste before - waste after - model price - slot price

- The waste is the free GPU capacity of the node that the expected demands could not use (``ExpectedWaste``).
- The model price is high for scarce GPU models (``ScarcityPrices``).
- The slot price is high if space for several GPUs on one node is scarce and the placement takes such a space.

The node with the largest gain ranks first. Example: a demand for 1 GPU goes to a node with 1 free GPU rather
than to a node with 8, if demands for 8 GPUs are expected.

The state of a node is its class (the kind of its GPUs), its free GPUs (``GpuStates``), and its free CPU and
memory. CPU and memory are rounded down to levels. There is a largest amount of CPU and memory that the
expected demands can use on one node. If more is free, it counts as this amount. So there are few states. The
waste of each state is kept in a table, and ranks are computed from this table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np

from scheduler.core.arrays import Ints
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

MAX_CPU_LEVELS = 128
# A table with many levels is expensive to compute. Few levels are enough for memory, which hardly ever runs
# out first. They are also enough for the CPU of nodes with dozens of slices, where one slice is a small loss.
MAX_MEMORY_LEVELS = MAX_CPU_LEVELS_OF_SLICES = 8
MANY_GPUS = 17
NOT_COMPUTED = -1


@dataclass(frozen=True, slots=True)
class PlacementTerms:
    """The four terms of the gain of one placement, in thousandths of a unit. They explain the choice."""

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
        """Return the gain of the placement, in thousandths of a unit."""
        return self.waste_before - self.waste_after - self.model_price - self.slot_price


@dataclass(frozen=True, slots=True)
class ClassCapacity:
    """The free capacity of all nodes of one class. The arrays have one element per node."""

    cpu: Ints
    whole: Ints  # the number of untouched (completely free) GPUs
    idle_milli: int  # the free thousandths of a GPU on all nodes together


@dataclass(frozen=True, slots=True)
class NodeSize:
    """The largest number of GPUs and amounts of CPU and memory among the nodes of a class."""

    gpus: int
    cpu: int = UNLIMITED_AMOUNT
    memory: int = UNLIMITED_AMOUNT


class GpuStates:
    """The possible states of the free GPUs of one node, each with a number.

    The order of the GPUs does not matter. If ``n`` GPUs are completely free and all others are full, the
    state has the number ``n``. States in which a GPU is partly free have higher numbers.
    """

    def __init__(self, max_gpus: int) -> None:
        untouched = np.arange(max_gpus + 1)
        # rows[number]: the free thousandths of each GPU in this state, in ascending order.
        self.rows: Ints = np.where(np.arange(max_gpus) >= max_gpus - untouched[:, None], MILLI_PER_GPU, 0)
        self.whole: Ints = untouched
        self._numbers = {row.tobytes(): number for number, row in enumerate(self.rows)}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, gpus: Ints) -> int:
        """Return the number of a state, given the free thousandths of each GPU."""
        row = np.sort(gpus)
        known = self._numbers.setdefault(row.tobytes(), len(self._numbers))
        if known == len(self.rows):
            self.rows = np.vstack([self.rows, row])
            self.whole = np.append(self.whole, np.count_nonzero(row == MILLI_PER_GPU))
        return known


class ResourceLevels:
    """Levels of free CPU or free memory, to which the amounts of the nodes of a class are rounded down.

    The step between levels is a multiple of the greatest common divisor of the demands. If the step equals
    the divisor, rounding loses nothing. Example: if all demands are multiples of 4 cores, 7 free cores are
    worth as much as 4.
    """

    def __init__(self, capacity: int, usable: int, divisor: int, max_levels: int) -> None:
        """Compute the levels.

        ``capacity`` is the amount that the largest node has. ``usable`` is the most that the expected demands
        use on a node with unlimited capacity. ``divisor`` is the greatest common divisor of the demands.
        """
        bound = min(capacity, usable)
        self.step = max(1, divisor * -(-bound // (divisor * max_levels)))
        self.highest = -(-usable // self.step) if usable <= capacity else capacity // self.step
        self.ample = self.highest * self.step
        self.amounts: Ints = np.arange(self.highest + 1) * self.step
        if usable <= capacity:
            self.amounts[-1] = UNLIMITED_AMOUNT

    def of(self, amounts: Ints) -> Ints:
        """Return the level of each amount. Negative amounts count as 0.

        The free CPU or memory of a node can be negative. An ask that requests none of it still fits there.
        """
        levels: Ints = np.minimum(np.maximum(amounts // self.step, 0), self.highest)
        return levels

    def level(self, amount: int) -> int:
        """Return the level of one amount."""
        return max(0, min(amount // self.step, self.highest))


class WasteTables:
    """Tables of the waste of a node: one table per class, indexed by CPU level, memory level and GPU state.

    Entries are computed when they are first needed.
    """

    def __init__(self, mix: DemandMix, largest_nodes: tuple[NodeSize, ...]) -> None:
        """Create empty tables. ``largest_nodes`` has the size of the largest node of each class."""
        self.waste = ExpectedWaste(mix, len(largest_nodes))
        self.gpu_states = GpuStates(max((node.gpus for node in largest_nodes), default=0))
        self.cpu: list[ResourceLevels] = []  # by class
        self.memory: list[ResourceLevels] = []
        self._tables: list[Ints] = []
        cpu_divisor = gcd(*(need.cpu for need in mix.needs)) or 1
        memory_divisor = gcd(*(need.memory for need in mix.needs)) or 1
        for node_class, node in enumerate(largest_nodes):
            cpu, memory = self.waste.most_used(node_class, node.gpus)
            max_cpu_levels = MAX_CPU_LEVELS if node.gpus < MANY_GPUS else MAX_CPU_LEVELS_OF_SLICES
            cpu_levels = ResourceLevels(node.cpu, cpu, cpu_divisor, max_cpu_levels)
            memory_levels = ResourceLevels(node.memory, memory, memory_divisor, MAX_MEMORY_LEVELS)
            shape = cpu_levels.highest + 1, memory_levels.highest + 1, node.gpus + 1
            self.cpu.append(cpu_levels)
            self.memory.append(memory_levels)
            self._tables.append(np.full(shape, NOT_COMPUTED, dtype=np.int64))

    def at(self, node_class: int, cpu: Ints, memory: Ints, gpus: Ints) -> Ints:
        """Return the waste of each state.

        ``cpu`` and ``memory`` are levels, and ``gpus`` are the numbers of GPU states.
        """
        table = self._tables[node_class]
        if table.shape[2] < len(self.gpu_states) and int(gpus.max(initial=0)) >= table.shape[2]:
            more = ((0, 0), (0, 0), (0, 2 * len(self.gpu_states) - table.shape[2]))
            table = self._tables[node_class] = np.pad(table, more, constant_values=NOT_COMPUTED)
        found: Ints = table[cpu, memory, gpus]
        if found.min(initial=0) == NOT_COMPUTED:
            missing = np.flatnonzero(found == NOT_COMPUTED)
            self._compute(node_class, cpu[missing], memory[missing], gpus[missing])
            found = table[cpu, memory, gpus]
        return found

    def _compute(self, node_class: int, cpu: Ints, memory: Ints, gpus: Ints) -> None:
        """Compute the waste of these states and store it in the table.

        If no demand is for a share of a GPU, compute it for every number of free GPUs with the same CPU and
        memory. This costs little more than one state.
        """
        table = self._tables[node_class]
        cpu_levels, memory_levels = self.cpu[node_class], self.memory[node_class]
        if self.waste.has_shares:
            cpu, memory, gpus = np.unique(np.stack((cpu, memory, gpus)), axis=1)
            table[cpu, memory, gpus] = self.waste.of(
                np.full(len(gpus), node_class),
                cpu_levels.amounts[cpu],
                memory_levels.amounts[memory],
                self.gpu_states.rows[gpus],
            )
            return
        cpu, memory = np.unique(np.stack((cpu, memory)), axis=1)
        table[cpu, memory], _, _ = self.waste.of_whole_gpus(
            node_class, table.shape[2] - 1, cpu_levels.amounts[cpu], memory_levels.amounts[memory]
        )


@lru_cache(maxsize=64)
def waste_tables(mix: DemandMix, largest_nodes: tuple[NodeSize, ...]) -> WasteTables:
    """Return the waste tables of a mix.

    They depend only on the mix and the largest nodes, so later cycles (runs of the planner) use them again.
    """
    return WasteTables(mix, largest_nodes)


class PlacementRule:
    """The placement rule for one mix of demands and the classes of nodes that serve them."""

    def __init__(self, mix: DemandMix, largest_nodes: tuple[NodeSize, ...]) -> None:
        """Prepare the rule for a mix. ``largest_nodes`` has the size of the largest node of each class."""
        self.mix = round_weights(mix)
        self.tables = waste_tables(self.mix, largest_nodes)
        self.prices = ScarcityPrices(self.mix, len(largest_nodes), self.tables.waste.batches)
        # By class: the total price of a node's slots, indexed by CPU level and number of whole GPUs.
        self._slot_values: list[Ints] = []
        self._slots = [self._slots_by_state(i, node.gpus) for i, node in enumerate(largest_nodes)]
        self._ample_ranks: dict[tuple[int, int], Ints] = {}
        self._terms: dict[tuple[int, ...], PlacementTerms] = {}
        self._priced_at = -PRICE_REFRESH_PLACEMENTS

    def prices_are_due(self, placed: int) -> bool:
        """Return True if enough placements were made since prices were last computed.

        ``placed`` is the number of placements of this cycle so far.
        """
        return placed - self._priced_at >= PRICE_REFRESH_PLACEMENTS

    def refresh_prices(self, placed: int, free: Sequence[ClassCapacity]) -> None:
        """Compute the prices from the free capacity of each class, after ``placed`` placements."""
        self._priced_at = placed - placed % PRICE_REFRESH_PLACEMENTS
        slots = np.zeros(len(self.prices.slot_shapes), dtype=np.int64)
        for node_class, capacity in enumerate(free):
            table = self._slots[node_class]
            levels = self.tables.cpu[node_class].of(capacity.cpu)
            width = table.shape[1]
            states = np.bincount(levels * width + capacity.whole, minlength=table.shape[0] * width)
            slots += (table.reshape(len(states), -1) * states[:, None]).sum(axis=0)
        self.prices.refresh([capacity.idle_milli for capacity in free], slots.tolist())
        self._slot_values = [(table * self.prices.slot_price).sum(axis=2) for table in self._slots]
        self._ample_ranks.clear()
        self._terms.clear()

    def ranks(
        self, node_class: int, need: NodeDemand, before: Ints, after: Ints, cpu: Ints, memory: Ints
    ) -> Ints:
        """Return the rank of each node; a lower rank is better.

        ``before`` and ``after`` are the numbers of the GPU states before and after the placement. ``cpu`` and
        ``memory`` are the free amounts before the placement. The rank does not include the model price,
        because it is equal for all nodes of a class.
        """
        tables = self.tables
        cpu_levels, memory_levels = tables.cpu[node_class], tables.memory[node_class]
        cpu_before, cpu_after = cpu_levels.of(cpu), cpu_levels.of(cpu - need.cpu)
        ranks = tables.at(node_class, cpu_after, memory_levels.of(memory - need.memory), after)
        ranks -= tables.at(node_class, cpu_before, memory_levels.of(memory), before)
        ranks *= SCORE_UNITS_PER_MILLI
        values, whole = self._slot_values[node_class], tables.gpu_states.whole
        ranks += values[cpu_before, whole[before]] - values[cpu_after, whole[after]]
        return ranks

    def ranks_of_whole(self, node_class: int, need: NodeDemand, count: Ints, cpu: Ints, memory: Ints) -> Ints:
        """Return the rank of each node, for nodes whose GPUs are all either completely free or full.

        ``count`` is the number of free GPUs of each node.
        """
        ample_cpu = self.tables.cpu[node_class].ample + need.cpu
        ample_memory = self.tables.memory[node_class].ample + need.memory
        if cpu.min() < ample_cpu or memory.min() < ample_memory:
            return self.ranks(node_class, need, count, count - need.gpus, cpu, memory)
        by_count = self._ample_ranks.get((node_class, need.gpus))
        if by_count is None:
            width = self._slots[node_class].shape[1]
            counts, ample = np.arange(need.gpus, width), np.full(width - need.gpus, UNLIMITED_AMOUNT)
            by_count = np.zeros(width, dtype=np.int64)
            by_count[need.gpus :] = self.ranks(node_class, need, counts, counts - need.gpus, ample, ample)
            self._ample_ranks[node_class, need.gpus] = by_count
        return by_count[count]

    def terms(self, node_class: int, need: NodeDemand, count: int, cpu: int, memory: int) -> PlacementTerms:
        """Return the four terms of the gain for a node whose GPUs are all either completely free or full.

        ``count``, ``cpu`` and ``memory`` are the free amounts before the placement.
        """
        cpu_levels, memory_levels = self.tables.cpu[node_class], self.tables.memory[node_class]
        cpu_before, cpu_after = cpu_levels.level(cpu), cpu_levels.level(cpu - need.cpu)
        memory_before, memory_after = memory_levels.level(memory), memory_levels.level(memory - need.memory)
        key = node_class, need.gpus, count, cpu_before, cpu_after, memory_before, memory_after
        known = self._terms.get(key)
        if known is None:
            cpus, memories, counts = np.array(
                [[cpu_before, cpu_after], [memory_before, memory_after], [count, count - need.gpus]]
            )
            waste = self.tables.at(node_class, cpus, memories, counts)
            before, after = (waste // self.tables.waste.batches).tolist()
            value_before, value_after = self._slot_values[node_class][cpus, counts].tolist()
            unit = self.prices.unit
            known = self._terms[key] = PlacementTerms(
                waste_before=before,
                waste_after=after,
                model_price=need.total * int(self.prices.model_price[node_class]) // unit,
                slot_price=(value_before - value_after) // unit,
            )
        return known

    def _slots_by_state(self, node_class: int, max_gpus: int) -> Ints:
        """Return the number of slots of each shape, indexed by [CPU level, number of whole GPUs, shape].

        A shape is a demand for several GPUs, and a slot is space for one such demand (``ScarcityPrices``).
        """
        width, cpu = max_gpus + 1, self.tables.cpu[node_class].amounts
        whole = np.tile(np.arange(width), len(cpu))
        slots = self.prices.slots(np.full(len(whole), node_class), np.repeat(cpu, width), whole)
        return slots.reshape(len(cpu), width, len(self.prices.slot_shapes))
