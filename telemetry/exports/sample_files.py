"""Write the samples of hosts as CSV and Parquet files, as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import QuerySet

from scheduler.models import Allocation, Unit, Workload
from telemetry.exports.table_files import TABLE_FILES, copied_rows
from telemetry.ingest.stream_format import DCGM_BITS, INT4, INT8, READING_KINDS, SPARSE_READING_KINDS
from telemetry.models import Rollup, sample_bins
from telemetry.rollups.due_marks import bucket_start
from telemetry.samples.columns import BIGINT, COLUMN_KINDS, INTEGER, REAL
from telemetry.samples.stored import days_of, is_known, load_samples
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
    " WHERE unit.id = ANY(%(units)s::bigint[]){only} ORDER BY unit.id, sample.ts"
)
_OF_ALLOCATIONS_SQL = " AND sample.allocation_id = ANY(%(allocations)s::bigint[])"
# A sample of an allocation can lie outside of its period by less than this: the end of a run becomes known
# after the samples of its last seconds, and clocks are corrected by at most ten minutes.
ATTRIBUTION_MARGIN = timedelta(hours=1)


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


@dataclass(frozen=True)
class _HeldUnit:
    """A unit, and the allocations (id, period) whose samples are included. None: all samples are included."""

    unit: int
    held: list[tuple[int, DateTimeTZRange]] | None = None

    def allocations(self, start: datetime, end: datetime) -> list[int] | None:
        """Return the ids of the allocations that may have samples in ``[start, end)``. None means all."""
        if self.held is None:
            return None
        first, last = start - ATTRIBUTION_MARGIN, end + ATTRIBUTION_MARGIN
        return [
            pk
            for pk, period in self.held
            if period.lower < last and (period.upper is None or period.upper > first)
        ]


def sample_file(kind: str, scope: SampleScope) -> Iterator[bytes]:
    """Yield a file of samples of the kind "csv" or "parquet", in order of host, unit and time."""
    return TABLE_FILES[kind][1](_rows(scope), COLUMNS)


def _rows(scope: SampleScope) -> Iterator[bytes]:
    """Yield the rows host by host, because the index of samples begins with the unit.

    Samples of past days may be packed. They are read by unit and day, and only for the days on which an
    included allocation held the unit.
    """
    is_present = scope.start >= bucket_start(scope.now, Rollup.Resolution.DAY)
    for host in _hosts(scope):
        units = _units(host, scope)
        if is_present and units:
            yield from _single_rows(scope, units)
        elif units:
            for unit in units:
                yield from _unpacked_rows(scope, unit)


def _single_rows(scope: SampleScope, units: Sequence[_HeldUnit]) -> Iterator[bytes]:
    """Yield the rows of the units of a host from single rows only."""
    found = [unit.allocations(scope.start, scope.end) for unit in units]
    chosen = [pk for allocations in found if allocations is not None for pk in allocations]
    only = "" if scope.workloads is None else _OF_ALLOCATIONS_SQL
    values = {"start": scope.start, "end": scope.end, "allocations": chosen}
    query = _ROWS_SQL.format(samples=_SINGLE_SQL, only=only)
    yield from copied_rows(query, values | {"units": [each.unit for each in units]})


def _unpacked_rows(scope: SampleScope, unit: _HeldUnit) -> Iterator[bytes]:
    """Yield the rows of a unit from single and packed rows, day by day."""
    query = _ROWS_SQL.format(samples=_LOADED_SQL, only="")
    for start, end in days_of(scope.start, scope.end):
        allocations = unit.allocations(start, end)
        if allocations is not None and not allocations:
            continue
        columns = load_samples(_READ, np.array([unit.unit]), start, end)
        if allocations is not None:
            chosen = np.isin(columns["allocation_id"], allocations)
            columns = {name: column[chosen] for name, column in columns.items()}
        if len(columns["ts"]):
            arrays = {name: _array(name, columns[name]) for name in _READ}
            ts = array_text(columns["ts"].tolist())
            yield from copied_rows(query, {**arrays, "ts": ts, "units": [unit.unit]})


def _hosts(scope: SampleScope) -> list[int]:
    """Return the hosts on which the included work held a unit in the period, in the order of the file."""
    if scope.workloads is None:
        return list(scope.hosts)
    held = set(_allocations(scope, scope.workloads).values_list("unit__gpu__host", flat=True).distinct())
    return [host for host in scope.hosts if host in held]


def _units(host: int, scope: SampleScope) -> list[_HeldUnit]:
    """Return the units of a host whose samples are included."""
    if scope.workloads is None:
        units = Unit.objects.filter(gpu__host=host).order_by("pk")
        if scope.units is not None:
            units = units.filter(pk__in=scope.units)
        return [_HeldUnit(unit) for unit in units.values_list("pk", flat=True)]
    held: dict[int, list[tuple[int, DateTimeTZRange]]] = {}
    rows = _allocations(scope, scope.workloads).filter(unit__gpu__host=host).order_by("unit_id", "pk")
    for unit, pk, period in rows.values_list("unit_id", "pk", "period"):
        held.setdefault(unit, []).append((pk, period))
    return [_HeldUnit(unit, allocations) for unit, allocations in held.items()]


def _allocations(scope: SampleScope, workloads: QuerySet[Workload]) -> QuerySet[Allocation]:
    """Return the allocations of the included work that may have samples in the period."""
    period = (scope.start - ATTRIBUTION_MARGIN, scope.end + ATTRIBUTION_MARGIN)
    found = Allocation.objects.filter(workload__in=workloads, period__overlap=period)
    return found if scope.units is None else found.filter(unit__in=scope.units)


def _array(name: str, column: np.ndarray) -> str:
    """Return a column as the text of an array. PostgreSQL fills the empty one with NULL."""
    known = is_known(name, column)
    if not known.any():
        return "{}"
    values = column.astype(object)
    values[~known] = None
    return array_text(values.tolist())
