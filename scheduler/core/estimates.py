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

UPPER, LOWER = 85, 15  # percentiles of actual / expected wait
LOOKED_AT = 400  # of the latest records
SIMILAR_FACTOR = 3  # waits told within this factor of each other are wrong alike
LEAST_RECORDS = 20
SHORTEST = 60  # seconds: a shorter wait counts as that long, or a moment too late would weigh like days
UNPROVEN_UPPER, UNPROVEN_LOWER = 3.0, 0.25  # while there are too few records


@dataclass(frozen=True, slots=True)
class StartRange:
    """A start (s) is expected at ``expected``, at ``earliest`` if all goes well, and likely by ``latest``."""

    earliest: int
    expected: int
    latest: int


def ratio_of(expected_wait: int, actual_wait: int) -> float:
    """How many times as long as was said something waited."""
    return max(SHORTEST, actual_wait) / max(SHORTEST, expected_wait)


def range_of(now: int, expected_start: int, past_errors: Sequence[float]) -> StartRange:
    """The range of a start that the forecast puts at ``expected_start``; ``past_errors`` are the latest ``ratio_of``."""
    lower, upper = UNPROVEN_LOWER, UNPROVEN_UPPER
    if len(past_errors) >= LEAST_RECORDS:
        ranked = sorted(past_errors)
        lower, upper = _percentile(ranked, LOWER), _percentile(ranked, UPPER)
    wait = max(SHORTEST, expected_start - now)
    earliest = now + int(wait * min(1.0, lower))
    return StartRange(min(earliest, expected_start), expected_start, max(expected_start, now + int(wait * upper) + 1))


def similar(past: Sequence[tuple[int, float]], expected_wait: int) -> list[float]:
    """Of (expected wait in seconds, ``ratio_of``), the ratios of those who were told to wait about as long; of all when
    these are too few. Short waits go wrong by more than long ones, so one measure for both would be too wide or too late."""
    wait = max(SHORTEST, expected_wait)
    alike = [
        ratio
        for expected, ratio in past
        if wait <= SIMILAR_FACTOR * max(SHORTEST, expected) <= SIMILAR_FACTOR * SIMILAR_FACTOR * wait
    ]
    return alike if len(alike) >= LEAST_RECORDS else [ratio for _, ratio in past]


@dataclass(frozen=True, slots=True)
class Told:
    """What somebody was told when it began to wait, in seconds from then, and what came of it. ``latest_wait`` is the upper
    end of the range, None where none was given. ``waited`` is until it started, or left the queue, or until now."""

    expected_wait: int
    latest_wait: int | None
    waited: int
    started: bool
    simulated: bool = False  # by a demo, before its site was there

    @property
    def is_known(self) -> bool:
        """Does it say how wrong the forecast was? Who left before its time, or still waits in time, proves nothing."""
        return self.started or self.waited > self.expected_wait

    @property
    def was_in_time(self) -> bool | None:
        """Did it start by the upper end? None where there was none, or where it is open."""
        if self.latest_wait is None:
            return None
        if self.waited > self.latest_wait:
            return False
        return True if self.started else None


@dataclass(frozen=True, slots=True)
class PastStarts:
    """How good the expected starts of one pool were: ``errors`` are ratios as ``range_of`` takes them, and ``past`` the same
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
    def is_enough(self) -> bool:
        """Are there enough to tell ranges from?"""
        return len(self.errors) >= LEAST_RECORDS

    def range(self, now: int, expected_start: int) -> StartRange | None:
        """The range of a start; None while there are too few records to tell one from."""
        if not self.is_enough:
            return None
        return range_of(now, expected_start, similar(self.past, expected_start - now) or self.errors)


def past_starts(told: Iterable[Told]) -> PastStarts:
    """The record of what one pool's workloads were told, in any order."""
    known = [one for one in told if one.is_known]
    off = [abs(one.waited - one.expected_wait) for one in known if one.started]
    ranged = [one.was_in_time for one in known if one.was_in_time is not None]
    return PastStarts(
        errors=tuple(sorted(ratio_of(one.expected_wait, one.waited) for one in known)),
        counted=len(off),
        median_error=round(statistics.median(off)) if off else None,
        ranged=len(ranged),
        in_time=sum(ranged),
        past=tuple(sorted((one.expected_wait, ratio_of(one.expected_wait, one.waited)) for one in known)),
        simulated=sum(one.started and one.simulated for one in known),
    )


def _percentile(ranked: Sequence[float], percent: int) -> float:
    """The nearest rank of a sorted, not empty sequence."""
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)]


class Record:
    """What was said and what came of it, of the latest ``LOOKED_AT``. Those still waiting count once they waited longer
    than they were told, or a queue that grows would look as if nothing went wrong."""

    def __init__(self) -> None:
        self._past: deque[tuple[int, float]] = deque(maxlen=LOOKED_AT)
        self._waiting: dict[int, tuple[int, int]] = {}  # workload -> (told at, expected wait)

    def told(self, workload: int, now: int, expected_start: int) -> None:
        """Somebody was given an expected start."""
        self._waiting[workload] = now, expected_start - now

    def started(self, workload: int, now: int) -> None:
        """It started, or left the queue."""
        at, expected = self._waiting.pop(workload, (now, -1))
        if expected >= 0:
            self._past.append((expected, ratio_of(expected, now - at)))

    def errors(self, now: int, expected_wait: int) -> list[float]:
        """The ratios for one who is told to wait so long (s), with those that wait too long by now."""
        told = self._waiting.values()
        overdue = [(expected, ratio_of(expected, now - at)) for at, expected in told if now - at > expected]
        return similar([*self._past, *overdue], expected_wait)
