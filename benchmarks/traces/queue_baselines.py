"""The queue orders that others use, in simulated time: what our own order is measured against.

Strict first-in-first-out and shortest-first stop at the first job that does not fit. EASY gives that job the earliest
time at which it would fit by the limits of those who run, on particular nodes, and lets later jobs start when they do
not delay it: they are over by then, or they leave those nodes enough. All nodes are alike; a job of up to one node's
GPUs goes to the tightest node, a larger one takes ``nodes`` nodes with ``per_node`` GPUs each.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace: ``limit`` is what its owner says it lasts at most, ``runtime`` what it really lasts (s)."""

    id: int
    submitted: int
    nodes: int
    per_node: int
    runtime: int
    limit: int
    team: int = 1
    user: int = 1

    @property
    def gpus(self) -> int:
        return self.nodes * self.per_node


class QueueOrder(Enum):
    FIFO = "fifo"
    SJF = "sjf"
    EASY = "easy"


class NodePool:
    """Nodes of equal size and what is free on each. A place is the list of nodes, ``per_node`` GPUs on each."""

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self.free = [size] * count

    def tightest(self, nodes: int, per_node: int, free: Sequence[int] | None = None) -> list[int] | None:
        """The nodes with least left that have enough, lower ones first; None when there are too few."""
        levels = self.free if free is None else free
        if nodes == 1:
            best, least = -1, self.size + 1
            for node, left in enumerate(levels):
                if per_node <= left < least:
                    best, least = node, left
                    if left == per_node:
                        break
            return None if best < 0 else [best]
        able = [node for node, left in enumerate(levels) if left >= per_node]
        return sorted(able, key=lambda node: (levels[node], node))[:nodes] if len(able) >= nodes else None

    def change(self, place: list[int], by: int) -> None:
        for node in place:
            self.free[node] += by


def simulate_starts(jobs: Sequence[TraceJob], nodes: int, order: QueueOrder, size: int = 8) -> dict[int, int]:
    """When each job starts (s). Every job must fit on the empty nodes; jobs that end at a moment leave before others start."""
    too_big = [job.id for job in jobs if job.per_node > size or job.nodes > nodes]
    if too_big:
        raise ValueError(
            f"{len(too_big)} jobs do not fit on {nodes} nodes of {size} GPUs, the first is {too_big[0]}"
        )
    return _BaselineRun(jobs, nodes, order, size).starts()


