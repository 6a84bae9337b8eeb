"""Reduce series of samples to few points that keep their shape. Gaps stay gaps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxLTTBDownsampler

from telemetry.samples.stored import days_of, is_known, load_samples

MAX_POINTS = 600
# MinMaxLTTB selects from four points for each point that it returns: two in each of BINS.
MAX_KEPT = 40_000
BINS = 2 * MAX_POINTS
# Samples arrive every 5 to 30 seconds. A gap is longer than this, and than GAP_FACTOR usual distances.
MIN_GAP_SECONDS = 45.0
GAP_FACTOR = 4
LONGEST_DISTANCE_SECONDS = 3_600
DECIMALS = 3
# All readings of a sample except counters, bit masks and strays.
RAW_READINGS = (
    *("utilisation", "sm_active", "tensor_active", "sm_occupancy", "graphics_active"),
    *("fp64_active", "fp32_active", "fp16_active", "dram_active", "memory_utilisation", "memory_used_mib"),
    *("power_w", "power_limit_w", "temperature_c", "memory_temperature_c", "fan_percent"),
    *("sm_clock_mhz", "memory_clock_mhz", "video_clock_mhz", "pcie_rx_kib", "pcie_tx_kib", "nvlink_kib"),
    *("encoder_utilisation", "decoder_utilisation", "processes"),
)
Points = list[tuple[float, float | None]]
Floats = npt.NDArray[np.float64]


def raw_series(
    units: Sequence[int], allocations: Sequence[int], start: datetime, end: datetime
) -> dict[str, Points]:
    """Return the samples of the allocations on the units as at most MAX_POINTS points for each reading.

    The samples are read and reduced day by day, so that a long period takes little
    memory. A point is (seconds since the epoch, value). A point with the value None lies in each gap.
    """
    wanted, ids = list(allocations), np.unique(units)
    reduced = {name: ReducedSeries(start.timestamp(), end.timestamp()) for name in RAW_READINGS}
    for first, last in days_of(start, end):
        columns = load_samples(("allocation_id", *RAW_READINGS), ids, first, last)
        order = np.argsort(columns["ts"], kind="stable")
        order = order[np.isin(columns["allocation_id"][order], wanted)]
        times = columns["ts"][order] / 1e6
        for name, series in reduced.items():
            series.add(times, _values(name, columns[name][order]))
    return {name: series.points() for name, series in reduced.items()}


def _values(name: str, column: npt.NDArray[np.generic]) -> Floats:
    """Return the values of a column with NaN for unknown ones, as they were read.

    Single precision has seven digits.
    """
    return np.where(is_known(name, column), np.round(column.astype(np.float64), DECIMALS), np.nan)


class ReducedSeries:
    """A series of the period ``[start, end]`` that is added in parts, in order of time, and kept small.

    If it has more than MAX_KEPT points, only the smallest and the largest value of each of BINS equal parts
    of the period are kept, and its first and last point.
    """

    def __init__(self, start: float, end: float, most: int = MAX_POINTS) -> None:
        self._start, self._end, self._most = start, end, most
        self._times, self._values = np.empty(0), np.empty(0)
        self._part = np.empty(0, np.int64)  # numbers of the parts between gaps
        self._distances = np.zeros(LONGEST_DISTANCE_SECONDS + 1, np.int64)  # number of distances of n seconds

    @property
    def kept(self) -> int:
        """Return the number of points that are in memory."""
        return len(self._times)

    def add(self, times: Floats, values: Floats) -> None:
        """Add points. Values that are not a number are unknown. Times are after those of earlier points."""
        known = ~np.isnan(values)
        times, values = times[known], values[known]
        if not len(times):
            return
        part = self._parts(times)
        self._times = np.concatenate([self._times, times])
        self._values = np.concatenate([self._values, values])
        self._part = np.concatenate([self._part, part])
        if self.kept > MAX_KEPT:
            self._reduce()

    def points(self) -> Points:
        """Return at most ``most`` of the points (MinMaxLTTB), and a point without a value in each gap."""
        times, values, part = self._times, self._values, self._part
        if not self.kept:
            return []
        if self.kept > self._most:
            chosen = MinMaxLTTBDownsampler().downsample(times, values, n_out=self._most)
        else:
            chosen = np.arange(self.kept)
        points: Points = []
        for before, number in zip([None, *chosen[:-1]], chosen, strict=True):
            if before is not None and part[before] != part[number]:
                points.append(((times[before] + times[number]) / 2, None))
            points.append((float(times[number]), float(values[number])))
        return points

    def _parts(self, times: Floats) -> npt.NDArray[np.int64]:
        """Return the number of the part of each new point. A gap lies between two parts."""
        is_first = not self.kept
        distances = np.diff(times, prepend=times[0] if is_first else self._times[-1])
        counted = distances[1:] if is_first else distances
        seconds = np.minimum(np.round(counted), LONGEST_DISTANCE_SECONDS).astype(np.int64)
        self._distances += np.bincount(seconds, minlength=len(self._distances))
        below = np.cumsum(self._distances)
        usual = float(np.searchsorted(below, below[-1] / 2)) if below[-1] else 0.0
        first = 0 if is_first else int(self._part[-1])
        return first + np.cumsum(distances > max(MIN_GAP_SECONDS, GAP_FACTOR * usual))

    def _reduce(self) -> None:
        """Keep the smallest and the largest value of each bin, the first and the last point."""
        width = max(self._end - self._start, 1e-6) / BINS
        bins = np.clip((self._times - self._start) // width, 0, BINS - 1).astype(np.int64)
        starts = np.flatnonzero(np.diff(bins, prepend=-1))
        order = np.lexsort((self._values, bins))
        ends = np.append(starts[1:], self.kept) - 1
        kept = np.unique([*order[starts], *order[ends], 0, self.kept - 1])
        self._times, self._values, self._part = self._times[kept], self._values[kept], self._part[kept]


def thinned(times: Floats, values: Floats, most: int = MAX_POINTS) -> Points:
    """Return at most ``most`` of the points (MinMaxLTTB), and a point without a value in each gap.

    Values that are not a number are unknown. ``times`` are in order.
    """
    if not len(times):
        return []
    series = ReducedSeries(float(times[0]), float(times[-1]), most)
    series.add(times, values)
    return series.points()
