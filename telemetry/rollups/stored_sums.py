"""Read the sums of stored rollups from their arrays, for the units of given hosts.

The view ``telemetry_rollup`` makes a row of each bucket, which takes more time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from telemetry.core.rollup import MAX_FIELDS, UsageSums
from telemetry.models import Rollup
from telemetry.models.rollups import CONTAINER_SECONDS
from telemetry.rollups.due_marks import bucket_start
from telemetry.rollups.storage import MICRO_MEASURES, ROLLUP_MEASURES
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
SELECT unit_id, allocation_id, bool_or(simulated),
    {", ".join(f"{total}({name})::bigint" for name, total in _TOTAL_OF.items())}
FROM (
    SELECT unit_id, allocation_id, simulated,
        {_ARRAY_TOTALS}
    FROM {{table}} WHERE container = %(start)s AND unit_id = ANY(%(units)s::bigint[])
    UNION ALL SELECT item.* {_OPEN}
) AS part GROUP BY unit_id, allocation_id
"""
_COVERAGE_SQL = f"""
SELECT unit_id, sum(covered)::bigint, coalesce(sum(faults), 0)::bigint
FROM (
    SELECT unit_id, covered_seconds[%(slot)s] AS covered, energy_faults[%(slot)s] AS faults
    FROM {{table}} WHERE container = %(container)s AND unit_id = ANY(%(units)s::bigint[])
        AND held_seconds[%(slot)s] IS NOT NULL
    UNION ALL SELECT item.unit_id, item.covered_seconds, item.energy_faults {_OPEN}
) AS stored GROUP BY unit_id
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
    resolution: int, bucket: datetime, hosts: Collection[int], units: Collection[int]
) -> Iterator[tuple[int, int | None, bool, UsageSums]]:
    """Yield (unit id, allocation id, True if simulated, sums) of an hour's minutes or a day's hours."""
    finer = Rollup.Resolution.MINUTE if resolution == Rollup.Resolution.HOUR else Rollup.Resolution.HOUR
    period = {"start": bucket, "end": bucket + timedelta(seconds=resolution)}
    rows = _read(_TOTALS_SQL.format(table=TABLES[finer]), finer, hosts, units, period)
    micro = len(MICRO_MEASURES)
    for unit, allocation, simulated, *values in rows:
        seconds = [None if value is None else value / 1e6 for value in values[:micro]]
        use = UsageSums(**dict(zip(ROLLUP_MEASURES, [*seconds, *values[micro:]], strict=True)))
        yield unit, allocation, simulated, use


def stored_coverage(
    resolution: int, bucket: datetime, hosts: Collection[int], units: Collection[int]
) -> dict[int, tuple[float, int]]:
    """Return (covered seconds, energy faults) of the stored rollups of one bucket by unit id."""
    seconds = CONTAINER_SECONDS[resolution]
    container = bucket_start(bucket, seconds)
    slot = int((bucket - container).total_seconds()) // resolution + 1
    period = {"start": bucket, "end": bucket + timedelta(seconds=resolution), "container": container}
    table = TABLES[Rollup.Resolution(resolution)]
    rows = _read(_COVERAGE_SQL.format(table=table), resolution, hosts, units, {**period, "slot": slot})
    return {unit: (covered / 1e6, faults) for unit, covered, faults in rows}


def stored_minutes(
    hour: datetime, hosts: Collection[int], units: Collection[int]
) -> list[tuple[int, int, int, int]]:
    """Return (unit id, minute of the hour, covered microseconds, energy faults) of the stored minutes."""
    period = {"start": hour, "end": hour + timedelta(hours=1)}
    return list(_read(_MINUTES_SQL, Rollup.Resolution.MINUTE, hosts, units, period))


def _read(
    sql: str, resolution: int, hosts: Collection[int], units: Collection[int], values: dict[str, Any]
) -> list[tuple[Any, ...]]:
    arrays = {"hosts": array_text(hosts), "units": array_text(units)}
    with connection.cursor() as cursor:
        cursor.execute(sql, {"resolution": int(resolution), **arrays, **values})
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
