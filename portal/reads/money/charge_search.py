"""Search the rows of the tree of charges by code, name, person and workload."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from django.db.models import F, QuerySet, Sum

from portal import policy
from portal.models import User
from telemetry.models import ChargeCell, StatementLine
from telemetry.reads.chargeback import CELL_DIMENSIONS, charged_lines, group_names, sum_column, sums_condition

MAX_FOUND = 50
# Columns of cells with the names of the levels that statement lines do not have.
CELL_NAMES = {"user": "user_name", "workload": "workload_name"}

Path = tuple[Any, ...]


def find_paths(
    viewer: User, month: date, levels: tuple[str, ...], where: Mapping[str, Any], text: str
) -> list[Path]:
    """Return the paths of the visible rows whose name contains ``text``, highest charge first.

    At most MAX_FOUND paths are returned. The name of a cost centre begins with its code. Upper and lower case
    do not matter. The number of queries depends on the number of levels only.
    """
    cells = policy.visible_cells(viewer)
    above = tuple(name for name in levels if name not in CELL_DIMENSIONS)
    found = [
        *_found_above(month, levels[: len(above)], cells, where, text),
        *_found_in_cells(month, levels, cells, where, text),
    ]
    ranked = sorted(found, key=lambda pair: (-pair[1], str(pair[0])))
    return [path for path, _ in ranked[:MAX_FOUND]]


def _found_above(
    month: date,
    levels: tuple[str, ...],
    cells: QuerySet[ChargeCell] | None,
    where: Mapping[str, Any],
    text: str,
) -> list[tuple[Path, Any]]:
    """Return the found paths of the levels that statement lines have, with their charges."""
    if not levels:
        return []
    rows = _sums(month, levels, cells, where)
    charged: dict[Path, Any] = {}
    for *path, amount in rows:
        for size in range(1, len(levels) + 1):
            charged[tuple(path[:size])] = charged.get(tuple(path[:size]), 0) + amount
    names = {
        depth: group_names(name, {path[depth] for path in charged if len(path) > depth}, month)
        for depth, name in enumerate(levels)
    }
    wanted = text.casefold()
    return [
        (path, amount)
        for path, amount in charged.items()
        if wanted in names[len(path) - 1].get(path[-1], "").casefold()
    ]


def _found_in_cells(
    month: date,
    levels: tuple[str, ...],
    cells: QuerySet[ChargeCell] | None,
    where: Mapping[str, Any],
    text: str,
) -> list[tuple[Path, Any]]:
    """Return the found paths of persons and workloads, with their charges."""
    found: list[tuple[Path, Any]] = []
    visible = ChargeCell.objects.all() if cells is None else cells
    for depth, name in enumerate(levels):
        if name in CELL_NAMES:
            matching = visible.filter(**{f"{CELL_NAMES[name]}__icontains": text})
            rows = _sums(month, levels[: depth + 1], matching, where)[:MAX_FOUND]
            found.extend((tuple(path), amount) for *path, amount in rows)
    return found


def _sums(
    month: date,
    levels: tuple[str, ...],
    cells: QuerySet[ChargeCell] | None,
    where: Mapping[str, Any],
) -> Any:
    """Return a query with rows of the keys of the levels and the charge, highest charge first."""
    from_cells = cells is not None or bool(CELL_DIMENSIONS & {*levels, *where})
    line = "line__" if from_cells else ""
    found: QuerySet[Any] = StatementLine.objects.all()
    if from_cells:
        found = ChargeCell.objects.all() if cells is None else cells
    found = found.filter(
        charged_lines(line),
        sums_condition(where, from_cells=from_cells),
        **{"statement__month": month, f"{line}shared_out": False, f"{line}corrected_month": None},
    )
    keys = {f"key_{at}": F(sum_column(name, from_cells=from_cells)) for at, name in enumerate(levels)}
    return (
        found.order_by()
        .values(**keys)
        .annotate(charged_sum=Sum("charged_cents"))
        .order_by("-charged_sum", *keys)
        .values_list(*keys, "charged_sum")
    )
