"""How long a job will probably run, said once at its submission: the median of similar finished jobs.

Similar: of the same user, else of the same team; of the same power-of-two size; with a limit within a factor of three.
The latest 200 count, and there have to be five; otherwise its limit times the pool's median of runtime / limit. Never
above the limit. Where the jobs come from (the database, a simulation) is the caller's affair.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Sequence

from scheduler.core.model.snapshot import QueuedWorkload

MAX_SIMILAR_JOBS = 200  # finished jobs
MIN_SIMILAR_JOBS = 5
SIMILAR_LIMIT_FACTOR = 3
MAX_REMEMBERED_JOBS = (
    2000  # finished jobs per team and size, among which a simulation looks for similar limits
)


def size_class(total_units: int) -> tuple[int, int]:
    """``[smallest, end)`` of the units that count as the same size: powers of two."""
    smallest = 1 << (total_units.bit_length() - 1)
    return smallest, 2 * smallest


def similar_limits(limit: int) -> tuple[float, float]:
    """The least and the greatest limit (s) of a job that counts as similar."""
    return limit / SIMILAR_LIMIT_FACTOR, float(limit * SIMILAR_LIMIT_FACTOR)


def predicted_seconds(
    of_user: Sequence[float], of_team: Sequence[float], ratios: Sequence[float], limit: int
) -> int:
    """Seconds between 1 and ``limit``, from the runtimes (s) of the user's and the team's similar jobs and the pool's
    runtime / limit, each the latest ``MAX_SIMILAR_JOBS``."""
    for runtimes in (of_user, of_team):
        if len(runtimes) >= MIN_SIMILAR_JOBS:
            return _clamp_to_limit(statistics.median(runtimes), limit)
    return _clamp_to_limit(
        limit * (statistics.median(ratios) if len(ratios) >= MIN_SIMILAR_JOBS else 1.0), limit
    )


def _clamp_to_limit(seconds: float, limit: int) -> int:
    return max(1, min(limit, round(seconds)))


class RuntimeHistory:
    """What finished so far in a simulation, and the prediction made from it."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int, int], deque[tuple[int, int]]] = defaultdict(
            lambda: deque(maxlen=MAX_REMEMBERED_JOBS)
        )
        self._ratios: deque[float] = deque()
        self._sorted_ratios: list[float] = []

    def finished(self, queued: QueuedWorkload, runtime: int) -> None:
        """A job came to its end by itself after ``runtime`` seconds."""
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
        """Seconds that a job submitted now will probably run."""
        size = size_class(queued.ask.total_units)[0]
        limit = queued.max_runtime_seconds
        of_user = self._similar(("user", queued.user, size), limit)
        of_team = (
            self._similar(("team", queued.team, size), limit) if len(of_user) < MIN_SIMILAR_JOBS else of_user
        )
        return predicted_seconds(of_user, of_team, self._sorted_ratios, limit)

    def _similar(self, key: tuple[str, int, int], limit: int) -> list[int]:
        least, greatest = similar_limits(limit)
        found: list[int] = []
        for other, runtime in reversed(self._runs[key]):
            if least <= other <= greatest:
                found.append(runtime)
                if len(found) == MAX_SIMILAR_JOBS:
                    break
        return found
