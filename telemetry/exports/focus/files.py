"""Write the FOCUS files of a month: CSV as a stream, and Parquet from a temporary CSV file.

A file of a closed month has the same bytes each time. Parquet files also depend on the version of DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, date, datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import Max, Min

from telemetry.exports.export_model import ExportOptions, ExportScope
from telemetry.exports.export_rows import adjustment_filters
from telemetry.exports.focus.columns import (
    PARQUET_TYPES,
    FocusColumn,
    FocusDataset,
    FocusVersion,
    column_names,
    focus_columns,
)
from telemetry.exports.focus.focus_month import FocusMonth, load_focus_month, reference_numbers
from telemetry.exports.focus.queries import (
    INVOICED_BUCKETS,
    OWNED_BUCKETS,
    billing_period_sql,
    charges_sql,
    invoice_detail_sql,
    other_charges_sql,
)
from telemetry.exports.focus.row_values import FocusSource
from telemetry.exports.table_files import copied_rows, parquet_file
from telemetry.models import Adjustment, AdjustmentState, Charge, Statement, StatementLine
from telemetry.money.statement_export import format_of_files
from telemetry.reads.chargeback import CELL_DIMENSIONS, charge_lines, sums_condition

IDS_PER_QUERY = 50_000  # charge lines that one query formats and sorts
# Every join is one of equal keys. With a nested loop, a wrong estimate would read all statement lines for
# each charge line. The memory is enough to sort the rows of one query.
PLANNER_SETTINGS = {"enable_nestloop": "off", "work_mem": "64MB"}


def focus_csv(
    dataset: FocusDataset,
    month: date,
    scope: ExportScope,
    options: ExportOptions,
    version: FocusVersion = "1.4",
) -> Iterator[bytes]:
    """Yield the CSV file of a dataset: a header and one line per row. Null is an empty cell.

    Only ``CostAndUsage`` exists in version 1.2. ``InvoiceDetail`` needs a scope with all charges.
    """
    columns = _columns(dataset, month, scope, version)
    yield f"{','.join(column_names(columns))}\n".encode()
    yield from _rows(dataset, columns, month, scope, options, for_spreadsheet=True)


def focus_parquet(
    dataset: FocusDataset,
    month: date,
    scope: ExportScope,
    options: ExportOptions,
    version: FocusVersion = "1.4",
) -> Iterator[bytes]:
    """Yield the Parquet file of a dataset, with its rows in the order of the CSV file."""
    columns = _columns(dataset, month, scope, version)
    rows = _rows(dataset, columns, month, scope, options, for_spreadsheet=False)
    yield from parquet_file(rows, {column.name: PARQUET_TYPES[column.type] for column in columns})


def _columns(
    dataset: FocusDataset, month: date, scope: ExportScope, version: FocusVersion
) -> tuple[FocusColumn, ...]:
    """Return the columns of a file. A closed month has those of the format that its close has set."""
    statement = Statement.objects.filter(month=month).first()
    return focus_columns(dataset, version, with_cost=scope.with_cost, file_format=format_of_files(statement))


def _rows(
    dataset: FocusDataset,
    columns: tuple[FocusColumn, ...],
    month: date,
    scope: ExportScope,
    options: ExportOptions,
    *,
    for_spreadsheet: bool,
) -> Iterator[bytes]:
    """Yield the rows of a dataset as CSV, in parts."""
    with _one_snapshot():
        facts = load_focus_month(month, issuer=options.issuer, currency=options.currency)
        source = FocusSource(facts.is_closed, for_spreadsheet)
        values = _parameters(facts, scope)
        if dataset == FocusDataset.BILLING_PERIOD:
            yield from copied_rows(billing_period_sql(columns), values)
        elif dataset == FocusDataset.INVOICE_DETAIL:
            if not scope.is_whole:
                raise ValueError("scope: InvoiceDetail has all charges of its invoices; allowed: all")
            yield from copied_rows(invoice_detail_sql(columns, source), values)
        else:
            visible = _visible_charges(facts, scope)
            for low, high in _id_ranges(month):
                query = charges_sql(columns, source, visible)
                yield from copied_rows(query, values | {"low": low, "high": high})
            yield from copied_rows(other_charges_sql(columns, source), values)


@contextmanager
def _one_snapshot() -> Iterator[None]:
    """Read everything as of one moment, unless a transaction is under way already.

    In the transaction, PostgreSQL plans with PLANNER_SETTINGS.
    """
    inside = connection.in_atomic_block
    block: AbstractContextManager[Any] = nullcontext() if inside else transaction.atomic()
    with block:
        with connection.cursor() as cursor:
            if not inside:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            for name, value in PLANNER_SETTINGS.items():
                cursor.execute(f"SET LOCAL {name} = '{value}'")
        yield
        if inside:
            with connection.cursor() as cursor:
                for name in PLANNER_SETTINGS:
                    cursor.execute(f"SET LOCAL {name} TO DEFAULT")


def _id_ranges(month: date) -> Iterator[tuple[int, int]]:
    """Yield ranges ``[low, high)`` of ids that together contain every charge line of a month, in order."""
    ids = Charge.objects.filter(month=month).aggregate(first=Min("pk"), last=Max("pk"))
    if ids["first"] is not None:
        for low in range(ids["first"], ids["last"] + 1, IDS_PER_QUERY):
            yield low, low + IDS_PER_QUERY


def _visible_charges(facts: FocusMonth, scope: ExportScope) -> str:
    """Return the SQL that selects the ids of the charge lines of an export; empty means all lines."""
    if scope.is_whole:
        return ""
    ids = charge_lines(facts.month, scope.lines, **scope.where).order_by().values("pk")
    sql, values = ids.query.sql_with_params()
    with connection.cursor() as cursor:
        # The text becomes part of a query with parameters, which must not see its percent signs.
        return str(cursor.mogrify(sql, values)).replace("%", "%%")


def _idle_lines(facts: FocusMonth, scope: ExportScope) -> list[int]:
    """Return the ids of the statement lines of shared idle time that an export contains."""
    lines = StatementLine.objects.filter(statement=facts.statement, idle_share=True)
    if CELL_DIMENSIONS & set(scope.where):
        return []  # a row of shared idle time has no person, workload or day
    if scope.cells is not None:
        lines = lines.filter(pk__in=scope.cells.filter(statement=facts.statement).values("line"))
    return sorted(lines.filter(sums_condition(scope.where, from_cells=False)).values_list("pk", flat=True))


def _adjustments(facts: FocusMonth, scope: ExportScope) -> list[int]:
    """Return the ids of the approved adjustments that an export contains."""
    rows = Adjustment.objects.filter(statement=facts.statement, state=AdjustmentState.APPROVED)
    return sorted(rows.filter(**adjustment_filters(scope)).values_list("pk", flat=True))


def _parameters(facts: FocusMonth, scope: ExportScope) -> dict[str, Any]:
    """Return the parameters of all queries."""
    state = ("Closed", "Issued") if facts.is_closed else ("Open", "Open")
    return {
        "month": facts.month,
        "statement": facts.statement.pk if facts.statement else None,
        "start": facts.start,
        "end": facts.end,
        "period_start": _time_text(facts.start),
        "period_end": _time_text(facts.end),
        "period_status": state[0],
        "issue_status": state[1],
        "issued_at": _time_text(facts.updated_at) if facts.is_closed else None,
        "updated_at": _time_text(facts.updated_at),
        "issuer": facts.issuer,
        "currency": facts.currency,
        "scope": scope.kind,
        "buckets": list(OWNED_BUCKETS),
        **_lookup_tables(facts),
        "invoiced": list(INVOICED_BUCKETS),
        "idle_lines": _idle_lines(facts, scope),
        "adjustments": _adjustments(facts, scope),
        "with_rounding": scope.is_whole,
    }


def _lookup_tables(facts: FocusMonth) -> dict[str, list[Any]]:
    """Return the columns of the small tables that the queries join: invoices and corrected months."""
    names = ("numbers", "cost_centres", "currencies", "names", "roundings", "orders", "due_at", "terms")
    invoices = (
        (
            each.number,
            each.cost_centre,
            each.currency,
            each.name,
            each.rounding,
            each.purchase_order,
            each.due_at,
            each.payment_terms,
        )
        for each in facts.invoices
    )
    months = ((month, *bounds) for month, bounds in facts.corrected.items())
    references = reference_numbers(facts.corrected) if facts.is_closed else {}
    former = ((*key, number) for key, number in sorted(references.items()))
    return {
        **_by_column(names, invoices),
        **_by_column(("months", "firsts", "lasts"), months),
        **_by_column(("old_months", "old_cost_centres", "old_currencies", "old_numbers"), former),
    }


def _by_column(names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> dict[str, list[Any]]:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def _time_text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
