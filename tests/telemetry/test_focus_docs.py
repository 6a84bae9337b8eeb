"""Test the kinds, the columns and the example in docs/focus.md.

GPUPOOL_WRITE_DOCS=1 rewrites the columns and the example.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import pytest

from telemetry.exports.focus.columns import FocusColumn, FocusDataset, focus_columns
from telemetry.exports.registry import EXPORT_KINDS
from telemetry.money.charges import charge_all_gpus
from tests.architecture.sources import ROOT
from tests.telemetry.rows import at, hold, price, workload
from tests.telemetry.test_focus import close, read
from tests.telemetry.test_statements import AFTER
from tests.world import H100, World, units_of

DOCUMENT = ROOT / "docs" / "focus.md"
MARK = "computed by tests/telemetry/test_focus_docs.py"


def compare(name: str, lines: Sequence[str]) -> None:
    """Compare a block of the page with ``lines``; rewrite the block if GPUPOOL_WRITE_DOCS is set."""
    text = DOCUMENT.read_text()
    pattern = re.compile(rf"(<!-- {name}: {re.escape(MARK)} -->\n)(.*?)(<!-- /{name} -->)", re.DOTALL)
    found = pattern.search(text)
    assert found is not None, f"docs/focus.md has no block {name}"
    written = "".join(f"{line}\n" for line in lines)
    if os.environ.get("GPUPOOL_WRITE_DOCS"):
        DOCUMENT.write_text(pattern.sub(lambda match: match[1] + written + match[3], text))
        return
    assert found[2] == written


def column_line(column: FocusColumn) -> str:
    null = "yes" if column.nullable else "no"
    only = "" if len(column.versions) > 1 else f" (only FOCUS {column.versions[0]})"
    finance = " (finance and auditors)" if column.finance_only else ""
    return f"| `{column.name}` | {column.type.value} | {null} | {column.meaning}{only}{finance} |"


@pytest.mark.parametrize("dataset", list(FocusDataset))
def test_the_page_lists_the_columns_of_each_dataset(dataset: FocusDataset) -> None:
    columns = {
        column.name: column
        for version in ("1.4", "1.2")
        for column in focus_columns(dataset, version, with_cost=True)  # type: ignore[arg-type]
    }
    ordered = sorted(columns.values(), key=lambda column: (column.name.startswith("x_"), column.name))
    head = ["| column | type | null | value |", "|---|---|---|---|"]
    compare(dataset.value, [*head, *map(column_line, ordered)])


def test_the_page_lists_the_kinds() -> None:
    listed = set(re.findall(r"^\| `(focus-[a-z0-9.-]+)`", DOCUMENT.read_text(), re.MULTILINE))
    kinds = {kind for kind in EXPORT_KINDS if kind.startswith("focus-")}
    assert kinds == listed | {f"{kind}-parquet" for kind in listed}


@pytest.mark.django_db
def test_the_example_of_the_page_is_the_output_of_the_code(rates: World) -> None:
    price(H100, "2.10", "2.999999", since=at(0, day=1, minute=1))
    unit = units_of(rates.hosts["alpha"])[0]
    hold(workload(rates, rates.vision), unit, at(9), at(9, 20), end_code="finished")
    hold(workload(rates, rates.language), unit, at(9, 20), at(10), end_code="finished")
    charge_all_gpus(AFTER)
    close(rates)
    names = ("InvoiceId", "x_Bucket", "ChargeCategory", "BilledCost")
    rows = [row for row in read() if row["BillingAccountId"] in ("CC-100", "CC-200")]
    head = [f"| {' | '.join(names)} |", "|---|---|---|---|"]
    compare("example", [*head, *(f"| {' | '.join(row[name] for name in names)} |" for row in rows)])
