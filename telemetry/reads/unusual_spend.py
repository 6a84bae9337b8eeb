"""Find the unusual spend of a month: read its days, and apply ``telemetry.core.spending.unusual_spend``.

All amounts are sums of the cents of cells and statement lines. The search may read millions of cells, so a
task runs it and stores what it finds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import Count, F, Min, Q, Sum

from scheduler.models import Project
from telemetry.core.amounts import ZERO
from telemetry.core.spending.unusual_spend import (
    WEEK,
    WEEKS_COMPARED,
    HighDays,
    SpendSubject,
    high_days,
    is_not_taken,
    least_amount,
    narrowest,
    price_effect,
)
from telemetry.models import (
    Charge,
    ChargeBucketChoices,
    Price,
    Statement,
    StatementLine,
    StatementLineDay,
    UnusualSpendKind,
)
from telemetry.money.billing_months import billing_calendar, month_bounds
from telemetry.reads.usage_filters import to_gpu_hours

SPARK_DAYS = 28  # days in the small chart of a finding; the last is the finding's last day

# The daily charges of held time by project, person and workload name. A name has rows of its own only if one
# of its days in the month reaches about the smallest amount that can be unusual. All other work of a person
# has one row per day, without a name. Most names belong to one small job, and a group for each of them would
# take most of the query's time.
_DAYS = """
WITH lines AS MATERIALIZED (
    SELECT line.id, line.project_id, statement.month = %(month)s AS is_searched
    FROM telemetry_statementline line JOIN telemetry_statement statement ON statement.id = line.statement_id
    WHERE statement.month BETWEEN %(first_month)s AND %(month)s AND line.bucket = 'used'
        AND NOT line.idle_share AND line.corrected_month IS NULL AND line.currency = %(currency)s
        AND line.project_id IS NOT NULL),
costly AS MATERIALIZED (
    SELECT DISTINCT project_id, user_id, workload_name
    FROM (
        SELECT lines.project_id, cell.user_id, cell.workload_name
        FROM telemetry_chargecell cell JOIN lines ON lines.id = cell.line_id
        WHERE lines.is_searched AND cell.user_id IS NOT NULL AND cell.day >= %(first)s
        GROUP BY 1, 2, 3, cell.day
        -- Sums of floats need less memory. The rules see the exact sums.
        HAVING sum(cell.charged_cents::float8) >= 0.99 * %(least)s) AS days)
SELECT lines.project_id, cell.user_id,
    CASE WHEN (lines.project_id, cell.user_id, cell.workload_name)
        IN (SELECT project_id, user_id, workload_name FROM costly) THEN cell.workload_name END,
    cell.day, sum(cell.charged_cents), sum(cell.slot_seconds)
