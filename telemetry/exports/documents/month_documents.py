"""Write the statements of cost centres of a month: one as PDF, or all in a ZIP archive."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date

from telemetry.core.currencies import decimals_of
from telemetry.exports.documents.statement_pdf import DocumentData, document_data, set_document
from telemetry.exports.export_model import ExportOptions, ExportScope, month_state
from telemetry.models import CostCentreStatement
from telemetry.money.billing_months import month_bounds
from telemetry.money.closing.cost_centre_statements import cost_centre_totals
from telemetry.reads.statement_document import statement_document

NOT_IN_FILE_NAME = re.compile(r"[^A-Za-z0-9.-]+")
PROVISIONAL_NUMBER = "{month:%Y-%m}/{code}/provisional"


def one_document(month: date, scope: ExportScope, options: ExportOptions) -> Iterator[bytes]:
    """Yield the PDF of the statement of one cost centre, which the filters of the scope name.

    ``options.document_currency`` is the currency of the statement. Raises LookupError if there is none.
    """
    found = month_documents(month, options, str(scope.where["cost_centre"]))
    statement = next((row for row in found if row.currency == options.document_currency), None)
    if statement is None:
        raise LookupError(f"{month:%Y-%m}: no statement in {options.document_currency!a}")
    yield set_document(_document_data(statement, options))


def all_documents(month: date, scope: ExportScope, options: ExportOptions) -> Iterator[bytes]:
    """Yield a ZIP archive with the PDF of each cost centre, one file after the other.

    Its entries have the time of the close. So the archive of a closed month has the same bytes each time.
    """
    made_at = month_state(month, options.currency).closed_at or month_bounds(month)[0]
    stamp = made_at.astimezone(UTC).timetuple()[:6]
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as archive:
        for number, file in _pdf_files(month_documents(month, options), options):
            entry = zipfile.ZipInfo(f"{NOT_IN_FILE_NAME.sub('_', number)}.pdf", stamp)
            archive.writestr(entry, file, zipfile.ZIP_DEFLATED)
            yield sink.take()
    yield sink.take()


def month_documents(
    month: date, options: ExportOptions, code: str | None = None
) -> list[CostCentreStatement]:
    """Return the statements of cost centres of a month, by code; of one cost centre if ``code`` is given.

    A cost centre has one for each currency of its lines. An open month has no stored statements. Its
    statements are made from the present lines.
    """
    state = month_state(month, options.currency)
    if state.statement is None:
        return []
    if state.is_closed:
        found = CostCentreStatement.objects.filter(statement=state.statement).order_by("number")
        found = found.select_related("statement__closed_by", "statement__proposed_by")
        return list(found if code is None else found.filter(cost_centre=code))
    return [
        CostCentreStatement(
            statement=state.statement,
            cost_centre=centre,
            currency=currency,
            sequence=1,
            number=PROVISIONAL_NUMBER.format(month=month, code=centre)
            + ("" if currency == state.currency else f"-{currency}"),
            issuer=options.issuer,
            total=total,
        )
        for centre, currency, total in cost_centre_totals(state.statement)
        if code in (None, centre)
    ]


def _pdf_files(
    statements: Iterable[CostCentreStatement], options: ExportOptions
) -> Iterator[tuple[str, bytes]]:
    """Yield the number and the PDF of each statement.

    A thread sets a document while this thread reads the next one from the database. The compiler does not
    hold Python's lock.
    """
    with ThreadPoolExecutor(1) as typesetter:
        before: tuple[str, Future[bytes]] | None = None
        for statement in statements:
            data = _document_data(statement, options)
            if before is not None:
                yield before[0], before[1].result()
            before = statement.number, typesetter.submit(set_document, data)
        if before is not None:
            yield before[0], before[1].result()


def _document_data(statement: CostCentreStatement, options: ExportOptions) -> DocumentData:
    if options.texts is None:
        raise ValueError("texts: statements of cost centres need them")
    return document_data(statement_document(statement), decimals_of(statement.currency), options.texts)


class _Sink(io.RawIOBase):
    """A write-only file. ``take`` returns the bytes that were written since the last call."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken
