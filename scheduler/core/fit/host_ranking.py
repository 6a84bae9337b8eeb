"""Rank a pool's hosts for an ask by the placement rule (``scoring.placement_rule``).

An ask is the hardware that a workload requests. The placement rule ranks abstract nodes. This module
describes each host to the rule as a node with whole free GPUs, free CPU and free memory. A MIG slice or a
share also counts as a whole GPU here, because work holds whole units. The node's class is the kind of its
units.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import Ask
from scheduler.core.scoring.demand_mix import MILLI_PER_GPU, UNLIMITED_AMOUNT, DemandMix, NodeDemand
from scheduler.core.scoring.placement_rule import ClassCapacity, NodeSize, PlacementRule, PlacementTerms

# The demand that is assumed for every pool, as (units per host, weight). It decides in an empty pool. In a
# busy pool the demand of real work has far more weight.
PRIOR_DEMAND = ((1, 8), (2, 2), (4, 2), (8, 1))


class HostRanking:
    """The placement rule for the units of one profile in one pool."""

    def __init__(self, state: PoolState, profile: str) -> None:
        self.state = state
        self.kinds = [i for i, kind in enumerate(state.kinds) if kind.profile == profile]
        self.class_of = {kind: unit_class for unit_class, kind in enumerate(self.kinds)}
        sizes = tuple(self._largest_host(kind) for kind in self.kinds)
        self.rule = PlacementRule(self._demand_mix(profile), sizes)

    def _largest_host(self, kind: int) -> NodeSize:
        """Return the largest number of units, CPU and memory of the hosts that have units of a kind.

        The three values may come from different hosts. Unknown capacity counts as unlimited.
        """
        hardware = self.state.hardware
        units = np.bincount(self.state.host_of[self.state.kind == kind], minlength=len(self.state.hosts))
        hosts = units > 0
        cpu, memory = hardware.cpu_capacity[hosts], hardware.memory_capacity[hosts]
        return NodeSize(
            int(units.max(initial=0)),
            min(int(cpu.max(initial=0)), UNLIMITED_AMOUNT),
            min(int(memory.max(initial=0)), UNLIMITED_AMOUNT),
        )

    def _demand_mix(self, profile: str) -> DemandMix:
        """Return the demands of waiting and running work on one host, and the frequency of each demand.

        Example: a gang on 4 hosts adds its demand on one host 4 times. The function assumes that running work
        could also use every other model.
        """
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
        """Return the rank of each host; a lower rank is better.

        ``counts``, ``cpu`` and ``memory`` are the free units, CPU (thousandths of a core) and memory (MiB) of
        each host. The ask must fit on every host.
        """
        need = self.state.resolve_ask(ask).need
        return self._priced_rule().ranks_of_whole(self.class_of[kind], need, counts, cpu, memory)

    def terms(self, ask: Ask, kind: int, count: int, cpu: int, memory: int) -> PlacementTerms:
        """Return the terms of the rule for placing the ask on a host, to explain the choice.

        ``count``, ``cpu`` and ``memory`` are the host's free units, CPU and memory before the placement.
        """
        need = self.state.resolve_ask(ask).need
        return self._priced_rule().terms(self.class_of[kind], need, count, cpu, memory)

    def model_price(self, kind: int) -> int:
        """Return the price of one unit of a kind, in score units.

        The price is high if many asks compete for the kind because other kinds do not serve them.
        """
        return int(self._priced_rule().prices.model_price[self.class_of[kind]])

    def _priced_rule(self) -> PlacementRule:
        """Return the rule with its present prices. Compute the prices again first if they are out of date."""
        state, placed = self.state, len(self.state.placements)
        if self.rule.prices_are_due(placed):
            counts = [state.free_counts[kind] for kind in self.kinds]
            free = [
                ClassCapacity(state.cpu_free, count, MILLI_PER_GPU * int(count.sum())) for count in counts
            ]
            self.rule.refresh_prices(placed, free)
        return self.rule