class _BaselineRun:
    def __init__(self, jobs: Sequence[TraceJob], nodes: int, order: QueueOrder, size: int) -> None:
        self.nodes, self.order = NodePool(nodes, size), order
        self.arrivals = sorted(jobs, key=lambda job: (job.submitted, job.id))
        self.ends: list[tuple[int, int]] = []
        self.places: dict[
            int, tuple[TraceJob, list[int], int]
        ] = {}  # running: job, its nodes, its end by its limit
        self.by_limit: list[tuple[int, int]] = []  # (end by limit, job) of those who run, sorted
        self.queue: list[tuple[int, int, int, TraceJob]] = []
        self.started: dict[int, int] = {}

    def starts(self) -> dict[int, int]:
        following = 0
        while following < len(self.arrivals) or self.ends:
            next_arrival = self.arrivals[following].submitted if following < len(self.arrivals) else None
            now = min(t for t in (next_arrival, self.ends[0][0] if self.ends else None) if t is not None)
            while self.ends and self.ends[0][0] == now:
                self._leave(heapq.heappop(self.ends)[1])
            while following < len(self.arrivals) and self.arrivals[following].submitted == now:
                job = self.arrivals[following]
                first = job.runtime if self.order is QueueOrder.SJF else 0
                insort(self.queue, (first, job.submitted, job.id, job), key=lambda entry: entry[:3])
                following += 1
            self._start_what_may(now)
        return self.started

    def _leave(self, job_id: int) -> None:
        job, place, by_limit = self.places.pop(job_id)
        self.nodes.change(place, job.per_node)
        if self.order is QueueOrder.EASY:
            self.by_limit.remove((by_limit, job_id))

    def _start(self, job: TraceJob, place: list[int], now: int) -> None:
        self.nodes.change(place, -job.per_node)
        by_limit = now + job.limit
        self.places[job.id] = job, place, by_limit
        if self.order is QueueOrder.EASY:
            insort(self.by_limit, (by_limit, job.id))
        heapq.heappush(self.ends, (now + job.runtime, job.id))
        self.started[job.id] = now

    def _start_what_may(self, now: int) -> None:
        while self.queue:
            job = self.queue[0][3]
            place = self.nodes.tightest(job.nodes, job.per_node)
            if place is None:
                break
            self.queue.pop(0)
            self._start(job, place, now)
        if self.order is QueueOrder.EASY and len(self.queue) > 1 and any(self.nodes.free):
            self._backfill(now)

    def _backfill(self, now: int) -> None:
        """Start what does not delay the head: see the module's docstring."""
        shadow, spare = self._reserve(self.queue[0][3])
        short_fails: set[tuple[int, int]] = set()
        any_fails: set[tuple[int, int]] = set()
        kept = [self.queue[0]]
        for entry in self.queue[1:]:
            job = entry[3]
            shape, over_in_time = (job.nodes, job.per_node), now + job.limit <= shadow
            fails = short_fails if over_in_time else any_fails
            place = None
            if shape not in short_fails and shape not in fails:
                free = self.nodes.free
                levels = free if over_in_time else [min(a, b) for a, b in zip(free, spare, strict=True)]
                place = self.nodes.tightest(job.nodes, job.per_node, levels)
            if place is None:
                fails.add(shape)
                kept.append(entry)
                continue
            self._start(job, place, now)
            if not over_in_time:
                for node in place:
                    spare[node] -= job.per_node
        self.queue = kept

    def _reserve(self, head: TraceJob) -> tuple[int, list[int]]:
        """When the head will fit by the limits of those who run, and what each node then has beside it."""
        free = list(self.nodes.free)
        at = 0
        for end, job_id in self.by_limit:
            job, place, _ = self.places[job_id]
            if end != at:
                found = self.nodes.tightest(head.nodes, head.per_node, free) if at else None
                if found is not None:
                    break
                at = end
            for node in place:
                free[node] += job.per_node
        found = self.nodes.tightest(head.nodes, head.per_node, free)
        assert found is not None  # every job fits on the empty nodes
        # What ends at exactly that time is free too; what ends later counts as taken.
        for node in found:
            free[node] -= head.per_node
        return at, free


SIZE_CLASSES: tuple[tuple[str, Callable[[int], bool]], ...] = (
    ("1", lambda gpus: gpus == 1),
    ("2-8", lambda gpus: 2 <= gpus <= 8),
    ("9-64", lambda gpus: 9 <= gpus <= 64),
    ("over 64", lambda gpus: gpus > 64),
)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the others do not exceed (nearest rank); of nothing, 0."""
    ranked = sorted(values)
    return (
        ranked[min(len(ranked) - 1, max(0, -(-int(share * 1000) * len(ranked) // 1000) - 1))]
        if ranked
        else 0.0
    )


def wait_figures(jobs: Sequence[TraceJob], started: dict[int, int]) -> dict[str, float]:
    """Means in seconds over all jobs: completion (from submission to end), wait; and the wait's p99 and maximum."""
    waits = [started[job.id] - job.submitted for job in jobs]
    return {
        "mean_jct": round(sum(w + job.runtime for w, job in zip(waits, jobs, strict=True)) / len(jobs), 1),
        "mean_queue": round(sum(waits) / len(waits), 1),
        "p99_queue": percentile(waits, 0.99),
        "max_queue": max(waits),
    }


def p99_by_size(jobs: Sequence[TraceJob], started: dict[int, int]) -> dict[str, float]:
    """The 99th percentile of the wait, per class of size; classes without jobs are left out."""
    by_class = {
        name: [started[j.id] - j.submitted for j in jobs if among(j.gpus)] for name, among in SIZE_CLASSES
    }
    return {name: percentile(waits, 0.99) for name, waits in by_class.items() if waits}
