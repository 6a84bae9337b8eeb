"""Define the period and the filters of a usage query, and read the freshness of the data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import Max, Min, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.amounts import ZERO
from telemetry.core.currencies import DEFAULT_CURRENCY
from telemetry.models import Charge, ChargedUntil, Rollup

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
# These are left joins, because PostgreSQL removes left joins that a query does not use.
HARDWARE_JOINS_SQL = (
    " JOIN scheduler_unit u ON u.id = {unit} LEFT JOIN scheduler_gpu g ON g.id = u.gpu_id"
    " LEFT JOIN scheduler_host h ON h.id = g.host_id LEFT JOIN scheduler_pool pool ON pool.id = g.pool_id"
)
# The table of the configured user model.
_USER_META = get_user_model()._meta
WORK_JOINS_SQL = (
    " LEFT JOIN scheduler_workload w ON w.id = a.workload_id"
    " LEFT JOIN scheduler_project p ON p.id = a.project_id"
    f" LEFT JOIN scheduler_team t ON t.id = p.team_id LEFT JOIN {_USER_META.db_table} o ON o.id = w.owner_id"
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


@dataclass(frozen=True)
class DataFreshness:
    """The end of the last rolled-up minute, and the time up to which every GPU is charged.

    A value is None if there is no data.
    """

    rolled_up_until: datetime | None
    charged_until: datetime | None


def data_freshness() -> DataFreshness:
    """Return the freshness of rollups and charges."""
    last = Rollup.objects.filter(resolution=Rollup.Resolution.MINUTE).aggregate(last=Max("bucket"))["last"]
    charged = ChargedUntil.objects.filter(gpu__retired_at=None).aggregate(first=Min("until"))["first"]
    return DataFreshness(last + timedelta(minutes=1) if last else None, charged)


def to_gpu_hours(slot_seconds: float | Decimal | None) -> float:
    """Return slot-seconds as GPU-hours."""
    return float(slot_seconds or 0) / SLOT_SECONDS_PER_GPU_HOUR


def rollup_resolution(filters: UsageFilters) -> int:
    """Return the resolution of rollups to read: hours for up to two months, otherwise days."""
    return int(Rollup.Resolution.HOUR if filters.hours <= 62 * 24 else Rollup.Resolution.DAY)
