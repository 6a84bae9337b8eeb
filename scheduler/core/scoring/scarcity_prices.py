"""What scarce things are worth: GPUs of a model that some asks can't do without, and room for several GPUs on one node.

Expected demand is the mix scaled to what is free now, so no horizon is needed: everything that is free will be asked for.
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
SCORE_UNITS_PER_MILLI = (
    64  # the grain of a score: so many parts of a thousandth of GPU, times the number of batches
)


class ScarcityPrices:
    """What scarce models and scarce room for several GPUs are worth at present, in score units (``SCORE_UNITS_PER_MILLI``).

    Expected demand is the mix scaled to what is free now, so no horizon is needed: everything free will be asked for.
    """

    def __init__(self, mix: DemandMix, classes: int, batches: int = BATCH_COUNT) -> None:
        self.unit = SCORE_UNITS_PER_MILLI * batches
        weights = sum(mix.weights)
        asked = sum(w * n.total for n, w in zip(mix.needs, mix.weights, strict=True))
        self.milli_per_ask = asked / weights if weights else 0.0
        every = (1 << classes) - 1
        groups: dict[int, int] = {}
        self.room_sizes: list[
            tuple[int, int, int]
        ] = []  # (GPUs, CPU, classes): the sorts of room that slots are counted for
        frequency: dict[tuple[int, int, int], float] = {}
        for need, weight in zip(mix.needs, mix.weights, strict=True):
            allowed = need.classes & every
            if need.total and allowed != every:
                groups[allowed] = groups.get(allowed, 0) + weight * need.total
            if need.whole >= 2:
                room = need.whole, need.cpu, allowed
                frequency[room] = frequency.get(room, 0.0) + weight / weights
        self.classes = classes
        self.groups = sorted((allowed, load / asked) for allowed, load in groups.items())
        self.room_sizes = sorted(frequency)
        self.frequency = [frequency[room] for room in self.room_sizes]
        self.room_gpus: Ints = np.array([gpus for gpus, _, _ in self.room_sizes], dtype=np.int64)
        self.room_cpu: Ints = np.array([max(1, cpu) for _, cpu, _ in self.room_sizes], dtype=np.int64)
        serves = [[room[2] >> k & 1 for room in self.room_sizes] for k in range(classes)]
        self.room_serves: Ints = np.array(serves, dtype=np.int64).reshape(classes, len(self.room_sizes))
        self.model_price: Ints = np.zeros(classes, dtype=np.int64)  # score units per thousandth of GPU taken
        self.slot_price: Ints = np.zeros(len(self.room_sizes), dtype=np.int64)  # score units per slot lost

    def slots(self, klass: Ints, cpu: Ints, whole: Ints) -> Ints:
        """How many asks of each sort each of these states has room for: shape (states, rooms)."""
        by_gpus = whole[:, None] // self.room_gpus
        by_cpu = cpu[:, None] // self.room_cpu
        room: Ints = np.minimum(by_gpus, by_cpu) * self.room_serves[klass]
        return room

    def refresh(self, free: Sequence[int], slots: Sequence[int]) -> None:
        """New prices from the free thousandths of each class and the slots there are of each sort of room."""
        total = sum(free)
        load = self._loads([int(f) for f in free], total)
        self.model_price[:] = [self._model_price(load[k], int(free[k])) for k in range(self.classes)]
        asks = total / self.milli_per_ask if self.milli_per_ask else 0.0
        self.slot_price[:] = [self._slot_price(i, asks, int(slots[i])) for i in range(len(self.room_sizes))]

    def _model_price(self, load: float, free: int) -> int:
        scarcity = min(load / free, MAX_SCARCITY) if free else 0.0
        return round(scarcity * scarcity * self.unit)

    def _slot_price(self, i: int, asks: float, available: int) -> int:
        """Larger asks need this room too, each as many slots of it as its GPUs make."""
        gpus, cpu, allowed = self.room_sizes[i]
        demand = 0.0
        for frequency, (other_gpus, other_cpu, other_allowed) in zip(
            self.frequency, self.room_sizes, strict=True
        ):
            if other_gpus >= gpus and other_cpu >= cpu and other_allowed & allowed:
                demand += frequency * asks * (other_gpus // gpus)
        scarcity = min(demand / available, MAX_SCARCITY) if available else 0.0
        square = scarcity * scarcity
        return round(SLOT_WEIGHT * gpus * MILLI_PER_GPU * square * square * self.unit)

    def _loads(self, free: list[int], total: int) -> list[float]:
        """The load of each class when every constrained group spreads over its classes so as to even out load / free."""
        load = [0.0] * self.classes
        parts = [[0.0] * self.classes for _ in self.groups]
        for _ in range(LOAD_BALANCING_SWEEPS):
            for part, (allowed, fraction) in zip(parts, self.groups, strict=True):
                own = [k for k in range(self.classes) if allowed >> k & 1 and free[k]]
                for k in own:
                    load[k] -= part[k]
                poured = _water_fill(fraction * total, [(load[k], free[k]) for k in own])
                for k, amount in zip(own, poured, strict=True):
                    part[k] = amount
                    load[k] += amount
        return load


def _water_fill(amount: float, vessels: list[tuple[float, int]]) -> list[float]:
    """Pour an amount into vessels of (content, width) so that the lowest levels rise together; what each one gets."""
    order = sorted(range(len(vessels)), key=lambda i: (vessels[i][0] / vessels[i][1], i))
    content, width, level = 0.0, 0, 0.0
    for place, i in enumerate(order):
        content, width = content + vessels[i][0], width + vessels[i][1]
        level = (amount + content) / width
        if place + 1 == len(order):
            break
        following = vessels[order[place + 1]]
        if level <= following[0] / following[1]:
            break
    return [max(0.0, level * wide - held) for held, wide in vessels]


PRICE_REFRESH_PLACEMENTS = 16  # asks between two looks at the prices
