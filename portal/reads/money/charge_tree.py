"""Read the tree of a month's charges: cost centre, team, project, person and workload.

The figures of each level are those of ``telemetry.reads.chargeback``, so a row equals the sum of the rows
below it to the cent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

from portal import policy
from portal.models import User
from telemetry.core.amounts import ZERO
from telemetry.models import BudgetMeasure, BudgetPeriod
from telemetry.money.closing.statement_months import StatementMonths, load_statement_months
from telemetry.reads.chargeback import ChargeGroup, ChargeTable, charges_by, charges_by_path
from telemetry.reads.charges_before import (
    ChargesBefore,
    charges_before,
    compared_day_count,
    is_compared,
)

TREE_LEVELS = ("cost_centre", "team", "project", "user", "workload")
ROWS_PER_LEVEL = 50
# The columns that sort the rows of a level, with the value of a row. ``budget`` needs the budgets of a page.
SORT_COLUMNS = (
    "name",
    "gpu_hours",
    "used",
    "idle",
    "unmeasured",
    "reserved_unused",
    "idle_share",
    "adjustment",
    "charged",
    "since",
    "budget",
)
Path = tuple[Any, ...]


@dataclass(frozen=True)
class TreeQuery:
    """The rows that a page asks for.

    - ``levels`` are the dimensions from the first level down.
    - ``where`` are the filters of the page.
    - ``opened`` are the paths of the open rows, each with the number of rows below it that are skipped. The
      empty path is the first level.
    - ``found`` are the paths that a search found, and ``is_search`` says that there is a search. Below a
      path that leads to a found row, only rows that lead to found rows are shown, unless ``whole`` has the
      path.
    - ``sort`` is a value of SORT_COLUMNS.
    - ``whole_levels`` shows all rows of an open level instead of ROWS_PER_LEVEL of them.
    """

    levels: tuple[str, ...]
    where: Mapping[str, Any] = field(default_factory=dict)
    opened: Mapping[Path, int] = field(default_factory=lambda: {(): 0})
    sort: str = "charged"
    descending: bool = True
    found: frozenset[Path] = frozenset()
    whole: frozenset[Path] = frozenset()
    is_search: bool = False
    whole_levels: bool = False

    @cached_property
    def shown(self) -> frozenset[Path]:
        """Return the found paths and all paths above them."""
        return frozenset(path[:size] for path in self.found for size in range(len(path) + 1))

    def hides_others(self, path: Path) -> bool:
        """Return True if only rows that lead to found rows are shown below a path."""
        above = {found[:size] for found in self.found for size in range(len(found))}
        return self.is_search and path not in self.whole and (path in above or not path)


@dataclass(frozen=True)
class BudgetUse:
    """The budget of a row, with the spent and the expected amount. A share of 1.0 is the whole budget."""

    spent: Decimal
    forecast: Decimal | None
    amount: Decimal
    unit: str

    @property
    def spent_share(self) -> float:
        """Return the spent part of the budget."""
        return float(self.spent / self.amount) if self.amount else 0.0

    @property
    def forecast_share(self) -> float | None:
        """Return the part of the budget that is expected to be spent; None without a forecast."""
        if self.forecast is None:
            return None
        return float(self.forecast / self.amount) if self.amount else 0.0

    @property
    def is_over(self) -> bool:
        """Return True if the spending or its forecast is above the budget."""
        return max(self.spent, self.forecast or self.spent) > self.amount


@dataclass(frozen=True)
class TreeNode:
    """A row of the tree. ``path`` has the keys of the levels down to the row.

    ``since`` is the charge of the compared days minus the charge of the same days of the month before. It is
    None if nothing was charged on those days, or if nothing is compared. ``is_new`` is True if the months
    are compared and nothing was charged on those days. ``corrections`` are the corrections of closed months
    for this row; only rows of the first level have them. ``below`` is None for a closed row.
    """

    path: Path
    group: ChargeGroup
    since: Decimal | None
    is_new: bool
    is_found: bool
    budget: BudgetUse | None
    corrections: tuple[ChargeGroup, ...] = ()
    below: TreeLevel | None = None


@dataclass(frozen=True)
class TreeLevel:
    """One page of the rows below a row: ``nodes``, which begin after ``skipped`` rows."""

    path: Path
    dimension: str
    nodes: tuple[TreeNode, ...]
    skipped: int
    count: int

    @property
    def last(self) -> int:
        """Return the number of the last shown row, counted from 1."""
        return self.skipped + len(self.nodes)


@dataclass(frozen=True)
class ChargeTree:
    """The tree of a month's charges, and the sums of its first level.

    ``since`` is the charge of all rows minus that of the month before; None if nothing is compared. ``days``
    is the number of compared days; None means all days of both months.
    """

    levels: tuple[str, ...]
    root: TreeLevel
    table: ChargeTable
    since: Decimal | None
    days: int | None


class UnknownPathError(ValueError):
    """No visible charge is on an opened path. ``path`` has its keys."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"no visible charge: {path!r}")
        self.path = path


