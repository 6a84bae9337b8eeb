"""Turn the tree of charges into the rows, headings and links of its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import Any

from django.http import QueryDict
from django.urls import reverse

from portal.reads.money.charge_tree import ROWS_PER_LEVEL, ChargeTree, TreeLevel, TreeNode
from portal.web.components.quantities import measured
from portal.web.money.charges.addresses import DIMENSION_LABELS
from portal.web.money.charges.tree_address import DEFAULT_SORT, TreeAddress, path_text
from portal.web.money.filter_query import filter_query
from portal.wording.pages.money import charge_tree_texts, money_pages
from telemetry.core.billing_calendar import previous_month
from telemetry.reads.chargeback import ChargeGroup, ChargeTable

USED, NOT_TAKEN = "used", "reserved_unused"
OWN_USE = {"corrected_month": None}
# Dimensions whose rows are marked as new if nothing was charged in the month before.
MARKED_AS_NEW = frozenset({"cost_centre", "team", "project"})


@dataclass(frozen=True)
class TreeLinks:
    """Makes the addresses of one table: its month, its filters and the state of the tree."""

    month: date
    where: Mapping[str, Any]
    address: TreeAddress
    # numbers of the statements of corrected months
    statements: Mapping[tuple[Any, date], str] = field(default_factory=dict)

    def page(self, opened: Mapping[tuple[Any, ...], int] | None = None, sort: str = "") -> str:
        """Return the address of the page with other open rows or another order."""
        query = self._query(sort or self.address.sort)
        if self.address.search:
            query["q"] = self.address.search
        wanted = self.address.opened if opened is None else opened
        texts = [path_text(path, skipped) for path, skipped in wanted.items() if path or skipped]
        query.setlist("open", texts)
        return f"?{query.urlencode(safe='/,')}"

    def rows(self, path: tuple[Any, ...], skipped: int = 0) -> str:
        """Return the address of the rows below a path, without the page around them."""
        query = self._query(self.address.sort)
        query["open"] = path_text(path, skipped)
        return f"{self._rows_page}?{query.urlencode(safe='/,')}"

    def lines(self, path: tuple[Any, ...], **other: Any) -> str:
        """Return the address of the charge lines of a row.

        They are those of the month's own use, unless ``other`` has a corrected month.
        """
        keys = dict(zip(self.address.levels, path, strict=False))
        return f"{self._lines_page}?{filter_query(self.month, {**OWN_USE, **self.where, **keys, **other})}"

    def toggled(self, path: tuple[Any, ...]) -> str:
        """Return the address of the page on which a row is open instead of closed, or the reverse."""
        opened = dict(self.address.opened)
        if path in opened:
            opened = {each: skip for each, skip in opened.items() if each[: len(path)] != path}
        else:
            opened[path] = 0
        return self.page(opened)

    def skipping(self, path: tuple[Any, ...], skipped: int) -> str:
        """Return the address of the page that shows other rows below a path."""
        return self.page({**self.address.opened, path: skipped})

    @cached_property
    def _lines_page(self) -> str:
        return reverse("charge-lines")

    @cached_property
    def _rows_page(self) -> str:
        return reverse("charge-tree-rows")

    def _query(self, sort: str) -> QueryDict:
        query = QueryDict(filter_query(self.month, self.where), mutable=True)
        query["by"] = self.address.by
        if sort != DEFAULT_SORT:
            query["sort"] = sort
        return query


def has_part(table: ChargeTable, part: str) -> bool:
    """Return True if a row of a table has the part ``idle_share`` or ``adjustment`` of the charge.

    The rows decide, because the amounts of several rows may cancel each other in the total.
    """
    return any(getattr(group, part) for group in table.groups)


def headings(links: TreeLinks, *, has_idle_share: bool, has_adjustment: bool) -> list[dict[str, Any]]:
    """Return the headings of the table, each with the link that sorts by its column."""
    address = links.address
    first = charge_tree_texts.first_column(DIMENSION_LABELS[address.by], len(address.levels))
    labels = {"name": first, **charge_tree_texts.COLUMN_LABELS}
    labels["since"] = charge_tree_texts.since_heading(previous_month(links.month))
    columns = ["name", "gpu_hours", "used", "idle", "unmeasured", "reserved_unused"]
    columns += ["idle_share"] if has_idle_share else []
    columns += ["adjustment"] if has_adjustment else []
    columns += ["charged", "since", "budget"]
    found = []
    for name in columns:
        order = {name: "ascending", f"-{name}": "descending"}.get(address.sort, "")
        down = order != "descending" if name != "name" else order == "ascending"
        url = links.page(sort=f"-{name}" if down else name)
        found.append({"name": name, "label": labels[name], "url": url, "order": order})
    return found


def level_rows(links: TreeLinks, level: TreeLevel, scale: Decimal) -> Iterator[dict[str, Any]]:
    """Yield the rows of a level in the order of the table: groups with the rows below them, and the pager."""
    for node in level.nodes:
        yield _group_row(links, level, node, scale)
        if node.below is not None:
            yield from level_rows(links, node.below, scale)
        for correction in node.corrections:
            yield _correction_row(links, node, correction)
    if level.count > ROWS_PER_LEVEL:
        yield _pager_row(links, level)


def _group_row(links: TreeLinks, level: TreeLevel, node: TreeNode, scale: Decimal) -> dict[str, Any]:
    path, group = node.path, node.group
    can_open = len(path) < len(links.address.levels)
    code = str(group.key) if level.dimension == "cost_centre" and group.key else ""
    return {
        "kind": "group",
        "depth": len(path) - 1,
        "path": path_text(path),
        "node": node,
        "group": group,
        "code": code,
        "name": group.name.removeprefix(code).strip() if code else node_name(level.dimension, group),
        "is_open": node.below is not None,
        "toggle": links.toggled(path) if can_open else "",
        "rows_url": links.rows(path) if can_open else "",
        "lines": links.lines(path),
        "used_lines": links.lines(path, bucket=USED),
        "not_taken_lines": links.lines(path, bucket=NOT_TAKEN),
        "share": group.charged / scale if scale > 0 else 0,
        "is_new": node.is_new and level.dimension in MARKED_AS_NEW,
    }


def node_name(dimension: str, group: ChargeGroup) -> str:
    """Return the name of a row. A row without a key says why it has none."""
    if group.key not in (None, ""):
        return group.name or str(group.key)
    if dimension == "project":
        if group.adjustment and group.adjustment == group.charged:
            return charge_tree_texts.ADJUSTMENTS_ONLY
        only_shared = group.idle_share and not group.reserved_unused
        return charge_tree_texts.SHARE_OF_IDLE if only_shared else money_pages.DEDICATED_UNUSED
    return charge_tree_texts.NO_KEY.get(dimension, money_pages.DEDICATED_UNUSED)


def _correction_row(links: TreeLinks, node: TreeNode, correction: ChargeGroup) -> dict[str, Any]:
    assert correction.corrected_month is not None
    number = links.statements.get((correction.key, correction.corrected_month), "")
    return {
        "number": number,
        "statement": reverse("cost-centre-statement", args=[number]) if number else "",
        "kind": "correction",
        "depth": len(node.path) - 1,
        "group": correction,
        "name": charge_tree_texts.correction_name(correction.corrected_month),
        "lines": links.lines(node.path, corrected_month=correction.corrected_month),
    }


def _pager_row(links: TreeLinks, level: TreeLevel) -> dict[str, Any]:
    """Return the row with the links to the other rows of a long level."""
    before, after = level.skipped - ROWS_PER_LEVEL, level.skipped + ROWS_PER_LEVEL
    has_before, has_after = level.skipped > 0, level.last < level.count
    return {
        "kind": "pager",
        "depth": len(level.path),
        "path": path_text(level.path),
        "text": charge_tree_texts.level_page(level.skipped + 1, level.last, level.count),
        "previous": links.skipping(level.path, max(0, before)) if has_before else "",
        "previous_rows": links.rows(level.path, max(0, before)) if has_before else "",
        "next": links.skipping(level.path, after) if has_after else "",
        "next_rows": links.rows(level.path, after) if has_after else "",
    }


def finding(tree: ChargeTree) -> tuple[str, str]:
    """Return the finding above the table: its main part and the rest."""
    groups, dimension = tree.table.groups, tree.levels[0]
    over = [node for node in tree.root.nodes if node.budget is not None and node.budget.is_over]
    over.sort(key=_over_share, reverse=True)
    figures = [
        (
            _short_name(dimension, node.group),
            measured(use.forecast or use.spent, use.unit),
            measured(use.amount, use.unit),
        )
        for node in over
        if (use := node.budget) is not None
    ]
    names = [_short_name(dimension, group) for group in groups]
    return charge_tree_texts.finding(names, [group.charged for group in groups], figures)


def _over_share(node: TreeNode) -> float:
    use = node.budget
    return 0.0 if use is None else max(use.spent_share, use.forecast_share or 0.0)


def _short_name(dimension: str, group: ChargeGroup) -> str:
    return str(group.key) if dimension == "cost_centre" and group.key else node_name(dimension, group)
