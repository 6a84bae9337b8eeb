"""How good each host of a pool is for an ask: the placement rule (``placement``) on a board.

A board's units are held whole, so a host is, to the rule, so many alike free units of a kind with CPU and memory beside
them. CPU and memory are told apart in ``RESOURCE_LEVELS`` steps of what the pool's asks could use on a full host; all that is ample
is alike. What a host is worth is thus a small table, made once for a mix of asks, and an ask's ranks are looked up in it.
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
# What a pool is thought to be asked for before it was asked for anything, in units on a host and how often. It stays in
# the mix, where it stops mattering as real asks come in.
PRIOR_DEMAND = ((1, 8), (2, 2), (4, 2), (8, 1))


@dataclass(frozen=True, slots=True)
class PlacementTerms:
    """Why a host was chosen, in thousandths of a unit: the rule's terms. The gain is what the four make together."""

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
        return self.waste_before - self.waste_after - self.model_price - self.slot_price


class HostWasteTables:
    """The waste of hosts of each class by (CPU level, memory level, free units); cells are worked out when first met."""

    def __init__(self, mix: DemandMix, most: tuple[int, ...]) -> None:
        """``most``: the most units of each class on one host."""
        self.most = most
        self.waste = ExpectedWaste(mix, len(most))
        self.cpu_step: list[int] = []
        self.memory_step: list[int] = []
        self.tables: list[Ints] = []  # class: (level of CPU, level of memory, free units)
        self._filled = [np.zeros((RESOURCE_LEVELS + 1, RESOURCE_LEVELS + 1), dtype=np.bool_) for _ in most]
        for klass, units in enumerate(most):
            table = np.zeros((RESOURCE_LEVELS + 1, RESOURCE_LEVELS + 1, units + 1), dtype=np.int64)
            table[RESOURCE_LEVELS, RESOURCE_LEVELS], cpu, memory = self.waste.of_whole_gpu_nodes(
                klass, units, UNLIMITED_AMOUNT, UNLIMITED_AMOUNT
            )
            self._filled[klass][RESOURCE_LEVELS, RESOURCE_LEVELS] = True
            self.tables.append(table)
            self.cpu_step.append(-(-cpu // RESOURCE_LEVELS))
            self.memory_step.append(-(-memory // RESOURCE_LEVELS))

    def fill(self, klass: int, cpu: Ints, memory: Ints) -> None:
        """Fill in a class's table for the (CPU, memory) levels of some hosts: nearly always it is, and then one look tells."""
        if not self._filled[klass][cpu, memory].all():
            self.table(klass, set(zip(cpu.tolist(), memory.tolist(), strict=True)))

    def table(self, klass: int, levels: set[tuple[int, int]]) -> Ints:
        """The table of a class, with these (CPU, memory) levels filled in."""
        for cpu, memory in sorted(levels):
            if not self._filled[klass][cpu, memory]:
                self._filled[klass][cpu, memory] = True
                self.tables[klass][cpu, memory], _, _ = self.waste.of_whole_gpu_nodes(
                    klass,
                    self.most[klass],
                    self._amount(cpu, self.cpu_step[klass]),
                    self._amount(memory, self.memory_step[klass]),
                )
        return self.tables[klass]

    @staticmethod
    def _amount(level: int, step: int) -> int:
        return UNLIMITED_AMOUNT if level == RESOURCE_LEVELS else level * step


@lru_cache(maxsize=64)
def host_waste_tables(mix: DemandMix, most: tuple[int, ...]) -> HostWasteTables:
    """The tables for a mix, kept from cycle to cycle; they depend on nothing else."""
    return HostWasteTables(mix, most)


class HostRanking:
    """The rule for the units of one profile on one board."""

    def __init__(self, board: PoolState, profile: str) -> None:
        self.board = board
        self.kinds = [i for i, kind in enumerate(board.kinds) if kind.profile == profile]
        self.class_of = {kind: klass for klass, kind in enumerate(self.kinds)}
        size = len(board.hosts)
        most = [
            int(np.bincount(board.host_of[board.kind == kind], minlength=size).max(initial=0))
            for kind in self.kinds
        ]
        self.mix = round_weights(self._asked(profile))
        self.waste_tables = host_waste_tables(self.mix, tuple(most))
        self.prices = ScarcityPrices(self.mix, len(self.kinds), self.waste_tables.waste.batches)
        self.slot_values: list[
            Ints
        ] = []  # class: what the slots of a host are worth by (level of CPU, free units)
        self._slots = [self._slots_by_state(klass) for klass in range(len(self.kinds))]
        self._roomy: dict[tuple[int, int], Ints] = {}
        self._terms: dict[tuple[int, int, int, tuple[int, int], tuple[int, int]], PlacementTerms] = {}
        self._priced_at = -PRICE_REFRESH_PLACEMENTS

    def _asked(self, profile: str) -> DemandMix:
        """What waits and what runs, as asks per host; running work is taken to fit on any model, since it says no other."""
        board, every = self.board, (1 << len(self.kinds)) - 1
        asked = [(NodeDemand(units, MILLI_PER_GPU, 0, 0, every), weight) for units, weight in PRIOR_DEMAND]
        for ask, count in board.facts.queue.asks():
            classes = (
                sum(1 << self.class_of[kind] for kind in board.kinds_for(ask))
                if ask.profile == profile
                else 0
            )
            if classes:
                asked.append(
                    (
                        NodeDemand(ask.units, MILLI_PER_GPU, ask.cpu_milli, ask.memory_mib, classes),
                        ask.hosts * count,
                    )
                )
        for (kind, units, cpu, memory), count in board.facts.occupancy.shapes.items():
            if kind in self.class_of:
                asked.append((NodeDemand(units, MILLI_PER_GPU, cpu, memory, every), count))
        return DemandMix.of(asked)

    def ranks(self, ask: Ask, kind: int, counts: Ints, cpu: Ints, memory: Ints) -> Ints:
        """The rank of hosts with so many units, CPU and memory free for an ask that fits them all; lower is better."""
        self._look_at_prices()
        klass = self.class_of[kind]
        ample = (
            self.waste_tables.cpu_step[klass] * RESOURCE_LEVELS,
            self.waste_tables.memory_step[klass] * RESOURCE_LEVELS,
        )
        if cpu.min() >= ample[0] + ask.cpu_milli and memory.min() >= ample[1] + ask.memory_mib:
            return self._roomy_ranks(klass, ask.units)[counts]
        cpu_before, memory_before = self._levels(klass, cpu, memory)
        cpu_after, memory_after = self._levels(klass, cpu - ask.cpu_milli, memory - ask.memory_mib)
        self.waste_tables.fill(klass, cpu_before, memory_before)
        self.waste_tables.fill(klass, cpu_after, memory_after)
        waste, worth, left = self.waste_tables.tables[klass], self.slot_values[klass], counts - ask.units
        ranks: Ints = waste[cpu_after, memory_after, left] - waste[cpu_before, memory_before, counts]
        ranks *= SCORE_UNITS_PER_MILLI
        ranks += worth[cpu_before, counts] - worth[cpu_after, left]
        return ranks

    def terms(self, ask: Ask, kind: int, count: int, cpu: int, memory: int) -> PlacementTerms:
        """The rule's terms for a host with so many units, CPU and memory free before an ask is put on it."""
        self._look_at_prices()
        klass = self.class_of[kind]
        before = self._level(klass, cpu, memory)
        after = self._level(klass, cpu - ask.cpu_milli, memory - ask.memory_mib)
        key = klass, ask.units, count, before, after
        known = self._terms.get(key)
        if known is None:
            waste, worth, left = (
                self.waste_tables.table(klass, {before, after}),
                self.slot_values[klass],
                count - ask.units,
            )
            batches, unit = self.waste_tables.waste.batches, self.prices.unit
            known = self._terms[key] = PlacementTerms(
                waste_before=int(waste[before][count]) // batches,
                waste_after=int(waste[after][left]) // batches,
                model_price=ask.units * MILLI_PER_GPU * int(self.prices.model_price[klass]) // unit,
                slot_price=int(worth[before[0], count] - worth[after[0], left]) // unit,
            )
        return known

    def model_price(self, kind: int) -> int:
        """What taking one unit of a kind costs the asks that can use no other, in score units."""
        self._look_at_prices()
        return int(self.prices.model_price[self.class_of[kind]])

    def _roomy_ranks(self, klass: int, units: int) -> Ints:
        """By free units, where CPU and memory are ample."""
        ranks = self._roomy.get((klass, units))
        if ranks is None:
            waste, worth = (
                self.waste_tables.tables[klass][RESOURCE_LEVELS, RESOURCE_LEVELS],
                self.slot_values[klass][RESOURCE_LEVELS],
            )
            ranks = np.zeros(len(waste), dtype=np.int64)
            ranks[units:] = (
                SCORE_UNITS_PER_MILLI * (waste[: len(waste) - units] - waste[units:])
                + worth[units:]
                - worth[: len(waste) - units]
            )
            self._roomy[klass, units] = ranks
        return ranks

    def _levels(self, klass: int, cpu: Ints, memory: Ints) -> tuple[Ints, Ints]:
        """Less than nothing may be left where who asks for neither is put: it is as if nothing was."""
        return (
            np.minimum(np.maximum(cpu // max(1, self.waste_tables.cpu_step[klass]), 0), RESOURCE_LEVELS),
            np.minimum(
                np.maximum(memory // max(1, self.waste_tables.memory_step[klass]), 0), RESOURCE_LEVELS
            ),
        )

    def _level(self, klass: int, cpu: int, memory: int) -> tuple[int, int]:
        return (
            max(0, min(cpu // max(1, self.waste_tables.cpu_step[klass]), RESOURCE_LEVELS)),
            max(0, min(memory // max(1, self.waste_tables.memory_step[klass]), RESOURCE_LEVELS)),
        )

    def _slots_by_state(self, klass: int) -> Ints:
        """Slots of each sort of room by (level of CPU, free units)."""
        step, units = self.waste_tables.cpu_step[klass], self.waste_tables.most[klass] + 1
        cpu = np.array(
            [level * step for level in range(RESOURCE_LEVELS)] + [UNLIMITED_AMOUNT], dtype=np.int64
        )
        whole = np.tile(np.arange(units), RESOURCE_LEVELS + 1)
        slots = self.prices.slots(np.full(len(whole), klass), np.repeat(cpu, units), whole)
        return slots.reshape(RESOURCE_LEVELS + 1, units, len(self.prices.room_sizes))

    def _look_at_prices(self) -> None:
        """New prices after every ``PRICE_REFRESH_PLACEMENTS`` placements, from what is free then."""
        board, placed = self.board, len(self.board.placements)
        if placed - self._priced_at < PRICE_REFRESH_PLACEMENTS:
            return
        self._priced_at = placed - placed % PRICE_REFRESH_PLACEMENTS
        free, slots = [], np.zeros(len(self.prices.room_sizes), dtype=np.int64)
        for klass, kind in enumerate(self.kinds):
            counts = board.counts[kind]
            free.append(int(counts.sum()) * MILLI_PER_GPU)
            levels = np.minimum(board.cpu_free // max(1, self.waste_tables.cpu_step[klass]), RESOURCE_LEVELS)
            units = self.waste_tables.most[klass] + 1
            states = np.bincount(
                np.maximum(levels, 0) * units + counts, minlength=(RESOURCE_LEVELS + 1) * units
            )
            slots += (self._slots[klass].reshape(len(states), -1) * states[:, None]).sum(axis=0)
        self.prices.refresh(free, slots.tolist())
        self.slot_values = [(table * self.prices.slot_price).sum(axis=2) for table in self._slots]
        self._roomy.clear()
        self._terms.clear()
