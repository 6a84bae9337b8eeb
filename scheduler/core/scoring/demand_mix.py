from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scheduler.core.arrays import Ints, Mask

MILLI_PER_GPU = 1000  # thousandths in a whole GPU


ANY_CLASS = -1  # every class serves


DRAW_SEED = 20_230_710


SPLITMIX_STEP, SPLITMIX_ROUNDS = (
    0x9E3779B97F4A7C15,
    ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)),
)  # splitmix64 (Steele et al. 2014)


BATCH_SIZE = 64


MAX_DEMANDS_IN_MIX = 512  # the commonest needs make a mix; the rest are too rare to matter


UNLIMITED_AMOUNT = (1 << 31) - 1  # more CPU, memory or GPU than any node has


@dataclass(frozen=True, slots=True, order=True)
class NodeDemand:
    """What one ask takes of one node: ``gpus`` GPUs with ``milli`` thousandths of each (below 1000 only for one GPU;
    0 GPUs is CPU work). ``classes`` is a bit mask of the node classes that serve it, ANY for all."""

    gpus: int
    milli: int
    cpu: int
    memory: int
    classes: int = ANY_CLASS

    @property
    def whole(self) -> int:
        """GPUs it needs untouched."""
        return self.gpus if self.milli == MILLI_PER_GPU else 0

    @property
    def total(self) -> int:
        """Thousandths of GPU it takes."""
        return self.gpus * self.milli

    def allows(self, klass: int) -> bool:
        """Whether nodes of a class serve it."""
        return bool(self.classes >> klass & 1)


@dataclass(frozen=True, slots=True)
class DemandMix:
    """How often each need is asked for, as whole-number weights; in one order whatever the order it was counted in."""

    needs: tuple[NodeDemand, ...]
    weights: tuple[int, ...]

    @staticmethod
    def of(counted: Iterable[tuple[NodeDemand, int]]) -> DemandMix:
        """The mix with these weights; needs that come up twice are added together."""
        total: dict[NodeDemand, int] = {}
        for need, weight in counted:
            total[need] = total.get(need, 0) + weight
        kept = sorted((need, weight) for need, weight in total.items() if weight > 0)
        return DemandMix(tuple(need for need, _ in kept), tuple(weight for _, weight in kept))

    def batches(self, count: int) -> Ints:
        """``count`` batches of BATCH asks each, as indices into ``needs``; the same for the same mix, always."""
        steps = np.cumsum(np.array(self.weights, dtype=np.int64))
        points = np.array(
            [drawn * int(steps[-1]) >> 64 for drawn in _quasi_random(count * BATCH_SIZE)], dtype=np.int64
        )
        return np.searchsorted(steps, points, side="right").reshape(count, BATCH_SIZE).astype(np.int64)


def round_weights(mix: DemandMix) -> DemandMix:
    """The same mix with each weight rounded to its first four binary digits, and the rarest needs left out.

    One ask more or less then seldom changes the mix, and what was worked out for it stays of use. The rounding (at most
    6 %) costs nothing that could be measured; rounding to powers of two cost one percent of a cluster where CPU is scarce.
    """
    kept = sorted(zip(mix.weights, mix.needs, strict=True), key=lambda pair: (-pair[0], pair[1]))[
        :MAX_DEMANDS_IN_MIX
    ]
    return DemandMix.of((need, _round_weight(weight)) for weight, need in kept)


def _round_weight(weight: int) -> int:
    lost = max(0, weight.bit_length() - 4)
    return (weight + (1 << lost >> 1)) >> lost << lost


@lru_cache(maxsize=4)
def _quasi_random(count: int) -> tuple[int, ...]:
    """``count`` whole numbers below 2^64 without a pattern, always the same: steps of an odd number, their bits mixed."""
    state, found = DRAW_SEED, []
    for _ in range(count):
        state = (state + SPLITMIX_STEP) % 2**64
        mixed = state
        for shift, factor in SPLITMIX_ROUNDS:
            mixed = (mixed ^ mixed >> shift) * factor % 2**64
        found.append(mixed ^ mixed >> 31)
    return tuple(found)


def nodes_with_capacity(need: NodeDemand, cpu: Ints, memory: Ints, whole: Ints, largest: Ints) -> Mask:
    """Which of some nodes have enough left for an ask, whatever their class."""
    mask: Mask = whole >= need.whole if need.whole else largest >= (need.milli if need.gpus else 0)
    if need.cpu:
        mask &= cpu >= need.cpu
    if need.memory:
        mask &= memory >= need.memory
    return mask
