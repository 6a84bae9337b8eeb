"""Compute prices of scarce resources: GPUs of a model, and space for several GPUs on one node (host).

An ask is the demand of a request on one node. A class is a set of nodes with the same kind of GPU. The mix
says how often each ask occurs. A shape is an ask for at least 2 whole GPUs. A slot of a shape is space for
one such ask on one node. Example: a node with 5 free GPUs has 2 slots of the shape "2 GPUs", if it has enough
CPU. (This slot is not the slot in which the planner counts GPU capacity.)

The expected demand is the mix, scaled to the capacity that is free now. This assumes that all free capacity
will be requested, so no period of time has to be chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.core.arrays import Ints
from scheduler.core.scoring.demand_mix import MILLI_PER_GPU, DemandMix
from scheduler.core.scoring.expected_waste import BATCH_COUNT

LOAD_BALANCING_SWEEPS = 6
MAX_SCARCITY = 1.5
SLOT_WEIGHT = 0.05
# The number of score units that one thousandth of a GPU is worth, for each batch (see ``ExpectedWaste``).
SCORE_UNITS_PER_MILLI = 64


class ScarcityPrices:
    """The current prices of GPU models and of space for several GPUs.

    Prices are in score units (see ``SCORE_UNITS_PER_MILLI``). A price is 0 if nothing needs the resource.
    """

    def __init__(self, mix: DemandMix, classes: int, batches: int = BATCH_COUNT) -> None:
        self.unit = SCORE_UNITS_PER_MILLI * batches
        weights = sum(mix.weights)
        asked = sum(w * n.total for n, w in zip(mix.needs, mix.weights, strict=True))
        self.milli_per_ask = asked / weights if weights else 0.0
        all_classes = (1 << classes) - 1
        groups: dict[int, int] = {}
        # The shapes, as (GPUs, CPU, bit mask of the classes that serve the ask).
        self.slot_shapes: list[tuple[int, int, int]] = []
        frequency: dict[tuple[int, int, int], float] = {}
        for need, weight in zip(mix.needs, mix.weights, strict=True):
            allowed = need.classes & all_classes
            if need.total and allowed != all_classes:
                groups[allowed] = groups.get(allowed, 0) + weight * need.total
            if need.whole >= 2:
                shape = need.whole, need.cpu, allowed
                frequency[shape] = frequency.get(shape, 0.0) + weight / weights
        self.classes = classes
        self.groups = sorted((allowed, load / asked) for allowed, load in groups.items())
        self.slot_shapes = sorted(frequency)
        self.frequency = [frequency[shape] for shape in self.slot_shapes]
        self.shape_gpus: Ints = np.array([gpus for gpus, _, _ in self.slot_shapes], dtype=np.int64)
        self.shape_cpu: Ints = np.array([max(1, cpu) for _, cpu, _ in self.slot_shapes], dtype=np.int64)
        serves = [[shape[2] >> k & 1 for shape in self.slot_shapes] for k in range(classes)]
        self.shape_serves: Ints = np.array(serves, dtype=np.int64).reshape(classes, len(self.slot_shapes))
        # By class: score units per thousandth of a GPU that is taken.
        self.model_price: Ints = np.zeros(classes, dtype=np.int64)
        # By shape: score units per slot that is lost.
        self.slot_price: Ints = np.zeros(len(self.slot_shapes), dtype=np.int64)

    def slots(self, node_class: Ints, cpu: Ints, whole: Ints) -> Ints:
        """Return the number of slots of each shape that a node has, for each state, as [state, shape]."""
        by_gpus = whole[:, None] // self.shape_gpus
        by_cpu = cpu[:, None] // self.shape_cpu
        shape: Ints = np.minimum(by_gpus, by_cpu) * self.shape_serves[node_class]
        return shape

    def refresh(self, free: Sequence[int], slots: Sequence[int]) -> None:
        """Compute the prices.

        ``free`` are the free thousandths of a GPU of each class. ``slots`` are the available slots of each
        shape.
        """
        total = sum(free)
        load = self._loads([int(f) for f in free], total)
        self.model_price[:] = [self._model_price(load[k], int(free[k])) for k in range(self.classes)]
        asks = total / self.milli_per_ask if self.milli_per_ask else 0.0
        self.slot_price[:] = [self._slot_price(i, asks, int(slots[i])) for i in range(len(self.slot_shapes))]

    def _model_price(self, load: float, free: int) -> int:
        scarcity = min(load / free, MAX_SCARCITY) if free else 0.0
        return round(scarcity * scarcity * self.unit)

    def _slot_price(self, i: int, asks: float, available: int) -> int:
        """Return the price of one slot of shape ``i``.

        ``asks`` is the expected number of asks, and ``available`` the number of slots. A larger ask counts as
        several asks of this shape. Example: an ask for 8 GPUs needs 4 slots of the shape "2 GPUs".
        """
        gpus, cpu, allowed = self.slot_shapes[i]
        demand = 0.0
        for frequency, (other_gpus, other_cpu, other_allowed) in zip(
            self.frequency, self.slot_shapes, strict=True
        ):
            if other_gpus >= gpus and other_cpu >= cpu and other_allowed & allowed:
                demand += frequency * asks * (other_gpus // gpus)
        scarcity = min(demand / available, MAX_SCARCITY) if available else 0.0
        square = scarcity * scarcity
        return round(SLOT_WEIGHT * gpus * MILLI_PER_GPU * square * square * self.unit)

    def _loads(self, free: list[int], total: int) -> list[float]:
        """Return, for each class, the expected load of asks that not every class serves.

        Asks that are served by the same classes form a group. The load of each group is spread over its
        classes, so that load / free capacity is as equal as possible.
        """
        load = [0.0] * self.classes
        parts = [[0.0] * self.classes for _ in self.groups]
        for _ in range(LOAD_BALANCING_SWEEPS):
            for part, (allowed, fraction) in zip(parts, self.groups, strict=True):
                free_classes = [k for k in range(self.classes) if allowed >> k & 1 and free[k]]
                for k in free_classes:
                    load[k] -= part[k]
                amounts = _water_fill(fraction * total, [(load[k], free[k]) for k in free_classes])
                for k, amount in zip(free_classes, amounts, strict=True):
                    part[k] = amount
                    load[k] += amount
        return load


def _water_fill(amount: float, levels: list[tuple[float, int]]) -> list[float]:
    """Distribute an amount over vessels as if it were water: the vessels with the lowest level rise together.

    ``levels`` has (content, width) of each vessel; its level is content / width. Return the part that each
    vessel gets. Example: 6 over the vessels (0, 1) and (4, 1) gives 5 and 1, so both end at level 5.
    """
    order = sorted(range(len(levels)), key=lambda i: (levels[i][0] / levels[i][1], i))
    content, width, level = 0.0, 0, 0.0
    for position, i in enumerate(order):
        content, width = content + levels[i][0], width + levels[i][1]
        level = (amount + content) / width
        if position + 1 == len(order):
            break
        following = levels[order[position + 1]]
        if level <= following[0] / following[1]:
            break
    return [max(0.0, level * wide - filled) for filled, wide in levels]


PRICE_REFRESH_PLACEMENTS = 16  # the number of placements after which prices are computed again
