"""Expected waste: how much GPU of a node cannot be used by the asks that the pool really gets.

A node is a host as an ask sees it: free CPU (thousandths), free memory (MiB), the free thousandths of each
GPU, and a class (the model; in a pool, the kind of unit). Fixed batches of asks, drawn from the pool's mix,
are placed on it one after another as they fit. Its waste is the GPU that stays idle, as the mean over the
batches. All values are integers, so that every machine gets the same result; the seed of the draws is a
constant of the rule.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints, Ints32, Mask
from scheduler.core.scoring.demand_mix import BATCH_SIZE, MILLI_PER_GPU, UNLIMITED_AMOUNT, DemandMix

BATCH_COUNT = 32
# A batch ends after this many asks and this multiple of the node's idle GPU.
MIN_DEMANDS_PER_BATCH, MAX_DEMAND_TO_IDLE_RATIO = (
    16,
    4,
)


class ExpectedWaste:
    """The expected unusable GPU of a node by its state, summed over the batches. Each state is computed
    once.
    """

    def __init__(self, mix: DemandMix, classes: int, batches: int = BATCH_COUNT) -> None:
        drawn = mix.batches(batches)
        self.batches = batches
        self.cpu = _column([n.cpu for n in mix.needs], drawn)
        self.memory = _column([n.memory for n in mix.needs], drawn)
        self.whole = _column([n.whole for n in mix.needs], drawn)
        self.total = _column([n.total for n in mix.needs], drawn)
        serves = np.array([[n.allows(k) for n in mix.needs] for k in range(classes)], dtype=np.bool_)
        self.serves: Mask = serves[:, drawn]  # [class, batch, position in the batch]
        self.asked_before: Ints32 = (np.cumsum(self.serves, axis=2) - self.serves).astype(np.int32)
        offered = self.serves * self.total
        self.offered_before: Ints32 = (np.cumsum(offered, axis=2) - offered).astype(np.int32)
        self._known: dict[bytes, tuple[int, int]] = {}
        self.states_computed: int = 0  # states computed so far

    def of(self, node_class: Ints, cpu: Ints, memory: Ints, gpus: Ints) -> Ints:
        """Return the waste of each state, in thousandths of GPU times the number of batches.

        Memory hardly ever runs out first, so a state is first looked up without a memory limit. It is
        computed again with its own memory only if the batches would have used more.
        """
        states = np.empty((len(cpu), gpus.shape[1] + 3), dtype=np.int32)
        states[:, 0], states[:, 1], states[:, 2] = node_class, cpu, UNLIMITED_AMOUNT
        states[:, 3:] = np.sort(gpus, axis=1)
        without_memory_limit = self._look_up(states)
        wastes = np.array([waste for waste, _ in without_memory_limit], dtype=np.int64)
        used = np.array([memory_used for _, memory_used in without_memory_limit], dtype=np.int64)
        tight = np.flatnonzero(memory < used)
        if len(tight):
            states[:, 2] = np.minimum(memory, UNLIMITED_AMOUNT)
            wastes[tight] = [waste for waste, _ in self._look_up(states[tight])]
        return wastes

    def _look_up(self, states: Ints32) -> list[tuple[int, int]]:
        keys = [row.tobytes() for row in states]
        missing: dict[bytes, int] = {}
        for i, key in enumerate(keys):
            if key not in self._known:
                missing.setdefault(key, i)
        if missing:
            new_states = states[list(missing.values())]
            self.states_computed += len(new_states)
            wastes, used = self._fill(new_states[:, 0], new_states[:, 1], new_states[:, 2], new_states[:, 3:])
            self._known.update(zip(missing, zip(wastes.tolist(), used.tolist(), strict=True), strict=True))
        return [self._known[key] for key in keys]

    def _fill(self, node_class: Ints32, cpu: Ints32, memory: Ints32, gpus: Ints32) -> tuple[Ints, Ints]:
        """Place each batch on each state. Return (idle thousandths, summed over batches; most memory that
        a batch used).

        All batches of all states are computed in parallel. An ask that did not fit never fits later, because
        a node only gets fuller. So each round continues with the next ask that fits, and there are as many
        rounds as asks placed, not 64.
        """
        count, batches = len(cpu), self.batches
        bounded = bool((memory < UNLIMITED_AMOUNT).any())
        idle = gpus.sum(axis=1, dtype=np.int32)
        over = (self.asked_before[node_class] >= MIN_DEMANDS_PER_BATCH) & (
            self.offered_before[node_class] >= MAX_DEMAND_TO_IDLE_RATIO * idle[:, None, None]
        )
        pending = self.serves[node_class] & ~over
        pending &= self.cpu <= cpu[:, None, None]
        pending &= self.total <= _largest_ask(gpus)[:, None, None]
        pending = pending.reshape(count * batches, BATCH_SIZE)
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
                pending &= self.memory[batch] <= memory[:, None]
            first = pending.argmax(axis=1)
            active = np.flatnonzero(pending[np.arange(len(row)), first])
            if len(active) < len(row):
                row, batch, pending, first = row[active], batch[active], pending[active], first[active]
                cpu, memory, gpu = cpu[active], memory[active], gpu[active]
            self._place(gpu, self.whole[batch, first], self.total[batch, first])
            cpu = cpu - self.cpu[batch, first]
            taken = self.memory[batch, first]
            memory = memory - taken
            used[row] += taken
            left[row] -= self.total[batch, first]
            pending[np.arange(len(row)), first] = False
            pending &= self.cpu[batch] <= cpu[:, None]
            pending &= self.total[batch] <= _largest_ask(gpu)[:, None]
        return left.reshape(count, batches).sum(axis=1), used.reshape(count, batches).max(axis=1)

    @staticmethod
    def _place(gpu: Ints32, whole: Ints32, total: Ints32) -> None:
        """Place one ask on each row of GPUs: whole GPUs on the first untouched ones, a share on the
        fullest that fits.
        """
        untouched = gpu == MILLI_PER_GPU
        gpu[untouched & (np.cumsum(untouched, axis=1) <= whole[:, None])] = 0
        share = np.flatnonzero((whole == 0) & (total > 0))
        if len(share):
            rows, milli = gpu[share], total[share]
            gpu[share, np.where(rows >= milli[:, None], rows, UNLIMITED_AMOUNT).argmin(axis=1)] -= milli

    def of_whole_gpu_nodes(
        self, node_class: int, max_gpus: int, cpu: int, memory: int
    ) -> tuple[Ints, int, int]:
        """Return the waste of nodes of one class with 0, 1, ... ``max_gpus`` untouched GPUs free, and the
        CPU and memory used.

        These are the most CPU and memory that any batch used. A faster method for pools whose asks are whole
        units only.
        """
        free = np.repeat(np.arange(max_gpus + 1, dtype=np.int64), self.batches)
        batch = np.tile(np.arange(self.batches), max_gpus + 1)
        over = (self.asked_before[node_class][batch] >= MIN_DEMANDS_PER_BATCH) & (
            self.offered_before[node_class][batch]
            >= (MAX_DEMAND_TO_IDLE_RATIO * MILLI_PER_GPU * free)[:, None]
        )
        pending = self.serves[node_class][batch] & ~over
        left_cpu, left_memory = (
            np.full(len(free), cpu, dtype=np.int64),
            np.full(len(free), memory, dtype=np.int64),
        )
        for place in range(BATCH_SIZE):
            whole, needs_cpu = self.whole[batch, place], self.cpu[batch, place]
            needs_memory = self.memory[batch, place]
            active = (
                pending[:, place] & (whole <= free) & (needs_cpu <= left_cpu) & (needs_memory <= left_memory)
            )
            free -= whole * active
            left_cpu -= needs_cpu * active
            left_memory -= needs_memory * active
        waste = free.reshape(max_gpus + 1, self.batches).sum(axis=1) * MILLI_PER_GPU
        return waste, cpu - int(left_cpu.min()), memory - int(left_memory.min())


def _largest_ask(gpu: Ints32) -> Ints32:
    """Return the most thousandths that one ask can get of each row of GPUs: all untouched ones, else the
    most of one.

    This shows for shares as well as for whole GPUs whether an ask fits, because a share is less than one GPU.
    """
    whole = MILLI_PER_GPU * (gpu == MILLI_PER_GPU).sum(axis=1, dtype=np.int32)
    max_gpus: Ints32 = np.maximum(whole, gpu.max(axis=1))
    return max_gpus


def _column(values: list[int], drawn: Ints) -> Ints32:
    column: Ints32 = np.array(values, dtype=np.int32)[drawn]
    return column
