"""Choose the best fitting place by the capacity that it leaves for the pool's real mix of requests.

Our rule takes the place with the largest

    waste before - waste after - model price - slot price,      ties to the lowest node:

- **Waste** (``waste``): the GPU capacity lost when the node is filled with the pool's mix of requests.
- **Model price** (``scarcity``): the cost of taking a scarce model for requests that can use no other.
- **Slot price** (``scarcity``): the cost of breaking up capacity for requests of several GPUs.

Random, BestFit and FGD (USENIX ATC'23) use the same fit, for comparison.
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
    round_weights,
)
from scheduler.core.scoring.expected_waste import BATCH_COUNT, ExpectedWaste
from scheduler.core.scoring.scarcity_prices import (
    PRICE_REFRESH_PLACEMENTS,
    SCORE_UNITS_PER_MILLI,
    ScarcityPrices,
)

INFEASIBLE_SCORE = -(1 << 60)


class NodeStates:
    """The current state of some nodes. ``gpu`` has a column per GPU; missing GPUs of smaller nodes are 0."""

    def __init__(
        self, cpu: Sequence[int], memory: Sequence[int], gpus: Sequence[int], klass: Sequence[int]
    ) -> None:
        self.cpu: Ints = np.array(cpu, dtype=np.int64)
        self.memory: Ints = np.array(memory, dtype=np.int64)
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
        """Return the nodes that can take a request now, in order."""
        return np.flatnonzero(
            nodes_with_capacity(need, self.cpu, self.memory, self.whole, self.largest)
            & self.serving(need.classes)
        )

    def serving(self, classes: int) -> Mask:
        """Return a mask of the nodes of these classes."""
        known = self._serving.get(classes)
        if known is None:
            known = self._serving[classes] = (np.int64(classes) >> self.klass & 1).astype(np.bool_)
        return known

    def take(self, node: int, need: NodeDemand, gpu: int) -> None:
        """Place a request on a node: a share on the given GPU, whole GPUs on the first untouched GPUs."""
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
    """A place: a node, and for a share the GPU on it (0 for other requests)."""

    node: int
    gpu: int = 0


class PlacementPolicy(ABC):
    """A policy that chooses places on nodes.

    ``choose`` never changes the nodes; ``took`` reports each placement.
    """

    def __init__(self, nodes: NodeStates, mix: DemandMix) -> None:
        self.nodes, self.mix = nodes, mix

    def choose(self, need: NodeDemand) -> NodeChoice | None:
        """Return the best place for a request now; None if it fits nowhere."""
        candidates = self.nodes.fits(need)
        return self.best(need, candidates) if len(candidates) else None

    @abstractmethod
    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        """Return the best of these nodes, all of which fit."""

    def took(self, node: int) -> None:  # noqa: B027 - most policies keep no state
        """Note that a request was placed on a node."""

    def _tightest(self, need: NodeDemand, node: int) -> NodeChoice:
        """Return the fitting GPU with the least free capacity for a share; GPU 0 for whole GPUs."""
        if need.whole or not need.gpus:
            return NodeChoice(node)
        row = self.nodes.gpu[node]
        return NodeChoice(node, int(np.where(row >= need.milli, row, UNLIMITED_AMOUNT).argmin()))


class RandomPlacement(PlacementPolicy):
    """Any fitting node, and any fitting GPU of it. ``draw(n)`` returns a number below n."""

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
    """The node with the least capacity left afterwards.

    CPU and GPU have equal weight, in hundredths of the largest machine.
    """

    LARGEST_CPU, LARGEST_GPU = 128_000, 8 * MILLI_PER_GPU

    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        cpu = self.nodes.cpu[candidates] - need.cpu
        gpu = self.nodes.idle[candidates] - need.total
        score = ((1.0 - (cpu / self.LARGEST_CPU * 0.5 + gpu / self.LARGEST_GPU * 0.5)) * 100).astype(np.int64)
        return self._tightest(need, int(candidates[int(score.argmax())]))


class NodeStateIndex:
    """Numbers of node states, for fast look-up of cached scores.

    ``of[node]`` is the number of a node's current state. With ``alike``, nodes whose GPUs differ only in
    order share a number.
    """

    def __init__(self, nodes: NodeStates, alike: bool) -> None:
        self.nodes, self.alike = nodes, alike
        self._numbers: dict[bytes, int] = {}
        self.rows: Ints = np.zeros((0, 0), dtype=np.int64)
        self.of: Ints = np.zeros(len(nodes), dtype=np.int64)
        self.rows = np.zeros((1024, nodes.gpu.shape[1] + 3), dtype=np.int64)
        for node in range(len(nodes)):
            self.note(node)

    def __len__(self) -> int:
        return len(self._numbers)

    def note(self, node: int) -> None:
        """Update the state of a changed node."""
        nodes, gpus = self.nodes, self.nodes.gpu[node]
        state = np.array([nodes.klass[node], nodes.cpu[node], nodes.memory[node], *gpus], dtype=np.int64)
        if self.alike:
            state[3:].sort()
        key = state.tobytes()
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            if number == len(self.rows):
                self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
            self.rows[number] = state
        self.of[node] = number

    def read(self, numbers: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return (class, free CPU, free memory, free thousandths of each GPU) of these states."""
        rows = self.rows[numbers]
        return rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3:]


