"""Write the statement of a cost centre as PDF, with the rows and the figures of its page.

Typst sets the document from ``statement.typ``. It gets all texts as data, so that no name is read as markup.
It uses only the fonts that it contains, and the time of the close as the time of the file. Therefore the file
of a closed month has the same bytes on each machine.
"""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, cast

import typst

from telemetry.core.amounts import ZERO
from telemetry.exports.export_model import DocumentTexts
from telemetry.money.billing_months import month_bounds
from telemetry.reads.statement_document import DocumentRow, StatementDocument, corrected_lines

TEMPLATE = Path(__file__).with_name("statement.typ")
HOUR_DECIMALS = 3
KEY_LENGTH = 16  # characters of a key's fingerprint that are shown
# A longer word gets places at which it may be broken, because it would overlap the next column.
LONG_WORD = re.compile(r"(\S{14})(?=\S{11})")
BREAK, MINUS = "\u200b", "\u2212"
_COMPILER_LOCK = threading.Lock()  # a compiler cannot be used by two threads at once


@cache
def _compiler() -> typst.Compiler:
    # Fonts of the machine would make the file differ between machines.
    return typst.Compiler(str(TEMPLATE), root=str(TEMPLATE.parent), ignore_system_fonts=True)


@dataclass(frozen=True)
class DocumentData:
    """The data of ``statement.typ`` as JSON, and the time of the PDF file in seconds since 1970."""

    text: str
    made_at: int


def document_data(document: StatementDocument, decimals: int, texts: DocumentTexts) -> DocumentData:
    """Return the data from which ``set_document`` makes the PDF of a statement."""
    statement = document.statement.statement
    made_at = statement.closed_at or month_bounds(statement.month)[0]
    return DocumentData(json.dumps(statement_data(document, decimals, texts)), int(made_at.timestamp()))


def set_document(data: DocumentData) -> bytes:
    """Return the PDF of a statement. Does not read the database, so that any thread may call this."""
    with _COMPILER_LOCK:
        file = _compiler().compile(format="pdf", sys_inputs={"data": data.text}, timestamp=data.made_at)
    return cast(bytes, file)


# Not split: the function builds one dict for the template, whose values share the document and its texts.
def statement_data(document: StatementDocument, decimals: int, texts: DocumentTexts) -> dict[str, Any]:
    """Return the data of ``statement.typ``. All numbers are texts, except the sizes of the parts.

    Python formats them, because a script of Typst takes ten times as long.
    """
    row, statement = document.statement, document.statement.statement

    def amount(value: Decimal) -> str:
        return _number(value, decimals)

    reasons = texts.correction_reasons(row) if document.corrections else {}
    checks = [(check["check"], check["ok"], "") for check in statement.checks if statement.closed_at]
    difference = document.charged + document.corrected + document.adjusted - row.total
    checks.append((texts.sum_check, difference == 0, amount(difference)))
    return {
        "number": _plain(row.number),
        "issuer": _plain(row.issuer),
        "address": [
            _plain(line) for line in [row.name, *row.postal_address.splitlines()] if row.postal_address
        ],
        "month": f"{statement.month:%B %Y}",
        "currency": row.currency,
        "provisional": statement.closed_at is None,
        "facts": [[fact["label"], _plain(fact["value"])] for fact in texts.facts(document)],
        "charged": amount(document.charged),
        "corrected": amount(document.corrected),
        "corrected_hours": _number(
            sum((each.gpu_hours for each in document.corrections), ZERO), HOUR_DECIMALS
        ),
        "budget": "" if row.budget is None else amount(row.budget),
        "parts": [
            [part, texts.part_labels[part], amount(value), float(value)]
            for part, value in document.parts.items()
        ],
        "condensed": any(each.workloads > 1 for each in document.rows),
        "lines": _numbered_lines(document.rows, decimals, texts),
        "corrections": [
            {
                "corrects": _plain(texts.corrects(corrected)),
                "why": _plain(reasons.get(corrected.month, "")),
                "model": _plain(each.model),
                "hours": _number(each.gpu_hours, HOUR_DECIMALS),
                "price": "" if each.price is None else _short_price(each.price),
                "amount": amount(each.amount),
            }
            for each, corrected in zip(document.corrections, corrected_lines(document), strict=True)
        ],
        "adjusted": amount(document.adjusted),
        "adjustments": [
            {
                "number": each.number,
                "reason": _plain(each.reason),
                "people": _plain(texts.adjustment_people(each)),
                "amount": amount(each.amount),
            }
            for each in document.adjustments
        ],
        "shown": amount(document.shown) if document.shown else "",
        "total": amount(row.total),
        "checks": [{"text": text, "passed": ok, "figure": figure} for text, ok, figure in checks],
        "digest": statement.digest if statement.closed_at else "",
        "key": statement.key_fingerprint[:KEY_LENGTH] if statement.signature else "",
        "signatures": [[_plain(entry["name"]), entry["label"]] for entry in texts.signatures(statement)],
    }


def _numbered_lines(rows: Sequence[DocumentRow], decimals: int, texts: DocumentTexts) -> list[dict[str, Any]]:
    """Return the lines of the table, each with the running totals."""
    lines: list[dict[str, Any]] = []
    hours = amount = ZERO
    for number, row in enumerate(rows, 1):
        hours += row.gpu_hours
        amount += row.amount
        lines.append(
            {
                "number": number,
                "group": _plain(texts.group_title(row.project, row.person, row.part)),
                "work": _plain(texts.work(row)),
                "type": row.workload_type,
                "part": texts.part_labels[row.part],
                "model": _plain(row.model),
                "hours": _number(row.gpu_hours, HOUR_DECIMALS),
                "price": "" if row.price is None else _short_price(row.price),
                "amount": _number(row.amount, decimals),
                "sum_hours": _number(hours, HOUR_DECIMALS),
                "sum_amount": _number(amount, decimals),
            }
        )
    return lines


def _number(value: Decimal, decimals: int) -> str:
    """Return a number such as ``-5,088.40``, with the minus sign of typography."""
    return f"{value:,.{decimals}f}".replace("-", MINUS)


def _short_price(price: Decimal) -> str:
    """Return a price with at least two decimals. Zeros at the end of further decimals are cut off."""
    short = price.normalize()
    return f"{short:f}" if -int(short.as_tuple().exponent) > 2 else f"{price:.2f}"


def _plain(text: str) -> str:
    """Return a text on one line without control characters and marks of the direction of text.

    Long words may be broken.
    """
    clean = "".join(" " if c.isspace() else c for c in text if c.isspace() or _is_visible(c))
    return LONG_WORD.sub(rf"\1{BREAK}", clean)


def _is_visible(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn")
