"""From when to when a waiting workload may start: the forecast's answer, widened by how wrong the last ones were.

A forecast is the plan run forward over predicted run times, and as wrong as they are: about half of all workloads start
later than it says. So a start is told as a range whose ends come from the record: how long others really waited, by how
long they had been told. It is never a guarantee.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UPPER_PERCENTILE, LOWER_PERCENTILE = 85, 15  # percentiles of actual / expected wait
MAX_OUTCOMES = 400  # of the latest records
SIMILAR_WAIT_FACTOR = 3  # waits told within this factor of each other are wrong alike
MIN_OUTCOMES = 20
MIN_WAIT_SECONDS = (
    60  # seconds: a shorter wait counts as that long, or a moment too late would weigh like days
)
DEFAULT_UPPER_RATIO, DEFAULT_LOWER_RATIO = 3.0, 0.25  # while there are too few records


@dataclass(frozen=True, slots=True)
class StartRange:
    """A start (s) is expected at ``expected``, at ``earliest`` if all goes well, and likely by ``latest``."""

    earliest: int
    expected: int
    latest: int


def wait_ratio(expected_wait: int, actual_wait: int) -> float:
    """How many times as long as was said something waited."""
    return max(MIN_WAIT_SECONDS, actual_wait) / max(MIN_WAIT_SECONDS, expected_wait)


def start_range(now: int, expected_start: int, past_errors: Sequence[float]) -> StartRange:
    """The range of a start that the forecast puts at ``expected_start``; ``past_errors`` are the latest ``wait_ratio``."""
    lower, upper = DEFAULT_LOWER_RATIO, DEFAULT_UPPER_RATIO
    if len(past_errors) >= MIN_OUTCOMES:
        ranked = sorted(past_errors)
        lower, upper = _percentile(ranked, LOWER_PERCENTILE), _percentile(ranked, UPPER_PERCENTILE)
    wait = max(MIN_WAIT_SECONDS, expected_start - now)
    earliest = now + int(wait * min(1.0, lower))
    return StartRange(
        min(earliest, expected_start), expected_start, max(expected_start, now + int(wait * upper) + 1)
    )


def ratios_of_similar_waits(past: Sequence[tuple[int, float]], expected_wait: int) -> list[float]:
    """Of (expected wait in seconds, ``wait_ratio``), the ratios of those who were told to wait about as long; of all when
    these are too few. Short waits go wrong by more than long ones, so one measure for both would be too wide or too late."""
    wait = max(MIN_WAIT_SECONDS, expected_wait)
    alike = [
        ratio
        for expected, ratio in past
        if wait
        <= SIMILAR_WAIT_FACTOR * max(MIN_WAIT_SECONDS, expected)
        <= SIMILAR_WAIT_FACTOR * SIMILAR_WAIT_FACTOR * wait
    ]
    return alike if len(alike) >= MIN_OUTCOMES else [ratio for _, ratio in past]


@dataclass(frozen=True, slots=True)
class EstimateOutcome:
    """What somebody was told when it began to wait, in seconds from then, and what came of it. ``latest_wait`` is the upper
    end of the range, None where none was given. ``waited`` is until it started, or left the queue, or until now."""

    expected_wait: int
    latest_wait: int | None
    waited: int
    started: bool
    simulated: bool = False  # by a demo, before its site was there

    @property
    def is_conclusive(self) -> bool:
        """Does it say how wrong the forecast was? Who left before its time, or still waits in time, proves nothing."""
        return self.started or self.waited > self.expected_wait

    @property
    def started_in_range(self) -> bool | None:
        """Did it start by the upper end? None where there was none, or where it is open."""
        if self.latest_wait is None:
            return None
        if self.waited > self.latest_wait:
            return False
        return True if self.started else None


@dataclass(frozen=True, slots=True)
class EstimateAccuracy:
    """How good the expected starts of one pool were: ``errors`` are ratios as ``start_range`` takes them, and ``past`` the same
    with the wait (s) that each was told; ``in_time`` of
    ``ranged`` started by the upper end they were told; ``median_error`` is in seconds, over ``counted`` that started."""

    errors: tuple[float, ...] = ()
    counted: int = 0
    median_error: int | None = None
    ranged: int = 0
    in_time: int = 0
    past: tuple[tuple[int, float], ...] = ()
    simulated: int = 0  # of ``counted``

    @property
    def has_enough_outcomes(self) -> bool:
        """Are there enough to tell ranges from?"""
        return len(self.errors) >= MIN_OUTCOMES

    def range(self, now: int, expected_start: int) -> StartRange | None:
        """The range of a start; None while there are too few records to tell one from."""
        if not self.has_enough_outcomes:
            return None
        return start_range(
            now, expected_start, ratios_of_similar_waits(self.past, expected_start - now) or self.errors
        )


def estimate_accuracy(told: Iterable[EstimateOutcome]) -> EstimateAccuracy:
    """The record of what one pool's workloads were told, in any order."""
    known = [one for one in told if one.is_conclusive]
    off = [abs(one.waited - one.expected_wait) for one in known if one.started]
    ranged = [one.started_in_range for one in known if one.started_in_range is not None]
    return EstimateAccuracy(
        errors=tuple(sorted(wait_ratio(one.expected_wait, one.waited) for one in known)),
        counted=len(off),
        median_error=round(statistics.median(off)) if off else None,
        ranged=len(ranged),
        in_time=sum(ranged),
        past=tuple(sorted((one.expected_wait, wait_ratio(one.expected_wait, one.waited)) for one in known)),
        simulated=sum(one.started and one.simulated for one in known),
    )


def _percentile(ranked: Sequence[float], percent: int) -> float:
    """The nearest rank of a sorted, not empty sequence."""
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)]


class EstimateHistory:
    """What was said and what came of it, of the latest ``MAX_OUTCOMES``. Those still waiting count once they waited longer
    than they were told, or a queue that grows would look as if nothing went wrong."""

    def __init__(self) -> None:
        self._past: deque[tuple[int, float]] = deque(maxlen=MAX_OUTCOMES)
        self._waiting: dict[int, tuple[int, int]] = {}  # workload -> (told at, expected wait)

    def told(self, workload: int, now: int, expected_start: int) -> None:
        """Somebody was given an expected start."""
        self._waiting[workload] = now, expected_start - now

    def started(self, workload: int, now: int) -> None:
        """It started, or left the queue."""
        at, expected = self._waiting.pop(workload, (now, -1))
        if expected >= 0:
            self._past.append((expected, wait_ratio(expected, now - at)))

    def errors(self, now: int, expected_wait: int) -> list[float]:
        """The ratios for one who is told to wait so long (s), with those that wait too long by now."""
        told = self._waiting.values()
        overdue = [(expected, wait_ratio(expected, now - at)) for at, expected in told if now - at > expected]
        return ratios_of_similar_waits([*self._past, *overdue], expected_wait)
