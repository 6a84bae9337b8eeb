"""Read the readings of each minute for the report of a run.

These are DRAM activity and traffic of the GPUs, and the use of CPU, memory, disks and network.

They are not rolled up. A report is built from the last MAX_ROWS of them; a report of an ended run is stored.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from django.db import connection

from scheduler.models import Unit
from telemetry.core.counters import (
    MAX_IO_BYTES,
    MAX_NETWORK_BYTES,
    MAX_NVLINK_BYTES,
    MAX_PCIE_BYTES,
    CounterReading,
    growths,
    max_cpu_seconds,
    mean_rates,
)
from telemetry.core.run_report import HOST_SERIES, Series
from telemetry.samples.stored import is_known, load_samples

MIB = 2**20
MAX_ROWS = 60_000
SAMPLES_A_MINUTE = 12
_UNIT_READINGS = ("dram_active", "pcie_rx_bytes", "pcie_tx_bytes", "nvlink_rx_bytes", "nvlink_tx_bytes")
# A sample of the minute has one of these. The condition is that of the index telemetry_sample_sparse.
_ANY_OF = ("dram_active", "pcie_rx_bytes", "nvlink_rx_bytes")
_RUNS_SQL = """
SELECT used.run_id, extract(epoch FROM used.ts)::float8, host.cpu_milli, used.memory_mib, used.cpu_seconds,
    used.io_read_bytes, used.io_written_bytes, used.network_rx_bytes, used.network_tx_bytes
