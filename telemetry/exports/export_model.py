"""Define the kinds, the scope and the options of exports.

An export of a closed month has the same bytes each time: it contains only figures and names that the close
has frozen, and neither the time of the export nor the name of the person who asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from django.db.models import QuerySet

from telemetry.core.csv_text import PLAIN_CSV, CsvDialect
from telemetry.models import Charge, ChargeCell, CostCentreStatement, Statement, StatementState
from telemetry.money.adjusting.approved_rows import ApprovedAdjustment
from telemetry.money.statement_export import format_of_files
from telemetry.reads.statement_document import CorrectedLine, DocumentRow, StatementDocument

CLOSED, PROVISIONAL = "closed", "provisional"


@dataclass(frozen=True)
class ExportScope:
    """The scope of an export: the charges that it contains.

    ``kind`` is the value of the column ``scope``: ``all``, ``led_teams`` or ``own``. ``lines`` are the charge
    lines that the viewer may see. ``cells`` are the sums of these lines; None means that the viewer sees all.
    ``where`` are the filters of ``telemetry.reads.chargeback``. ``with_cost`` adds the owner's cost.
    """

    kind: str
    lines: QuerySet[Charge]
    cells: QuerySet[ChargeCell] | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    with_cost: bool = False

    @property
    def is_whole(self) -> bool:
        """Return True if the export contains all charges of the month."""
        return self.cells is None and not self.where


def no_sentence(code: str, numbers: Mapping[str, Any]) -> str:
    """Return the code instead of a sentence, for exports that need no sentences."""
    return code


@dataclass(frozen=True)
class DocumentTexts:
    """The texts of a statement that its page shows too.

    ``facts`` returns labels and values of the head, ``signatures`` the names and times of the close.
    ``correction_reasons`` returns the late facts by corrected month, ``group_title`` the heading of the rows
    of a project, a person and a part, ``work`` the workload of a row, ``adjustment_people`` the author and
    the approver of an adjustment, ``corrects`` the line that a correction corrects. ``sum_check`` names the
    check that the rows sum to the total.
    """

    facts: Callable[[StatementDocument], list[dict[str, Any]]]
    signatures: Callable[[Statement], list[dict[str, str]]]
    correction_reasons: Callable[[CostCentreStatement], Mapping[date, str]]
    group_title: Callable[[str, str, str], str]
    work: Callable[[DocumentRow], str]
    adjustment_people: Callable[[ApprovedAdjustment], str]
    corrects: Callable[[CorrectedLine], str]
    part_labels: Mapping[str, str]
    sum_check: str


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export.

    ``currency`` is the currency of the month. ``issuer`` is the organisation's name, for an open month.
    ``cause_sentence`` turns the cause of a correction into a sentence. ``texts`` are needed for statements of
    cost centres. ``document_currency`` is the currency of the statement, for kinds with ``one_cost_centre``.
    """

    dialect: CsvDialect = PLAIN_CSV
    currency: str = ""
    issuer: str = ""
    cause_sentence: Callable[[str, Mapping[str, Any]], str] = no_sentence
    texts: DocumentTexts | None = None
    document_currency: str = ""


@dataclass(frozen=True)
class ExportKind:
    """A kind of file. ``write`` yields its bytes.

    Kinds with ``whole_only`` contain all charges of a month, or of one cost centre if ``one_cost_centre`` is
    True. They have no other filters. Only people who see all these charges may download them. Only kinds with
    ``has_dialect`` have a chosen separator and decimal sign.
    """

    name: str
    extension: str
    content_type: str
    write: Callable[[date, ExportScope, ExportOptions], Iterator[bytes]]
    whole_only: bool = False
    one_cost_centre: bool = False
    has_dialect: bool = False


@dataclass(frozen=True)
class MonthState:
    """The state and the currency of a month, as its exports show them."""

    statement: Statement | None
    currency: str

    @property
    def is_closed(self) -> bool:
        """Return True if the charges of the month can no longer change."""
        return self.statement is not None and self.statement.state == StatementState.CLOSED

    @property
    def closed_at(self) -> datetime | None:
        """Return the time of the close; None for an open month."""
        return self.statement.closed_at if self.is_closed and self.statement else None

    @property
    def file_format(self) -> int:
        """Return the format of the files of the month, as in ``telemetry.money.statement_export``."""
        return format_of_files(self.statement)

    @property
    def label(self) -> str:
        """Return ``closed``, or ``provisional`` for a month whose charges can still change."""
        return CLOSED if self.is_closed else PROVISIONAL


def month_state(month: date, currency: str) -> MonthState:
    """Return the state of a month in ``currency``. A closed month has the currency of its statement."""
    statement = Statement.objects.filter(month=month).select_related("closed_by").first()
    is_closed = statement is not None and statement.state == StatementState.CLOSED
    return MonthState(statement, statement.currency if is_closed and statement else currency)
