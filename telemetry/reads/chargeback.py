"""Return the charges of a month by cost centre, team, project or another dimension.

All amounts are sums of the cents of statement lines or cells. Therefore every grouping has the same total,
and a row equals the total of the table below it. Charge lines have six decimals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import F, Max, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from scheduler.models import Pool, Project, Team, Workload
from telemetry.core.amounts import ZERO
from telemetry.core.charge_model import ADJUSTMENT_BUCKETS, CHARGED_BUCKETS
from telemetry.cost_centres.names import cost_centre_labels, labels_at_close
from telemetry.models import (
    Charge,
    ChargeBucketChoices,
    ChargeCell,
    Statement,
    StatementLine,
    StatementLinePerson,
    StatementState,
)
from telemetry.money.billing_months import next_month
from telemetry.money.closing.statement_months import StatementMonths
from telemetry.money.pricing.billing_currencies import currency_of_month
from telemetry.reads.usage_filters import to_gpu_hours

# dimension -> (column of the group's key, column of the name in a charge line)
CHARGE_DIMENSIONS: dict[str, tuple[str, str]] = {
    "cost_centre": ("cost_centre", "cost_centre"),
    "team": ("team_id", "team_name"),
    "project": ("project_id", "project_name"),
    "type": ("workload_type", "workload_type"),
    "workload": ("workload_id", "workload_name"),
    "user": ("user_id", "user_name"),
    "model": ("model", "model"),
    "bucket": ("bucket", "bucket"),
    "pool": ("pool_id", "pool_name"),
}
# A statement line does not have these columns.
CELL_DIMENSIONS = frozenset({"workload", "user", "day", "last_day"})
AMOUNTS = (
    "used",
    "idle",
    "unmeasured",
    "reserved_unused",
    "idle_share",
    "adjustment",
    "shown",
    "charged",
    "cost",
)
DRILL_DOWN = ("cost_centre", "team", "project", "type", "workload")
# Filters that are no groupings. ``day`` is a date. ``last_day`` is the last of the days of the month that are
# selected; corrections of earlier months are selected with them. ``corrected_month`` is the first day of a
# month, ANY_MONTH for all corrections, or None for the use of the statement's own month.
SPAN_FILTERS = ("corrected_month", "day", "last_day")
ANY_MONTH = "any"
NO_MONTH = "none"  # the text of ``corrected_month`` that selects the use of the statement's own month


@dataclass(frozen=True)
class ChargeGroup:
    """One row of a chargeback table. All amounts are in cents.

    ``charged = used + idle + unmeasured + reserved_unused + idle_share + adjustment``

    - ``used``: the charge of measured held time, in proportion to its utilisation.
    - ``idle``: the rest of the charge of measured held time.
    - ``unmeasured``: the charge of held time without samples.
    - ``reserved_unused``: the charge of reserved time in which no work ran.
    - ``idle_share``: the part of the pool's idle time that a team pays. ``gpu_hours`` does not include it.
    - ``adjustment``: the sum of credits and manual adjustments, which have no GPU-hours.

    ``shown`` is the part of ``charged`` that is not invoiced, because its team has showback.

    ``corrected_month`` is None for the use of the month itself. Otherwise the row corrects that closed month,
    in the currency of that month.
    """

    key: Any
    name: str
    corrected_month: date | None
    gpu_hours: float
    used: Decimal
    idle: Decimal
    unmeasured: Decimal
    reserved_unused: Decimal
    idle_share: Decimal
    adjustment: Decimal
    shown: Decimal
    charged: Decimal
    cost: Decimal
    coverage: float | None
    currency: str


@dataclass(frozen=True)
class ChargeTable:
    """The groups of a table, highest charge first, and their total. Each money column sums to the total.

    ``corrections`` are the rows for earlier, closed months. They are not in ``total``. Groups and total are
    in the currency of the month; a correction may have another currency.
    """

    groups: list[ChargeGroup]
    total: ChargeGroup
    corrections: list[ChargeGroup]

    @property
    def currency(self) -> str:
        """Return the currency of the month."""
        return self.total.currency

    @property
    def corrected(self) -> Decimal:
        """Return the sum of the corrections in the currency of the month."""
        return sum((group.charged for group in self.corrections if group.currency == self.currency), ZERO)

    @property
    def charged(self) -> Decimal:
        """Return the charges on the statement in its currency: the use of the month and the corrections."""
        return self.total.charged + self.corrected

    @property
    def charged_in_other_currencies(self) -> dict[str, Decimal]:
        """Return the sum of the corrections in each other currency."""
        sums: dict[str, Decimal] = {}
        for group in self.corrections:
            if group.currency != self.currency:
                sums[group.currency] = sums.get(group.currency, ZERO) + group.charged
        return dict(sorted(sums.items()))


def charge_lines(month: date, lines: QuerySet[Charge] | None = None, **where: Any) -> QuerySet[Charge]:
    """Return the lines on a month's statement, oldest first.

    ``where`` maps filters to the wanted keys, as in ``charge_condition``. Raises ValueError for an unknown
    filter.
    """
    found = (Charge.objects.all() if lines is None else lines).filter(month=month)
    return found.filter(charge_condition(where)).order_by("start", "pk")


def charge_condition(where: Mapping[str, Any]) -> Q:
    """Return the condition for the charge lines that match all filters. A tuple matches each of its keys.

    Raises ValueError for an unknown filter.
    """
    _check_filters(where)
    found = Q()
    for name, value in where.items():
        if name == "last_day":
            found &= Q(day__lte=value)
        elif name != "corrected_month":
            found &= _equals("day" if name == "day" else CHARGE_DIMENSIONS[name][0], value)
        elif value is None:
            found &= Q(day__gte=F("month"))
        elif value == ANY_MONTH:
            found &= Q(day__lt=F("month"))
        else:
            found &= Q(day__gte=value, day__lt=next_month(value)) & Q(day__lt=F("month"))
    return found


def sums_condition(where: Mapping[str, Any], *, from_cells: bool) -> Q:
    """Return the condition for the cells that match all filters, or for the statement lines.

    Raises ValueError for an unknown filter, and for one that statement lines do not have.
    """
    _check_filters(where)
    if not from_cells and CELL_DIMENSIONS & set(where):
        raise ValueError(f"where: statement lines do not have {', '.join(CELL_DIMENSIONS & set(where))}")
    found = Q()
    for name, value in where.items():
        if name == "last_day":
            found &= Q(day__lte=value)
            continue
        column = sum_column(name, from_cells=from_cells)
        if name == "corrected_month" and value == ANY_MONTH:
            found &= Q(**{f"{column}__isnull": False})
        else:
            found &= _equals(column, value)
    return found


def filter_text(name: str, value: Any) -> str:
    """Return the value of a filter as text, as addresses and files have it."""
    if name == "corrected_month" and value is None:
        return NO_MONTH
    if name == "corrected_month" and isinstance(value, date):
        return f"{value:%Y-%m}"
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value)


def any_condition(selected: Collection[Mapping[str, Any]], *, from_cells: bool) -> Q:
    """Return the condition for the rows that match at least one of several sets of filters.
    ``sums_condition`` defines which rows match one set.
    """
    if not all(selected):
        return Q()  # an empty set of filters matches all rows
    found = Q(pk__in=[])
    for where in selected:
        found |= sums_condition(where, from_cells=from_cells)
    return found


def sum_column(name: str, *, from_cells: bool) -> str:
    """Return the column of a filter or dimension in the table of cells, or in that of statement lines."""
    column = name if name in SPAN_FILTERS else CHARGE_DIMENSIONS[name][0]
    return f"line__{column}" if from_cells and name not in CELL_DIMENSIONS else column


def _equals(column: str, value: Any) -> Q:
    return Q(**{f"{column}__in": value}) if isinstance(value, tuple) else Q(**{column: value})


def _check_filters(where: Mapping[str, Any]) -> None:
    known = (*CHARGE_DIMENSIONS, *SPAN_FILTERS)
    unknown = sorted(set(where) - set(known))
    if unknown:
        raise ValueError(f"where: {', '.join(unknown)} is not one of {', '.join(known)}")


def charged_lines(prefix: str = "") -> Q:
    """Return the condition for the statement lines that somebody pays: those of work, of shares of idle time
    and of adjustments.

    ``prefix`` is the path to the statement line, such as "line__" for cells.
    """
    paid = CHARGED_BUCKETS | ADJUSTMENT_BUCKETS
    return Q(**{f"{prefix}bucket__in": paid}) | Q(**{f"{prefix}idle_share": True})


def charges_by(
    dimension: str,
    month: date,
    cells: QuerySet[ChargeCell] | None = None,
    *,
    charged_only: bool = True,
    with_names: bool = True,
    months: StatementMonths | None = None,
    **where: Any,
) -> ChargeTable:
    """Return a month's charges grouped by one dimension.

    ``cells`` are the cells that the viewer may see; None means all. ``where`` is the drill-down path: the key
    that the viewer has selected in each earlier dimension. The charges of the table sum, to the cent, to the
    charge of the row that was selected last.

    If ``charged_only`` is False, the table also includes idle, unhealthy and lost time with its cost.
    If ``with_names`` is False, the groups have no names. ``months`` are the statements of all months, if the
    caller has them. The number of queries does not depend on the path or on the number of rows.
    """
    if dimension not in CHARGE_DIMENSIONS:
        raise ValueError(f"dimension: {dimension!r} is not one of {', '.join(CHARGE_DIMENSIONS)}")
    rows = _group_sums((dimension,), month, cells, charged_only, [where])
    keys = {row["key_0"] for row in rows} if with_names else ()
    names = group_names(dimension, keys, month, months) if keys else {}
    return _table(rows, [_charge_group(row, row["key_0"], names) for row in rows], month, months)


def charges_by_path(
    dimensions: Sequence[str],
    month: date,
    cells: QuerySet[ChargeCell] | None,
    parents: Collection[Mapping[str, Any]],
    months: StatementMonths | None = None,
) -> dict[tuple[Any, ...], ChargeTable]:
    """Return the tables below several rows of a tree of charges. The key of each table is the path of its
    row.

    ``dimensions`` are the levels of the tree, from the first level to the level of the returned tables. Each
    of ``parents`` has the filters of one row. A table equals that of ``charges_by`` with these filters; a row
    without charges has no table. ``months`` are the statements of all months, if the caller has them. The
    number of queries does not depend on the number of parents.
    """
    rows = _group_sums(tuple(dimensions), month, cells, True, parents)
    last = f"key_{len(dimensions) - 1}"
    names = group_names(dimensions[-1], {row[last] for row in rows}, month, months)
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[tuple(row[f"key_{at}"] for at in range(len(dimensions) - 1))].append(row)
    return {
        path: _table(below, [_charge_group(row, row[last], names) for row in below], month, months)
        for path, below in found.items()
    }


def _table(
    rows: list[dict[str, Any]], groups: list[ChargeGroup], month: date, months: StatementMonths | None
) -> ChargeTable:
    groups = sorted(groups, key=lambda group: (-group.charged, group.name, str(group.key)))
    own = [group for group in groups if group.corrected_month is None]
    return ChargeTable(
        own,
        _total([row for row in rows if row["corrected"] is None], own, month, months),
        [group for group in groups if group.corrected_month is not None],
    )


def group_names(
    dimension: str, keys: Iterable[Any], month: date, months: StatementMonths | None = None
) -> dict[Any, str]:
    """Return the name of each key of a dimension, for example the names of teams by id.

    Names of a closed month are those at the time of its close. Names of an open month are today's names. The
    name of a cost centre begins with its code.
    """
    key, name = CHARGE_DIMENSIONS[dimension]
    wanted = {each for each in keys if each is not None}
    if key == name and dimension != "cost_centre":
        return {each: str(each) for each in wanted}
    if months is not None:
        is_closed = months.is_closed(month)
    else:
        is_closed = Statement.objects.filter(month=month, state=StatementState.CLOSED).exists()
    if dimension == "cost_centre":
        return labels_at_close(month, wanted) if is_closed else cost_centre_labels(wanted)
    if is_closed:
        source: Any = ChargeCell if dimension in CELL_DIMENSIONS else StatementLine
        if dimension == "user":
            source = StatementLinePerson
        stored = source.objects.filter(statement__month=month, **{f"{key}__in": wanted})
        return dict(stored.values_list(key).annotate(stored_name=Max(name)).values_list(key, "stored_name"))
    rows, column = _named_rows(dimension)
    return dict(rows.filter(pk__in=wanted).values_list("pk", column))


def _named_rows(dimension: str) -> tuple[QuerySet[Any], str]:
    """Return the rows that have the names of a dimension, and the column of the name."""
    if dimension == "user":
        users = get_user_model()
        return users._default_manager.all(), users.USERNAME_FIELD
    sources: dict[str, QuerySet[Any]] = {
        "team": Team.with_removed.all(),
        "project": Project.objects.all(),
        "pool": Pool.with_removed.all(),
        "workload": Workload.objects.all(),
    }
    return sources[dimension], "name"


def _group_sums(
    dimensions: tuple[str, ...],
    month: date,
    cells: QuerySet[ChargeCell] | None,
    charged_only: bool,
    selected: Collection[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the sums of each group and corrected month. ``key_0``, ``key_1`` and so on are the group's keys.

    ``selected`` are alternatives: the filters of one row of the table above, or of several rows. The sums
    come from statement lines if possible. There are far fewer of these than cells.
    """
    names = {*dimensions, *(name for where in selected for name in where)}
    from_cells = cells is not None or bool(CELL_DIMENSIONS & names)
    line = "line__" if from_cells else ""
    found: QuerySet[Any] = StatementLine.objects.all()
    if from_cells:
        found = _cells_or_people(names) if cells is None else cells
    found = found.filter(**{"statement__month": month, f"{line}shared_out": False})
    found = found.filter(any_condition(selected, from_cells=from_cells))
    shared = Q(**{f"{line}idle_share": True})
    if charged_only:
        found = found.filter(charged_lines(line))
    in_use = Q(**{f"{line}bucket": ChargeBucketChoices.USED})
    reserved = Q(**{f"{line}bucket": ChargeBucketChoices.RESERVED_UNUSED})
    adjusted = Q(**{f"{line}bucket__in": ADJUSTMENT_BUCKETS})
    rows = (
        found.order_by()
        .values(
            **{f"key_{at}": F(sum_column(name, from_cells=from_cells)) for at, name in enumerate(dimensions)},
            corrected=F(f"{line}corrected_month"),
            line_currency=F(f"{line}currency"),
        )
        .annotate(
            slot_sum=Coalesce(Sum("slot_seconds", filter=~shared), 0),
            held_sum=Coalesce(Sum("slot_seconds", filter=in_use), 0),
            covered_sum=Sum("covered_slot_seconds", filter=in_use),
            charged_sum=Sum("charged_cents"),
            cost_sum=Sum("cost_cents"),
            used_sum=Sum("used_cents"),
            idle_sum=Sum("idle_cents"),
            reserved_sum=Coalesce(Sum("charged_cents", filter=reserved), ZERO),
            shared_sum=Coalesce(Sum("charged_cents", filter=shared), ZERO),
            shown_sum=Coalesce(Sum("charged_cents", filter=Q(**{f"{line}showback": True})), ZERO),
            adjusted_sum=Coalesce(Sum("charged_cents", filter=adjusted), ZERO),
        )
    )
    # A group whose charges were all reversed can be empty.
    return [dict(row) for row in rows if row["slot_sum"] or row["charged_sum"] or row["cost_sum"]]


