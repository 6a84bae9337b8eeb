"""Measure the exports of a closed month, and compare the bytes of two exports."""

from __future__ import annotations

import hashlib
import importlib
import time
import zipfile
from collections.abc import Iterable
from datetime import date
from io import BytesIO
from typing import Any

NOT_BUILT = "not built"
XLSX_LINES = 200_000
FOCUS_KIND, DOCUMENTS_KIND = "focus-cost-and-usage", "pdf-zip"


def time_exports(month: date) -> dict[str, Any]:
    """Return the times of the exports. ``identical`` is True if repeated exports have the same bytes.

    A figure is ``not built`` if no such kind of export is registered.
    """
    figures: dict[str, Any] = {}
    figures |= _xlsx(month) | _focus(month) | _documents(month)
    return {**figures, "identical": _are_identical(month)}


def _xlsx(month: date) -> dict[str, Any]:
    """Measure a workbook with the first charge lines of the month."""
    from telemetry.models import Charge

    lines = Charge.objects.filter(month=month).order_by("pk")
    last = max(lines.values_list("pk", flat=True)[:XLSX_LINES], default=0)
    chosen = lines.filter(pk__lte=last)
    seconds, _ = _export("xlsx", month, chosen)
    return {"xlsx_lines": chosen.count(), "xlsx_s": seconds}


def _focus(month: date) -> dict[str, Any]:
    from telemetry.exports.registry import EXPORT_KINDS

    if FOCUS_KIND not in EXPORT_KINDS:
        names = ("focus_rows", "focus_s", "focus_own_failed", "focus_validator", "focus_validator_failed")
        return dict.fromkeys(names, NOT_BUILT)
    rules = importlib.import_module("telemetry.exports.focus.check")
    seconds, content = _export(FOCUS_KIND, month)
    report = rules.check_focus_month(month, _scope(month), _options())
    for failure in report.failures:
        print(f"FOCUS: {failure}")
    return {
        "focus_rows": content.count(b"\n") - 1,
        "focus_s": seconds,
        "focus_own_failed": len(report.failures),
        "focus_validator": None,
        "focus_validator_failed": None,
    }


def _documents(month: date) -> dict[str, Any]:
    from telemetry.exports.registry import EXPORT_KINDS

    if DOCUMENTS_KIND not in EXPORT_KINDS:
        return dict.fromkeys(("pdf_statements", "pdf_s"), NOT_BUILT)
    seconds, content = _export(DOCUMENTS_KIND, month)
    return {"pdf_statements": len(zipfile.ZipFile(BytesIO(content)).namelist()), "pdf_s": seconds}


def _are_identical(month: date) -> bool:
    """Export each kind of small file twice. Return True if both exports always have the same digest."""
    kinds = ("statement", "lines")
    return all(_digest(kind, month) == _digest(kind, month) for kind in kinds)


def _digest(kind: str, month: date) -> str:
    digest = hashlib.sha256()
    for part in _parts(kind, month):
        digest.update(part)
    return digest.hexdigest()


def _export(kind: str, month: date, lines: Any = None) -> tuple[float, bytes]:
    began = time.perf_counter()
    content = b"".join(_parts(kind, month, lines))
    return round(time.perf_counter() - began, 2), content


def _parts(kind: str, month: date, lines: Any = None) -> Iterable[bytes]:
    from telemetry.exports.registry import EXPORT_KINDS

    return EXPORT_KINDS[kind].write(month, _scope(month, lines), _options())


def _scope(month: date, lines: Any = None) -> Any:
    from telemetry.exports.export_model import ExportScope
    from telemetry.models import Charge

    return ExportScope("all", Charge.objects.all() if lines is None else lines, with_cost=True)


def _options() -> Any:
    from portal.reads.money.exports import document_texts
    from telemetry.exports.export_model import ExportOptions

    return ExportOptions(currency="EUR", texts=document_texts())
