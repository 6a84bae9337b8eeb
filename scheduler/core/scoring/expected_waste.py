"""Waste: how much GPU of a node is lost to the asks the pool really gets.

A node here is a host as an ask sees it: free CPU (thousandths), free memory (MiB), the free thousandths of each GPU, and
a class (the model; in a pool, the kind of unit). Its waste is what is left idle of its GPUs when fixed batches of asks, drawn
from the pool's mix, are put on it one after another as they fit: the mean over the batches. All of it is integers, so that two
machines find the same; the seed of the draws is a constant of the rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

MILLI_PER_GPU = 1000  # thousandths in a whole GPU
ANY_CLASS = -1  # every class serves
DRAW_SEED = 20_230_710
SPLITMIX_STEP, SPLITMIX_ROUNDS = (
    0x9E3779B97F4A7C15,
    ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)),
)  # splitmix64 (Steele et al. 2014)
BATCH_COUNT = 32
BATCH_SIZE = 64
MAX_DEMANDS_IN_MIX = 512  # the commonest needs make a mix; the rest are too rare to matter
MIN_DEMANDS_PER_BATCH, MAX_DEMAND_TO_IDLE_RATIO = 16, 4  # a batch ends after so many asks and so many times the node's idle GPU
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
        points = np.array([drawn * int(steps[-1]) >> 64 for drawn in _quasi_random(count * BATCH_SIZE)], dtype=np.int64)
        return np.searchsorted(steps, points, side="right").reshape(count, BATCH_SIZE).astype(np.int64)


def round_weights(mix: DemandMix) -> DemandMix:
    """The same mix with each weight rounded to its first four binary digits, and the rarest needs left out.

    One ask more or less then seldom changes the mix, and what was worked out for it stays of use. The rounding (at most
    6 %) costs nothing that could be measured; rounding to powers of two cost one percent of a cluster where CPU is scarce.
    """
    kept = sorted(zip(mix.weights, mix.needs, strict=True), key=lambda pair: (-pair[0], pair[1]))[:MAX_DEMANDS_IN_MIX]
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


class ExpectedWaste:
    """The expected unusable GPU of a node by its state, summed over the batches; every state is worked out once."""

    def __init__(self, mix: DemandMix, classes: int, batches: int = BATCH_COUNT) -> None:
        drawn = mix.batches(batches)
        self.batches = batches
        self.cpu = _column([n.cpu for n in mix.needs], drawn)
        self.memory = _column([n.memory for n in mix.needs], drawn)
        self.whole = _column([n.whole for n in mix.needs], drawn)
        self.total = _column([n.total for n in mix.needs], drawn)
        serves = np.array([[n.allows(k) for n in mix.needs] for k in range(classes)], dtype=np.bool_)
        self.serves: Mask = serves[:, drawn]  # class, batch, place in the batch
        self.asked_before: Ints32 = (np.cumsum(self.serves, axis=2) - self.serves).astype(np.int32)
        offered = self.serves * self.total
        self.offered_before: Ints32 = (np.cumsum(offered, axis=2) - offered).astype(np.int32)
        self._known: dict[bytes, tuple[int, int]] = {}
        self.states_computed: int = 0  # states filled so far

    def of(self, klass: Ints, cpu: Ints, memory: Ints, gpus: Ints) -> Ints:
        """The waste of each of these states, in thousandths of GPU times the number of batches.

        Memory hardly ever runs out first, so a state is first looked up without it; only where the batches would have
        used more than there is, it is filled again with its own.
        """
        states = np.empty((len(cpu), gpus.shape[1] + 3), dtype=np.int32)
        states[:, 0], states[:, 1], states[:, 2] = klass, cpu, UNLIMITED_AMOUNT
        states[:, 3:] = np.sort(gpus, axis=1)
        roomy = self._look_up(states)
        answer = np.array([waste for waste, _ in roomy], dtype=np.int64)
        used = np.array([memory_used for _, memory_used in roomy], dtype=np.int64)
        tight = np.flatnonzero(memory < used)
        if len(tight):
            states[:, 2] = np.minimum(memory, UNLIMITED_AMOUNT)
            answer[tight] = [waste for waste, _ in self._look_up(states[tight])]
        return answer

    def _look_up(self, states: Ints32) -> list[tuple[int, int]]:
        keys = [row.tobytes() for row in states]
        missing: dict[bytes, int] = {}
        for i, key in enumerate(keys):
            if key not in self._known:
                missing.setdefault(key, i)
        if missing:
            wanted = states[list(missing.values())]
            self.states_computed += len(wanted)
            wastes, used = self._fill(wanted[:, 0], wanted[:, 1], wanted[:, 2], wanted[:, 3:])
            self._known.update(zip(missing, zip(wastes.tolist(), used.tolist(), strict=True), strict=True))
        return [self._known[key] for key in keys]

    def _fill(self, klass: Ints32, cpu: Ints32, memory: Ints32, gpus: Ints32) -> tuple[Ints, Ints]:
        """Fill each state with each batch: (idle thousandths left, summed over batches; most memory a batch used).

        All batches of all states go side by side. What did not fit once never fits later, since a node only gets
        fuller: so each round jumps to the next ask that fits, and there are as many rounds as asks placed, not 64.
        """
        count, batches = len(cpu), self.batches
        bounded = bool((memory < UNLIMITED_AMOUNT).any())
        idle = gpus.sum(axis=1, dtype=np.int32)
        over = (self.asked_before[klass] >= MIN_DEMANDS_PER_BATCH) & (
            self.offered_before[klass] >= MAX_DEMAND_TO_IDLE_RATIO * idle[:, None, None]
        )
        waits = self.serves[klass] & ~over
        waits &= self.cpu <= cpu[:, None, None]
        waits &= self.total <= _largest_ask(gpus)[:, None, None]
        waits = waits.reshape(count * batches, BATCH_SIZE)
        row = np.arange(count * batches)
        batch, cpu, memory = np.tile(np.arange(batches), count), np.repeat(cpu, batches), np.repeat(memory, batches)
        gpu, left = np.repeat(gpus, batches, axis=0), np.repeat(idle, batches)
        used = np.zeros(count * batches, dtype=np.int64)
        while len(row):
            if bounded:
                waits &= self.memory[batch] <= memory[:, None]
            first = waits.argmax(axis=1)
            on = np.flatnonzero(waits[np.arange(len(row)), first])
            if len(on) < len(row):
                row, batch, waits, first = row[on], batch[on], waits[on], first[on]
                cpu, memory, gpu = cpu[on], memory[on], gpu[on]
            self._place(gpu, self.whole[batch, first], self.total[batch, first])
            cpu = cpu - self.cpu[batch, first]
            taken = self.memory[batch, first]
            memory = memory - taken
            used[row] += taken
            left[row] -= self.total[batch, first]
            waits[np.arange(len(row)), first] = False
            waits &= self.cpu[batch] <= cpu[:, None]
            waits &= self.total[batch] <= _largest_ask(gpu)[:, None]
        return left.reshape(count, batches).sum(axis=1), used.reshape(count, batches).max(axis=1)

    @staticmethod
    def _place(gpu: Ints32, whole: Ints32, total: Ints32) -> None:
        """Put one ask on each row of GPUs: whole ones on the first untouched, a share on the fullest that fits."""
        untouched = gpu == MILLI_PER_GPU
        gpu[untouched & (np.cumsum(untouched, axis=1) <= whole[:, None])] = 0
        share = np.flatnonzero((whole == 0) & (total > 0))
        if len(share):
            rows, milli = gpu[share], total[share]
            gpu[share, np.where(rows >= milli[:, None], rows, UNLIMITED_AMOUNT).argmin(axis=1)] -= milli

    def of_whole_gpu_nodes(self, klass: int, most: int, cpu: int, memory: int) -> tuple[Ints, int, int]:
        """The waste of nodes of one class with 0, 1, ... ``most`` untouched GPUs free and no others, and the most CPU and
        memory that any batch used: a short way for pools whose asks are whole units only.
        """
        free = np.repeat(np.arange(most + 1, dtype=np.int64), self.batches)
        batch = np.tile(np.arange(self.batches), most + 1)
        over = (self.asked_before[klass][batch] >= MIN_DEMANDS_PER_BATCH) & (
            self.offered_before[klass][batch] >= (MAX_DEMAND_TO_IDLE_RATIO * MILLI_PER_GPU * free)[:, None]
        )
        waits = self.serves[klass][batch] & ~over
        left_cpu, left_memory = np.full(len(free), cpu, dtype=np.int64), np.full(len(free), memory, dtype=np.int64)
        for place in range(BATCH_SIZE):
            whole, needs_cpu = self.whole[batch, place], self.cpu[batch, place]
            needs_memory = self.memory[batch, place]
            on = waits[:, place] & (whole <= free) & (needs_cpu <= left_cpu) & (needs_memory <= left_memory)
            free -= whole * on
            left_cpu -= needs_cpu * on
            left_memory -= needs_memory * on
        waste = free.reshape(most + 1, self.batches).sum(axis=1) * MILLI_PER_GPU
        return waste, cpu - int(left_cpu.min()), memory - int(left_memory.min())


def _largest_ask(gpu: Ints32) -> Ints32:
    """The most thousandths that one ask can get of each row of GPUs: all that are untouched, else the most of one.

    It tells for shares as for whole GPUs whether an ask fits, since a share is less than one GPU.
    """
    whole = MILLI_PER_GPU * (gpu == MILLI_PER_GPU).sum(axis=1, dtype=np.int32)
    most: Ints32 = np.maximum(whole, gpu.max(axis=1))
    return most


def _column(values: list[int], drawn: Ints) -> Ints32:
    column: Ints32 = np.array(values, dtype=np.int32)[drawn]
    return column