def _cells_or_people(names: Collection[str]) -> QuerySet[Any]:
    """Return the query of sums per person if it has the columns ``names``, otherwise that of all cells."""
    only_cells_have = CELL_DIMENSIONS - {"user"}
    return ChargeCell.objects.all() if only_cells_have & set(names) else StatementLinePerson.objects.all()


def _charge_group(row: Mapping[str, Any], key: Any, names: Mapping[Any, str]) -> ChargeGroup:
    apart = row["reserved_sum"] + row["shared_sum"] + row["adjusted_sum"]
    return ChargeGroup(
        key=key,
        name=names.get(key, ""),
        corrected_month=row["corrected"],
        gpu_hours=to_gpu_hours(row["slot_sum"]),
        used=row["used_sum"],
        idle=row["idle_sum"],
        unmeasured=row["charged_sum"] - apart - row["used_sum"] - row["idle_sum"],
        reserved_unused=row["reserved_sum"],
        idle_share=row["shared_sum"],
        adjustment=row["adjusted_sum"],
        shown=row["shown_sum"],
        charged=row["charged_sum"],
        cost=row["cost_sum"],
        coverage=_coverage(row["covered_sum"], row["held_sum"]),
        currency=row["line_currency"],
    )


def _total(
    rows: list[dict[str, Any]], groups: list[ChargeGroup], month: date, months: StatementMonths | None
) -> ChargeGroup:
    covered = [row["covered_sum"] for row in rows if row["covered_sum"] is not None]
    sums = {name: sum((getattr(group, name) for group in groups), ZERO) for name in AMOUNTS}
    return ChargeGroup(
        key=None,
        name="",
        corrected_month=None,
        gpu_hours=to_gpu_hours(sum(row["slot_sum"] for row in rows)),
        **sums,
        coverage=_coverage(sum(covered) if covered else None, sum(row["held_sum"] for row in rows)),
        currency=groups[0].currency if groups else _currency(month, months),
    )


def _currency(month: date, months: StatementMonths | None) -> str:
    return currency_of_month(month) if months is None else months.currency_of(month)


def _coverage(covered: float | None, held: float) -> float | None:
    return min(1.0, covered / held) if covered is not None and held and held > 0 else None
