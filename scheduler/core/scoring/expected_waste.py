"""Waste: how much GPU of a node is lost to the asks the pool really gets.

A node here is a host as an ask sees it: free CPU (thousandths), free memory (MiB), the free thousandths of each GPU, and
a class (the model; in a pool, the kind of unit). Its waste is what is left idle of its GPUs when fixed batches of asks, drawn
from the pool's mix, are put on it one after another as they fit: the mean over the batches. All of it is integers, so that two
machines find the same; the seed of the draws is a constant of the rule.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints, Ints32, Mask
from scheduler.core.scoring.demand_mix import BATCH_SIZE, MILLI_PER_GPU, UNLIMITED_AMOUNT, DemandMix

BATCH_COUNT = 32
MIN_DEMANDS_PER_BATCH, MAX_DEMAND_TO_IDLE_RATIO = (
    16,
    4,
)  # a batch ends after so many asks and so many times the node's idle GPU


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
        batch, cpu, memory = (
            np.tile(np.arange(batches), count),
            np.repeat(cpu, batches),
            np.repeat(memory, batches),
        )
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
        left_cpu, left_memory = (
            np.full(len(free), cpu, dtype=np.int64),
            np.full(len(free), memory, dtype=np.int64),
        )
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
