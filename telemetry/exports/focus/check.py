"""Check FOCUS files with rules of our own: columns, types, nulls, allowed values, and sums."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from telemetry.exports.export_model import ExportOptions, ExportScope
from telemetry.exports.focus.columns import (
    FocusColumn,
    FocusDataset,
    FocusVersion,
    column_names,
    focus_columns,
)
from telemetry.exports.focus.files import focus_csv
from telemetry.exports.focus.focus_month import load_focus_month
from telemetry.exports.focus.rules import SUM_RULES, row_rules
from telemetry.money.statement_export import FILE_FORMAT, format_of_files

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "400MB"
RULES_PER_QUERY = 40


@dataclass(frozen=True)
class FocusFailure:
    """A broken rule, its dataset, and the number of its failures."""

    dataset: FocusDataset
    rule: str
    count: int

    def __str__(self) -> str:
        return f"{self.dataset.value}: {self.rule}: {self.count} rows"


@dataclass(frozen=True)
class FocusReport:
    """The result of a check: the number of rows per dataset, and the broken rules."""

    version: FocusVersion
    rows: Mapping[FocusDataset, int]
    failures: tuple[FocusFailure, ...]


def check_focus_month(
    month: date, scope: ExportScope, options: ExportOptions, version: FocusVersion = "1.4"
) -> FocusReport:
    """Write the FOCUS files of a month to a temporary folder and check them.

    ``scope`` must contain all charges, because sums are compared with the invoices of the month.
    """
    facts = load_focus_month(month, issuer=options.issuer, currency=options.currency)
    with tempfile.TemporaryDirectory(prefix="gpupool-focus-") as folder:
        files = {}
        for dataset in datasets_of(version):
            files[dataset] = Path(folder, f"{dataset.value}.csv")
            with files[dataset].open("wb") as file:
                file.writelines(focus_csv(dataset, month, scope, options, version))
        return check_focus(
            files,
            {each.number: each.total for each in facts.invoices},
            version,
            with_cost=scope.with_cost,
            file_format=format_of_files(facts.statement),
        )


def datasets_of(version: FocusVersion) -> tuple[FocusDataset, ...]:
    """Return the datasets that are exported in a version of FOCUS."""
    return tuple(FocusDataset) if version == "1.4" else (FocusDataset.COST_AND_USAGE,)


def check_focus(
    files: Mapping[FocusDataset, Path],
    invoices: Mapping[str, Decimal],
    version: FocusVersion = "1.4",
    *,
    with_cost: bool,
    file_format: int = FILE_FORMAT,
) -> FocusReport:
    """Check CSV files of one month against the rules of FOCUS and against the totals of its invoices.

    ``invoices`` maps the number of each invoice to its total. ``with_cost`` says that the files have the
    columns for finance, and ``file_format`` is that of the month. A file with other columns fails one rule,
    and its rows are not checked.
    """
    import duckdb  # imported here, because it is large and only exports need it

    failures: list[FocusFailure] = []
    rows: dict[FocusDataset, int] = {}
    with tempfile.TemporaryDirectory(prefix="gpupool-focus-") as folder:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": 2,
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": folder,
        }
        with duckdb.connect(str(Path(folder, "rows.db")), config=settings) as database:
            for dataset, path in files.items():
                columns = focus_columns(dataset, version, with_cost=with_cost, file_format=file_format)
                expected = column_names(columns)
                if _header(path) != expected:
                    failures.append(FocusFailure(dataset, "columns: names and order", 1))
                    continue
                rows[dataset] = load_focus_file(database, dataset, path, expected)
                failures += _broken_rows(database, dataset, version, columns)
            failures += _broken_sums(database, rows.keys(), invoices)
    return FocusReport(version, rows, tuple(failures))


def _header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def load_focus_file(
    database: duckdb.DuckDBPyConnection, dataset: FocusDataset, path: Path, columns: list[str]
) -> int:
    """Read a file into a table of texts and return its number of rows. Only an empty cell is null."""
    database.execute(
        f"CREATE TABLE {dataset.value} AS SELECT * FROM read_csv($path, header = true, columns = $columns, "
        "nullstr = '', allow_quoted_nulls = false, quote = '\"', escape = '\"', delim = ',', "
        "auto_detect = false)",
        {"path": str(path), "columns": dict.fromkeys(columns, "VARCHAR")},
    )
    found = database.execute(f"SELECT count(*) FROM {dataset.value}").fetchone()
    return int(found[0]) if found else 0


def _broken_rows(
    database: duckdb.DuckDBPyConnection,
    dataset: FocusDataset,
    version: FocusVersion,
    columns: tuple[FocusColumn, ...],
) -> list[FocusFailure]:
    """Return the failures of the rules that examine one row at a time. One query checks many rules."""
    rules = list(row_rules(dataset, version, columns))
    failures = []
    for start in range(0, len(rules), RULES_PER_QUERY):
        part = rules[start : start + RULES_PER_QUERY]
        counts = ", ".join(f"count(*) FILTER (WHERE {rule.broken})" for rule in part)
        found = database.execute(f"SELECT {counts} FROM {dataset.value}").fetchone() or ()
        failures += [
            FocusFailure(dataset, rule.id, count) for rule, count in zip(part, found, strict=True) if count
        ]
    return failures


def _broken_sums(
    database: duckdb.DuckDBPyConnection, datasets: Iterable[FocusDataset], invoices: Mapping[str, Decimal]
) -> list[FocusFailure]:
    database.execute("CREATE TABLE expected_invoices (number VARCHAR, total DECIMAL(38,6))")
    if invoices:
        database.executemany("INSERT INTO expected_invoices VALUES (?, ?)", list(invoices.items()))
    loaded, failures = set(datasets), []
    for rule in SUM_RULES:
        if rule.datasets <= loaded:
            found = database.execute(f"SELECT count(*) FROM ({rule.query})").fetchone()
            if found and found[0]:
                failures.append(FocusFailure(min(rule.datasets), rule.id, int(found[0])))
    return failures
