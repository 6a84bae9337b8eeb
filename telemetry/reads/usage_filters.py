"""Define the period and the filters of a usage query, and read the freshness of the data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.amounts import ZERO
from telemetry.core.currencies import DEFAULT_CURRENCY
from telemetry.models import Charge, Rollup
from telemetry.rollups.storage import LAST_MINUTE_SQL, rollup_condition

# dimension -> (SQL column of the group's key, SQL column of its name). HARDWARE_JOINS_SQL and WORK_JOINS_SQL
# define the table aliases.
USAGE_DIMENSIONS: dict[str, tuple[str, str]] = {
    "team": ("p.team_id", "t.name"),
    "project": ("p.id", "p.name"),
    "user": ("w.owner_id", "o.username"),
    "type": ("w.type", "w.type"),
    "model": ("g.model", "g.model"),
    "pool": ("g.pool_id", "pool.name"),
    "host": ("h.id", "h.name"),
    "gpu": ("g.id", "h.name || ' GPU ' || g.index"),
    "workload": ("w.id", "w.name"),
}
# READ_DIMENSIONS also has groups without names, for WorkKey: workloads, and in a long period one number for a
# project and a person, because a query groups numbers faster than texts.
PERSON_BITS = 32
READ_DIMENSIONS = USAGE_DIMENSIONS | {
    "work": ("a.workload_id", "''"),
    "project_user": (f"(coalesce(p.id, 0) << {PERSON_BITS}) + coalesce(w.owner_id, 0)", "''"),
}
CUBE_DIMENSIONS = frozenset({"team", "project", "user", "type", "model", "pool", "project_user"})
# These are left joins, because PostgreSQL removes left joins that a query does not use.
HARDWARE_JOINS_SQL = (
    " JOIN scheduler_unit u ON u.id = {unit} LEFT JOIN scheduler_gpu g ON g.id = u.gpu_id"
    " LEFT JOIN scheduler_host h ON h.id = g.host_id LEFT JOIN scheduler_pool pool ON pool.id = g.pool_id"
)
# The table of the configured user model.
USER_TABLE = get_user_model()._meta.db_table
# Longer periods are read from cubes alone: one GPU has too many rows.
LONGEST_BY_GPU = timedelta(days=62)
WORK_JOINS_SQL = (
    " LEFT JOIN scheduler_workload w ON w.id = a.workload_id"
    " LEFT JOIN scheduler_project p ON p.id = a.project_id"
    f" LEFT JOIN scheduler_team t ON t.id = p.team_id LEFT JOIN {USER_TABLE} o ON o.id = w.owner_id"
)


@dataclass(frozen=True)
class UsageFilters:
    """The period ``[start, end)`` in UTC, and ids that restrict the result.

    ``teams`` and ``users`` are the ids that the viewer may see. The result contains only rows that belong to
    one of these teams or to one of these users. If both are None, the viewer may see all rows.

    Only amounts of money in ``currency`` are included.
    """

    start: datetime
    end: datetime
    pool: int | None = None
    team: int | None = None
    project: int | None = None
    user: int | None = None
    model: str = ""
    type: str = ""
    teams: Collection[int] | None = None
    users: Collection[int] | None = None
    currency: str = DEFAULT_CURRENCY

    def __post_init__(self) -> None:
        if not self.start < self.end:
            raise ValueError(f"end: {self.end} is not after start, {self.start}")

    @property
    def hours(self) -> float:
        return (self.end - self.start) / timedelta(hours=1)

    @cached_property
    def is_long(self) -> bool:
        """Return True if the period is too long to be read by GPU or by workload."""
        return self.end - self.start > LONGEST_BY_GPU

    @property
    def selects_work(self) -> bool:
        """Return True if the filters select a part of the work of a team."""
        return bool(self.project or self.user or self.type or self.users)

    def charges(self) -> QuerySet[Charge]:
        """Return the charge lines that overlap the period and match the filters."""
        lines = Charge.objects.select_related("price").filter(start__lt=self.end, end__gt=self.start)
        # No line is longer than a day. This bound lets PostgreSQL use the index on start.
        lines = lines.filter(start__gte=self.start - timedelta(days=1))
        plain = {
            "pool": self.pool,
            "team": self.team,
            "project": self.project,
            "user": self.user,
            "model": self.model or None,
            "workload_type": self.type or None,
        }
        lines = lines.filter(**{name: value for name, value in plain.items() if value is not None})
        if self.teams is not None or self.users is not None:
            lines = lines.filter(Q(team__in=self.teams or ()) | Q(user__in=self.users or ()))
        return lines

    def sum_of(self, column: str) -> Coalesce:
        """Return the expression for the sum of a column of charge lines in ``currency``."""
        return Coalesce(Sum(column, filter=Q(price__currency=self.currency)), ZERO)

    def has_currency(self, line: Charge) -> bool:
        """Return True if the amounts of a charge line are in ``currency``."""
        return line.price is not None and line.price.currency == self.currency

    def sql(self) -> tuple[str, list[Any]]:
        """Return SQL conditions and their parameters, to be appended to a WHERE clause.

        The conditions use the aliases of HARDWARE_JOINS_SQL and WORK_JOINS_SQL.
        """
        clauses: list[str] = []
        values: list[Any] = []
        for column, value in (
            ("g.pool_id", self.pool),
            ("p.team_id", self.team),
            ("p.id", self.project),
            ("w.owner_id", self.user),
            ("g.model", self.model or None),
            ("w.type", self.type or None),
        ):
            if value is not None:
                clauses.append(f" AND {column} = %s")
                values.append(value)
        if self.teams is not None or self.users is not None:
            clauses.append(" AND (p.team_id = ANY(%s) OR w.owner_id = ANY(%s))")
            values += [list(self.teams or ()), list(self.users or ())]
        return "".join(clauses), values


_FRESHNESS_SQL = (
    f"SELECT ({LAST_MINUTE_SQL}), (SELECT min(charged.until) FROM telemetry_chargeduntil charged"
    f" JOIN scheduler_gpu gpu ON gpu.id = charged.gpu_id WHERE gpu.retired_at IS NULL), ({{simulated}})"
)


@dataclass(frozen=True)
class DataFreshness:
    """The end of the last rolled-up minute, and the time up to which every GPU is charged.

    A value is None if there is no data. ``simulated`` says if a part of the use of a period is simulated
    history.
    """

    rolled_up_until: datetime | None
    charged_until: datetime | None
    simulated: bool = False


def data_freshness(period: UsageFilters | None = None) -> DataFreshness:
    """Return the freshness of rollups and charges. Runs one query.

    With a ``period``, the result also says if a part of its use is simulated history.
    """
    simulated = "SELECT false"
    values: list[Any] = []
    if period is not None:
        buckets, values = rollup_condition(Rollup.Resolution.HOUR, period.start, period.end)
        simulated = f"SELECT EXISTS (SELECT 1 FROM telemetry_rollup WHERE {buckets} AND simulated)"
    with connection.cursor() as cursor:
        cursor.execute(_FRESHNESS_SQL.format(simulated=simulated), values)
        last, charged, is_simulated = cursor.fetchone()
    return DataFreshness(last + timedelta(minutes=1) if last else None, charged, is_simulated)


def to_gpu_hours(slot_seconds: float | Decimal | None) -> float:
    """Return slot-seconds as GPU-hours."""
    return float(slot_seconds or 0) / SLOT_SECONDS_PER_GPU_HOUR
