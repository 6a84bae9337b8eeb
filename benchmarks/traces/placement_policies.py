"""Provide placement policies for nodes with shared GPUs: our own rule, Random, BestFit and FGD.

FGD (fragmentation gradient descent) is from USENIX ATC'23. All policies choose among the same places. GPU
capacity is counted in thousandths of a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.core.arrays import Ints, Mask
from scheduler.core.scoring.demand_mix import (
    MILLI_PER_GPU,
    UNLIMITED_AMOUNT,
    DemandMix,
    NodeDemand,
    nodes_with_capacity,
)
from scheduler.core.scoring.placement_rule import ClassCapacity, NodeSize, PlacementRule

IN_USE, UNTOUCHED = WAYS = "in use", "untouched"  # a share goes to a GPU in use or to an untouched GPU
UNLIMITED_RANK = 1 << 60
NO_STATE, UNKNOWN_STATE = -1, -2


class NodeStates:
    """The free capacity of some nodes.

    ``gpu`` has one row for each node and one column for each GPU. A node with fewer GPUs than columns has 0
    in the other columns.
    """

    def __init__(
        self, cpu: Sequence[int], memory: Sequence[int], gpus: Sequence[int], klass: Sequence[int]
    ) -> None:
        self.cpu: Ints = np.array(cpu, dtype=np.int64)
        self.memory: Ints = np.array(memory, dtype=np.int64)
        self.cpu_capacity, self.memory_capacity = self.cpu.copy(), self.memory.copy()
        self.klass: Ints = np.array(klass, dtype=np.int64)
        count = np.array(gpus, dtype=np.int64)
        self.gpu: Ints = np.where(np.arange(max(gpus, default=0)) < count[:, None], MILLI_PER_GPU, 0)
        self.whole: Ints = count.copy()
        self.largest: Ints = self.gpu.max(axis=1, initial=0)
        self.idle: Ints = self.gpu.sum(axis=1)
        self._serving: dict[int, Mask] = {}

    def __len__(self) -> int:
        return len(self.cpu)

    def fits(self, need: NodeDemand) -> Ints:
        """Return the nodes that can take the request now, in ascending order."""
        return np.flatnonzero(
            nodes_with_capacity(need, self.cpu, self.memory, self.whole, self.largest)
            & self.serving(need.classes)
        )

    def serving(self, classes: int) -> Mask:
        """Return a mask of the nodes whose class is in ``classes``.

        ``classes`` is a bit set of class numbers.
        """
        known = self._serving.get(classes)
        if known is None:
            known = self._serving[classes] = (np.int64(classes) >> self.klass & 1).astype(np.bool_)
        return known

    def take(self, node: int, need: NodeDemand, gpu: int) -> None:
        """Place a request on a node.

        A share goes to the GPU ``gpu``. Whole GPUs are the first untouched GPUs of the node.
        """
        self.cpu[node] -= need.cpu
        self.memory[node] -= need.memory
        row = self.gpu[node]
        if need.whole:
            row[np.flatnonzero(row == MILLI_PER_GPU)[: need.whole]] = 0
        elif need.gpus:
            row[gpu] -= need.milli
        self.whole[node] = np.count_nonzero(row == MILLI_PER_GPU)
        self.largest[node] = row.max(initial=0)
        self.idle[node] -= need.total


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """A place for a request: a node, and for a share the GPU of this node.

    ``gpu`` is 0 for other requests.
    """

    node: int
    gpu: int = 0


class PlacementPolicy(ABC):
    """A policy that chooses places on nodes.

    ``choose`` never changes the nodes. The caller changes them, and reports each placement with ``took``.
    """

    def __init__(self, nodes: NodeStates, mix: DemandMix) -> None:
        self.nodes, self.mix = nodes, mix

    def choose(self, need: NodeDemand) -> NodeChoice | None:
        """Return the best place for a request now.

        Return None if it fits on no node.
        """
        candidates = self.nodes.fits(need)
        return self.best(need, candidates) if len(candidates) else None

    @abstractmethod
    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        """Return the best place on one of the nodes ``candidates``. The request fits on each of them."""

    def took(self, node: int) -> None:  # noqa: B027 - most policies keep no state
        """Record that a request was placed on a node."""

    def _tightest(self, need: NodeDemand, node: int) -> NodeChoice:
        """Return the place on this node that leaves the least capacity on one GPU.

        A share goes to the fitting GPU with the least free capacity. For other requests, the GPU is 0.
        """
        if need.whole or not need.gpus:
            return NodeChoice(node)
        row = self.nodes.gpu[node]
        return NodeChoice(node, int(np.where(row >= need.milli, row, UNLIMITED_AMOUNT).argmin()))


class RandomPlacement(PlacementPolicy):
    """A policy that chooses a fitting node and GPU at random.

    ``draw(n)`` returns a random number from 0 to n - 1.
    """

    def __init__(self, nodes: NodeStates, mix: DemandMix, draw: Callable[[int], int]) -> None:
        super().__init__(nodes, mix)
        self.draw = draw

    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        node = int(candidates[self.draw(len(candidates))])
        if need.whole or not need.gpus:
            return NodeChoice(node)
        gpus = np.flatnonzero(self.nodes.gpu[node] >= need.milli)
        return NodeChoice(node, int(gpus[self.draw(len(gpus))]))


class BestFit(PlacementPolicy):
    """A policy that chooses the node with the least free capacity after the placement.

    CPU and GPU capacity have equal weight. The score is rounded to hundredths of the largest machine.
    """

    LARGEST_CPU, LARGEST_GPU = 128_000, 8 * MILLI_PER_GPU

    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        cpu = self.nodes.cpu[candidates] - need.cpu
        gpu = self.nodes.idle[candidates] - need.total
        score = ((1.0 - (cpu / self.LARGEST_CPU * 0.5 + gpu / self.LARGEST_GPU * 0.5)) * 100).astype(np.int64)
        return self._tightest(need, int(candidates[int(score.argmax())]))


class NodeStateIndex:
    """Numbers for the distinct states of nodes, so that scores can be cached by state.

    ``of[node]`` is the number of a node's current state.
    """

    def __init__(self, nodes: NodeStates) -> None:
        self.nodes = nodes
        self._numbers: dict[bytes, int] = {}
        self.rows: Ints = np.zeros((0, 0), dtype=np.int64)
        self.of: Ints = np.zeros(len(nodes), dtype=np.int64)
        self.rows = np.zeros((1024, nodes.gpu.shape[1] + 3), dtype=np.int64)
        for node in range(len(nodes)):
            self.note(node)

    def __len__(self) -> int:
        return len(self._numbers)

    def note(self, node: int) -> None:
        """Update the number of a node whose state has changed."""
        nodes, gpus = self.nodes, self.nodes.gpu[node]
        state = np.array([nodes.klass[node], nodes.cpu[node], nodes.memory[node], *gpus], dtype=np.int64)
        key = state.tobytes()
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            if number == len(self.rows):
                self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
            self.rows[number] = state
        self.of[node] = number

    def read(self, numbers: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return (class, free CPU, free memory, free thousandths of each GPU) of the states with these
        numbers.
        """
        rows = self.rows[numbers]
        return rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3:]


