"""Describe price factors, the refund of lost work, and the head of a statement of a cost centre."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from portal.wording.formatting import PRIORITY_WORDS, duration
from portal.wording.pages.money.statement_texts import WITHOUT_WORKLOAD
from telemetry.models import PriceFactor, Statement
from telemetry.money.adjusting.approved_rows import ApprovedAdjustment
from telemetry.reads.statement_document import CorrectedLine, DocumentRow, StatementDocument


def factor_subject(factor: PriceFactor) -> str:
    """Return the work to which a factor applies: ``priority low`` or ``type training``."""
    if factor.priority is None:
        return f"type {factor.workload_type}"
    return f"priority {PRIORITY_WORDS[factor.priority]}"


def factor_label(factor: PriceFactor) -> str:
    """Return the label of a factor in a list of facts, such as ``Factor, priority low``."""
    return f"Factor, {factor_subject(factor)}"


def refund_limit_text(minutes: int | None) -> str:
    """Return a refund limit as a short text, such as ``the last 60 minutes``. None means no limit."""
    if minutes is None:
        return "all work since the last checkpoint"
    return "nothing" if minutes == 0 else f"at most the last {refund_duration(minutes)}"


def refund_duration(minutes: int) -> str:
    """Return the length of a refund limit, such as ``60 minutes``; in hours if longer than two hours."""
    return f"{minutes:,} minute{'' if minutes == 1 else 's'}" if minutes <= 120 else duration(minutes * 60)


def refund_sentence(minutes: int | None) -> str:
    """Return a sentence about the part of stopped work that is not charged.

    ``minutes`` is the refund limit of the pool; None means no limit.
    """
    if minutes is None:
        return "Its work since its last checkpoint is not charged."
    if minutes == 0:
        return "It is charged until its stop."
    return (
        "Its work since its last checkpoint is not charged, "
        f"but at most the last {refund_duration(minutes)} before its stop."
    )


def corrected_line_text(corrected: CorrectedLine) -> str:
    """Return what a correction corrects: ``2026-09/CC-4110/1, line 7``, or the month without a statement."""
    if not corrected.number:
        return f"{corrected.month:%B %Y}"
    return corrected.number if corrected.line is None else f"{corrected.number}, line {corrected.line}"


def work_text(row: DocumentRow) -> str:
    """Return the workload of a row, or the number of its workloads."""
    if row.workloads > 1:
        return f"{row.workloads:,} workloads"
    return row.workload or WITHOUT_WORKLOAD.get(row.part, "")


def document_facts(
    document: StatementDocument, period: tuple[datetime, datetime], zone: str
) -> list[dict[str, Any]]:
    """Return the labels and values in the head of a statement.

    ``period`` is the month, and ``zone`` its time zone, in which all times are written.
    """
    row, (start, end) = document.statement, period
    closed_at, dates = row.statement.closed_at, document.rate_dates
    facts = [
        ("Number", row.number),
        ("Cost centre", f"{row.cost_centre} {row.name}".strip()),
        ("Purchase order", row.purchase_order),
        ("Team", ", ".join(document.teams)),
        ("Period", f"{_time(start, zone)} to {_time(end, zone)} {zone}"),
        ("Closed", f"{_time(closed_at, zone)} {zone}" if closed_at else ""),
        ("Due", f"{row.due_on:%-d %b %Y}" if row.due_on else ""),
        ("Rate card", "of " + ", ".join(_date(date, zone) for date in dates) if dates else ""),
        ("Tax", row.tax_text),
    ]
    return [{"label": label, "value": value, "url": ""} for label, value in facts if value]


def adjustment_people(row: ApprovedAdjustment) -> str:
    """Return the author and the approver of an adjustment."""
    return f"{row.author}, approved by {row.approver}"


def signatures(statement: Statement) -> list[dict[str, str]]:
    """Return the names of the people who proposed and closed a month, each with the time."""
    zone = statement.time_zone or "UTC"
    signed = (
        ("Proposed", statement.proposed_by, statement.proposed_at),
        ("Closed", statement.closed_by, statement.closed_at),
    )
    return [
        {"name": person.get_username(), "label": f"{verb}, {_time(at, zone)} {zone}"}
        for verb, person, at in signed
        if person is not None and at is not None
    ]


def _time(moment: datetime, zone: str) -> str:
    return f"{moment.astimezone(ZoneInfo(zone)):%-d %b %Y %H:%M}"


def _date(moment: datetime, zone: str) -> str:
    return f"{moment.astimezone(ZoneInfo(zone)):%-d %b %Y}"