FROM telemetry_chargecell cell JOIN lines ON lines.id = cell.line_id
WHERE cell.day >= %(since)s AND cell.user_id IS NOT NULL
GROUP BY 1, 2, 3, 4"""
_SEARCH_MEMORY = "64MB"  # enough to group the million cells of a large month


@dataclass(frozen=True)
class FoundSpend:
    """Unusual spend that a search found, with the columns of ``UnusualSpend``."""

    kind: str
    team: int | None
    project: int | None
    user: int | None
    workload_name: str
    subject: str
    first_day: date
    last_day: date
    currency: str
    amount: Decimal
    usual: Decimal | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _SubjectDays:
    charged: dict[date, Decimal]
    seconds: dict[date, int]


_SubjectKey = tuple[int, int | None, str | None]  # the fields of SpendSubject
_DaySums = dict[date, tuple[Decimal, int]]  # charge and slot-seconds


@dataclass(frozen=True)
class _SearchedMonth:
    statement: Statement
    first: date
    last: date
    projects: Mapping[int, tuple[str, int]]  # project id -> (name, team id)

    @property
    def currency(self) -> str:
        return self.statement.currency


def search_unusual_spend(statement: Statement, today: date) -> list[FoundSpend]:
    """Return the unusual spend of a month up to ``today``, sorted by rule, then by amount (largest first)."""
    month = _searched_month(statement, today)
    found = [*_high_days(month), *_not_taken(month), *_new_prices(month), *_new_projects(month)]
    order = list(UnusualSpendKind)
    return sorted(found, key=lambda each: (order.index(UnusualSpendKind(each.kind)), -each.amount))


def _searched_month(statement: Statement, today: date) -> _SearchedMonth:
    last = billing_calendar().day_of(month_bounds(statement.month)[1] - timedelta(seconds=1))
    rows = Project.objects.values_list("pk", "name", "team_id")
    projects = {pk: (name, team) for pk, name, team in rows}
    return _SearchedMonth(statement, statement.month, min(last, today), projects)


def _high_days(month: _SearchedMonth) -> Iterator[FoundSpend]:
    days = _days_by_subject(month)
    found = [
        each
        for subject, read in days.items()
        for each in high_days(subject, read.charged, month.first, month.last, month.currency)
    ]
    users = {each.subject.user for each in found if each.subject.user is not None}
    names = dict(get_user_model()._default_manager.filter(pk__in=users).values_list("pk", "username"))
    for each in narrowest(found):
        yield _found_high_days(month, each, days[each.subject], names)


def _days_by_subject(month: _SearchedMonth) -> dict[SpendSubject, _SubjectDays]:
    since = month.first - WEEKS_COMPARED * WEEK
    values: dict[str, Any] = {
        "first_month": since.replace(day=1),
        "month": month.statement.month,
        "since": since,
        "first": month.first,
        "least": least_amount(month.currency),
        "currency": month.currency,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('work_mem', %s, true)", [_SEARCH_MEMORY])
        cursor.execute(_DAYS, values)
        days = _summed_days(cursor)
    found = {}
    for key in sorted(days, key=_widest_first):
        charged = {day: each for day, (each, _) in sorted(days[key].items()) if each > 0}
        if any(each >= values["least"] and day >= month.first for day, each in charged.items()):
            found[SpendSubject(*key)] = _SubjectDays(charged, {day: days[key][day][1] for day in charged})
    return found


def _summed_days(rows: Iterable[tuple[Any, ...]]) -> dict[_SubjectKey, _DaySums]:
    """Return the charge and the slot-seconds of each day by subject.

    A row with a workload name counts for the name, the person and the project. A row without a name counts
    for the person and the project.
    """
    names: dict[_SubjectKey, _DaySums] = defaultdict(dict)
    people: dict[_SubjectKey, _DaySums] = defaultdict(dict)
    projects: dict[_SubjectKey, _DaySums] = defaultdict(dict)
    for project, user, name, day, charged, seconds in rows:
        if name is not None:
            names[project, user, name][day] = (charged, int(seconds))
        _add(people[project, user, None], day, charged, int(seconds))
    for (project, _, _), days in people.items():
        for day, (charged, seconds) in days.items():
            _add(projects[project, None, None], day, charged, seconds)
    return {**projects, **people, **names}


def _add(days: _DaySums, day: date, charged: Decimal, seconds: int) -> None:
    before = days.get(day)
    days[day] = (charged, seconds) if before is None else (before[0] + charged, before[1] + seconds)


def _widest_first(key: _SubjectKey) -> tuple[Any, ...]:
    project, user, name = key
    return project, user is not None, name is not None, user or 0, name or ""


def _found_high_days(
    month: _SearchedMonth, high: HighDays, read: _SubjectDays, users: Mapping[int, str]
) -> FoundSpend:
    subject = high.subject
    project, team = month.projects[subject.project]
    days = [high.last - timedelta(days=back) for back in range(SPARK_DAYS - 1, -1, -1)]
    inside = [day for day in read.seconds if high.first <= day <= high.last]
    return FoundSpend(
        kind=UnusualSpendKind.HIGH_DAY,
        team=team,
        project=subject.project,
        user=subject.user,
        workload_name=subject.workload_name or "",
        subject=subject.workload_name or users.get(subject.user or 0) or project,
        first_day=high.first,
        last_day=high.last,
        currency=month.currency,
        amount=high.amount,
        usual=high.usual,
        figures={
            "project": project,
            "gpu_hours": to_gpu_hours(sum(read.seconds[day] for day in inside)),
            "curve": [str(read.charged.get(day, ZERO)) for day in days],
        },
    )


def _not_taken(month: _SearchedMonth) -> Iterator[FoundSpend]:
    """Yield each project that used too little of its reserved time."""
    reserved = _reserved_time(month)
    unused = StatementLineDay.objects.filter(
        line__statement=month.statement,
        line__bucket=ChargeBucketChoices.RESERVED_UNUSED,
        line__corrected_month=None,
        line__currency=month.currency,
        line__project__in=reserved,
    )
    days: dict[int, dict[date, tuple[Decimal, int]]] = defaultdict(dict)
    sums = unused.values_list("line__project", "day").annotate(Sum("charged_cents"), Sum("slot_seconds"))
    for project, day, charged, seconds in sums.order_by("line__project", "day"):
        if seconds > 0:
            days[project][day] = (charged, seconds)
    for pk, by_day in days.items():
        amount = sum((charged for charged, _ in by_day.values()), ZERO)
        seconds = sum(each for _, each in by_day.values())
        windows = reserved[pk]
        if not is_not_taken(windows.held + seconds, seconds, amount, month.currency):
            continue
        project, team = month.projects[pk]
        shown = [month.first + timedelta(days=index) for index in range((month.last - month.first).days + 1)]
        yield FoundSpend(
            kind=UnusualSpendKind.NOT_TAKEN,
            team=team,
            project=pk,
            user=None,
            workload_name="",
            subject=project,
            first_day=month.first,
            last_day=month.last,
            currency=month.currency,
            amount=amount,
            figures={
                "project": project,
                "gpu_hours": to_gpu_hours(seconds),
                "share": seconds / (windows.held + seconds),
                "windows": windows.windows,
                "empty_windows": windows.empty,
                "from": min(by_day).isoformat(),
                "to": max(by_day).isoformat(),
                "curve": [str(by_day[day][0]) if day in by_day else "0" for day in shown],
            },
        )


@dataclass(frozen=True)
class _ReservedTime:
    """The reserved time of a project: held slot-seconds, windows, and windows in which nothing ran."""

    held: int
    windows: int
    empty: int


def _reserved_time(month: _SearchedMonth) -> dict[int, _ReservedTime]:
    """Return the reserved time of each project with reservations in the month."""
    lines = Charge.objects.filter(month=month.statement.month, day__gte=month.first, project__isnull=False)
    lines = lines.filter(reservation__isnull=False)
    used = Sum("slot_seconds", filter=Q(bucket=ChargeBucketChoices.USED), default=0)
    windows: dict[int, list[int]] = defaultdict(list)
    for project, held in (
        lines.values("reservation").annotate(held=used).values_list("reservation__project", "held")
    ):
        windows[project].append(held)
    return {
        project: _ReservedTime(sum(held), len(held), sum(1 for each in held if not each))
        for project, held in windows.items()
    }


def _new_prices(month: _SearchedMonth) -> Iterator[FoundSpend]:
    """Yield each price that began in the month, with the part of the charges that is due to it."""
    start, end = month_bounds(month.statement.month)
    prices = list(Price.objects.filter(currency=month.currency).order_by("valid_from", "pk"))
    for new in prices:
        first = billing_calendar().day_of(new.valid_from)
        if not start <= new.valid_from < end or first > month.last:
            continue
        same = [each for each in prices if (each.pool_id, each.model) == (new.pool_id, new.model)]
        before = [each for each in same if each.valid_from < new.valid_from]
        if not before or before[-1].price_per_gpu_hour == new.price_per_gpu_hour:
            continue
        own_pools = {each.pool_id for each in prices if each.pool_id is not None and each.model == new.model}
        charged = _charged_of_model(month, new, first, own_pools)
        old = before[-1].price_per_gpu_hour
        effect = price_effect(charged, old, new.price_per_gpu_hour, month.currency)
        if abs(effect) < least_amount(month.currency):
            continue
        figures = {"old": str(old), "new": str(new.price_per_gpu_hour), "charged": str(charged)}
        yield FoundSpend(
            UnusualSpendKind.NEW_PRICE,
            None,
            None,
            None,
            "",
            new.model,
            first,
            month.last,
            month.currency,
            effect,
            None,
            figures,
        )


def _charged_of_model(month: _SearchedMonth, price: Price, first: date, own_pools: set[int]) -> Decimal:
    rows = StatementLineDay.objects.filter(
        line__statement=month.statement,
        line__model=price.model,
        line__corrected_month=None,
        line__idle_share=False,
        line__currency=month.currency,
        day__gte=first,
    )
    rows = rows.filter(line__pool=price.pool_id) if price.pool_id else rows.exclude(line__pool__in=own_pools)
    return Decimal(rows.aggregate(sum=Sum("charged_cents", default=ZERO))["sum"])


def _new_projects(month: _SearchedMonth) -> Iterator[FoundSpend]:
    """Yield each project whose first charge is in the month. In the first month with charges, none is new."""
    earlier = StatementLine.objects.filter(statement__month__lt=month.statement.month, charged_cents__gt=0)
    if not earlier.exists():
        return
    rows = StatementLineDay.objects.filter(
        line__statement=month.statement,
        line__corrected_month=None,
        line__currency=month.currency,
        line__project__isnull=False,
        charged_cents__gt=0,
    ).exclude(line__project__in=earlier.filter(project__isnull=False).values("project"))
    sums = rows.values(project=F("line__project")).annotate(
        first=Min("day"), charged=Sum("charged_cents"), days=Count("day", distinct=True)
    )
    for row in sums.order_by("-charged"):
        if row["charged"] < least_amount(month.currency):
            continue
        project, team = month.projects[row["project"]]
        yield FoundSpend(
            UnusualSpendKind.NEW_PROJECT,
            team,
            row["project"],
            None,
            "",
            project,
            row["first"],
            month.last,
            month.currency,
            row["charged"],
            None,
            {"project": project, "days": row["days"]},
        )