@dataclass(frozen=True)
class _LevelSums:
    """The sums of one depth of the tree.

    ``tables`` has the table below each path. ``before`` is None if the month before is not compared.
    """

    tables: Mapping[Path, ChargeTable]
    before: ChargesBefore | None


def tree_levels(by: str, where: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the levels of a tree whose first level is ``by``. A level that is a filter is left out."""
    below = TREE_LEVELS[TREE_LEVELS.index(by) + 1 :] if by in TREE_LEVELS else TREE_LEVELS
    return (by, *(name for name in below if name not in where))


def charge_tree(
    viewer: User,
    month: date,
    query: TreeQuery,
    budgets: Mapping[tuple[str, Any], BudgetUse],
    now: datetime,
    months: StatementMonths | None = None,
) -> ChargeTree:
    """Return the tree with its open rows. ``budgets`` has the result of ``budget_uses``.

    ``months`` are the statements of all months, if the caller has them.

    Runs a fixed number of queries for each open level, however many rows are open. Raises UnknownPathError.
    """
    months = months or load_statement_months()
    days = compared_day_count(month, now)
    compare = is_compared(month, days, months)
    sums: dict[int, _LevelSums] = {}
    for depth in range(len(query.levels)):
        parents = [path for path in query.opened if len(path) == depth]
        if not parents:
            break
        sums[depth] = _level_sums(viewer, month, query, parents, days, months, compare=compare)
    cells = policy.visible_cells(viewer)
    table = sums[0].tables.get(()) or charges_by(query.levels[0], month, cells, months=months, **query.where)
    return ChargeTree(
        levels=query.levels,
        root=_level(query, sums, budgets, ()),
        table=table,
        since=_total_since(sums[0].before, table),
        days=days,
    )


def charge_level(
    viewer: User,
    month: date,
    query: TreeQuery,
    path: Path,
    budgets: Mapping[tuple[str, Any], BudgetUse],
    now: datetime,
) -> tuple[TreeLevel, ChargeTable]:
    """Return the rows below one row, and the table of the first level. ``charge_tree`` would return the same.

    Raises UnknownPathError.
    """
    days = compared_day_count(month, now)
    months = load_statement_months()
    compare = is_compared(month, days, months)
    sums = {len(path): _level_sums(viewer, month, query, [path], days, months, compare=compare)}
    root = charges_by(query.levels[0], month, policy.visible_cells(viewer), months=months, **query.where)
    return _level(query, sums, budgets, path), root


def tree_scale(table: ChargeTable) -> Decimal:
    """Return the charge that fills the bar of a row: the highest one of the first level."""
    return max((group.charged for group in table.groups), default=ZERO)


def corrected_statements(viewer: User, table: ChargeTable) -> dict[tuple[Any, date], str]:
    """Return the numbers of the visible statements that the corrections of a table by cost centre correct.

    The keys are the code of the cost centre and the corrected month. Runs one query if there are corrections.
    """
    months = {row.corrected_month for row in table.corrections if row.corrected_month}
    if not months:
        return {}
    rows = policy.visible_documents(viewer).filter(
        statement__month__in=months, cost_centre__in={row.key for row in table.corrections}
    )
    found = rows.order_by("-number").values_list("cost_centre", "statement__month", "number")
    return {(code, month): number for code, month, number in found}


def budget_uses(month: date, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, Any], BudgetUse]:
    """Return the budgets of a month by dimension and key: ``("team", 5)``, ``("cost_centre", "CC-1")``.

    ``rows`` are those of ``chargeback.budget_rows``. A budget in money counts before one in GPU-hours.
    """
    found: dict[tuple[str, Any], BudgetUse] = {}
    for row in sorted(rows, key=lambda row: row["budget"].measure == BudgetMeasure.MONEY):
        budget, view = row["budget"], row["view"]
        if budget.period == BudgetPeriod.MONTH and budget.month == month:
            holder: tuple[str, Any] = ("cost_centre", budget.cost_centre)
            if budget.team_id or budget.project_id:
                holder = ("team", budget.team_id) if budget.team_id else ("project", budget.project_id)
            found[holder] = BudgetUse(view.spent, view.forecast, view.amount, view.unit)
    return found


def _level_sums(
    viewer: User,
    month: date,
    query: TreeQuery,
    parents: Sequence[Path],
    days: int | None,
    months: StatementMonths,
    *,
    compare: bool,
) -> _LevelSums:
    """Return the sums of the rows below several rows of one depth. Raises UnknownPathError."""
    dimensions = query.levels[: len(parents[0]) + 1]
    selected = [{**query.where, **dict(zip(query.levels, path, strict=False))} for path in parents]
    cells = policy.visible_cells(viewer)
    tables = charges_by_path(dimensions, month, cells, selected, months)
    missing = [path for path in parents if path and path not in tables]
    if missing:
        raise UnknownPathError(missing[0])
    return _LevelSums(
        tables=tables,
        before=charges_before(dimensions, month, days, cells, selected) if compare else None,
    )


def _level(
    query: TreeQuery,
    sums: Mapping[int, _LevelSums],
    budgets: Mapping[tuple[str, Any], BudgetUse],
    path: Path,
) -> TreeLevel:
    """Return the rows below a path: sorted, and only those of the asked page."""
    dimension, table = query.levels[len(path)], sums[len(path)].tables.get(path)
    nodes = [] if table is None else _nodes(query, sums[len(path)], budgets, path, table)
    if query.hides_others(path):
        nodes = [node for node in nodes if node.path in query.shown]
    nodes.sort(key=lambda node: (node.group.name, str(node.group.key)))
    nodes.sort(key=lambda node: _sort_value(node, query.sort), reverse=query.descending)
    skipped, shown = 0, nodes
    if not query.whole_levels:
        skipped = min(query.opened.get(path, 0), max(len(nodes) - 1, 0))
        shown = nodes[skipped : skipped + ROWS_PER_LEVEL]
    return TreeLevel(
        path=path,
        dimension=dimension,
        nodes=tuple(
            replace(node, below=_level(query, sums, budgets, node.path))
            if node.path in query.opened and len(node.path) < len(query.levels)
            else node
            for node in shown
        ),
        skipped=skipped,
        count=len(nodes),
    )


def _nodes(
    query: TreeQuery,
    sums: _LevelSums,
    budgets: Mapping[tuple[str, Any], BudgetUse],
    path: Path,
    table: ChargeTable,
) -> list[TreeNode]:
    """Return the rows of a table. Only the first level has rows of corrections."""
    dimension = query.levels[len(path)]
    corrections: dict[Any, list[ChargeGroup]] = {}
    for row in () if path else table.corrections:
        if row.charged:
            corrections.setdefault(row.key, []).append(row)
    charged = {group.key for group in table.groups}
    only_corrected = [_without_use(rows[0], table) for key, rows in corrections.items() if key not in charged]
    return [
        TreeNode(
            path=(*path, group.key),
            group=group,
            since=_since(sums.before, (*path, group.key), group),
            is_new=sums.before is not None and (*path, group.key) not in sums.before.before,
            is_found=(*path, group.key) in query.found,
            budget=budgets.get((dimension, group.key)),
            corrections=tuple(corrections.get(group.key, ())),
        )
        for group in (*table.groups, *only_corrected)
    ]


def _since(charges: ChargesBefore | None, path: Path, group: ChargeGroup) -> Decimal | None:
    """Return the charge of the compared days minus the charge before; None if there is no charge before."""
    if charges is None or path not in charges.before:
        return None
    now = group.charged if charges.now is None else charges.now.get(path, ZERO)
    return now - charges.before[path]


def _total_since(charges: ChargesBefore | None, table: ChargeTable) -> Decimal | None:
    """Return the difference of all rows, including rows that were charged only in the month before."""
    if charges is None:
        return None
    now = table.total.charged if charges.now is None else sum(charges.now.values(), ZERO)
    return now - sum(charges.before.values(), ZERO)


def _without_use(correction: ChargeGroup, table: ChargeTable) -> ChargeGroup:
    """Return the row of a group that has corrections, but no use in the month."""
    return replace(
        correction,
        corrected_month=None,
        gpu_hours=0.0,
        used=ZERO,
        idle=ZERO,
        unmeasured=ZERO,
        reserved_unused=ZERO,
        idle_share=ZERO,
        adjustment=ZERO,
        shown=ZERO,
        charged=ZERO,
        cost=ZERO,
        coverage=None,
        currency=table.currency,
    )


def _sort_value(node: TreeNode, column: str) -> Any:
    """Return the value by which a column sorts a row. A missing value is below all others."""
    if column == "name":
        return node.group.name.casefold()
    if column == "since":
        return (node.since is not None, node.since or ZERO)
    if column == "budget":
        use = node.budget
        return -1.0 if use is None else use.spent_share if use.forecast_share is None else use.forecast_share
    return getattr(node.group, column)
