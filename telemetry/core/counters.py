"""Compute the growth of counters: a counter that falls was reset, and its growth is then unknown.

A reset counter does not count from zero, because nobody knows how much it had grown before the reset. Growth
above the bound of the hardware, and growth over a gap of readings, is unknown too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Agents send counters once a minute. Between readings that are further apart, some are missing.
MAX_GAP_SECONDS = 150.0

GIB = 2.0**30
# Highest possible growth in a second, of both directions of a device.
MAX_PCIE_BYTES = 512 * GIB  # twice the rate of 16 lanes of PCIe 7
MAX_NVLINK_BYTES = 8192 * GIB
MAX_IO_BYTES = 1024 * GIB
MAX_NETWORK_BYTES = 1024 * GIB
# Highest possible CPU time as a multiple of cores x time, because the clocks are read one after the other.
CPU_FACTOR = 1.2
MAX_CORES = 4096  # of a host whose size is not known


def max_cpu_seconds(cpu_milli: float | None) -> float:
    """Return the highest possible CPU time of a host in one second. Its size may be unknown (None)."""
    return ((cpu_milli or 0) / 1000 or MAX_CORES) * CPU_FACTOR


@dataclass(frozen=True, slots=True)
class CounterReading:
    """The value of a counter at a time, in seconds since the epoch. None is unknown."""

    at: float
    value: float | None


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a counter between two successive readings."""

    start: float
    end: float
    amount: float

    @property
    def per_second(self) -> float:
        return self.amount / (self.end - self.start)


def growths(readings: Sequence[CounterReading], max_per_second: float) -> list[Growth]:
    """Return the known growths between successive readings, which are given in order of time.

    There is none between two readings of which one is unknown, where the counter fell (a reset), where it
    grew faster than ``max_per_second``, and over more than MAX_GAP_SECONDS.
    """
    found = []
    for before, after in zip(readings, readings[1:], strict=False):
        seconds = after.at - before.at
        if before.value is None or after.value is None or not 0 < seconds <= MAX_GAP_SECONDS:
            continue
        amount = after.value - before.value
        if 0 <= amount <= max_per_second * seconds:
            found.append(Growth(before.at, after.at, amount))
    return found


def mean_rates(growth: Sequence[Growth], points: Sequence[int], length: int) -> list[float | None]:
    """Return the mean growth per second in each point of ``length`` seconds; None where nothing is known.

    A growth counts for the point of its middle.
    """
    amounts = [0.0] * len(points)
    seconds = [0.0] * len(points)
    for each in growth:
        at = int(((each.start + each.end) / 2 - points[0]) // length)
        if 0 <= at < len(points):
            amounts[at] += each.amount
            seconds[at] += each.end - each.start
    return [amount / passed if passed else None for amount, passed in zip(amounts, seconds, strict=True)]
