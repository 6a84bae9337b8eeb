"""List the kinds of FOCUS exports, for the registry of exports."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from telemetry.exports.export_model import ExportKind
from telemetry.exports.focus.columns import FocusDataset, FocusVersion
from telemetry.exports.focus.files import focus_csv, focus_parquet
from telemetry.exports.table_files import PARQUET_TYPE

FOCUS_CSV_TYPE = "text/csv; charset=utf-8; header=present"
# Each dataset with its version and the name of its kind. Only FOCUS 1.2 is in the name: 1.4 is the usual one.
_DATASETS: tuple[tuple[str, FocusDataset, FocusVersion], ...] = (
    ("focus-cost-and-usage", FocusDataset.COST_AND_USAGE, "1.4"),
    ("focus-invoice-detail", FocusDataset.INVOICE_DETAIL, "1.4"),
    ("focus-billing-period", FocusDataset.BILLING_PERIOD, "1.4"),
    ("focus-1.2-cost-and-usage", FocusDataset.COST_AND_USAGE, "1.2"),
)


def _kinds() -> Iterator[ExportKind]:
    for name, dataset, version in _DATASETS:
        whole = dataset == FocusDataset.INVOICE_DETAIL
        csv = partial(focus_csv, dataset, version=version)
        parquet = partial(focus_parquet, dataset, version=version)
        yield ExportKind(name, "csv", FOCUS_CSV_TYPE, csv, whole_only=whole)
        yield ExportKind(f"{name}-parquet", "parquet", PARQUET_TYPE, parquet, whole_only=whole)


FOCUS_KINDS = tuple(_kinds())
