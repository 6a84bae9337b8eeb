"""Which of the places that fit is best: what a choice leaves behind for the asks the pool really gets.

The rule takes the place with the largest

    waste before - waste after - model price - slot price,      ties to the lowest node:

- **Waste** (``waste``): the GPU that is lost when the node is filled with the pool's own mix of asks.
- **Model price** (``scarcity``): what taking a scarce model costs the asks that can use no other.
- **Slot price** (``scarcity``): what breaking up room for asks of several GPUs costs them.

Random, BestFit and FGD (USENIX ATC'23) stand beside it over the same fit, for comparison.
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
    """The present state of some nodes. ``gpu`` has a column per GPU; a node with fewer has 0 in the others."""

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
        """The nodes that can take an ask now, in order."""
        return np.flatnonzero(
            nodes_with_capacity(need, self.cpu, self.memory, self.whole, self.largest)
            & self.serving(need.classes)
        )

    def serving(self, classes: int) -> Mask:
        """The nodes of these classes."""
        known = self._serving.get(classes)
        if known is None:
            known = self._serving[classes] = (np.int64(classes) >> self.klass & 1).astype(np.bool_)
        return known

    def take(self, node: int, need: NodeDemand, gpu: int) -> None:
        """Put an ask on a node: a share on the GPU given, whole GPUs on the first that are untouched."""
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
    """A place: a node, and for a share the GPU on it (0 for others)."""

    node: int
    gpu: int = 0


class PlacementPolicy(ABC):
    """Chooses places on nodes. ``choose`` never changes the nodes; ``took`` is told what was placed."""

    def __init__(self, nodes: NodeStates, mix: DemandMix) -> None:
        self.nodes, self.mix = nodes, mix

    def choose(self, need: NodeDemand) -> NodeChoice | None:
        """The best place for an ask now, None when it fits nowhere."""
        candidates = self.nodes.fits(need)
        return self.best(need, candidates) if len(candidates) else None

    @abstractmethod
    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        """The best of these nodes, all of which fit."""

    def took(self, node: int) -> None:  # noqa: B027 - most policies need not know
        """An ask was put on a node."""

    def _tightest(self, need: NodeDemand, node: int) -> NodeChoice:
        """A share goes on the GPU with the least left that fits; whole GPUs are all alike."""
        if need.whole or not need.gpus:
            return NodeChoice(node)
        row = self.nodes.gpu[node]
        return NodeChoice(node, int(np.where(row >= need.milli, row, UNLIMITED_AMOUNT).argmin()))


class RandomPlacement(PlacementPolicy):
    """Any node that fits, any GPU of it that fits. ``draw(n)`` gives a number below n."""

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
    """The node that has least left afterwards, CPU and GPU weighing alike, in hundredths of the largest machine."""

    LARGEST_CPU, LARGEST_GPU = 128_000, 8 * MILLI_PER_GPU

    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        cpu = self.nodes.cpu[candidates] - need.cpu
        gpu = self.nodes.idle[candidates] - need.total
        score = ((1.0 - (cpu / self.LARGEST_CPU * 0.5 + gpu / self.LARGEST_GPU * 0.5)) * 100).astype(np.int64)
        return self._tightest(need, int(candidates[int(score.argmax())]))


class NodeStateIndex:
    """Numbers for the states nodes were in, so that what is known of a state is one look-up away.

    ``of[node]`` is the number of a node's present state. With ``alike`` nodes whose GPUs differ in their order only share one.
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
        """A node has changed."""
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
        """(class, free CPU, free memory, free thousandths of each GPU) of these states."""
        rows = self.rows[numbers]
        return rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3:]


