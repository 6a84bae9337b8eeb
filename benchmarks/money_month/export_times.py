"""Measure the exports of a closed month, check its FOCUS files, and compare the bytes of repeated exports."""

from __future__ import annotations

import hashlib
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import IO, Any

from benchmarks.harness.focus_validator import FocusValidatorResult

XLSX_LINES = 200_000
FOCUS_KIND, FOCUS_1_2_KIND, DOCUMENTS_KIND = "focus-cost-and-usage", "focus-1.2-cost-and-usage", "pdf-zip"
VALIDATED_ROWS = 20_000  # focus-validator reads all rows into memory
# Kinds that are compared with every line of the month. All other kinds are compared with XLSX_LINES lines.
WHOLE_KINDS = ("statement", "lines", FOCUS_KIND, DOCUMENTS_KIND)

Validate = Callable[[Path], FocusValidatorResult]


@dataclass(frozen=True)
class TimedExport:
    """The time of one export in seconds, the digest of its bytes, and its number of line feeds."""

    seconds: float
    digest: str
    line_feeds: int


def time_exports(month: date, validate: Validate) -> dict[str, Any]:
    """Return the times of the exports, the failed rules of FOCUS, and whether exports are identical.

    ``validate`` runs focus-validator on a file. ``identical`` is True if a second export of each kind has the
    same bytes.
    """
    lines = _first_lines(month, XLSX_LINES)
    workbook = _export("xlsx", month, lines)
    figures = {"xlsx_lines": lines.count(), "xlsx_s": workbook.seconds}
    focus = _export(FOCUS_KIND, month)
    figures |= {"focus_rows": focus.line_feeds - 1, "focus_s": focus.seconds}
    with tempfile.TemporaryFile() as file:
        documents = _export(DOCUMENTS_KIND, month, file=file)
        figures |= {"pdf_statements": len(zipfile.ZipFile(file).namelist()), "pdf_s": documents.seconds}
    figures["focus_own_failed"] = _own(month)
    digests = {"xlsx": workbook.digest, FOCUS_KIND: focus.digest, DOCUMENTS_KIND: documents.digest}
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-") as folder, ThreadPoolExecutor(1) as runner:
        # focus-validator is a program of its own. Meanwhile, exports are made again, and not timed.
        result = runner.submit(validate, _file_to_validate(month, Path(folder)))
        is_identical = _are_identical(month, digests, lines)
        figures |= _validated(result.result())
    return {**figures, "identical": is_identical}


def _are_identical(month: date, digests: dict[str, str], workbook_lines: Any) -> bool:
    """Return True if a second export of each kind has the same bytes.

    ``digests`` has the digests of first exports by kind. A kind that is missing is exported twice.
    """
    from telemetry.exports.registry import EXPORT_KINDS

    differing = []
    for kind in EXPORT_KINDS:
        chosen = None if kind in WHOLE_KINDS else workbook_lines
        first = digests.get(kind) or _export(kind, month, chosen).digest
        if _export(kind, month, chosen).digest != first:
            differing.append(kind)
            print(f"exports: two files of kind {kind} differ")
    return not differing


def _first_lines(month: date, count: int) -> Any:
    """Return a query set of the first ``count`` charge lines of the month, ordered by id."""
    from telemetry.models import Charge

    lines = Charge.objects.filter(month=month).order_by("pk")
    last = max(lines.values_list("pk", flat=True)[:count], default=0)
    return lines.filter(pk__lte=last)


def _own(month: date) -> int:
    """Check the FOCUS files of the month with gpupool's own rules. Print and count the failures."""
    from telemetry.exports.focus.check import check_focus_month

    report = check_focus_month(month, _scope(month), _options())
    for failure in report.failures:
        print(f"FOCUS: {failure}")
    return len(report.failures)


def _file_to_validate(month: date, folder: Path) -> Path:
    """Write the first rows of the month's FOCUS 1.2 file into a folder."""
    from django.db import transaction

    with transaction.atomic():
        head = _first_rows(_parts(FOCUS_1_2_KIND, month), VALIDATED_ROWS + 1)
        transaction.set_rollback(True)  # for the export's transaction, an early end is an error: roll back
    file = folder / "focus.csv"
    file.write_bytes(head)
    return file


def _validated(result: FocusValidatorResult) -> dict[str, Any]:
    """Return the figures of focus-validator, and print its failures. Both are None if it could not run."""
    for text in (*result.failures, *filter(None, [result.reason])):
        print(f"focus-validator: {text}")
    return {"focus_validator": result.version, "focus_validator_failed": result.failed}


def _first_rows(parts: Iterable[bytes], count: int) -> bytes:
    """Return the first lines of a CSV file. No text of the benchmark contains a line feed."""
    rows: list[bytes] = []
    for part in parts:
        rows += part.splitlines(keepends=True)  # each part ends with a complete line
        if len(rows) >= count:
            break
    return b"".join(rows[:count])


def _export(kind: str, month: date, lines: Any = None, file: IO[bytes] | None = None) -> TimedExport:
    """Make an export without keeping it in memory, and write it to ``file`` if there is one."""
    digest, line_feeds = hashlib.sha256(), 0
    began = time.perf_counter()
    for part in _parts(kind, month, lines):
        digest.update(part)
        line_feeds += part.count(b"\n")
        if file is not None:
            file.write(part)
    return TimedExport(round(time.perf_counter() - began, 2), digest.hexdigest(), line_feeds)


def _parts(kind: str, month: date, lines: Any = None) -> Iterable[bytes]:
    from telemetry.exports.registry import EXPORT_KINDS

    chosen = EXPORT_KINDS[kind]
    where = {"cost_centre": _first_cost_centre(month)} if chosen.one_cost_centre else {}
    return chosen.write(month, _scope(month, lines, where), _options())


def _first_cost_centre(month: date) -> str:
    from telemetry.models import CostCentreStatement

    return CostCentreStatement.objects.filter(statement__month=month).earliest("number").cost_centre


def _scope(month: date, lines: Any = None, where: dict[str, str] | None = None) -> Any:
    from telemetry.exports.export_model import ExportScope
    from telemetry.models import Charge

    chosen = Charge.objects.all() if lines is None else lines
    return ExportScope("all", chosen, where=where or {}, with_cost=True)


def _options() -> Any:
    from portal.reads.money.exports import document_texts
    from telemetry.exports.export_model import ExportOptions

    return ExportOptions(currency="EUR", document_currency="EUR", texts=document_texts())
