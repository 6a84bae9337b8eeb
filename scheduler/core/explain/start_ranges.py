"""Give an expected start as a range: the forecast, widened by the errors of earlier forecasts.

A forecast is based on predicted runtimes. Wrong predictions make the forecast wrong: about half of all
workloads start later than expected. The range comes from past waits whose expected length was similar.
Example: if similar waits took between 0.5 and 2 times as long as expected, an expected wait of 1 hour gives
the range from 30 minutes to 2 hours. The range is never a guarantee.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UPPER_PERCENTILE, LOWER_PERCENTILE = 85, 15  # percentiles of (actual wait / expected wait) for both ends
MAX_OUTCOMES = 400  # the number of latest waits that are used
SIMILAR_WAIT_FACTOR = 3  # two expected waits are similar if they differ by at most this factor
MIN_OUTCOMES = 20
# For a ratio, a shorter wait is replaced by this time. Otherwise an error of a few seconds in a short wait
# would give a large ratio.
MIN_WAIT_SECONDS = 60
DEFAULT_UPPER_RATIO, DEFAULT_LOWER_RATIO = 3.0, 0.25  # used while there are too few past waits


@dataclass(frozen=True, slots=True)
class StartRange:
    """An expected start as a range of times. A start before ``earliest`` or after ``latest`` is unlikely."""

    earliest: int
    expected: int
    latest: int


def wait_ratio(expected_wait: int, actual_wait: int) -> float:
    """Return the actual wait divided by the expected wait (both at least MIN_WAIT_SECONDS)."""
    return max(MIN_WAIT_SECONDS, actual_wait) / max(MIN_WAIT_SECONDS, expected_wait)


def start_range(now: int, expected_start: int, past_errors: Sequence[float]) -> StartRange:
    """Return the range for a start that the forecast expects at ``expected_start``.

    ``past_errors`` are the values of ``wait_ratio`` of past waits.
    """
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
    """Return the ratios of past waits whose expected length was similar to ``expected_wait``.

    If there are too few such waits, return all ratios. ``past`` has pairs (expected wait in seconds,
    ``wait_ratio``). Short waits have larger relative errors than long waits. A range for all waits would be
    too wide for long waits or too narrow for short waits.
    """
    wait = max(MIN_WAIT_SECONDS, expected_wait)
    similar = [
        ratio
        for expected, ratio in past
        if wait
        <= SIMILAR_WAIT_FACTOR * max(MIN_WAIT_SECONDS, expected)
        <= SIMILAR_WAIT_FACTOR * SIMILAR_WAIT_FACTOR * wait
    ]
    return similar if len(similar) >= MIN_OUTCOMES else [ratio for _, ratio in past]


@dataclass(frozen=True, slots=True)
class EstimateOutcome:
    """One expected wait that was shown to a user, and the actual wait of the workload, in seconds.

    ``latest_wait`` is the upper end of the range that was shown, or None if no range was shown. ``waited`` is
    the time until the workload started or left the queue. For a workload that still waits, ``waited`` is the
    time until now.
    """

    expected_wait: int
    latest_wait: int | None
    waited: int
    started: bool
    simulated: bool = False  # True for a wait in the simulated past of a demo site

    @property
    def is_conclusive(self) -> bool:
        """Return True if the error of the forecast is known.

        It is not known if the workload left the queue early, or if it still waits and has not waited longer
        than expected.
        """
        return self.started or self.waited > self.expected_wait

    @property
    def started_in_range(self) -> bool | None:
        """Return True if the workload started before or at the upper end of the range, False if it did not.

        The result is None if no range was shown. It is also None if the workload has not started and its wait
        did not exceed the range.
        """
        if self.latest_wait is None:
            return None
        if self.waited > self.latest_wait:
            return False
        return True if self.started else None


@dataclass(frozen=True, slots=True)
class EstimateAccuracy:
    """The accuracy of the expected starts of one pool.

    - ``errors`` are the values of ``wait_ratio`` for ``start_range``.
    - ``past`` has pairs (expected wait in seconds, ``wait_ratio``).
    - ``with_range`` is the number of workloads for which a range was shown and for which it is known whether
      they started by its upper end. ``started_in_range_count`` of these did.
    - ``median_error`` is the median error in seconds over the ``started_count`` workloads that started.
    """

    errors: tuple[float, ...] = ()
    started_count: int = 0
    median_error: int | None = None
    with_range: int = 0
    started_in_range_count: int = 0
    past: tuple[tuple[int, float], ...] = ()
    simulated: int = 0  # the number of simulated workloads among ``started_count``

    @property
    def has_enough_outcomes(self) -> bool:
        """Return True if there are enough past waits to show ranges."""
        return len(self.errors) >= MIN_OUTCOMES

    def range(self, now: int, expected_start: int) -> StartRange | None:
        """Return the range for a start, or None if there are too few past waits."""
        if not self.has_enough_outcomes:
            return None
        return start_range(
            now, expected_start, ratios_of_similar_waits(self.past, expected_start - now) or self.errors
        )


def estimate_accuracy(outcomes: Iterable[EstimateOutcome]) -> EstimateAccuracy:
    """Return the accuracy of the expected starts of one pool. The outcomes may be in any order."""
    conclusive = [outcome for outcome in outcomes if outcome.is_conclusive]
    errors_seconds = [
        abs(outcome.waited - outcome.expected_wait) for outcome in conclusive if outcome.started
    ]
    with_range = [outcome.started_in_range for outcome in conclusive if outcome.started_in_range is not None]
    return EstimateAccuracy(
        errors=tuple(sorted(wait_ratio(outcome.expected_wait, outcome.waited) for outcome in conclusive)),
        started_count=len(errors_seconds),
        median_error=round(statistics.median(errors_seconds)) if errors_seconds else None,
        with_range=len(with_range),
        started_in_range_count=sum(with_range),
        past=tuple(
            sorted(
                (outcome.expected_wait, wait_ratio(outcome.expected_wait, outcome.waited))
                for outcome in conclusive
            )
        ),
        simulated=sum(outcome.started and outcome.simulated for outcome in conclusive),
    )


def _percentile(ranked: Sequence[float], percent: int) -> float:
    """Return a percentile of ``ranked`` by the nearest-rank method. The list is sorted and not empty."""
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)]


class EstimateHistory:
    """The latest expected and actual waits in a simulation.

    A workload that still waits counts too, as soon as it has waited longer than expected. Without this, the
    estimates would look accurate while the queue grows.
    """

    def __init__(self) -> None:
        self._past: deque[tuple[int, float]] = deque(maxlen=MAX_OUTCOMES)
        # By workload id: (time of the estimate, expected wait in seconds).
        self._waiting: dict[int, tuple[int, int]] = {}

    def note_estimate(self, workload: int, now: int, expected_start: int) -> None:
        """Record the expected start of a workload."""
        self._waiting[workload] = now, expected_start - now

    def started(self, workload: int, now: int) -> None:
        """Record that a workload started, or left the queue."""
        expected_since, expected = self._waiting.pop(workload, (now, -1))
        if expected >= 0:
            self._past.append((expected, wait_ratio(expected, now - expected_since)))

    def errors(self, now: int, expected_wait: int) -> list[float]:
        """Return the values of ``wait_ratio`` for a workload with this expected wait in seconds.

        Workloads that still wait and have waited longer than expected are included.
        """
        waiting = self._waiting.values()
        overdue = [
            (expected, wait_ratio(expected, now - expected_since))
            for expected_since, expected in waiting
            if now - expected_since > expected
        ]
        return ratios_of_similar_waits([*self._past, *overdue], expected_wait)