class Fgd(PlacementPolicy):
    """Fragmentation gradient descent (USENIX ATC'23): the place where expected fragments grow least.

    Fragments of a node: over the commonest needs, the thousandths of GPU that such an ask can't use on it, by frequency.
    The score has 100 steps, as published, and its ties fall to the lowest node: both matter to the result.
    """

    COVERED = 0.95  # of the asks

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
        """Thousandths of GPU, times their number, that the common needs can't use on these states."""
        fitting = gpus[:, None, :] >= self.sizes[:, None]
        enough = fitting.sum(axis=2)[:, self.size_of] >= self.gpus
        small = np.where(fitting, 0, gpus[:, None, :]).sum(axis=2)[:, self.size_of]
        usable = enough & (cpu[:, None] >= self.cpu) & self.serves[klass]
        found: Ints = (np.where(usable, small, gpus.sum(axis=1)[:, None]) * self.weight).sum(axis=1)
        return found

    def _judged(self, need: NodeDemand, numbers: Ints) -> tuple[Ints, Ints]:
        known = self._known.get(need)
        if known is None or len(known[0]) < len(self.states):
            room = max(1024, 2 * len(self.states))
            scores, gpus = np.full(room, -1, dtype=np.int64), np.zeros(room, dtype=np.int64)
            if known is not None:
                scores[: len(known[0])], gpus[: len(known[1])] = known
            known = self._known[need] = scores, gpus
        missing = np.unique(numbers[known[0][numbers] < 0])
        if len(missing):
            known[0][missing], known[1][missing] = self._judge(need, missing)
        return known[0][numbers], known[1][numbers]

    def _judge(self, need: NodeDemand, numbers: Ints) -> tuple[Ints, Ints]:
        """(score, GPU) of an ask on each of these states."""
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
    """The commonest needs, memory apart, that cover a part of the mix; and how often each is asked for."""
    counted: dict[NodeDemand, int] = {}
    for need, weight in zip(mix.needs, mix.weights, strict=True):
        bare = NodeDemand(need.gpus, need.milli, need.cpu, 0, need.classes)
        counted[bare] = counted.get(bare, 0) + weight
    common: list[NodeDemand] = []
    weights: list[int] = []
    for need, weight in sorted(counted.items(), key=lambda item: (-item[1], item[0])):
        if sum(weights) >= covered * sum(mix.weights):
            break
        common.append(need)
        weights.append(weight)
    return common, np.array(weights, dtype=np.int64)


def _without_whole(gpus: Ints, count: int) -> Ints:
    """The same GPUs with the first ``count`` untouched ones taken."""
    untouched = gpus == MILLI_PER_GPU
    return np.where(untouched & (np.cumsum(untouched, axis=1) <= count), 0, gpus)


@dataclass(slots=True)
class StateScores:
    """What is known of one need on the states: per state and sort of GPU (partly used, untouched) what the waste gains in
    score units, and which loss of room comes with it; and how much is free on the partly used GPU."""

    gain: Ints
    loss: Ints
    partly: Ints


