"""Write rollups and cubes as CSV and Parquet files, as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import QuerySet

from scheduler.models import Workload
from telemetry.exports.table_files import TABLE_FILES, copied_rows
from telemetry.models import Rollup
from telemetry.models.rollups import CONTAINER_SECONDS
from telemetry.reads.usage_rows import USAGE_SUMS

LEVELS = {
    "minute": int(Rollup.Resolution.MINUTE),
    "hour": int(Rollup.Resolution.HOUR),
    "day": int(Rollup.Resolution.DAY),
}
CUBE_LEVELS = {"hour": LEVELS["hour"], "day": LEVELS["day"]}
_BUCKET_SQL = """to_char({alias}.bucket AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
_INTEGERS = {"samples", "memory_used_max_mib", "energy_mj", "energy_faults"}
ROLLUP_MEASURES = (
    *("held_seconds", "covered_seconds", "samples", "utilisation_seconds", "utilisation_max"),
    *("busy_seconds", "inefficient_seconds", "sm_unmeasured_seconds", "idle_seconds", "empty_seconds"),
    *("sm_active_seconds", "tensor_active_seconds", "memory_used_max_mib", "energy_mj", "energy_faults"),
    *("utilisation_unknown_seconds", "sm_unknown_seconds"),
)
# The SQL and the type in Parquet files of each column. An empty cell is unknown.
ROLLUP_COLUMNS: dict[str, tuple[str, str]] = {
    "bucket": (_BUCKET_SQL.format(alias="used"), "TIMESTAMP"),
    "pool": ("pool.slug", "VARCHAR"),
    "host": ("host.name", "VARCHAR"),
    "gpu": ("gpu.index", "INTEGER"),
    "uuid": ("unit.uuid", "VARCHAR"),
    "model": ("gpu.model", "VARCHAR"),
    "profile": ("nullif(unit.profile, '')", "VARCHAR"),
    "slots": ("upper(unit.slots) - lower(unit.slots)", "INTEGER"),
    "workload": ("workload.public_id", "VARCHAR"),
    **{name: (f"used.{name}", "BIGINT" if name in _INTEGERS else "DOUBLE") for name in ROLLUP_MEASURES},
    "simulated": ("used.simulated", "BOOLEAN"),
}
CUBE_COLUMNS: dict[str, tuple[str, str]] = {
    "bucket": (_BUCKET_SQL.format(alias="cube"), "TIMESTAMP"),
    "pool": ("pool.slug", "VARCHAR"),
    "model": ("cube.model", "VARCHAR"),
    "team": ("team.slug", "VARCHAR"),
    "project": ("project.slug", "VARCHAR"),
    "type": ("cube.type", "VARCHAR"),
    "person": ("owner.username", "VARCHAR"),
    **{
        name.replace("_seconds", "_slot_seconds"): (
            f"cube.{name}",
            "BIGINT" if name in _INTEGERS else "DOUBLE",
        )
        for name in USAGE_SUMS
    },
}
_ROLLUPS_SQL = (
    f"SELECT {', '.join(sql for sql, _ in ROLLUP_COLUMNS.values())} FROM telemetry_rollup used"
    " JOIN scheduler_unit unit ON unit.id = used.unit_id JOIN scheduler_gpu gpu ON gpu.id = unit.gpu_id"
    " JOIN scheduler_host host ON host.id = gpu.host_id JOIN scheduler_pool pool ON pool.id = gpu.pool_id"
    " LEFT JOIN scheduler_allocation allocation ON allocation.id = used.allocation_id"
    " LEFT JOIN scheduler_workload workload ON workload.id = allocation.workload_id"
    " WHERE used.unit_id = ANY(ARRAY(SELECT u.id FROM scheduler_unit u"
    " JOIN scheduler_gpu g ON g.id = u.gpu_id WHERE g.host_id = %(host)s))"
    " AND used.resolution = %(resolution)s AND used.bucket >= %(start)s AND used.bucket < %(end)s"
    " AND used.container >= %(first)s AND used.container < %(end)s{only}"
    " ORDER BY unit.id, used.bucket, used.allocation_id"
)
_CUBES_SQL = (
    f"SELECT {', '.join(sql for sql, _ in CUBE_COLUMNS.values())} FROM telemetry_rollupcube cube"
    " LEFT JOIN scheduler_pool pool ON pool.id = cube.pool_id"
    " LEFT JOIN scheduler_project project ON project.id = cube.project_id"
    " LEFT JOIN scheduler_team team ON team.id = project.team_id"
    f" LEFT JOIN {get_user_model()._meta.db_table} owner ON owner.id = cube.owner_id"
    " WHERE cube.resolution = %(resolution)s AND cube.bucket >= %(start)s AND cube.bucket < %(end)s{only}"
    " ORDER BY cube.bucket, cube.pool_id, cube.model, cube.project_id, cube.type, cube.owner_id"
)


@dataclass(frozen=True)
class RollupScope:
    """The rollups of a file: of a level of LEVELS and of these hosts, with ``start <= bucket < end``.

    ``workloads`` is the work whose rollups are included. If it is None, all rollups of the hosts are.
    """

    level: str
    hosts: Sequence[int]
    start: datetime
    end: datetime
    workloads: QuerySet[Workload] | None = None


@dataclass(frozen=True)
class CubeScope:
    """The cubes of a file: of a level of CUBE_LEVELS, with ``start <= bucket < end``.

    ``teams`` and ``pools`` are ids; None means all.
    """

    level: str
    start: datetime
    end: datetime
    teams: Sequence[int] | None = None
    pools: Sequence[int] | None = None


def rollup_file(kind: str, scope: RollupScope) -> Iterator[bytes]:
    """Yield a file of rollups of the kind "csv" or "parquet", sorted by host, unit and time."""
    return TABLE_FILES[kind][1](_rollup_rows(scope), ROLLUP_COLUMNS)


def cube_file(kind: str, scope: CubeScope) -> Iterator[bytes]:
    """Yield a file of cubes of the kind "csv" or "parquet", sorted by time."""
    return TABLE_FILES[kind][1](_cube_rows(scope), CUBE_COLUMNS)


def _rollup_rows(scope: RollupScope) -> Iterator[bytes]:
    """Yield the rows host by host, so that no query sorts the rows of all hosts."""
    resolution, only = LEVELS[scope.level], ""
    seconds = int(scope.start.timestamp())
    first = datetime.fromtimestamp(seconds - seconds % CONTAINER_SECONDS[resolution], UTC)
    values: dict[str, Any] = {
        "resolution": resolution,
        "start": scope.start,
        "end": scope.end,
        "first": first,
    }
    if scope.workloads is not None:
        values["workloads"] = list(scope.workloads.values_list("pk", flat=True))
        only = " AND allocation.workload_id = ANY(%(workloads)s::bigint[])"
    for host in scope.hosts:
        yield from copied_rows(_ROLLUPS_SQL.format(only=only), values | {"host": host})


def _cube_rows(scope: CubeScope) -> Iterator[bytes]:
    values: dict[str, Any] = {
        "resolution": CUBE_LEVELS[scope.level],
        "start": scope.start,
        "end": scope.end,
    }
    only = ""
    if scope.teams is not None:
        values["teams"] = list(scope.teams)
        only += " AND project.team_id = ANY(%(teams)s::bigint[])"
    if scope.pools is not None:
        values["pools"] = list(scope.pools)
        only += " AND cube.pool_id = ANY(%(pools)s::bigint[])"
    yield from copied_rows(_CUBES_SQL.format(only=only), values)
