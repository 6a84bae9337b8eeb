"""Write the samples of hosts as files: CSV as a stream, and Parquet from a temporary CSV file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db.models import QuerySet

from scheduler.models import Unit, Workload
from telemetry.exports.table_files import TABLE_FILES, copied_rows
from telemetry.ingest.stream_format import DCGM_BITS, INT4, INT8, READING_KINDS, SPARSE_READING_KINDS
from telemetry.models import Rollup, sample_bins
from telemetry.rollups.due_marks import bucket_start
from telemetry.samples.columns import BIGINT, COLUMN_KINDS, INTEGER, REAL
from telemetry.samples.stored import is_known, load_samples
from telemetry.sql_values import array_text

_TIME_SQL = """to_char(sample.ts AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
# The names of the readings that are from dcgm-exporter, separated by spaces.
_FROM_DCGM_SQL = "CASE WHEN sample.dcgm_readings IS NOT NULL THEN concat_ws(' ', {}) END".format(
    ", ".join(
        f"CASE WHEN sample.dcgm_readings & {bit} <> 0 THEN '{name}' END" for name, bit in DCGM_BITS.items()
    )
)
# The SQL and the type in Parquet files of each column. An empty cell is unknown.
COLUMNS: dict[str, tuple[str, str]] = {
    "ts": (_TIME_SQL, "TIMESTAMP"),
    "pool": ("pool.slug", "VARCHAR"),
    "host": ("host.name", "VARCHAR"),
    "gpu": ("gpu.index", "INTEGER"),
    "uuid": ("unit.uuid", "VARCHAR"),
    "model": ("gpu.model", "VARCHAR"),
    "profile": ("nullif(unit.profile, '')", "VARCHAR"),
    "workload": ("workload.public_id", "VARCHAR"),
    **{
        name: (f"sample.{name}", {INT4: "INTEGER", INT8: "BIGINT"}.get(kind, "DOUBLE"))
        for name, kind in {**READING_KINDS, **SPARSE_READING_KINDS}.items()
    },
    "from_dcgm": (_FROM_DCGM_SQL, "VARCHAR"),
}
_READ = ("allocation_id", *READING_KINDS, *SPARSE_READING_KINDS, "dcgm_readings")
_TYPES = {REAL: "real", INTEGER: "integer", BIGINT: "bigint"}
_SINGLE_SQL = (
    "telemetry_sample sample ON sample.unit_id = unit.id AND sample.ts >= %(start)s AND sample.ts < %(end)s"
    f" AND {sample_bins('sample.ts', '%(start)s', '%(end)s')}"
)
_LOADED_SQL = (
    "(SELECT 'epoch'::timestamptz + micros * interval '1 microsecond' AS ts, loaded.* FROM unnest("
    + ", ".join(["%(ts)s::bigint[]", *(f"%({name})s::{_TYPES[COLUMN_KINDS[name]]}[]" for name in _READ)])
    + f") AS loaded (micros, {', '.join(_READ)})) sample ON true"
)
_ROWS_SQL = (
    f"SELECT {', '.join(sql for sql, _ in COLUMNS.values())} FROM scheduler_unit unit"
    " JOIN scheduler_gpu gpu ON gpu.id = unit.gpu_id JOIN scheduler_host host ON host.id = gpu.host_id"
    " JOIN scheduler_pool pool ON pool.id = gpu.pool_id JOIN {samples}"
    " LEFT JOIN scheduler_allocation allocation ON allocation.id = sample.allocation_id"
    " LEFT JOIN scheduler_workload workload ON workload.id = allocation.workload_id"
    " WHERE {units}{only} ORDER BY unit.id, sample.ts"
)


@dataclass(frozen=True)
class SampleScope:
    """The samples of a file: those of ``hosts`` (ids, in the order of the file) with ``start <= ts < end``.

    ``now`` decides which samples may be packed. ``workloads`` is the work whose samples are included. If it
    is None, all samples of the hosts are included. ``units`` restricts the file to these units.
    """

    hosts: Sequence[int]
    start: datetime
    end: datetime
    now: datetime
    workloads: QuerySet[Workload] | None = None
    units: Sequence[int] | None = None


def sample_file(kind: str, scope: SampleScope) -> Iterator[bytes]:
    """Yield a file of samples of the kind "csv" or "parquet", in order of host, unit and time."""
    return TABLE_FILES[kind][1](_rows(scope), COLUMNS)


def _rows(scope: SampleScope) -> Iterator[bytes]:
    """Yield the rows host by host, because the index of samples begins with the unit.

    Samples of past days may be packed.
    """
    values: dict[str, Any] = {"start": scope.start, "end": scope.end}
    only = ""
    if scope.workloads is not None:
        values["workloads"] = list(scope.workloads.values_list("pk", flat=True))
        only = " AND allocation.workload_id = ANY(%(workloads)s::bigint[])"
    if scope.units is not None:
        values["units"] = list(scope.units)
        only += " AND unit.id = ANY(%(units)s::bigint[])"
    if scope.start >= bucket_start(scope.now, Rollup.Resolution.DAY):
        query = _ROWS_SQL.format(samples=_SINGLE_SQL, units="gpu.host_id = %(host)s", only=only)
        for host in scope.hosts:
            yield from copied_rows(query, values | {"host": host})
        return
    query = _ROWS_SQL.format(samples=_LOADED_SQL, units="unit.id = %(unit)s", only=only)
    for host in scope.hosts:
        for unit in _units(host, scope.units):
            for start, end in _days(scope.start, scope.end):
                columns = load_samples(_READ, np.array([unit]), start, end)
                if len(columns["ts"]):
                    arrays = {name: _array(name, columns[name]) for name in _READ}
                    ts = array_text(columns["ts"].tolist())
                    yield from copied_rows(query, {**values, **arrays, "ts": ts, "unit": unit})


def _units(host: int, chosen: Sequence[int] | None) -> list[int]:
    units = Unit.objects.filter(gpu__host=host).order_by("pk")
    if chosen is not None:
        units = units.filter(pk__in=chosen)
    return list(units.values_list("pk", flat=True))


def _days(start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the parts of a period that lie in one day (UTC) each."""
    while start < end:
        until = min(end, bucket_start(start, Rollup.Resolution.DAY) + timedelta(days=1))
        yield start, until
        start = until


def _array(name: str, column: np.ndarray) -> str:
    """Return a column as the text of an array. PostgreSQL fills the empty one with NULL."""
    known = is_known(name, column)
    if not known.any():
        return "{}"
    values = column.astype(object)
    values[~known] = None
    return array_text(values.tolist())
