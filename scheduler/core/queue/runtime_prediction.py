"""Predict a job's runtime at its submission as the median runtime of similar finished jobs.

Two jobs are similar if their numbers of units are between the same two powers of two, and if their runtime
limits differ at most by a factor of three. Example: jobs of 4 to 7 units are of similar size.

1. If the user has at least five similar jobs, the median of the latest 200 of them is the prediction.
2. Otherwise the same rule is applied to the similar jobs of the team.
3. Otherwise the pool's latest jobs give the median of (runtime / runtime limit). The prediction is this
   median times the runtime limit of the new job. If the pool has fewer than five such jobs, the prediction is
   the runtime limit.

The prediction is never longer than the runtime limit. The caller supplies the finished jobs, from the
database or from a simulation.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Sequence

from scheduler.core.model.snapshot import QueuedWorkload

MAX_SIMILAR_JOBS = 200
MIN_SIMILAR_JOBS = 5
SIMILAR_LIMIT_FACTOR = 3
# A simulation keeps at most this many finished jobs for each user and size, and for each team and size. It
# searches them for jobs with similar runtime limits.
MAX_REMEMBERED_JOBS = 2000


def size_class(total_units: int) -> tuple[int, int]:
    """Return (smallest, end): the unit counts of similar jobs, from one power of two to just below the next.

    Example: 5 units return (4, 8).
    """
    smallest = 1 << (total_units.bit_length() - 1)
    return smallest, 2 * smallest


def similar_limits(limit: int) -> tuple[float, float]:
    """Return the lowest and the highest runtime limit (seconds) that count as similar."""
    return limit / SIMILAR_LIMIT_FACTOR, float(limit * SIMILAR_LIMIT_FACTOR)


def predicted_seconds(
    user_runtimes: Sequence[float], team_runtimes: Sequence[float], ratios: Sequence[float], limit: int
) -> int:
    """Return the predicted runtime in seconds, between 1 and ``limit`` (the job's runtime limit).

    ``user_runtimes`` and ``team_runtimes`` are the runtimes (seconds) of similar jobs. ``ratios`` are the
    values of runtime / runtime limit of the pool's jobs. The caller gives at most the latest
    ``MAX_SIMILAR_JOBS`` values of each.
    """
    for runtimes in (user_runtimes, team_runtimes):
        if len(runtimes) >= MIN_SIMILAR_JOBS:
            return _clamp_to_limit(statistics.median(runtimes), limit)
    return _clamp_to_limit(
        limit * (statistics.median(ratios) if len(ratios) >= MIN_SIMILAR_JOBS else 1.0), limit
    )


def _clamp_to_limit(seconds: float, limit: int) -> int:
    return max(1, min(limit, round(seconds)))


class RuntimeHistory:
    """The finished jobs of a simulation, from which it predicts the runtimes of new jobs."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int, int], deque[tuple[int, int]]] = defaultdict(
            lambda: deque(maxlen=MAX_REMEMBERED_JOBS)
        )
        self._ratios: deque[float] = deque()
        self._sorted_ratios: list[float] = []

    def finished(self, queued: QueuedWorkload, runtime: int) -> None:
        """Record a job that ended on its own after ``runtime`` seconds."""
        size = size_class(queued.ask.total_units)[0]
        run = queued.max_runtime_seconds, runtime
        self._runs["user", queued.user, size].append(run)
        self._runs["team", queued.team, size].append(run)
        ratio = runtime / queued.max_runtime_seconds
        self._ratios.append(ratio)
        insort(self._sorted_ratios, ratio)
        if len(self._ratios) > MAX_SIMILAR_JOBS:
            del self._sorted_ratios[bisect_left(self._sorted_ratios, self._ratios.popleft())]

    def predict(self, queued: QueuedWorkload) -> int:
        """Return the predicted runtime (seconds) of a job submitted now."""
        size = size_class(queued.ask.total_units)[0]
        limit = queued.max_runtime_seconds
        user_runtimes = self._similar(("user", queued.user, size), limit)
        team_runtimes = (
            self._similar(("team", queued.team, size), limit)
            if len(user_runtimes) < MIN_SIMILAR_JOBS
            else user_runtimes
        )
        return predicted_seconds(user_runtimes, team_runtimes, self._sorted_ratios, limit)

    def _similar(self, key: tuple[str, int, int], limit: int) -> list[int]:
        """Return the runtimes (seconds) of at most ``MAX_SIMILAR_JOBS`` similar jobs, the latest first."""
        least, greatest = similar_limits(limit)
        similar: list[int] = []
        for run_limit, runtime in reversed(self._runs[key]):
            if least <= run_limit <= greatest:
                similar.append(runtime)
                if len(similar) == MAX_SIMILAR_JOBS:
                    break
        return similar
