"""List the kinds of exports. Pages, the API and the command line offer these kinds and no others."""

from __future__ import annotations

from telemetry.exports.csv_files import charge_lines_file, statement_file
from telemetry.exports.documents.month_documents import all_documents, one_document
from telemetry.exports.export_model import ExportKind
from telemetry.exports.focus.kinds import FOCUS_KINDS
from telemetry.exports.table_files import CSV_TYPE
from telemetry.exports.workbook import workbook_file

XLSX_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_KINDS = (
    ExportKind("statement", "csv", CSV_TYPE, statement_file, has_dialect=True),
    ExportKind("lines", "csv", CSV_TYPE, charge_lines_file, has_dialect=True),
    ExportKind("xlsx", "xlsx", XLSX_TYPE, workbook_file),
    ExportKind("pdf", "pdf", "application/pdf", one_document, whole_only=True, one_cost_centre=True),
    ExportKind("pdf-zip", "zip", "application/zip", all_documents, whole_only=True),
    *FOCUS_KINDS,
)
EXPORT_KINDS: dict[str, ExportKind] = {kind.name: kind for kind in _KINDS}