FROM telemetry_runuse AS used JOIN scheduler_run AS run ON run.id = used.run_id
JOIN scheduler_host AS host ON host.id = run.host_id
WHERE used.run_id = ANY(%s) AND used.ts >= %s AND used.ts <= %s
ORDER BY used.run_id, used.ts
"""
_COUNTERS = ("cpu_seconds", "io_read_bytes", "io_written_bytes", "network_rx_bytes", "network_tx_bytes")
TOTALS = _COUNTERS[1:]


@dataclass
class HostUseOfRun:
    """The use of CPU, memory, disks and network by all runs of a workload.

    ``series`` has a list for each of HOST_SERIES. ``totals`` are bytes since the starts of the runs; None if
    the total of one run is unknown.
    """

    series: Series = field(default_factory=dict)
    totals: dict[str, int | None] = field(default_factory=dict)


def unit_minute_series(
    units: Collection[int],
    allocations: Collection[int],
    start: datetime,
    until: datetime,
    points: Sequence[int],
    length: int,
) -> dict[int, Series]:
    """Return the series ``dram_active``, ``pcie_mib_s`` and ``nvlink_mib_s`` of each unit that has readings.

    The growth of a counter is only taken between readings of one allocation. Runs two queries.
    """
    # dcgm-exporter fills each sample.
    from_dcgm = Unit.objects.filter(pk__in=list(units), gpu__host__dcgm_target__isnull=False).exists()
    rows_a_minute = len(units) * (SAMPLES_A_MINUTE if from_dcgm else 1)
    ids = np.unique(np.array(list(units), np.int64))
    names = ("allocation_id", *_UNIT_READINGS)
    columns = load_samples(names, ids, _first_read(start, until, rows_a_minute), until, any_of=_ANY_OF)
    chosen = np.isin(columns["allocation_id"], list(allocations))
    by_unit: dict[int, dict[int, list[tuple[float | None, ...]]]] = defaultdict(lambda: defaultdict(list))
    times = (columns["ts"][chosen] / 1e6).tolist()
    values = [_known_values(name, columns[name][chosen]) for name in _UNIT_READINGS]
    keys = zip(ids[columns["unit"][chosen]].tolist(), columns["allocation_id"][chosen].tolist(), strict=True)
    for (unit, allocation), *row in zip(keys, times, *values, strict=True):
        by_unit[unit][allocation].append(tuple(row))
    return {
        unit: {
            "dram_active": _means([row for rows in parts.values() for row in rows], points, length),
            "pcie_mib_s": _traffic(parts.values(), (2, 3), MAX_PCIE_BYTES, points, length),
            "nvlink_mib_s": _traffic(parts.values(), (4, 5), MAX_NVLINK_BYTES, points, length),
        }
        for unit, parts in by_unit.items()
    }


def _known_values(name: str, column: np.ndarray) -> list[float | None]:
    values = column.astype(object)
    values[~is_known(name, column)] = None
    return list(values.tolist())


def host_use_of_runs(
    runs: Collection[int], start: datetime, until: datetime, points: Sequence[int], length: int
) -> HostUseOfRun:
    """Return the use of CPU, memory, disks and network by these runs. Runs one query."""
    with connection.cursor() as cursor:
        # The last reading of a run is read when it ends, which may be a moment after the end of its hold.
        cursor.execute(
            _RUNS_SQL, [list(runs), _first_read(start, until, len(runs)), until + timedelta(minutes=1)]
        )
        rows = cursor.fetchall()
    by_run: dict[int, list[tuple[float | None, ...]]] = defaultdict(list)
    for run, *values in rows:
        by_run[run].append(tuple(values))
    series = [_run_series(rows, points, length) for rows in by_run.values()]
    return HostUseOfRun(
        {name: _sums([each[name] for each in series], len(points)) for name in HOST_SERIES},
        {name: _total(by_run, len(runs), 3 + _COUNTERS.index(name)) for name in TOTALS},
    )


def _first_read(start: datetime, until: datetime, rows_a_minute: int) -> datetime:
    return max(start, until - timedelta(minutes=MAX_ROWS // max(1, rows_a_minute)))


def _means(
    rows: Iterable[tuple[float | None, ...]], points: Sequence[int], length: int
) -> list[float | None]:
    """Return the mean of the second value of the rows in each point. The first value is the time."""
    parts: list[list[float]] = [[] for _ in points]
    for row in rows:
        at = math.floor(((row[0] or 0.0) - points[0]) / length)
        if row[1] is not None and 0 <= at < len(points):
            parts[at].append(row[1])
    return [round(sum(part) / len(part), 1) if part else None for part in parts]


def _rates(
    rows: Sequence[tuple[float | None, ...]], column: int, highest: float, points: Sequence[int], length: int
) -> list[float | None]:
    readings = [CounterReading(row[0] or 0.0, row[column]) for row in rows]
    return mean_rates(growths(readings, highest), points, length)


def _traffic(
    parts: Iterable[Sequence[tuple[float | None, ...]]],
    columns: tuple[int, int],
    highest: float,
    points: Sequence[int],
    length: int,
) -> list[float | None]:
    """Return the mean of both directions together in MiB/s; None where one of them is not known."""
    found: list[float | None] = [None] * len(points)
    for rows in parts:
        ways = [_rates(rows, column, highest, points, length) for column in columns]
        for at, both in enumerate(zip(*ways, strict=True)):
            if None not in both:
                found[at] = round((found[at] or 0.0) + sum(way or 0.0 for way in both) / MIB, 3)
    return found


def _run_series(rows: Sequence[tuple[float | None, ...]], points: Sequence[int], length: int) -> Series:
    cpu = _rates(rows, 3, max_cpu_seconds(rows[0][1]), points, length)
    return {
        "cpu_cores": [None if value is None else round(value, 2) for value in cpu],
        "host_memory_mib": _means([(row[0], row[2]) for row in rows], points, length),
        "io_mib_s": _traffic([rows], (4, 5), MAX_IO_BYTES, points, length),
        "network_mib_s": _traffic([rows], (6, 7), MAX_NETWORK_BYTES, points, length),
    }


def _sums(series: Sequence[Sequence[float | None]], count: int) -> list[float | None]:
    """Return the sum over the runs that have a value in a point; None if none has."""
    if not series:
        return [None] * count
    columns = [[value for value in column if value is not None] for column in zip(*series, strict=True)]
    return [round(sum(column), 3) if column else None for column in columns]


def _total(by_run: dict[int, list[tuple[float | None, ...]]], runs: int, column: int) -> int | None:
    """Return the sum of the last readings of a counter; None if a run has none, or if its counter fell."""
    total = 0
    for rows in by_run.values():
        known = [value for row in rows if (value := row[column]) is not None]
        if not known or known != sorted(known):
            return None
        total += int(known[-1])
    return total if by_run and len(by_run) == runs else None
