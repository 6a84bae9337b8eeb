"""Model the demand that a request has on one node (host), and the frequency of each demand in a pool.

Nodes of one class have GPUs of one kind. The mix of a pool is the list of its demands with their frequencies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scheduler.core.arrays import Ints, Mask

MILLI_PER_GPU = 1000  # thousandths of a whole GPU


ANY_CLASS = -1  # the bit mask of all classes


DRAW_SEED = 20_230_710


# splitmix64 (Steele et al. 2014)
SPLITMIX_STEP, SPLITMIX_ROUNDS = (
    0x9E3779B97F4A7C15,
    ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)),
)


BATCH_SIZE = 64


MAX_DEMANDS_IN_MIX = 512  # only the most frequent demands are kept, because rarer ones do not matter


UNLIMITED_AMOUNT = (1 << 31) - 1  # more CPU, memory or GPU than any node has


@dataclass(frozen=True, slots=True, order=True)
class NodeDemand:
    """The resources that one request takes on one node.

    It takes ``milli`` thousandths of each of ``gpus`` GPUs. ``milli`` is 1000 for whole GPUs. It is less for
    a share of one GPU. ``gpus`` is 0 for work without GPUs. ``cpu`` is in thousandths of a core, ``memory``
    in MiB. ``classes`` is a bit mask of the node classes that serve the demand, or ANY_CLASS.
    """

    gpus: int
    milli: int
    cpu: int
    memory: int
    classes: int = ANY_CLASS

    @property
    def whole(self) -> int:
        """Return the number of untouched (completely free) GPUs that the demand needs."""
        return self.gpus if self.milli == MILLI_PER_GPU else 0

    @property
    def total(self) -> int:
        """Return the thousandths of a GPU that the demand takes on all its GPUs together."""
        return self.gpus * self.milli

    def allows(self, node_class: int) -> bool:
        """Return True if nodes of a class serve the demand."""
        return bool(self.classes >> node_class & 1)


@dataclass(frozen=True, slots=True)
class DemandMix:
    """The demands of a pool, sorted, with their frequencies as integer weights."""

    needs: tuple[NodeDemand, ...]
    weights: tuple[int, ...]

    @staticmethod
    def of(counted: Iterable[tuple[NodeDemand, int]]) -> DemandMix:
        """Return the mix of pairs (demand, weight). The weights of equal demands are added."""
        total: dict[NodeDemand, int] = {}
        for need, weight in counted:
            total[need] = total.get(need, 0) + weight
        rows = sorted((need, weight) for need, weight in total.items() if weight > 0)
        return DemandMix(tuple(need for need, _ in rows), tuple(weight for _, weight in rows))

    def batches(self, count: int) -> Ints:
        """Draw ``count`` batches of BATCH_SIZE demands each, and return them as indices into ``needs``.

        Demands with a higher weight are drawn more often. Equal mixes give equal batches.
        """
        steps = np.cumsum(np.array(self.weights, dtype=np.int64))
        points = np.array(
            [drawn * int(steps[-1]) >> 64 for drawn in _quasi_random(count * BATCH_SIZE)], dtype=np.int64
        )
        return np.searchsorted(steps, points, side="right").reshape(count, BATCH_SIZE).astype(np.int64)


def round_weights(mix: DemandMix) -> DemandMix:
    """Return the mix without the rarest demands, and with each weight rounded to four binary digits.

    Example: the weight 1001 becomes 1024. A single new request then seldom changes the mix, so values that
    were computed for the mix can be used again. The rounding changes a weight by at most 6 % and has no
    measurable cost. Rounding to powers of two was measured too: it wastes one percent of a cluster in which
    CPU is scarce.
    """
    rows = sorted(zip(mix.weights, mix.needs, strict=True), key=lambda pair: (-pair[0], pair[1]))[
        :MAX_DEMANDS_IN_MIX
    ]
    return DemandMix.of((need, _round_weight(weight)) for weight, need in rows)


def _round_weight(weight: int) -> int:
    dropped_bits = max(0, weight.bit_length() - 4)
    return (weight + (1 << dropped_bits >> 1)) >> dropped_bits << dropped_bits


@lru_cache(maxsize=4)
def _quasi_random(count: int) -> tuple[int, ...]:
    """Return ``count`` pseudo-random integers below 2^64 (splitmix64). They are the same in every call."""
    state, numbers = DRAW_SEED, []
    for _ in range(count):
        state = (state + SPLITMIX_STEP) % 2**64
        bits = state
        for shift, factor in SPLITMIX_ROUNDS:
            bits = (bits ^ bits >> shift) * factor % 2**64
        numbers.append(bits ^ bits >> 31)
    return tuple(numbers)


def nodes_with_capacity(need: NodeDemand, cpu: Ints, memory: Ints, whole: Ints, largest: Ints) -> Mask:
    """Return the mask of nodes that have enough free capacity for a demand. Their class is not checked.

    For each node, ``whole`` is the number of untouched GPUs, and ``largest`` is the free part of the GPU with
    the most free capacity. If the demand is a share, ``largest`` must be at least ``need.milli``.
    """
    mask: Mask = whole >= need.whole if need.whole else largest >= (need.milli if need.gpus else 0)
    if need.cpu:
        mask &= cpu >= need.cpu
    if need.memory:
        mask &= memory >= need.memory
    return mask
