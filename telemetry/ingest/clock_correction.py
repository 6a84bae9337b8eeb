"""Correct the times of samples whose host has a wrong clock, and refuse samples whose clock is too wrong.

The agent measures the server's clock at each sync, with an error of half the round trip. It stores with each
sample the time since the boot, which nobody can set. So the true time of a sample is known even if the wall
clock of the host is wrong or was set. Agents up to version 0.1 do not measure it; their times are not
changed.
"""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from telemetry.ingest.stream_format import DecodedBatch, Floats
from telemetry.models import ReadingFault
from telemetry.readings.faults import FaultCount

UNCHANGED_UP_TO_SECONDS = 2.0  # a smaller offset of the clock changes nothing
CORRECTED_UP_TO_SECONDS = 600.0  # samples with a larger offset are refused


def correct_clock(batch: DecodedBatch) -> None:
    """Correct the times of a batch, remove its refused rows, and count both in ``batch.faults``.

    The offset of a row is its time minus its true time. The error of the measurement is subtracted from the
    offset before it is compared with the limits.
    """
    offsets = batch.values[:, 0] - batch.true_times
    with np.errstate(invalid="ignore"):
        certain = np.abs(offsets) - batch.clock_error  # NaN, if the true time is unknown, exceeds no limit
        refused = certain > CORRECTED_UP_TO_SECONDS
        corrected = (certain > UNCHANGED_UP_TO_SECONDS) & ~refused
    if corrected.any():
        batch.values = batch.values.copy()
        batch.values[corrected, 0] = batch.true_times[corrected]
        batch.faults.append(_count(batch, offsets, corrected, ReadingFault.Kind.CLOCK_CORRECTED))
    if refused.any():
        batch.faults.append(_count(batch, offsets, refused, ReadingFault.Kind.CLOCK_REFUSED))
        batch.refused_until = float(batch.true_times[refused].max())
        batch.rejected += int(refused.sum())
        batch.index, batch.values = batch.index[~refused], batch.values[~refused]
        batch.true_times = batch.true_times[~refused]
        if batch.sparse is not None:
            batch.sparse = batch.sparse[~refused]


def corrected_time(ts: float, true_time: float | None, error: float) -> float | None:
    """Return the time of one entry by the rules of ``correct_clock``; None if its clock is too wrong."""
    if true_time is None:
        return ts
    certain = abs(ts - true_time) - error
    if certain > CORRECTED_UP_TO_SECONDS:
        return None
    return true_time if certain > UNCHANGED_UP_TO_SECONDS else ts


def _count(batch: DecodedBatch, offsets: Floats, rows: np.ndarray, kind: str) -> FaultCount:
    last = np.flatnonzero(rows)[np.argmax(batch.true_times[rows])]
    moment = datetime.fromtimestamp(float(batch.true_times[last]), UTC)
    return FaultCount(batch.host, "ts", kind, int(rows.sum()), moment, round(float(offsets[last]), 3))
