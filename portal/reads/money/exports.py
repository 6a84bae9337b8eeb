"""Prepare the export that a request asks for: check its kind, its options and the viewer's rights."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from portal import policy
from portal.input_checks import InputChecks, display_value
from portal.models import Organisation, User
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.documents import correction_reasons, visible_documents
from portal.wording.money_texts import (
    adjustment_people,
    corrected_line_text,
    document_facts,
    signatures,
    work_text,
)
from portal.wording.pages.money import export_texts, money_pages
from portal.wording.pages.money.correction_texts import cause_sentence
from portal.wording.pages.money.statement_texts import PART_LABELS, group_title
from telemetry.core.csv_text import CsvDialect
from telemetry.exports.documents.month_documents import month_documents
from telemetry.exports.export_model import (
    PROVISIONAL,
    DocumentTexts,
    ExportKind,
    ExportOptions,
    ExportScope,
    month_state,
)
from telemetry.exports.registry import EXPORT_KINDS
from telemetry.money.billing_months import billing_calendar
from telemetry.money.pricing.billing_currencies import currency_of_month
from telemetry.reads.statement_document import StatementDocument

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}
DECIMAL_SIGNS = {"point": ".", "comma": ","}
CHECKSUMS = ("sha256",)
DIALECT_OPTIONS = ("separator", "decimal")
# All other parameters of a request are filters.
EXPORT_OPTIONS = ("kind", "currency", *DIALECT_OPTIONS, "checksum")


@dataclass(frozen=True)
class ExportDownload:
    """A file. Its parts are made while it is being sent."""

    name: str
    content_type: str
    parts: Iterator[bytes]


def export_download(
    viewer: User, month: date, where: Mapping[str, Any], given: Mapping[str, str]
) -> ExportDownload:
    """Return the export of a month that ``given`` asks for. ``where`` are the checked filters.

    The option ``checksum`` asks for the digest of the file instead. A FOCUS file cannot contain its own
    digest.

    Raises Invalid for an unknown kind or option, and for filters that this kind of export does not allow.
    Raises NotAllowed if the export contains charges that the viewer may not see.
    """
    kind = _checked_kind(given, where)
    if not kind.has_dialect:
        names = ", ".join(name for name, each in EXPORT_KINDS.items() if each.has_dialect)
        refuse_dialect(given, export_texts.DIALECT_KINDS.format(kinds=names))
    dialect = checked_dialect(given)
    with_checksum = _wants_checksum(given)
    scope = charge_scope(viewer)
    if scope.kind == "none" or (kind.whole_only and not _is_visible_document(viewer, month, kind, where)):
        policy.require(viewer, "charges.see_all")
    currency = currency_of_month(month)
    whose = ExportScope(
        kind=scope.kind,
        lines=policy.visible_charges(viewer),
        cells=policy.visible_cells(viewer),
        where=where,
        with_cost=policy.sees_cost_of_charges(viewer),
    )
    organisation = Organisation.objects.first()
    issuer = organisation.name if organisation else ""
    options = ExportOptions(dialect, currency, issuer, cause_sentence, document_texts())
    parts_of_name = [kind.name]
    if kind.one_cost_centre:
        code = str(where["cost_centre"])
        currencies = document_currencies(viewer, month, code)
        options = replace(options, document_currency=_checked_currency(given, month, code, currencies))
        # Other characters are not allowed in file names on every system.
        parts_of_name.append(re.sub(r"[^A-Za-z0-9-]+", "-", code))
        parts_of_name += [options.document_currency] if len(currencies) > 1 else []
    file_name = _file_name(kind, month, parts_of_name, month_state(month, currency).label)
    parts = kind.write(month, whose, options)
    if with_checksum:
        return ExportDownload(f"{file_name}.sha256", "text/plain; charset=utf-8", _checksum(file_name, parts))
    return ExportDownload(file_name, kind.content_type, parts)


def _checksum(file_name: str, parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the SHA-256 digest of a file in the format of ``sha256sum --check``."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    yield f"{digest.hexdigest()}  {file_name}\n".encode()


def _wants_checksum(given: Mapping[str, str]) -> bool:
    if "checksum" not in given:
        return False
    checks = InputChecks()
    checks.choice("checksum", given["checksum"], CHECKSUMS)
    checks.done()
    return True


def document_currencies(viewer: User, month: date, code: str) -> list[str]:
    """Return the currencies of a cost centre's visible statements in a month. The month's own comes first.

    People who see all charges also get the currencies of the provisional statements of an open month.
    """
    if not policy.sees_all_charges(viewer):
        rows = visible_documents(viewer, month).filter(cost_centre=code)
        return list(rows.values_list("currency", flat=True))
    options = ExportOptions(currency=currency_of_month(month))
    return [row.currency for row in month_documents(month, options, code)]


def _checked_currency(given: Mapping[str, str], month: date, code: str, currencies: list[str]) -> str:
    """Return the currency of the statement that ``given`` asks for. It may be absent if there is only one."""
    checks = InputChecks()
    if not currencies:
        message = export_texts.NO_STATEMENT.format(field="cost_centre", given=code, month=month)
        checks.note("cost_centre", code, message)
    elif "currency" in given:
        checks.choice("currency", given["currency"], currencies)
    elif len(currencies) > 1:
        message = export_texts.CURRENCY_MISSING.format(code=code, allowed=", ".join(currencies))
        checks.note("currency", "", message)
    checks.done()
    return given.get("currency", currencies[0])


def _is_visible_document(viewer: User, month: date, kind: ExportKind, where: Mapping[str, Any]) -> bool:
    """Return True if the export is the statement of one cost centre and the viewer may see this statement."""
    if not kind.one_cost_centre:
        return False
    return visible_documents(viewer, month).filter(cost_centre=where["cost_centre"]).exists()


def document_texts() -> DocumentTexts:
    """Return the texts for statements. The pages of the statements use the same texts."""
    return DocumentTexts(
        facts=_document_facts,
        signatures=signatures,
        correction_reasons=correction_reasons,
        group_title=group_title,
        work=work_text,
        adjustment_people=adjustment_people,
        corrects=corrected_line_text,
        part_labels=PART_LABELS,
        sum_check=export_texts.SUM_CHECK,
    )


def _document_facts(document: StatementDocument) -> list[dict[str, Any]]:
    month, calendar = document.statement.statement.month, billing_calendar()
    return document_facts(document, calendar.month_bounds(month), calendar.zone_name(month))


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
    if "currency" in given and not kind.one_cost_centre:
        message = export_texts.NO_CURRENCY.format(given=display_value(given["currency"]), kind=name)
        checks.note("currency", given["currency"], message)
    checks.done()
    return kind


def refuse_dialect(given: Mapping[str, str], allowed: str) -> None:
    """Raise Invalid if ``given`` has a separator or a decimal sign. ``allowed`` says where it is allowed."""
    checks = InputChecks()
    for name in DIALECT_OPTIONS:
        if name in given:
            words = money_pages.FILTER_UNKNOWN
            text = words.format(field=name, given=display_value(given[name]), allowed=allowed)
            checks.note(name, given[name], text)
    checks.done()


def checked_dialect(given: Mapping[str, str]) -> CsvDialect:
    """Return the separator and the decimal sign that ``given`` asks for. Raises Invalid."""
    checks = InputChecks()
    separator = checks.choice("separator", given.get("separator", "comma"), tuple(SEPARATORS))
    decimal = checks.choice("decimal", given.get("decimal", "point"), tuple(DECIMAL_SIGNS))
    if separator == decimal:
        checks.note("decimal", decimal, export_texts.DECIMAL_IS_SEPARATOR)
    checks.done()
    return CsvDialect(SEPARATORS[separator], DECIMAL_SIGNS[decimal])


def _file_name(kind: ExportKind, month: date, parts: list[str], state: str) -> str:
    """Return a name such as ``gpupool-2026-10-lines-provisional.csv`` from its middle ``parts``.

    The name of an open month ends in ``provisional``.
    """
    words = ["gpupool", f"{month:%Y-%m}", *parts, *([state] if state == PROVISIONAL else [])]
    return f"{'-'.join(words)}.{kind.extension}"
