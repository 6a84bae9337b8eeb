"""Divide the rows of a cost centre's statement into sheets of A4, with totals that are carried over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from portal.wording import money_texts
from portal.wording.pages.money import statement_texts
from telemetry.core.amounts import ZERO
from telemetry.reads.statement_document import DocumentRow

FIRST_SHEET_ROWS = 15  # rows of a table that fit below the letterhead
SHEET_ROWS = 27
CORRECTION_HEAD_ROWS = 4  # height of the head and the sum of the corrections
END_ROWS = 25  # height of the total, the checks, the digest and the signatures, in rows of a table


@dataclass(frozen=True)
class SheetRow:
    """A row of a table. A ``group`` row has a title only; a ``line`` row has its number and its values.

    ``url`` is the address of the charge lines behind the row; empty if it has none.
    """

    kind: Literal["group", "line"]
    title: str = ""
    number: int = 0
    work: str = ""
    part: str = ""
    url: str = ""
    row: DocumentRow | None = None


@dataclass
class Sheet:
    """One page. ``brought`` and ``carried`` are (GPU-hours, amount) of the totals that are carried over."""

    number: int
    rows: list[SheetRow] = field(default_factory=list)
    brought: tuple[Decimal, Decimal] | None = None
    carried: tuple[Decimal, Decimal] | None = None
    corrections: bool = False
    end: bool = False


def make_sheets(
    rows: Sequence[DocumentRow], corrections: int, adjustments: int = 0, urls: Sequence[str] = ()
) -> list[Sheet]:
    """Return the pages of a document, at least one.

    ``urls`` has the address of the charge lines behind each row. The last page has the corrections, the
    adjustments, the total, the checks and the signatures. ``corrections`` and ``adjustments`` are the numbers
    of their rows. A table that is longer than a page continues on the next page.
    """
    sheets = [Sheet(1)]
    hours, amount = ZERO, ZERO
    free = FIRST_SHEET_ROWS
    for entry in _with_groups(rows, urls):
        # A heading never stands alone at the end of a page.
        if free < (2 if entry.kind == "group" else 1):
            sheets[-1].carried = (hours, amount)
            sheets.append(Sheet(len(sheets) + 1, brought=(hours, amount)))
            free = SHEET_ROWS
        sheets[-1].rows.append(entry)
        free -= 1
        if entry.row is not None:
            hours, amount = hours + entry.row.gpu_hours, amount + entry.row.amount
    blocks = [count + CORRECTION_HEAD_ROWS for count in (corrections, adjustments) if count]
    if free < END_ROWS + sum(blocks):
        sheets.append(Sheet(len(sheets) + 1))
    sheets[-1].corrections = sheets[-1].end = True
    return sheets


def _with_groups(rows: Iterable[DocumentRow], urls: Sequence[str]) -> Iterable[SheetRow]:
    """Yield the rows with their numbers, and a heading before each project and person."""
    heading = ""
    for number, row in enumerate(rows, start=1):
        title = statement_texts.group_title(row.project, row.person, row.part)
        if title != heading:
            heading = title
            yield SheetRow("group", title=title)
        work = money_texts.work_text(row)
        part, url = statement_texts.PART_LABELS[row.part], urls[number - 1] if urls else ""
        yield SheetRow("line", number=number, work=work, part=part, url=url, row=row)