class Fgd(PlacementPolicy):
    """Fragmentation gradient descent (USENIX ATC'23): the place where expected fragments grow least.

    Fragments of a node: thousandths of GPU that the most frequent needs can't use on it, weighted by
    frequency. The score has 100 steps, as published, and ties go to the lowest node: both affect the result.
    """

    COVERED = 0.95  # share of the requests

    def __init__(self, nodes: NodeStates, mix: DemandMix) -> None:
        super().__init__(nodes, mix)
        self.states = NodeStateIndex(nodes, alike=False)
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
        """Return weighted thousandths of GPU that the frequent needs can't use in these states."""
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
        """Return (score, GPU) of a request in each of these states."""
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
    """Return the most frequent needs, without memory, that cover a share of the mix; and their weights."""
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
    """Return the GPUs with the first ``count`` untouched GPUs of each row taken."""
    untouched = gpus == MILLI_PER_GPU
    return np.where(untouched & (np.cumsum(untouched, axis=1) <= count), 0, gpus)


@dataclass(slots=True)
class StateScores:
    """Cached scores of one need, per state and kind of GPU (partly used, untouched).

    ``gain`` is the reduction of waste in score units, ``loss`` the number of the lost slots, ``partly`` the
    free thousandths of the partly used GPU.
    """

    gain: Ints
    loss: Ints
    partly: Ints


