"""Render the tree of charges: the whole table, the rows below one row, and the file of the open rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

from django.http import HttpRequest, HttpResponseBase, QueryDict
from django.shortcuts import render
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.reads.money.charge_scope import ChargeScope, charge_scope
from portal.reads.money.charge_search import MAX_FOUND, find_paths
from portal.reads.money.charge_tree import (
    TreeQuery,
    UnknownPathError,
    budget_uses,
    charge_level,
    charge_tree,
    corrected_statements,
    tree_scale,
)
from portal.web.money.charges.addresses import lines_url, requested_filters
from portal.web.money.charges.tree_address import (
    TREE_PARAMETERS,
    TreeAddress,
    grouping_choices,
    invalid_path,
    path_text,
    tree_address,
)
from portal.web.money.charges.tree_csv import charge_tree_csv
from portal.web.money.charges.tree_rows import TreeLinks, finding, has_part, headings, level_rows
from portal.web.money.filter_query import filter_query
from portal.web.money.months import month_or_404
from portal.web.page.access import current_user, sign_in_required
from portal.wording.pages.money import charge_tree_texts
from telemetry.core.billing_calendar import previous_month
from telemetry.core.csv_text import CsvDialect
from telemetry.money.closing.statement_months import StatementMonths

PARAMETERS = ("month", *TREE_PARAMETERS)


def tree_context(
    user: User,
    month: date,
    where: Mapping[str, Any],
    address: TreeAddress,
    budgets: Sequence[Mapping[str, Any]],
    now: datetime,
    months: StatementMonths,
) -> dict[str, Any]:
    """Return the context of the table. Raises InvalidAddress.

    ``budgets`` are the rows of ``budget_rows``, and ``months`` the statements of all months.
    """
    query, found = _tree_query(user, month, where, address)
    address = replace(address, opened=dict(query.opened))
    try:
        tree = charge_tree(user, month, query, budget_uses(month, budgets), now, months)
    except UnknownPathError as error:
        raise invalid_path(path_text(error.path)) from error
    numbers = corrected_statements(user, tree.table) if address.by == "cost_centre" else {}
    links = TreeLinks(month, where, address, numbers)
    main, rest = finding(tree)
    return {
        "tree": tree,
        "table": tree.table,
        "headings": headings(
            links,
            has_idle_share=has_part(tree.table, "idle_share"),
            has_adjustment=has_part(tree.table, "adjustment"),
        ),
        "has_idle_share": has_part(tree.table, "idle_share"),
        "has_adjustment": has_part(tree.table, "adjustment"),
        "rows": list(level_rows(links, tree.root, tree_scale(tree.table))),
        "total_since": tree.since,
        "total_lines": lines_url(month, where),
        "finding": main,
        "finding_rest": rest,
        "search": address.search,
        "found_text": charge_tree_texts.found_rows(found, MAX_FOUND, address.search)
        if address.search
        else "",
        "search_fields": _search_fields(month, where, address),
        "clear_url": f"?{filter_query(month, where, by=address.by)}",
        "since_days": charge_tree_texts.since_days(
            previous_month(month), tree.days, is_compared=tree.since is not None
        ),
        "parts_add_up": charge_tree_texts.PARTS_ADD_UP,
        "budget_column": charge_tree_texts.BUDGET_COLUMN,
        "groupings": [
            {"label": label, "url": f"?{filter_query(month, where, by=name)}", "current": name == address.by}
            for name, label in grouping_choices()
        ],
    }


@sign_in_required
def charge_tree_rows(request: HttpRequest) -> HttpResponseBase:
    """Render the rows below the row ``?open=``, without the page around them. Raises InvalidAddress."""
    user, now = current_user(request), timezone.now()
    month = month_or_404(request.GET.get("month"), now)
    if charge_scope(user).kind == "none":
        policy.require(user, "charges.see_all")
    where = requested_filters(request, user, month, PARAMETERS)
    address = tree_address(request, where)
    if not address.levels:  # the filters reach a workload, which has only charge lines
        raise invalid_path("")
    path = max(address.opened, key=len)
    query = TreeQuery(
        levels=address.levels,
        where=where,
        opened={path: address.opened[path]},
        sort=address.sort.removeprefix("-"),
        descending=address.sort.startswith("-"),
    )
    budgets = budget_uses(month, reads.budget_rows(user, month, now))
    try:
        level, root = charge_level(user, month, query, path, budgets, now)
    except UnknownPathError as error:
        raise invalid_path(path_text(error.path)) from error
    context = {
        "rows": list(level_rows(TreeLinks(month, where, address), level, tree_scale(root))),
        "has_idle_share": has_part(root, "idle_share"),
        "has_adjustment": has_part(root, "adjustment"),
        "currency": root.currency,
    }
    return render(request, "manage/charge_tree_rows.html", context)


def _tree_query(
    user: User, month: date, where: Mapping[str, Any], address: TreeAddress
) -> tuple[TreeQuery, int]:
    """Return the rows that the address asks for, and how many rows its search found."""
    query = TreeQuery(
        levels=address.levels,
        where=where,
        opened=address.opened,
        sort=address.sort.removeprefix("-"),
        descending=address.sort.startswith("-"),
    )
    if not address.search:
        return query, 0
    found = frozenset(find_paths(user, month, address.levels, where, address.search))
    above = {path[:size]: 0 for path in found for size in range(len(path))}
    whole = frozenset(path for path in address.opened if path)
    return replace(
        query, opened={**above, **address.opened}, found=found, whole=whole - above.keys(), is_search=True
    ), len(found)


def tree_file(
    user: User,
    month: date,
    where: Mapping[str, Any],
    address: TreeAddress,
    scope: ChargeScope,
    dialect: CsvDialect,
    now: datetime,
) -> HttpResponseBase:
    """Return the rows that are open in the address as CSV, each level with all its rows.

    Raises InvalidAddress.
    """
    query, _ = _tree_query(user, month, where, address)
    budgets = budget_uses(month, reads.budget_rows(user, month, now)) if "budget" in address.sort else {}
    try:
        tree = charge_tree(user, month, replace(query, whole_levels=True), budgets, now)
    except UnknownPathError as error:
        raise invalid_path(path_text(error.path)) from error
    return charge_tree_csv(tree, month, scope, policy.sees_cost_of_charges(user), dialect)


def _search_fields(month: date, where: Mapping[str, Any], address: TreeAddress) -> list[tuple[str, str]]:
    """Return the hidden fields of the search form: name and value."""
    query = QueryDict(filter_query(month, where, by=address.by, sort=address.sort))
    return [(name, query[name]) for name in query]
