"""Prepare the export that a request asks for: check its kind, its options and the viewer's rights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from portal import policy
from portal.input_checks import InputChecks
from portal.models import Organisation, User
from portal.reads.money.charge_scope import charge_scope
from portal.wording.pages import export_texts
from portal.wording.pages.correction_texts import cause_sentence
from telemetry.core.csv_text import CsvDialect
from telemetry.exports.export_model import PROVISIONAL, ExportKind, ExportOptions, ExportScope, month_state
from telemetry.exports.registry import EXPORT_KINDS

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}
DECIMAL_SIGNS = {"point": ".", "comma": ","}
EXPORT_OPTIONS = ("kind", "separator", "decimal")  # parameters of a request that are no filters


@dataclass(frozen=True)
class ExportDownload:
    """A file that is made while it is sent."""

    name: str
    content_type: str
    parts: Iterator[bytes]


def export_download(
    viewer: User, month: date, where: Mapping[str, Any], given: Mapping[str, str]
) -> ExportDownload:
    """Return the export of a month that ``given`` asks for. ``where`` are the checked filters.

    Raises Invalid for an unknown kind or option, and for filters that the kind does not have. Raises
    NotAllowed if the viewer may see no charges, or not all charges of a kind that contains all.
    """
    kind, dialect = _checked_kind(given, where), _checked_dialect(given)
    scope = charge_scope(viewer)
    if kind.whole_only or scope.kind == "none":
        policy.require(viewer, "charges.see_all")
    organisation = Organisation.objects.first() or Organisation()
    whose = ExportScope(
        kind=scope.kind,
        lines=policy.visible_charges(viewer),
        cells=policy.visible_cells(viewer),
        where=where,
        with_cost=policy.sees_owner_cost(viewer),
    )
    return ExportDownload(
        _file_name(kind, month, where, month_state(month, organisation.currency).label),
        kind.content_type,
        kind.write(month, whose, ExportOptions(dialect, organisation.currency, cause_sentence)),
    )


def _checked_kind(given: Mapping[str, str], where: Mapping[str, Any]) -> ExportKind:
    checks = InputChecks()
    name = checks.choice("kind", given.get("kind", ""), tuple(EXPORT_KINDS))
    checks.done()
    kind = EXPORT_KINDS[name]
    needed = {"cost_centre"} if kind.one_cost_centre else set()
    if kind.whole_only and set(where) != needed:
        wrong = sorted(set(where) ^ needed)[0]
        text = export_texts.COST_CENTRE_MISSING if wrong in needed else export_texts.NO_FILTER
        checks.note(wrong, str(where.get(wrong, "")), text.format(field=wrong, kind=name))
    checks.done()
    return kind


def _checked_dialect(given: Mapping[str, str]) -> CsvDialect:
    checks = InputChecks()
    separator = checks.choice("separator", given.get("separator", "comma"), tuple(SEPARATORS))
    decimal = checks.choice("decimal", given.get("decimal", "point"), tuple(DECIMAL_SIGNS))
    if separator == decimal:
        checks.note("decimal", decimal, export_texts.DECIMAL_IS_SEPARATOR)
    checks.done()
    return CsvDialect(SEPARATORS[separator], DECIMAL_SIGNS[decimal])


def _file_name(kind: ExportKind, month: date, where: Mapping[str, Any], state: str) -> str:
    """Return a name such as ``gpupool-2026-10-lines-provisional.csv``.

    The name of an open month ends in ``provisional``. Other characters than letters, digits and hyphens are
    replaced, because not every system allows them.
    """
    parts = ["gpupool", f"{month:%Y-%m}", kind.name]
    if kind.one_cost_centre:
        parts.append(re.sub(r"[^A-Za-z0-9-]+", "-", str(where["cost_centre"])))
    if state == PROVISIONAL:
        parts.append(state)
    return f"{'-'.join(parts)}.{kind.extension}"
