"""Read samples as arrays: single rows, and the packed rows of past days.

One statement reads both, so that a sample that is packed at the same time is read exactly once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from telemetry.binary_columns import BYTES, read_columns
from telemetry.models import sample_bins
from telemetry.samples.codec import decode_integers, decode_reals
from telemetry.samples.columns import BIGINT, COLUMN_KINDS, REAL, UNKNOWN
from telemetry.sql_values import array_text, micros_of

Columns = dict[str, np.ndarray]
DAY = timedelta(days=1)
Ints = npt.NDArray[np.int64]
_POSTGRES_EPOCH_MICROS = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970


def load_samples(
    names: Sequence[str], units: Ints, start: datetime, end: datetime, *, any_of: Collection[str] = ()
) -> Columns:
    """Return the samples of the units in ``[start, end)`` by column, sorted by unit and time.

    ``units`` are sorted ids. The column "unit" has the position of the unit, and "ts" the time in
    microseconds since the epoch. Unknown integers are UNKNOWN, unknown real numbers NaN. With ``any_of``,
    only samples that have one of these columns are returned.
    """
    read = list(dict.fromkeys([*names, *any_of]))
    kinds = single_kinds(read)
    found = read_columns(
        _query(read, any_of),
        {"units": array_text(units.tolist()), "start": start, "end": end},
        [*kinds, *packed_kinds(read)],
    )
    single = single_columns(read, units, found[: len(kinds)])
    packed = packed_columns(read, units, found[len(kinds) :])
    if not len(packed["ts"]):
        return sorted_samples(single)
    chosen = (packed["ts"] >= micros_of(start)) & (packed["ts"] < micros_of(end))
    if any_of:
        chosen &= np.any([is_known(name, packed[name]) for name in any_of], axis=0)
    return sorted_samples({name: np.concatenate([single[name], packed[name][chosen]]) for name in single})


def days_of(start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the parts of a period that lie in one day (UTC) each, for readers of long periods."""
    while start < end:
        until = min(end, start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + DAY)
        yield start, until
        start = until


def sorted_samples(columns: Columns) -> Columns:
    """Return samples sorted by unit and time."""
    order = np.lexsort((columns["ts"], columns["unit"]))
    return {name: column[order] for name, column in columns.items()}


def single_rows_sql(names: Sequence[str]) -> str:
    """Return the SQL expressions that gather single rows into one array per column."""
    unknown = {name: "'NaN'" if COLUMN_KINDS[name] == REAL else str(UNKNOWN) for name in names}
    values = (f"array_agg(coalesce({name}, {unknown[name]}))" for name in names)
    return ", ".join(["array_agg(unit_id)", "array_agg(ts)", *values])


def single_kinds(names: Sequence[str]) -> list[str]:
    """Return the kinds of ``single_rows_sql`` for ``read_columns``."""
    return [BIGINT, BIGINT, *(COLUMN_KINDS[name] for name in names)]


def single_columns(names: Sequence[str], units: Ints, found: Sequence[np.ndarray]) -> Columns:
    """Return the samples that ``read_columns`` has found with ``single_rows_sql``."""
    unit, ts, *values = found
    columns = {"unit": np.searchsorted(units, unit), "ts": ts + _POSTGRES_EPOCH_MICROS}
    return columns | dict(zip(names, values, strict=True))


def packed_rows_sql(names: Sequence[str]) -> str:
    """Return the SQL expressions that gather packed rows into one array per column."""
    return ", ".join(f"array_agg({name})" for name in ("unit_id", "ts", *names))


def packed_kinds(names: Sequence[str]) -> list[str]:
    """Return the kinds of ``packed_rows_sql`` for ``read_columns``."""
    return [BIGINT, BYTES, *(BYTES for _ in names)]


def packed_columns(names: Sequence[str], units: Ints, found: Sequence[np.ndarray]) -> Columns:
    """Return the samples of the packed rows that ``read_columns`` has found with ``packed_rows_sql``."""
    unit, ts, *columns = found
    times = [decode_integers(data) for data in ts]
    counts = [len(moments) for moments in times]
    none = np.empty(0, np.int64)
    samples = {
        "unit": np.repeat(np.searchsorted(units, unit), counts),
        "ts": np.concatenate([none, *times]),
    }
    for name, column in zip(names, columns, strict=True):
        empty = np.empty(0) if COLUMN_KINDS[name] == REAL else none
        parts = [_decoded(name, data, count) for data, count in zip(column, counts, strict=True)]
        samples[name] = np.concatenate([empty, *parts])
    return samples


def is_known(name: str, values: np.ndarray) -> np.ndarray:
    """Return True for the known values of a column."""
    known: np.ndarray = ~np.isnan(values) if COLUMN_KINDS[name] == REAL else values != UNKNOWN
    return known


def _decoded(name: str, data: bytes | None, count: int) -> np.ndarray:
    """Return the values of a column of a packed row. It is None if all are unknown."""
    is_real = COLUMN_KINDS[name] == REAL
    if data is None:
        return np.full(count, np.nan if is_real else UNKNOWN)
    return decode_reals(data) if is_real else decode_integers(data)


def _query(names: Sequence[str], any_of: Collection[str]) -> str:
    only = f" AND ({' OR '.join(f'{name} IS NOT NULL' for name in any_of)})" if any_of else ""
    return f"""
        SELECT single.*, packed.* FROM (
            SELECT {single_rows_sql(names)} FROM telemetry_sample
            WHERE unit_id = ANY(%(units)s::bigint[]) AND ts >= %(start)s AND ts < %(end)s
                AND {sample_bins("ts", "%(start)s", "%(end)s")}{only}
        ) AS single, (
            SELECT {packed_rows_sql(names)} FROM telemetry_packedsamples
            WHERE unit_id = ANY(%(units)s::bigint[])
                AND hour > %(start)s::timestamptz - interval '1 hour' AND hour < %(end)s
        ) AS packed"""
