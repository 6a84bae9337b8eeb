"""Compute the expected waste of a node: the free GPU capacity that the expected asks cannot use.

A node describes a host by its free CPU (thousandths of a core), its free memory (MiB), the free thousandths
of each GPU, and a class (the kind of its GPUs). An ask is the demand of a request on one node. The pool's mix
says how often each ask occurs.

Batches of asks are drawn from the mix. For each batch, the asks are placed on the node one after another if
they fit. The waste is the GPU capacity that is idle at the end, as the mean over the batches. Example: on a
node with 2 free GPUs and no free CPU, no ask that needs CPU fits, so the waste can be up to 2 GPUs.

All values are integers and the draws have a fixed seed, so every machine gets the same result.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints, Ints32, Mask
from scheduler.core.scoring.demand_mix import BATCH_SIZE, MILLI_PER_GPU, UNLIMITED_AMOUNT, DemandMix

BATCH_COUNT = 32
# A batch has at least this many asks. It ends when its asks together need at least this multiple of the
# node's idle GPU capacity.
MIN_DEMANDS_PER_BATCH, MAX_DEMAND_TO_IDLE_RATIO = (
    16,
    4,
)


class ExpectedWaste:
    """The expected waste of a node for each state of its free resources.

    Values are sums over the batches, not means. The result for each state is cached.
    """

    def __init__(self, mix: DemandMix, classes: int, batches: int = BATCH_COUNT) -> None:
        drawn = mix.batches(batches)
        self.batches = batches
        self.cpu = _column([n.cpu for n in mix.needs], drawn)
        self.memory = _column([n.memory for n in mix.needs], drawn)
        self.whole = _column([n.whole for n in mix.needs], drawn)
        self.total = _column([n.total for n in mix.needs], drawn)
        serves = np.array([[n.allows(k) for n in mix.needs] for k in range(classes)], dtype=np.bool_)
        # serves[class, batch, position]: True if the class serves the ask at this position of the batch.
        self.serves: Mask = serves[:, drawn]
        self.asked_before: Ints32 = (np.cumsum(self.serves, axis=2) - self.serves).astype(np.int32)
        offered = self.serves * self.total
        self.offered_before: Ints32 = (np.cumsum(offered, axis=2) - offered).astype(np.int32)
        self.has_shares: bool = any(need.gpus and not need.whole for need in mix.needs)
        self._known: dict[bytes, tuple[int, int, int]] = {}
        self.states_computed: int = 0  # the number of states that were computed so far

    def of(self, node_class: Ints, cpu: Ints, memory: Ints, gpus: Ints) -> Ints:
        """Return the waste of each state, in thousandths of a GPU, summed over the batches.

        Memory hardly ever runs out first. So a state is first looked up as if the node had unlimited memory.
        If the batches used more memory than the node has, the state is computed again with its real memory.
        """
        states = _states(node_class, cpu, UNLIMITED_AMOUNT, gpus)
        wastes: Ints
        wastes, _, used = self._look_up(states)
        tight = np.flatnonzero(memory < used)
        if len(tight):
            states[:, 2] = np.minimum(memory, UNLIMITED_AMOUNT)
            wastes[tight], _, _ = self._look_up(states[tight])
        return wastes

    def most_used(self, node_class: int, max_gpus: int) -> tuple[int, int]:
        """Return (CPU, memory): the most that any batch uses on a node with unlimited CPU and memory.

        The node has at most ``max_gpus`` GPUs, all of them completely free.
        """
        if not self.has_shares:
            unlimited = np.array([UNLIMITED_AMOUNT], dtype=np.int64)
            _, cpu, memory = self.of_whole_gpus(node_class, max_gpus, unlimited, unlimited)
            return cpu, memory
        gpus = np.where(np.arange(max_gpus) < np.arange(max_gpus + 1)[:, None], MILLI_PER_GPU, 0)
        _, used_cpu, used_memory = self._look_up(
            _states(node_class, UNLIMITED_AMOUNT, UNLIMITED_AMOUNT, gpus)
        )
        return int(used_cpu.max(initial=0)), int(used_memory.max(initial=0))

    def of_whole_gpus(self, node_class: int, max_gpus: int, cpu: Ints, memory: Ints) -> tuple[Ints, int, int]:
        """Return (waste, most CPU used, most memory used) for nodes with completely free GPUs.

        ``waste[i, n]`` is for a node with ``cpu[i]``, ``memory[i]`` and ``n`` free GPUs (0 to ``max_gpus``).
        Call it only for mixes without shares of a GPU. It counts GPUs instead of tracking each one. For hosts
        with dozens of slices this takes a tenth of the time.
        """
        counts = max_gpus + 1
        free = np.tile(np.repeat(np.arange(counts, dtype=np.int64), self.batches), len(cpu))
        batch = np.tile(np.arange(self.batches), counts * len(cpu))
        left_cpu, left_memory = (
            np.repeat(cpu, counts * self.batches),
            np.repeat(memory, counts * self.batches),
        )
        over = (self.asked_before[node_class][batch] >= MIN_DEMANDS_PER_BATCH) & (
            self.offered_before[node_class][batch]
            >= (MAX_DEMAND_TO_IDLE_RATIO * MILLI_PER_GPU * free)[:, None]
        )
        pending = self.serves[node_class][batch] & ~over
        for place in range(BATCH_SIZE):
            whole, needs_cpu = self.whole[batch, place], self.cpu[batch, place]
            needs_memory = self.memory[batch, place]
            active = (
                pending[:, place] & (whole <= free) & (needs_cpu <= left_cpu) & (needs_memory <= left_memory)
            )
            free -= whole * active
            left_cpu -= needs_cpu * active
            left_memory -= needs_memory * active
        waste = free.reshape(len(cpu), counts, self.batches).sum(axis=2) * MILLI_PER_GPU
        return waste, int(cpu.max()) - int(left_cpu.min()), int(memory.max()) - int(left_memory.min())

    def _look_up(self, states: Ints32) -> Ints:
        """Return three rows with one column per state: waste, most CPU used, most memory used."""
        keys = [row.tobytes() for row in states]
        missing: dict[bytes, int] = {}
        for i, key in enumerate(keys):
            if key not in self._known:
                missing.setdefault(key, i)
        if missing:
            new_states = states[list(missing.values())]
            self.states_computed += len(new_states)
            filled = self._fill(new_states[:, 0], new_states[:, 1], new_states[:, 2], new_states[:, 3:])
            self._known.update(zip(missing, zip(*filled.tolist(), strict=True), strict=True))
        return np.array([self._known[key] for key in keys], dtype=np.int64).reshape(-1, 3).T

    def _fill(self, node_class: Ints32, cpu: Ints32, memory: Ints32, gpus: Ints32) -> Ints:
        """Place each batch on each state, and return three rows with one column per state.

        The rows are the idle thousandths of a GPU, summed over the batches; the most CPU that a batch used;
        and the most memory that a batch used.

        All batches of all states are computed in parallel. In each round, every batch places its next ask
        that fits. Asks that do not fit are dropped, because the node only gets fuller. So the number of
        rounds is the largest number of asks that are placed in one batch. It is smaller than the size of a
        batch.
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
        used_cpu, used_memory = np.zeros((2, count * batches), dtype=np.int64)
        while len(row):
            if bounded:
                pending &= self.memory[batch] <= memory[:, None]
            first = pending.argmax(axis=1)
            active = np.flatnonzero(pending[np.arange(len(row)), first])
            if len(active) < len(row):
                row, batch, pending, first = row[active], batch[active], pending[active], first[active]
                cpu, memory, gpu = cpu[active], memory[active], gpu[active]
            self._place(gpu, self.whole[batch, first], self.total[batch, first])
            taken_cpu, taken_memory = self.cpu[batch, first], self.memory[batch, first]
            cpu, memory = cpu - taken_cpu, memory - taken_memory
            used_cpu[row] += taken_cpu
            used_memory[row] += taken_memory
            left[row] -= self.total[batch, first]
            pending[np.arange(len(row)), first] = False
            pending &= self.cpu[batch] <= cpu[:, None]
            pending &= self.total[batch] <= _largest_ask(gpu)[:, None]
        by_batch = count, batches
        return np.stack(
            (
                left.reshape(by_batch).sum(axis=1),
                used_cpu.reshape(by_batch).max(axis=1),
                used_memory.reshape(by_batch).max(axis=1),
            )
        )

    @staticmethod
    def _place(gpu: Ints32, whole: Ints32, total: Ints32) -> None:
        """Place one ask on each row of GPUs, and subtract it from the free thousandths in ``gpu``.

        An ask for whole GPUs takes the first untouched GPUs. A share takes the fullest GPU on which it fits.
        """
        untouched = gpu == MILLI_PER_GPU
        gpu[untouched & (np.cumsum(untouched, axis=1) <= whole[:, None])] = 0
        share = np.flatnonzero((whole == 0) & (total > 0))
        if len(share):
            rows, milli = gpu[share], total[share]
            gpu[share, np.where(rows >= milli[:, None], rows, UNLIMITED_AMOUNT).argmin(axis=1)] -= milli


def _largest_ask(gpu: Ints32) -> Ints32:
    """Return, for each row of GPUs, the most thousandths of a GPU that one ask can get.

    It is the sum of all untouched GPUs. If no GPU is untouched, it is the free part of the emptiest GPU. An
    ask fits if it needs at most this amount: whole GPUs need untouched GPUs, and a share is less than a GPU.
    """
    whole = MILLI_PER_GPU * (gpu == MILLI_PER_GPU).sum(axis=1, dtype=np.int32)
    max_gpus: Ints32 = np.maximum(whole, gpu.max(axis=1))
    return max_gpus


def _column(values: list[int], drawn: Ints) -> Ints32:
    column: Ints32 = np.array(values, dtype=np.int32)[drawn]
    return column


def _states(node_class: Ints | int, cpu: Ints | int, memory: int, gpus: Ints) -> Ints32:
    """Return one row per state: class, CPU, memory, and each GPU's free thousandths in ascending order."""
    states = np.empty((len(gpus), gpus.shape[1] + 3), dtype=np.int32)
    states[:, 0], states[:, 1], states[:, 2] = node_class, cpu, memory
    states[:, 3:] = np.sort(gpus, axis=1)
    return states
