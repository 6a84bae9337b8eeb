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
from telemetry.ingest.usage_format import DecodedUsage, decode_usage, encode_usage
from telemetry.readings.faults import FaultCount

log = logging.getLogger(__name__)

SAMPLE_STREAM_KEY = "gpupool:samples"
INT4, INT8, FLOAT4 = "int4", "int8", "float4"
# The types of the readings that follow ts in a row. agent.protocol.SampleRow documents the readings.
READING_KINDS = {
    "utilisation": FLOAT4,
    "sm_active": FLOAT4,
    "tensor_active": FLOAT4,
    "memory_used_mib": INT4,
    "memory_utilisation": FLOAT4,
    "power_w": FLOAT4,
    "energy_mj": INT8,
    "temperature_c": FLOAT4,
    "memory_temperature_c": FLOAT4,
    "sm_clock_mhz": INT4,
    "throttle_reasons": INT4,
    "pcie_rx_kib": INT4,
    "pcie_tx_kib": INT4,
    "nvlink_kib": INT8,
    "processes": INT4,
    "stray_processes": INT4,
}
ROW_WIDTH = 1 + len(READING_KINDS)
# The types of the readings that agents send once a minute, or that dcgm-exporter gives.
DCGM_READING_KINDS = {
    "graphics_active": FLOAT4,
    "sm_occupancy": FLOAT4,
    "dram_active": FLOAT4,
    "fp64_active": FLOAT4,
    "fp32_active": FLOAT4,
    "fp16_active": FLOAT4,
    "encoder_utilisation": FLOAT4,
    "decoder_utilisation": FLOAT4,
    "fan_percent": FLOAT4,
    "power_limit_w": FLOAT4,
    "memory_clock_mhz": INT4,
    "video_clock_mhz": INT4,
}
# The types of the counters of whole GPUs that agents send once a minute.
COUNTER_KINDS = {
    "pcie_rx_bytes": INT8,
    "pcie_tx_bytes": INT8,
    "nvlink_rx_bytes": INT8,
    "nvlink_tx_bytes": INT8,
}
# Most rows have none of these readings: they are not sent, and their columns are not copied.
SPARSE_READING_KINDS = {**DCGM_READING_KINDS, **COUNTER_KINDS}
# A bit of Sample.dcgm_readings for each reading that dcgm-exporter may give. New ones are added at the end.
DCGM_BITS = {name: 1 << place for place, name in enumerate((*READING_KINDS, *DCGM_READING_KINDS))}
_row_values = attrgetter("ts", *READING_KINDS)
_sparse_values = attrgetter(*SPARSE_READING_KINDS)
_INVALID_READING = -1.0  # replaces a NaN reading, which is impossible like any negative reading
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
    # Time of each row by the server's clock, in seconds since the epoch; NaN if the agent did not measure it.
    true_times: Floats = field(default_factory=lambda: np.empty(0))
    clock_error: float = 0.0  # largest error of true_times, in seconds
    refused_until: float | None = None  # last true time of the rows that were refused for their clock
    rejected: int = 0
    faults: list[FaultCount] = field(default_factory=list)  # readings that cannot be stored as they arrived
    # The readings of SPARSE_READING_KINDS of each row; None: no row has one.
    sparse: Floats | None = None
    # For each row, the sum of the DCGM_BITS of its readings from dcgm-exporter; NaN if it has none. None: no
    # row has one.
    dcgm_bits: Floats | None = None
    # Entries that agents send once a minute in addition to the rows.
    usage: DecodedUsage = field(default_factory=DecodedUsage)


def encode_batch(host_id: int, batch: SampleBatch, received: datetime) -> dict[str, bytes]:
    """Return a batch as an entry of the stream."""
    names = sorted({row.unit for row in batch.rows})
    places = {name: place for place, name in enumerate(names)}
    values = _matrix([_row_values(row) for row in batch.rows], ROW_WIDTH)
    entry = {
        "host": str(host_id).encode(),
        "sequence": str(batch.sequence).encode(),
        "received": repr(received.timestamp()).encode(),
        "names": json.dumps(names).encode(),
        "index": np.array([places[row.unit] for row in batch.rows], dtype="<i4").tobytes(),
        "values": values.tobytes(),
        "clock": np.array([batch.server_offset_error or 0.0, *_true_times(batch)], dtype="<f8").tobytes(),
    }
    if batch.units:
        entry["sparse"] = _sparse_matrix(batch).tobytes()
    usage = encode_usage(batch)
    if usage:
        entry["usage"] = usage
    return entry


def _sparse_matrix(batch: SampleBatch) -> Floats:
    """Return the readings of the minute for each row of the batch, in the order of SPARSE_READING_KINDS."""
    values = np.full((len(batch.rows), len(SPARSE_READING_KINDS)), np.nan)
    places = {(row.unit, row.ts): place for place, row in enumerate(batch.rows)}
    for entry in batch.units:
        place = places.get((entry.unit, entry.ts))
        if place is not None:
            values[place] = _matrix([_sparse_values(entry)], len(SPARSE_READING_KINDS))[0]
    return values


def _matrix(rows: list[tuple[float | None, ...]], width: int) -> Floats:
    """Return rows of readings as a matrix. None becomes NaN, and NaN becomes an impossible reading."""
    values = np.array(rows, dtype="<f8").reshape(len(rows), width)
    for number in np.flatnonzero(np.isnan(values).any(axis=1)):
        # None and NaN would both be NaN in the matrix, but only None is valid.
        for column, value in enumerate(rows[number]):
            if value is not None and math.isnan(value):
                values[number, column] = _INVALID_READING
    return values


def _true_times(batch: SampleBatch) -> list[float]:
    """Return the time of each row by the server's clock; NaN if the agent did not measure it."""
    offset = batch.server_offset
    return [math.nan if offset is None or row.uptime is None else row.uptime + offset for row in batch.rows]


def decode_batch(fields: dict[bytes, bytes]) -> DecodedBatch | None:
    """Return the batch of a stream entry. If the entry is malformed, log it and return None."""
    try:
        names = json.loads(fields[b"names"])
        index = np.frombuffer(fields[b"index"], dtype="<i4").astype(np.int64)
        values = np.frombuffer(fields[b"values"], dtype="<f8").reshape(len(index), ROW_WIDTH)
        if len(index) and not 0 <= index.min() <= index.max() < len(names):
            raise ValueError("a row names no unit")
        received = datetime.fromtimestamp(float(fields[b"received"]), UTC)
        # Entries of an earlier version have no clock.
        clock = np.frombuffer(fields.get(b"clock", b""), dtype="<f8")
        clock = clock if len(clock) == 1 + len(index) else np.array([0.0, *[math.nan] * len(index)])
        sparse = None
        if b"sparse" in fields:
            sparse = np.frombuffer(fields[b"sparse"], dtype="<f8")
            sparse = sparse.reshape(len(index), len(SPARSE_READING_KINDS)).copy()
        return DecodedBatch(
            host=int(fields[b"host"]),
            sequence=int(fields[b"sequence"]),
            received=received,
            names=names,
            index=index,
            values=values,
            true_times=clock[1:],
            clock_error=max(0.0, float(clock[0])),
            sparse=sparse,
            usage=decode_usage(fields.get(b"usage", b"")),
        )
    except (KeyError, ValueError, TypeError) as error:
        log.warning("an entry of the stream %s is not a batch and is dropped: %r", SAMPLE_STREAM_KEY, error)
        return None
