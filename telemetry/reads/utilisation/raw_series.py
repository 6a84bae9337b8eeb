"""Reduce series of samples to few points that keep their shape. Gaps stay gaps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np
from tsdownsample import MinMaxLTTBDownsampler

from telemetry.samples.stored import is_known, load_samples

MAX_POINTS = 600
# Samples arrive every 5 to 30 seconds. A gap is longer than this, and than GAP_FACTOR usual distances.
MIN_GAP_SECONDS = 45.0
GAP_FACTOR = 4
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


def raw_series(
    units: Sequence[int], allocations: Sequence[int], start: datetime, end: datetime
) -> dict[str, Points]:
    """Return the samples of the allocations on the units as at most MAX_POINTS points for each reading.

    A point is (seconds since the epoch, value). A point with the value None lies in each gap.
    """
    columns = load_samples(("allocation_id", *RAW_READINGS), np.unique(units), start, end)
    order = np.argsort(columns["ts"], kind="stable")
    order = order[np.isin(columns["allocation_id"][order], list(allocations))]
    times = columns["ts"][order] / 1e6
    return {name: thinned(times, _values(name, columns[name][order])) for name in RAW_READINGS}


def _values(
    name: str, column: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the values of a column with NaN for unknown ones, as they were read.

    Single precision has seven digits.
    """
    return np.where(is_known(name, column), np.round(column.astype(np.float64), DECIMALS), np.nan)


def thinned(
    times: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    most: int = MAX_POINTS,
) -> Points:
    """Return at most ``most`` of the points (MinMaxLTTB), and a point without a value in each gap.

    Values that are not a number are unknown. ``times`` are in order.
    """
    known = ~np.isnan(values)
    times, values = times[known], values[known]
    if not len(times):
        return []
    part = _parts(times)
    if len(times) > most:
        chosen = MinMaxLTTBDownsampler().downsample(times, values, n_out=most)
    else:
        chosen = np.arange(len(times))
    points: Points = []
    for before, number in zip([None, *chosen[:-1]], chosen, strict=True):
        if before is not None and part[before] != part[number]:
            points.append(((times[before] + times[number]) / 2, None))
        points.append((float(times[number]), float(values[number])))
    return points


def _parts(
    times: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the number of the part of each time. A gap lies between two parts."""
    distances = np.diff(times)
    usual = float(np.median(distances)) if len(distances) else 0.0
    return np.concatenate([[0], np.cumsum(distances > max(MIN_GAP_SECONDS, GAP_FACTOR * usual))])
