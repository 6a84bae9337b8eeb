"""Read a CSV file line by line, and report what its import does with each line.

The services that import a file carry it out in one transaction. A preview does the same and rolls back.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.db import transaction

from portal.errors import Invalid
from portal.input_checks import InputChecks, display_value
from portal.wording.problems import csv_problems
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected
from telemetry.core.csv_text import FORMULA_STARTS

MAX_FILE_CHARACTERS = 1_500_000  # below the limit of 2 MiB for the body of a request
DELIMITERS = ",;\t"
LINE_STATES = ("new", "changed", "unchanged", "wrong")


@dataclass
class ImportedLine:
    """One line of the file. ``state`` is one of LINE_STATES; ``problems`` says why a line is wrong."""

    number: int
    subject: str
    state: str = "unchanged"
    problems: list[str] = field(default_factory=list)


@dataclass
class ImportReport:
    """The lines of an imported file in their order."""

    lines: list[ImportedLine]

    @property
    def wrong(self) -> list[ImportedLine]:
        """Return the lines with a problem. If any line has a problem, nothing is written."""
        return [line for line in self.lines if line.problems]

    def count(self, state: str) -> int:
        """Return the number of lines in this state."""
        return sum(line.state == state for line in self.lines)

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of lines in each state."""
        return {state: self.count(state) for state in LINE_STATES}

    def worst_first(self, most: int) -> list[ImportedLine]:
        """Return at most ``most`` lines: wrong lines, then new and changed lines, then unchanged lines."""
        order = {"wrong": 0, "new": 1, "changed": 1, "unchanged": 2}
        return sorted(self.lines, key=lambda line: (order[line.state], line.number))[:most]


@dataclass(frozen=True)
class ImportedRow:
    """One line of the file with the text of its cells by column."""

    line: ImportedLine
    values: Mapping[str, str]


def report_of(rows: Sequence[ImportedRow]) -> ImportReport:
    """Return the report of the rows. A line with a problem is wrong."""
    for row in rows:
        if row.line.problems:
            row.line.state = "wrong"
    return ImportReport([row.line for row in rows])


def reject_wrong_lines(report: ImportReport) -> None:
    """Raise Invalid if a line is wrong. The message names the first wrong line."""
    if report.wrong:
        first = report.wrong[0]
        message = csv_problems.LINE_IS_WRONG.format(
            line=first.number, problem=first.problems[0], count=len(report.wrong)
        )
        raise Invalid({"csv": message}, {"csv": first.subject})


def read_rows(
    text: str,
    *,
    max_rows: int,
    max_characters: int,
    check_header: Callable[[InputChecks, list[str]], None],
    aliases: Mapping[str, str] | None = None,
) -> tuple[list[str], list[ImportedRow]]:
    """Return the columns of the header, and the rows with content. Raises Invalid.

    ``check_header`` notes the problems of the header. ``aliases`` are other names of columns.
    """
    checks = InputChecks()
    table = _table(checks, text, max_characters)
    checks.done()
    header = [cell.strip().lower() for cell in table[0]] if table else []
    header = [(aliases or {}).get(name, name) for name in header]
    check_header(checks, header)
    rows = _rows(header, table[1:])
    if not 0 < len(rows) <= max_rows:
        checks.note("csv", len(rows), csv_problems.ROW_COUNT.format(count=len(rows), most=max_rows))
    checks.done()
    return header, rows


@contextmanager
def problems_of(row: ImportedRow) -> Iterator[None]:
    """Append the problems that a service raises to ``row.line.problems``."""
    try:
        with transaction.atomic():
            yield
    except Invalid as error:
        row.line.problems.extend(error.fields.values())
    except OperationRejected as error:
        row.line.problems.append(refusal_sentence(error))


def _table(checks: InputChecks, text: str, max_characters: int) -> list[list[str]]:
    """Return the cells of a CSV text.

    The delimiter is the character of DELIMITERS that occurs most often in the first line.
    """
    if not isinstance(text, str) or len(text) > max_characters or "\0" in text:
        checks.note("csv", None, csv_problems.FILE_UNREADABLE.format(most=f"{max_characters:,}"))
        return []
    lines = text.removeprefix("\ufeff")
    delimiter = max(DELIMITERS, key=lines.partition("\n")[0].count)
    try:
        return list(csv.reader(io.StringIO(lines, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        checks.note("csv", None, csv_problems.FILE_IS_NO_CSV.format(problem=error))
        return []


def _rows(header: list[str], table: list[list[str]]) -> list[ImportedRow]:
    rows = []
    for number, cells in enumerate(table, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        line = ImportedLine(number, display_value(",".join(cells)))
        if len(cells) != len(header):
            line.problems.append(csv_problems.CELL_COUNT.format(count=len(cells), columns=len(header)))
        values = {name: _text(cell) for name, cell in zip(header, cells, strict=False)}
        rows.append(ImportedRow(line, values))
    return rows


def _text(cell: str) -> str:
    """Return the text of a cell. The apostrophe that exports write before a formula is removed."""
    clean = cell.strip().replace("\r\n", "\n")
    return clean[1:] if clean[:1] == "'" and clean[1:2] in FORMULA_STARTS and len(clean) > 1 else clean
