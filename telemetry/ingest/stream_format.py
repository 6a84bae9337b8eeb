"""Encode and decode sample batches as entries of the Redis stream.

Readings are a matrix of floats with NaN for unknown values. The format is compact because a fleet of 10,000
GPUs sends 1,000 rows a second.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from agent.protocol import SampleBatch

log = logging.getLogger(__name__)

SAMPLE_STREAM_KEY = "gpupool:samples"
INT4, INT8, FLOAT8, PERCENT = "int4", "int8", "float8", "per cent"
# The types of the readings that follow ts in a row. agent.protocol.SampleRow documents the readings.
READING_KINDS = {
    "utilisation": PERCENT,
    "sm_active": PERCENT,
    "tensor_active": PERCENT,
    "memory_used_mib": INT4,
    "memory_utilisation": PERCENT,
    "power_w": FLOAT8,
    "energy_mj": INT8,
    "temperature_c": FLOAT8,
    "memory_temperature_c": FLOAT8,
    "sm_clock_mhz": INT4,
    "throttle_reasons": INT8,
    "pcie_rx_kib": INT8,
    "pcie_tx_kib": INT8,
    "nvlink_kib": INT8,
    "processes": INT4,
    "stray_processes": INT4,
}
ROW_WIDTH = 1 + len(READING_KINDS)
_row_values = attrgetter("ts", *READING_KINDS)
_INVALID_READING = -1.0  # replaces a NaN reading, so that the row is rejected like any negative reading
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass
class DecodedBatch:
    """A batch from the stream, with its readings as arrays.

    ``names`` are the uuids of the batch's units. ``units`` is empty until the invalid rows are dropped.
    """

    host: int
    sequence: int
    received: datetime
    names: list[str]
    index: Ints  # position of the row's unit in names
    values: Floats  # ts and the readings of each row
    units: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # unit ids of the valid rows
    rejected: int = 0


def encode_batch(host_id: int, batch: SampleBatch, received: datetime) -> dict[str, bytes]:
    """Return a batch as an entry of the stream."""
    names = sorted({row.unit for row in batch.rows})
    places = {name: place for place, name in enumerate(names)}
    rows = [_row_values(row) for row in batch.rows]
    values = np.array(rows, dtype="<f8").reshape(len(rows), ROW_WIDTH)
    for number in np.flatnonzero(np.isnan(values).any(axis=1)):
        # None and NaN would both be NaN in the matrix, but only None is valid.
        for column, value in enumerate(rows[number]):
            if value is not None and math.isnan(value):
                values[number, column] = _INVALID_READING
    return {
        "host": str(host_id).encode(),
        "sequence": str(batch.sequence).encode(),
        "received": repr(received.timestamp()).encode(),
        "names": json.dumps(names).encode(),
        "index": np.array([places[row.unit] for row in batch.rows], dtype="<i4").tobytes(),
        "values": values.tobytes(),
    }


def decode_batch(fields: dict[bytes, bytes]) -> DecodedBatch | None:
    """Return the batch of a stream entry. If the entry is malformed, log it and return None."""
    try:
        names = json.loads(fields[b"names"])
        index = np.frombuffer(fields[b"index"], dtype="<i4").astype(np.int64)
        values = np.frombuffer(fields[b"values"], dtype="<f8").reshape(len(index), ROW_WIDTH)
        if len(index) and not 0 <= index.min() <= index.max() < len(names):
            raise ValueError("a row names no unit")
        received = datetime.fromtimestamp(float(fields[b"received"]), UTC)
        return DecodedBatch(int(fields[b"host"]), int(fields[b"sequence"]), received, names, index, values)
    except (KeyError, ValueError, TypeError) as error:
        log.warning("an entry of the stream %s is not a batch and is dropped: %r", SAMPLE_STREAM_KEY, error)
        return None
