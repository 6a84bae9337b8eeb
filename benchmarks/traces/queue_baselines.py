"""Simulate common queue orders as baselines for our own order.

- FIFO starts jobs in the order of submission. It stops at the first job that does not fit.
- SJF starts the shortest job first. It also stops at the first job that does not fit.
- EASY is FIFO with backfill. If the first job does not fit, EASY reserves particular nodes for it at the
  earliest time at which it fits. This time assumes that all running jobs use their whole time limit. Later
  jobs may start if they do not delay the first job. So they must end before the reserved time, or leave
  enough GPUs free on the reserved nodes.

All nodes are alike. A job that fits on one node goes to the fitting node with the fewest free GPUs. A larger
job takes ``nodes`` nodes with ``per_node`` GPUs each.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace. Times are in seconds.

    ``limit`` is the time limit that its owner set, and ``runtime`` is its real runtime.
    """

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
    """Nodes of equal size and their free GPUs.

    The place of a job is a list of nodes.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self.free = [size] * count

    def tightest(self, nodes: int, per_node: int, free: Sequence[int] | None = None) -> list[int] | None:
        """Return ``nodes`` nodes that each have ``per_node`` free GPUs.

        Nodes with the fewest free GPUs are chosen first, then nodes with lower numbers. Return None if too
        few nodes fit. ``free`` replaces the free GPUs of the pool.
        """
        free_by_node = self.free if free is None else free
        if nodes == 1:
            best, fewest = -1, self.size + 1
            for node, free_gpus in enumerate(free_by_node):
                if per_node <= free_gpus < fewest:
                    best, fewest = node, free_gpus
                    if free_gpus == per_node:
                        break
            return None if best < 0 else [best]
        fitting = [node for node, free_gpus in enumerate(free_by_node) if free_gpus >= per_node]
        return (
            sorted(fitting, key=lambda node: (free_by_node[node], node))[:nodes]
            if len(fitting) >= nodes
            else None
        )

    def change(self, place: list[int], by: int) -> None:
        for node in place:
            self.free[node] += by


def simulate_starts(jobs: Sequence[TraceJob], nodes: int, order: QueueOrder, size: int = 8) -> dict[int, int]:
    """Return the start of each job in seconds, by job id.

    Raises ValueError if a job does not fit on the empty nodes. Other jobs can start on the GPUs of a job in
    the second in which it ends.
    """
    too_big = [job.id for job in jobs if job.per_node > size or job.nodes > nodes]
    if too_big:
        raise ValueError(
            f"{len(too_big)} jobs do not fit on {nodes} nodes of {size} GPUs; the first is job {too_big[0]}"
        )
    return _BaselineRun(jobs, nodes, order, size).starts()


class _BaselineRun:
    def __init__(self, jobs: Sequence[TraceJob], nodes: int, order: QueueOrder, size: int) -> None:
        self.nodes, self.order = NodePool(nodes, size), order
        self.arrivals = sorted(jobs, key=lambda job: (job.submitted, job.id))
        self.ends: list[tuple[int, int]] = []
        # (job, its nodes, its end if it uses its whole limit) of running jobs, by job id.
        self.places: dict[int, tuple[TraceJob, list[int], int]] = {}
        self.by_limit: list[tuple[int, int]] = []  # (end by its limit, job id) of running jobs, sorted
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
            self._start_fitting(now)
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

    def _start_fitting(self, now: int) -> None:
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
        """Start later jobs that do not delay the first job of the queue.

        The docstring of the module has the rule.
        """
        shadow, spare = self._reserve(self.queue[0][3])
        short_fails: set[tuple[int, int]] = set()
        any_fails: set[tuple[int, int]] = set()
        remaining = [self.queue[0]]
        for entry in self.queue[1:]:
            job = entry[3]
            shape, ends_before_shadow = (job.nodes, job.per_node), now + job.limit <= shadow
            fails = short_fails if ends_before_shadow else any_fails
            place = None
            if shape not in short_fails and shape not in fails:
                free = self.nodes.free
                usable = free if ends_before_shadow else [min(a, b) for a, b in zip(free, spare, strict=True)]
                place = self.nodes.tightest(job.nodes, job.per_node, usable)
            if place is None:
                fails.add(shape)
                remaining.append(entry)
                continue
            self._start(job, place, now)
            if not ends_before_shadow:
                for node in place:
                    spare[node] -= job.per_node
        self.queue = remaining

    def _reserve(self, head: TraceJob) -> tuple[int, list[int]]:
        """Return the first time at which the first job of the queue fits, and the spare GPUs of each node at
        that time.

        Spare GPUs are free and not needed by that job. Running jobs are assumed to end at their limits.
        """
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
        # ``free`` also has the GPUs of jobs that end at exactly that time.
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
    """Return the nearest-rank percentile: at least ``share`` of the values are at most as large as it.

    Return 0 for an empty list.
    """
    ranked = sorted(values)
    return (
        ranked[min(len(ranked) - 1, max(0, -(-int(share * 1000) * len(ranked) // 1000) - 1))]
        if ranked
        else 0.0
    )


def wait_figures(jobs: Sequence[TraceJob], started: dict[int, int]) -> dict[str, float]:
    """Return the mean completion time, and the mean, p99 and longest wait, of all jobs in seconds."""
    waits = [started[job.id] - job.submitted for job in jobs]
    return {
        "mean_jct": round(sum(w + job.runtime for w, job in zip(waits, jobs, strict=True)) / len(jobs), 1),
        "mean_queue": round(sum(waits) / len(waits), 1),
        "p99_queue": percentile(waits, 0.99),
        "max_queue": max(waits),
    }


def p99_by_size(jobs: Sequence[TraceJob], started: dict[int, int]) -> dict[str, float]:
    """Return the 99th percentile of the wait in seconds, for each class of job sizes.

    Classes without jobs are left out.
    """
    by_class = {
        name: [started[j.id] - j.submitted for j in jobs if is_in_class(j.gpus)]
        for name, is_in_class in SIZE_CLASSES
    }
    return {name: percentile(waits, 0.99) for name, waits in by_class.items() if waits}