class Fgd(PlacementPolicy):
    """Fragmentation gradient descent (USENIX ATC'23): choose the place where the fragments grow least.

    The fragments of a node for a request are the free GPU capacity that the request cannot use. The policy
    adds up the fragments for the most frequent requests, weighted by the frequency of each request. The score
    is rounded to 100 steps, as published. If nodes have equal scores, the node with the lowest number is
    chosen. The rounding and this choice both affect the result.
    """

    COVERED = 0.95  # share of all requests that the most frequent requests cover

    def __init__(self, nodes: NodeStates, mix: DemandMix) -> None:
        super().__init__(nodes, mix)
        self.states = NodeStateIndex(nodes)
        common, self.weight = _commonest(mix, self.COVERED)
        self.asks = int(self.weight.sum())
        sizes = sorted({need.milli for need in common if need.gpus})
        self.sizes: Ints = np.array(sizes, dtype=np.int64)
        self.size_of: Ints = np.array([sizes.index(n.milli) if n.gpus else 0 for n in common], dtype=np.int64)
        self.gpus: Ints = np.array([n.gpus or UNLIMITED_AMOUNT for n in common], dtype=np.int64)
        self.cpu: Ints = np.array([n.cpu for n in common], dtype=np.int64)
        classes = int(nodes.klass.max(initial=0)) + 1
        self.serves: Mask = np.array([[n.allows(k) for n in common] for k in range(classes)], dtype=np.bool_)
        self._known: dict[NodeDemand, tuple[Ints, Ints]] = {}

    def took(self, node: int) -> None:
        self.states.note(node)

    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        scores, gpus = self._judged(need, self.states.of[candidates])
        at = int(scores.argmax())
        return NodeChoice(int(candidates[at]), int(gpus[at]))

    def fragments(self, klass: Ints, cpu: Ints, gpus: Ints) -> Ints:
        """Return the fragments of each of these node states.

        The unit is thousandths of a GPU times the weight of the requests.
        """
        fitting = gpus[:, None, :] >= self.sizes[:, None]
        enough = fitting.sum(axis=2)[:, self.size_of] >= self.gpus
        small = np.where(fitting, 0, gpus[:, None, :]).sum(axis=2)[:, self.size_of]
        usable = enough & (cpu[:, None] >= self.cpu) & self.serves[klass]
        found: Ints = (np.where(usable, small, gpus.sum(axis=1)[:, None]) * self.weight).sum(axis=1)
        return found

    def _judged(self, need: NodeDemand, numbers: Ints) -> tuple[Ints, Ints]:
        cached = self._known.get(need)
        if cached is None or len(cached[0]) < len(self.states):
            capacity = max(1024, 2 * len(self.states))
            scores, gpus = np.full(capacity, -1, dtype=np.int64), np.zeros(capacity, dtype=np.int64)
            if cached is not None:
                scores[: len(cached[0])], gpus[: len(cached[1])] = cached
            cached = self._known[need] = scores, gpus
        missing = np.unique(numbers[cached[0][numbers] < 0])
        if len(missing):
            cached[0][missing], cached[1][missing] = self._judge(need, missing)
        return cached[0][numbers], cached[1][numbers]

    def _judge(self, need: NodeDemand, numbers: Ints) -> tuple[Ints, Ints]:
        """Return, for each of these node states, the score of the request and the GPU for it."""
        klass, cpu, _, gpus = self.states.read(numbers)
        before = self.fragments(klass, cpu, gpus)
        if need.whole or not need.gpus:
            after = self.fragments(klass, cpu - need.cpu, _without_whole(gpus, need.whole))
            return self._score(before - after), np.zeros(len(numbers), dtype=np.int64)
        columns = gpus.shape[1]
        scores = np.full((len(numbers), columns), -1, dtype=np.int64)
        state, gpu = np.nonzero(gpus >= need.milli)
        rows = gpus[state]
        rows[np.arange(len(state)), gpu] -= need.milli
        after = self.fragments(klass[state], cpu[state] - need.cpu, rows)
        scores[state, gpu] = self._score(before[state] - after)
        best = scores.argmax(axis=1)
        return scores[np.arange(len(numbers)), best], best

    def _score(self, gain: Ints) -> Ints:
        steep = 1.0 / (1.0 + np.exp(-gain / self.asks / 1000))
        score: Ints = (100 * steep).astype(np.int64)
        return score


