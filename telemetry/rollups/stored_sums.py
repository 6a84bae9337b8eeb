"""Read the sums of stored rollups from their arrays, for the units of given hosts.

The view ``telemetry_rollup`` makes a row of each bucket, which takes more time.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db import connection

from telemetry.binary_columns import read_columns
from telemetry.core.rollup import MAX_FIELDS
from telemetry.core.rollup_arrays import UNKNOWN, Bools, Ints, UsageArrays
from telemetry.models import Rollup
from telemetry.models.rollups import CONTAINER_SECONDS
from telemetry.rollups.due_marks import bucket_start
from telemetry.rollups.storage import ROLLUP_MEASURES
from telemetry.sql_values import array_text

TABLES = {
    Rollup.Resolution.MINUTE: "telemetry_rollupminutes",
    Rollup.Resolution.HOUR: "telemetry_rolluphours",
    Rollup.Resolution.DAY: "telemetry_rollupdays",
}
_NAMES = ", ".join(ROLLUP_MEASURES)
_OPEN = f"""
FROM telemetry_rollupopen AS open
CROSS JOIN LATERAL unnest(open.unit_ids, open.allocation_ids, open.simulated,
    {", ".join(f"open.{name}" for name in ROLLUP_MEASURES)})
    AS item (unit_id, allocation_id, simulated, {_NAMES})
WHERE open.resolution = %(resolution)s AND open.bucket >= %(start)s AND open.bucket < %(end)s
    AND open.host_id = ANY(%(hosts)s::bigint[]) AND item.held_seconds IS NOT NULL"""


_TOTAL_OF = {name: "max" if name in MAX_FIELDS else "sum" for name in ROLLUP_MEASURES}
_ARRAY_TOTALS = ", ".join(
    f"(SELECT {total}(v) FROM unnest({name}) AS v)::bigint AS {name}" for name, total in _TOTAL_OF.items()
)
_TOTALS_SQL = f"""
SELECT array_agg(unit_id), array_agg(coalesce(allocation_id, 0)), array_agg(is_simulated::integer),
    {", ".join(f"array_agg(coalesce({name}, {UNKNOWN}))" for name in ROLLUP_MEASURES)}
FROM (
    SELECT unit_id, allocation_id, bool_or(simulated) AS is_simulated,
        {", ".join(f"{total}({name})::bigint AS {name}" for name, total in _TOTAL_OF.items())}
    FROM (
        SELECT unit_id, allocation_id, simulated,
            {_ARRAY_TOTALS}
        FROM {{table}} WHERE container = %(start)s AND unit_id = ANY(%(units)s::bigint[])
        UNION ALL SELECT item.* {_OPEN}
    ) AS part GROUP BY unit_id, allocation_id ORDER BY unit_id, allocation_id NULLS FIRST
) AS total
"""
_ALWAYS_KNOWN = ("held_seconds", "covered_seconds", "samples")
_TOTAL_KINDS = (">i8", ">i8", ">i4", *(">i8" for _ in ROLLUP_MEASURES))
_COVERAGE_SQL = f"""
SELECT array_agg(unit_id), array_agg(covered) FROM (
    SELECT unit_id, coalesce(sum(covered), 0)::bigint AS covered
    FROM (
        SELECT unit_id, covered_seconds[%(slot)s] AS covered FROM {{table}}
        WHERE container = %(container)s AND unit_id = ANY(%(units)s::bigint[])
            AND held_seconds[%(slot)s] IS NOT NULL
        UNION ALL SELECT item.unit_id, item.covered_seconds {_OPEN}
    ) AS stored GROUP BY unit_id ORDER BY unit_id
) AS total
"""
_MINUTES_SQL = f"""
SELECT unit_id, minute, sum(covered)::bigint, coalesce(sum(faults), 0)::bigint
FROM (
    SELECT packed.unit_id, slot.number - 1 AS minute, slot.covered, slot.faults
    FROM telemetry_rollupminutes AS packed
    CROSS JOIN LATERAL unnest(packed.held_seconds, packed.covered_seconds, packed.energy_faults)
        WITH ORDINALITY AS slot (held, covered, faults, number)
    WHERE packed.container = %(start)s AND packed.unit_id = ANY(%(units)s::bigint[]) AND slot.held IS NOT NULL
    UNION ALL
    SELECT item.unit_id, (extract(epoch FROM open.bucket)::bigint %% 3600 / 60),
        item.covered_seconds, item.energy_faults {_OPEN}
) AS stored GROUP BY unit_id, minute
"""


def finer_totals(
    resolution: int, bucket: datetime, hosts: Collection[int], units: Ints
) -> tuple[UsageArrays, Bools]:
    """Return the sums of an hour's minutes or a day's hours, and True for each unit with simulated ones.

    ``units`` are the sorted ids of the hosts' units. The sums have one row per unit and allocation.
    """
    finer = Rollup.Resolution.MINUTE if resolution == Rollup.Resolution.HOUR else Rollup.Resolution.HOUR
    period = {"start": bucket, "end": bucket + timedelta(seconds=resolution)}
    query = _TOTALS_SQL.format(table=TABLES[finer])
    ids, allocation, simulated, *values = read_columns(
        query, _parameters(finer, hosts, units.tolist(), period), _TOTAL_KINDS
    )
    unit = np.searchsorted(units, ids)
    columns = dict(zip(ROLLUP_MEASURES, values, strict=True))
    sums = {name: np.maximum(column, 0) for name, column in columns.items()}
    known = {name: column != UNKNOWN for name, column in columns.items() if name not in _ALWAYS_KNOWN}
    is_simulated = np.zeros(len(units), bool)
    is_simulated[unit[simulated == 1]] = True
    return UsageArrays(unit, np.zeros(len(unit), np.int64), allocation, sums, known), is_simulated


def stored_coverage(
    resolution: int, bucket: datetime, hosts: Collection[int], units: Ints
) -> tuple[Ints, Ints]:
    """Return the positions of the units with stored rollups in one bucket, and their covered microseconds."""
    seconds = CONTAINER_SECONDS[resolution]
    container = bucket_start(bucket, seconds)
    slot = int((bucket - container).total_seconds()) // resolution + 1
    period = {"start": bucket, "end": bucket + timedelta(seconds=resolution), "container": container}
    query = _COVERAGE_SQL.format(table=TABLES[Rollup.Resolution(resolution)])
    values = _parameters(resolution, hosts, units.tolist(), {**period, "slot": slot})
    ids, covered = read_columns(query, values, (">i8", ">i8"))
    return np.searchsorted(units, ids), covered


def stored_minutes(
    hour: datetime, hosts: Collection[int], units: Collection[int]
) -> list[tuple[int, int, int, int]]:
    """Return (unit id, minute of the hour, covered microseconds, energy faults) of the stored minutes."""
    period = {"start": hour, "end": hour + timedelta(hours=1)}
    with connection.cursor() as cursor:
        cursor.execute(_MINUTES_SQL, _parameters(Rollup.Resolution.MINUTE, hosts, units, period))
        return list(cursor.fetchall())


def _parameters(
    resolution: int, hosts: Collection[int], units: Collection[int], values: dict[str, Any]
) -> dict[str, Any]:
    arrays = {"hosts": array_text(hosts), "units": array_text(units)}
    return {"resolution": int(resolution), **arrays, **values}
