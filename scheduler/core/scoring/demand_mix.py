"""Model the demand of requests on one node, and the frequency of each demand in a pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scheduler.core.arrays import Ints, Mask

MILLI_PER_GPU = 1000  # thousandths of a whole GPU


ANY_CLASS = -1  # every class serves the demand


DRAW_SEED = 20_230_710


# splitmix64 (Steele et al. 2014)
SPLITMIX_STEP, SPLITMIX_ROUNDS = (
    0x9E3779B97F4A7C15,
    ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)),
)


BATCH_SIZE = 64


MAX_DEMANDS_IN_MIX = 512  # only the most frequent demands are kept, because the others are too rare to matter


UNLIMITED_AMOUNT = (1 << 31) - 1  # more CPU, memory or GPU than any node has


@dataclass(frozen=True, slots=True, order=True)
class NodeDemand:
    """The resources that one request takes on one node: ``milli`` thousandths of each of ``gpus`` GPUs.

    ``milli`` is below 1000 only if ``gpus`` is 1. Work without GPUs has 0 GPUs. ``classes`` is a bit mask of
    the node classes that serve the demand, or ANY_CLASS.
    """

    gpus: int
    milli: int
    cpu: int
    memory: int
    classes: int = ANY_CLASS

    @property
    def whole(self) -> int:
        """Return the number of untouched GPUs that the demand needs."""
        return self.gpus if self.milli == MILLI_PER_GPU else 0

    @property
    def total(self) -> int:
        """Return the thousandths of GPU that the demand takes."""
        return self.gpus * self.milli

    def allows(self, node_class: int) -> bool:
        """Return True if nodes of a class serve the demand."""
        return bool(self.classes >> node_class & 1)


@dataclass(frozen=True, slots=True)
class DemandMix:
    """The frequency of each demand, as integer weights. The demands are sorted."""

    needs: tuple[NodeDemand, ...]
    weights: tuple[int, ...]

    @staticmethod
    def of(counted: Iterable[tuple[NodeDemand, int]]) -> DemandMix:
        """Return the mix with these weights. The weights of equal demands are added."""
        total: dict[NodeDemand, int] = {}
        for need, weight in counted:
            total[need] = total.get(need, 0) + weight
        rows = sorted((need, weight) for need, weight in total.items() if weight > 0)
        return DemandMix(tuple(need for need, _ in rows), tuple(weight for _, weight in rows))

    def batches(self, count: int) -> Ints:
        """Return ``count`` batches of BATCH_SIZE demands each, as indices into ``needs``. Equal mixes give
        equal batches.
        """
        steps = np.cumsum(np.array(self.weights, dtype=np.int64))
        points = np.array(
            [drawn * int(steps[-1]) >> 64 for drawn in _quasi_random(count * BATCH_SIZE)], dtype=np.int64
        )
        return np.searchsorted(steps, points, side="right").reshape(count, BATCH_SIZE).astype(np.int64)


def round_weights(mix: DemandMix) -> DemandMix:
    """Return the mix with each weight rounded to its first four binary digits, without the rarest demands.

    A single request then seldom changes the mix, so that values computed for the mix stay valid. The rounding
    (at most 6 %) has no measurable cost; rounding to powers of two wastes one percent of a cluster with
    scarce CPU.
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
    """Return ``count`` pseudo-random integers below 2^64, always the same (splitmix64)."""
    state, numbers = DRAW_SEED, []
    for _ in range(count):
        state = (state + SPLITMIX_STEP) % 2**64
        bits = state
        for shift, factor in SPLITMIX_ROUNDS:
            bits = (bits ^ bits >> shift) * factor % 2**64
        numbers.append(bits ^ bits >> 31)
    return tuple(numbers)


def nodes_with_capacity(need: NodeDemand, cpu: Ints, memory: Ints, whole: Ints, largest: Ints) -> Mask:
    """Return a mask of the nodes with enough free capacity for a demand, whatever their class."""
    mask: Mask = whole >= need.whole if need.whole else largest >= (need.milli if need.gpus else 0)
    if need.cpu:
        mask &= cpu >= need.cpu
    if need.memory:
        mask &= memory >= need.memory
    return mask