def _commonest(mix: DemandMix, covered: float) -> tuple[list[NodeDemand], Ints]:
    """Return the most frequent requests and their weights.

    Together, these requests cover at least the share ``covered`` of the mix. Requests that differ only in
    memory count as one request, whose memory is 0.
    """
    weight_by_need: dict[NodeDemand, int] = {}
    for need, weight in zip(mix.needs, mix.weights, strict=True):
        without_memory = NodeDemand(need.gpus, need.milli, need.cpu, 0, need.classes)
        weight_by_need[without_memory] = weight_by_need.get(without_memory, 0) + weight
    common: list[NodeDemand] = []
    weights: list[int] = []
    for need, weight in sorted(weight_by_need.items(), key=lambda item: (-item[1], item[0])):
        if sum(weights) >= covered * sum(mix.weights):
            break
        common.append(need)
        weights.append(weight)
    return common, np.array(weights, dtype=np.int64)


def _without_whole(gpus: Ints, count: int) -> Ints:
    """Return the free capacity of the GPUs after ``count`` untouched GPUs of each row were taken.

    The first untouched GPUs of a row are taken.
    """
    untouched = gpus == MILLI_PER_GPU
    return np.where(untouched & (np.cumsum(untouched, axis=1) <= count), 0, gpus)


class ProductRule(PlacementPolicy):
    """The placement rule of the product, for nodes whose GPUs can be shared in any parts.

    A share can be placed in two ways: on the fullest GPU in use with enough free capacity, or on an untouched
    GPU. The rule ranks both ways on all nodes.
    """

    def __init__(self, nodes: NodeStates, mix: DemandMix) -> None:
        super().__init__(nodes, mix)
        self.nodes_by_class = [
            np.flatnonzero(nodes.klass == klass) for klass in range(int(nodes.klass.max(initial=0)) + 1)
        ]
        self.rule = PlacementRule(
            mix, tuple(_largest_node(nodes, of_class) for of_class in self.nodes_by_class)
        )
        self.gpu_states = self.rule.tables.gpu_states
        self.state_of: Ints = np.array([self.gpu_states.number(row) for row in nodes.gpu], dtype=np.int64)
        self.placed = 0
        # The GPU states after a request, as an array [way, GPU state before the request]. The key is the
        # (whole GPUs, thousandths of a GPU) that the request needs.
        self._after: dict[tuple[int, int], Ints] = {}

    def took(self, node: int) -> None:
        self.state_of[node] = self.gpu_states.number(self.nodes.gpu[node])
        self.placed += 1

    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        self._refresh_prices()
        before = self.state_of[candidates]
        after = self._states_after(need, before)
        ranks = np.full((len(candidates), len(WAYS)), UNLIMITED_RANK, dtype=np.int64)
        for node_class in np.unique(self.nodes.klass[candidates]).tolist():
            price = need.total * int(self.rule.prices.model_price[node_class])
            for way in range(len(WAYS)):
                at = np.flatnonzero((self.nodes.klass[candidates] == node_class) & (after[way] >= 0))
                nodes = candidates[at]
                cpu, memory = self.nodes.cpu[nodes], self.nodes.memory[nodes]
                ranks[at, way] = price + self.rule.ranks(
                    node_class, need, before[at], after[way, at], cpu, memory
                )
        first, way = divmod(int(ranks.argmin()), len(WAYS))
        node = int(candidates[first])
        return NodeChoice(node, _first_gpu(need, self.nodes.gpu[node], WAYS[way]))

    def _refresh_prices(self) -> None:
        if self.rule.prices_are_due(self.placed):
            nodes = self.nodes
            free = [
                ClassCapacity(nodes.cpu[of], nodes.whole[of], int(nodes.idle[of].sum()))
                for of in self.nodes_by_class
            ]
            self.rule.refresh_prices(self.placed, free)

    def _states_after(self, need: NodeDemand, before: Ints) -> Ints:
        """Return the GPU states after the request as an array [way, node].

        The state is NO_STATE where the request does not fit.
        """
        key = need.whole, need.total
        known = self._after.get(key)
        if known is None or known.shape[1] < len(self.gpu_states):
            grown = np.full((len(WAYS), 2 * len(self.gpu_states)), UNKNOWN_STATE, dtype=np.int64)
            if known is not None:
                grown[:, : known.shape[1]] = known
            known = self._after[key] = grown
        for state in np.unique(before[known[0, before] == UNKNOWN_STATE]).tolist():
            known[:, state] = [self._state_after(need, self.gpu_states.rows[state], way) for way in WAYS]
        return known[:, before]

    def _state_after(self, need: NodeDemand, gpus: Ints, way: str) -> int:
        gpus = gpus.copy()
        if need.whole or not need.gpus:
            if way == IN_USE:
                return NO_STATE
            gpus[np.flatnonzero(gpus == MILLI_PER_GPU)[: need.whole]] = 0
            return self.gpu_states.number(gpus)
        gpu = _first_gpu(need, gpus, way)
        if gpu < 0:
            return NO_STATE
        gpus[gpu] -= need.milli
        return self.gpu_states.number(gpus)


def _largest_node(nodes: NodeStates, of_class: Ints) -> NodeSize:
    """Return the largest GPU count of all nodes, and the largest CPU and memory of the nodes ``of_class``."""
    cpu, memory = nodes.cpu_capacity[of_class], nodes.memory_capacity[of_class]
    return NodeSize(nodes.gpu.shape[1], int(cpu.max(initial=0)), int(memory.max(initial=0)))


def _first_gpu(need: NodeDemand, gpus: Ints, way: str) -> int:
    """Return the GPU for a share: the fullest fitting GPU in use, or an untouched GPU, as ``way`` requires.

    Return -1 if there is no such GPU. Return 0 if the request is not a share.
    """
    if need.whole or not need.gpus:
        return 0
    usable = (gpus >= need.milli) & (gpus < MILLI_PER_GPU) if way == IN_USE else gpus == MILLI_PER_GPU
    return int(np.where(usable, gpus, UNLIMITED_AMOUNT).argmin()) if usable.any() else -1