class BatchFill(PlacementPolicy):
    """Our rule: least waste by batch filling, minus the prices of scarce models and scarce capacity."""

    def __init__(self, nodes: NodeStates, mix: DemandMix, batches: int = BATCH_COUNT) -> None:
        super().__init__(nodes, mix)
        mix = round_weights(mix)
        self.states = NodeStateIndex(nodes, alike=True)
        self.classes = int(nodes.klass.max(initial=0)) + 1
        self.waste = ExpectedWaste(mix, self.classes, batches)
        self.prices = ScarcityPrices(mix, self.classes, batches)
        self.asked = 0
        self._known: dict[NodeDemand, StateScores] = {}
        self._losses: dict[bytes, int] = {}
        self._loss_rows: list[Ints] = []
        self._loss_price: Ints = np.zeros(0, dtype=np.int64)

    def choose(self, need: NodeDemand) -> NodeChoice | None:
        if self.asked % PRICE_REFRESH_PLACEMENTS == 0:
            self._refresh_prices()
        self.asked += 1
        return super().choose(need)

    def took(self, node: int) -> None:
        self.states.note(node)

    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        numbers = self.states.of[candidates]
        cached = self._judged(need, numbers)
        scores = cached.gain[numbers] - self._loss_price[cached.loss[numbers]]
        if self.prices.groups:
            scores -= (need.total * self.prices.model_price)[self.nodes.klass[candidates]][:, None]
        at, untouched = divmod(int(scores.argmax()), 2)
        node = int(candidates[at])
        if need.whole or not need.gpus:
            return NodeChoice(node)
        free = MILLI_PER_GPU if untouched else int(cached.partly[numbers[at]])
        return NodeChoice(node, int((self.nodes.gpu[node] == free).argmax()))

    def _refresh_prices(self) -> None:
        nodes = self.nodes
        free = np.bincount(nodes.klass, weights=nodes.idle, minlength=self.classes)
        slots = self.prices.slots(nodes.klass, nodes.cpu, nodes.whole).sum(axis=0)
        self.prices.refresh([int(f) for f in free], [int(s) for s in slots])
        self._price_losses()

    def _price_losses(self) -> None:
        if self._loss_rows:
            self._loss_price = (np.array(self._loss_rows) * self.prices.slot_price).sum(axis=1)

    def _judged(self, need: NodeDemand, numbers: Ints) -> StateScores:
        cached = self._known.get(need)
        if cached is None or len(cached.gain) < len(self.states):
            capacity = max(1024, 2 * len(self.states))
            larger = StateScores(
                np.full((capacity, 2), UNLIMITED_AMOUNT, dtype=np.int64),
                np.zeros((capacity, 2), dtype=np.int64),
                np.zeros(capacity, dtype=np.int64),
            )
            if cached is not None:
                old = len(cached.gain)
                larger.gain[:old], larger.loss[:old], larger.partly[:old] = (
                    cached.gain,
                    cached.loss,
                    cached.partly,
                )
            cached = self._known[need] = larger
        missing = np.unique(numbers[cached.gain[numbers, 0] == UNLIMITED_AMOUNT])
        if len(missing):
            self._judge(need, missing, cached)
            if len(self._loss_rows) > len(self._loss_price):
                self._price_losses()
        return cached

    def _judge(self, need: NodeDemand, numbers: Ints, cached: StateScores) -> None:
        """Compute the scores of a request in new states, with the waste before and after in one call."""
        klass, cpu, memory, gpus = self.states.read(numbers)
        kinds, state, after = self._afters(need, gpus)
        free_cpu = cpu[state] - need.cpu
        waste = self.waste.of(
            np.concatenate((klass, klass[state])),
            np.concatenate((cpu, free_cpu)),
            np.concatenate((memory, memory[state] - need.memory)),
            np.concatenate((gpus, after)),
        )
        slots = self.prices.slots(klass, cpu, (gpus == MILLI_PER_GPU).sum(axis=1))
        lost = slots[state] - self.prices.slots(klass[state], free_cpu, (after == MILLI_PER_GPU).sum(axis=1))
        cached.gain[numbers] = INFEASIBLE_SCORE
        cached.gain[numbers[state], kinds] = SCORE_UNITS_PER_MILLI * (waste[state] - waste[len(numbers) :])
        cached.loss[numbers[state], kinds] = [self._loss(row) for row in lost]
        partly = (gpus >= need.milli) & (gpus < MILLI_PER_GPU)
        cached.partly[numbers] = np.where(partly, gpus, UNLIMITED_AMOUNT).min(axis=1)

    def _loss(self, row: Ints) -> int:
        key = row.tobytes()
        number = self._losses.get(key)
        if number is None:
            number = self._losses[key] = len(self._loss_rows)
            self._loss_rows.append(row)
        return number

    @staticmethod
    def _afters(need: NodeDemand, gpus: Ints) -> tuple[Ints, Ints, Ints]:
        """Return (kind of GPU, state, its GPUs after the placement) for every way to place a request.

        A share can go on the fullest fitting partly used GPU (kind 0) or on an untouched GPU (kind 1). Other
        requests have one way.
        """
        all_states = np.arange(len(gpus))
        if need.whole or not need.gpus:
            return np.ones(len(gpus), dtype=np.int64), all_states, _without_whole(gpus, need.whole)
        kinds, states, after = [], [], []
        for kind, usable in ((0, (gpus >= need.milli) & (gpus < MILLI_PER_GPU)), (1, gpus == MILLI_PER_GPU)):
            fitting = np.flatnonzero(usable.any(axis=1))
            rows = gpus[fitting]
            rows[
                np.arange(len(fitting)), np.where(usable[fitting], rows, UNLIMITED_AMOUNT).argmin(axis=1)
            ] -= need.milli
            kinds.append(np.full(len(fitting), kind, dtype=np.int64))
            states.append(fitting)
            after.append(rows)
        return np.concatenate(kinds), np.concatenate(states), np.concatenate(after)