class BatchFill(PlacementPolicy):
    """Our rule: least waste by batch filling, less the prices of scarce models and of scarce room."""

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
            self._look_at_prices()
        self.asked += 1
        return super().choose(need)

    def took(self, node: int) -> None:
        self.states.note(node)

    def best(self, need: NodeDemand, candidates: Ints) -> NodeChoice:
        numbers = self.states.of[candidates]
        known = self._judged(need, numbers)
        scores = known.gain[numbers] - self._loss_price[known.loss[numbers]]
        if self.prices.groups:
            scores -= (need.total * self.prices.model_price)[self.nodes.klass[candidates]][:, None]
        at, untouched = divmod(int(scores.argmax()), 2)
        node = int(candidates[at])
        if need.whole or not need.gpus:
            return NodeChoice(node)
        free = MILLI_PER_GPU if untouched else int(known.partly[numbers[at]])
        return NodeChoice(node, int((self.nodes.gpu[node] == free).argmax()))

    def _look_at_prices(self) -> None:
        nodes = self.nodes
        free = np.bincount(nodes.klass, weights=nodes.idle, minlength=self.classes)
        slots = self.prices.slots(nodes.klass, nodes.cpu, nodes.whole).sum(axis=0)
        self.prices.refresh([int(f) for f in free], [int(s) for s in slots])
        self._price_losses()

    def _price_losses(self) -> None:
        if self._loss_rows:
            self._loss_price = (np.array(self._loss_rows) * self.prices.slot_price).sum(axis=1)

    def _judged(self, need: NodeDemand, numbers: Ints) -> StateScores:
        known = self._known.get(need)
        if known is None or len(known.gain) < len(self.states):
            room = max(1024, 2 * len(self.states))
            grown = StateScores(
                np.full((room, 2), UNLIMITED_AMOUNT, dtype=np.int64),
                np.zeros((room, 2), dtype=np.int64),
                np.zeros(room, dtype=np.int64),
            )
            if known is not None:
                old = len(known.gain)
                grown.gain[:old], grown.loss[:old], grown.partly[:old] = known.gain, known.loss, known.partly
            known = self._known[need] = grown
        missing = np.unique(numbers[known.gain[numbers, 0] == UNLIMITED_AMOUNT])
        if len(missing):
            self._judge(need, missing, known)
            if len(self._loss_rows) > len(self._loss_price):
                self._price_losses()
        return known

    def _judge(self, need: NodeDemand, numbers: Ints, known: StateScores) -> None:
        """Work out an ask on states it has not met yet; their waste before and after in one go."""
        klass, cpu, memory, gpus = self.states.read(numbers)
        sorts, able, after = self._afters(need, gpus)
        left = cpu[able] - need.cpu
        waste = self.waste.of(
            np.concatenate((klass, klass[able])),
            np.concatenate((cpu, left)),
            np.concatenate((memory, memory[able] - need.memory)),
            np.concatenate((gpus, after)),
        )
        slots = self.prices.slots(klass, cpu, (gpus == MILLI_PER_GPU).sum(axis=1))
        lost = slots[able] - self.prices.slots(klass[able], left, (after == MILLI_PER_GPU).sum(axis=1))
        known.gain[numbers] = INFEASIBLE_SCORE
        known.gain[numbers[able], sorts] = SCORE_UNITS_PER_MILLI * (waste[able] - waste[len(numbers) :])
        known.loss[numbers[able], sorts] = [self._loss(row) for row in lost]
        partly = (gpus >= need.milli) & (gpus < MILLI_PER_GPU)
        known.partly[numbers] = np.where(partly, gpus, UNLIMITED_AMOUNT).min(axis=1)

    def _loss(self, row: Ints) -> int:
        key = row.tobytes()
        number = self._losses.get(key)
        if number is None:
            number = self._losses[key] = len(self._loss_rows)
            self._loss_rows.append(row)
        return number

    @staticmethod
    def _afters(need: NodeDemand, gpus: Ints) -> tuple[Ints, Ints, Ints]:
        """(sort of GPU, which state, its GPUs with the ask on) for every way to take an ask: a share on the fullest partly
        used GPU that fits (sort 0) and on an untouched one (sort 1); other asks in one way."""
        every = np.arange(len(gpus))
        if need.whole or not need.gpus:
            return np.ones(len(gpus), dtype=np.int64), every, _without_whole(gpus, need.whole)
        sorts, states, after = [], [], []
        for sort, which in ((0, (gpus >= need.milli) & (gpus < MILLI_PER_GPU)), (1, gpus == MILLI_PER_GPU)):
            able = np.flatnonzero(which.any(axis=1))
            rows = gpus[able]
            rows[np.arange(len(able)), np.where(which[able], rows, UNLIMITED_AMOUNT).argmin(axis=1)] -= (
                need.milli
            )
            sorts.append(np.full(len(able), sort, dtype=np.int64))
            states.append(able)
            after.append(rows)
        return np.concatenate(sorts), np.concatenate(states), np.concatenate(after)
