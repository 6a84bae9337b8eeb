"""Add values of dcgm-exporter to samples of agents that lack these readings.

The agent's sample is the row: dcgm-exporter adds no row, and never replaces a value. ``Sample.dcgm_readings``
says which readings of the row are from dcgm-exporter. A value of a scrape is used for the samples up to
``DCGM_REACH_SECONDS`` around it, if the same allocation held the unit at both times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from telemetry.dcgm.fields import SAMPLE_FIELDS
from telemetry.ingest.binary_copy import allocations_at
from telemetry.ingest.stream_format import (
    DCGM_BITS,
    DCGM_READING_KINDS,
    READING_KINDS,
    SPARSE_READING_KINDS,
    DecodedBatch,
    Floats,
    Ints,
)
from telemetry.models import DcgmScrape

DCGM_REACH_SECONDS = 45.0  # one and a half times the interval of scrapes

_AGENT_READINGS, _SPARSE_READINGS = tuple(READING_KINDS), tuple(SPARSE_READING_KINDS)
# For each reading that agents also send: (its column in a scrape, its column in the batch's values, its bit).
_SHARED = [
    (place, 1 + _AGENT_READINGS.index(name), DCGM_BITS[name])
    for place, name in enumerate(SAMPLE_FIELDS)
    if name in READING_KINDS
]
# For each reading of the minute: (its column in a scrape, its column in the batch's sparse values, its bit).
_ADDED = [
    (place, _SPARSE_READINGS.index(name), DCGM_BITS[name])
    for place, name in enumerate(SAMPLE_FIELDS)
    if name in DCGM_READING_KINDS
]


@dataclass(frozen=True)
class _UnitScrapes:
    """The scrapes of one unit: times in seconds since the epoch, ascending, and a row of values for each."""

    times: Floats
    values: Floats


def fill_from_dcgm(batches: Sequence[DecodedBatch]) -> None:
    """Fill the batches of hosts with scrapes near the times of the samples. Runs one or two queries."""
    with_rows = [batch for batch in batches if len(batch.units)]
    scrapes = _load_scrapes(with_rows)
    if not scrapes:
        return
    found: list[tuple[DecodedBatch, Ints, Floats, Floats]] = []
    for batch in with_rows:
        rows, times, values = _nearest(batch, scrapes)
        if len(rows):
            found.append((batch, rows, times, values))
    if not found:
        return
    same_holder = _same_holder(found)
    for batch, rows, _, values in found:
        kept, same_holder = same_holder[: len(rows)], same_holder[len(rows) :]
        _fill(batch, rows[kept], values[kept])


def _load_scrapes(batches: Sequence[DecodedBatch]) -> dict[int, _UnitScrapes]:
    """Return the scrapes of each unit that may be used for a sample of ``batches``. Runs one query."""
    if not batches:
        return {}
    reach = timedelta(seconds=DCGM_REACH_SECONDS)
    first = datetime.fromtimestamp(min(float(batch.values[:, 0].min()) for batch in batches), UTC)
    last = datetime.fromtimestamp(max(float(batch.values[:, 0].max()) for batch in batches), UTC)
    rows = DcgmScrape.objects.filter(
        host__in={batch.host for batch in batches}, at__range=(first - reach, last + reach)
    ).order_by("at", "pk")
    times: dict[int, list[float]] = defaultdict(list)
    values: dict[int, list[Floats]] = defaultdict(list)
    for at, units, packed in rows.values_list("at", "units", "values"):
        matrix = np.frombuffer(packed, dtype="<f8").reshape(len(units), len(SAMPLE_FIELDS))
        for place, unit in enumerate(units):
            times[unit].append(at.timestamp())
            values[unit].append(matrix[place])
    return {unit: _UnitScrapes(np.array(times[unit]), np.stack(values[unit])) for unit in times}


def _nearest(batch: DecodedBatch, scrapes: dict[int, _UnitScrapes]) -> tuple[Ints, Floats, Floats]:
    """Return (rows, times, values): the nearest scrape of each row that has one within the reach."""
    rows, times, values = [], [], []
    for unit in np.unique(batch.units).tolist():
        known = scrapes.get(unit)
        if known is None:
            continue
        own = np.flatnonzero(batch.units == unit)
        moments = batch.values[own, 0]
        after = np.searchsorted(known.times, moments).clip(0, len(known.times) - 1)
        before = np.maximum(after - 1, 0)
        is_before = np.abs(known.times[before] - moments) <= np.abs(known.times[after] - moments)
        place = np.where(is_before, before, after)
        near = np.abs(known.times[place] - moments) <= DCGM_REACH_SECONDS
        rows.append(own[near])
        times.append(known.times[place[near]])
        values.append(known.values[place[near]])
    if not rows:
        return np.empty(0, np.int64), np.empty(0), np.empty((0, len(SAMPLE_FIELDS)))
    return np.concatenate(rows), np.concatenate(times), np.concatenate(values)


def _same_holder(found: Sequence[tuple[DecodedBatch, Ints, Floats, Floats]]) -> np.ndarray:
    """Return, for each found row, True if the same allocation held its unit at the scrape.

    A value that was measured during other work must not appear in the samples of this work.
    """
    units = np.concatenate([batch.units[rows] for batch, rows, _, _ in found])
    moments = np.concatenate([batch.values[rows, 0] for batch, rows, _, _ in found])
    times = np.concatenate([times for _, _, times, _ in found])
    holders = allocations_at(np.concatenate([units, units]), np.concatenate([moments, times]))
    same: np.ndarray = holders[: len(units)] == holders[len(units) :]
    return same


def _fill(batch: DecodedBatch, rows: Ints, values: Floats) -> None:
    if not len(rows):
        return
    if batch.sparse is None:
        batch.sparse = np.full((len(batch.units), len(SPARSE_READING_KINDS)), np.nan)
    bits = np.zeros(len(rows), np.int64)
    for matrix, columns in ((batch.values, _SHARED), (batch.sparse, _ADDED)):
        for place, column, bit in columns:
            fills = np.isnan(matrix[rows, column]) & ~np.isnan(values[:, place])
            matrix[rows[fills], column] = values[fills, place]
            bits[fills] |= bit
    batch.dcgm_bits = np.full(len(batch.units), np.nan)
    batch.dcgm_bits[rows] = np.where(bits > 0, bits, np.nan)
