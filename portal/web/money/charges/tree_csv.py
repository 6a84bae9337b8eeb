"""Write the open rows of the tree of charges as CSV."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

from portal.reads.money.charge_scope import ChargeScope
from portal.reads.money.charge_tree import ChargeTree, TreeLevel
from portal.streamed_file import StreamedFile
from portal.web.page.csv_export import complete_csv_response
from telemetry.core.csv_text import CsvDialect
from telemetry.reads.chargeback import ChargeGroup

AMOUNT_COLUMNS = (
    "gpu_hours",
    "used",
    "idle",
    "unmeasured",
    "reserved_unused",
    "idle_share",
    "adjustment",
    "charged",
)
# The column that says whose charges the file has: a value of ``ChargeScope.kind``.
SCOPE_COLUMN = "scope"
TOTAL_LEVEL = 0  # the value of the column ``level`` in the row of the total


def charge_tree_csv(
    tree: ChargeTree, month: date, scope: ChargeScope, with_cost: bool, dialect: CsvDialect
) -> StreamedFile:
    """Return the open rows of the tree as CSV. ``with_cost`` adds the owner's cost of the GPUs.

    The first columns name the row and the rows above it, and ``level`` counts them: 1 for the first level. A
    row contains the rows below it, so only rows of one level may be added up. Level 0 is the total of the
    month's own charges. A correction of a closed month is a row of level 1 with that month.
    """
    levels = tree.levels[: _deepest(tree.root) + 1]
    head = (
        *levels,
        "level",
        "corrected_month",
        *AMOUNT_COLUMNS,
        "not_invoiced",
        *(("cost",) if with_cost else ()),
        "coverage",
        "currency",
        SCOPE_COLUMN,
    )
    rows = (
        [*_padded(names, len(levels)), depth, *_group_cells(group, with_cost), scope.kind]
        for names, depth, group in _rows(tree)
    )
    return complete_csv_response(f"charges-{month:%Y-%m}-by-{tree.levels[0]}.csv", head, rows, dialect)


def _deepest(level: TreeLevel) -> int:
    """Return the depth of the deepest shown level, counted from 0."""
    return max([len(level.path), *(_deepest(node.below) for node in level.nodes if node.below)])


def _rows(tree: ChargeTree) -> Iterator[tuple[tuple[str, ...], int, ChargeGroup]]:
    """Yield the names, the level and the figures of each row, in the order of the page."""
    yield from _level_rows(tree.root, ())
    yield ("total",), TOTAL_LEVEL, tree.table.total


def _level_rows(
    level: TreeLevel, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], int, ChargeGroup]]:
    for node in level.nodes:
        names = (*above, _group_name(node.group, level.dimension))
        yield names, len(names), node.group
        if node.below is not None:
            yield from _level_rows(node.below, names)
        for correction in node.corrections:
            yield names, len(names), correction


def _group_name(group: ChargeGroup, dimension: str) -> str:
    """Return the name of a row. A cost centre has its code only, so that the column can be looked up."""
    return str(group.key if dimension == "cost_centre" else group.name) or "none"


def _padded(names: tuple[str, ...], size: int) -> list[str]:
    return [*names, *[""] * (size - len(names))]


def _group_cells(group: ChargeGroup, with_cost: bool) -> list[Any]:
    parts = [group.used, group.idle, group.unmeasured, group.reserved_unused]
    parts += [group.idle_share, group.adjustment]
    cost = [group.cost] if with_cost else []
    coverage = None if group.coverage is None else Decimal(f"{group.coverage:.4f}")
    corrected = None if group.corrected_month is None else f"{group.corrected_month:%Y-%m}"
    amounts = [Decimal(f"{group.gpu_hours:.4f}"), *parts, group.charged, group.shown]
    return [corrected, *amounts, *cost, coverage, group.currency]
