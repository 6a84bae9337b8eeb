"""Define texts of the statements of cost centres, and of the pages on which a month is closed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from telemetry.models import Statement
from telemetry.reads.statement_document import DocumentRow, StatementDocument

PART_LABELS = {
    "used": "used",
    "idle": "idle while held",
    "unmeasured": "not measured",
    "reserved_unused": "reserved, unused",
    "idle_share": "share of idle GPUs",
}
WITHOUT_WORKLOAD = {"reserved_unused": "reservation or dedicated pool", "idle_share": "idle GPUs of the pool"}
SHARED_IDLE_GROUP = "Share of idle GPUs"
DEDICATED_GROUP = "Dedicated pool, unused"
DIGEST_VALID = "The digest of {month:%B %Y} and its signature are valid: no row of the month has changed."
DIGEST_UNSIGNED = "The digest of {month:%B %Y} is valid: no row of the month has changed. It is not signed."
DIGEST_WRONG = "{month:%B %Y} does not verify: {problems}."
NO_DOCUMENT = "No cost centre was charged in this month."
BILLING_SAVED = "The settings of billing are saved."


def group_title(project: str, person: str, part: str) -> str:
    """Return the heading of the rows of a project and a person."""
    if part == "idle_share":
        return SHARED_IDLE_GROUP
    return ", ".join(text for text in (project or DEDICATED_GROUP, person) if text)


def work_text(row: DocumentRow) -> str:
    """Return the workload of a row, or the number of its workloads."""
    if row.workloads > 1:
        return f"{row.workloads:,} workloads"
    return row.workload or WITHOUT_WORKLOAD.get(row.part, "")


def document_facts(document: StatementDocument, period: tuple[datetime, datetime]) -> list[dict[str, Any]]:
    """Return the labels and values in the head of a statement."""
    row = document.statement
    start, end = period
    dates = document.rate_dates
    facts = [
        ("Number", row.number),
        ("Cost centre", f"{row.cost_centre} {row.name}".strip()),
        ("Purchase order", row.purchase_order),
        ("Team", ", ".join(document.teams)),
        ("Period", f"{_time(start)} to {_time(end)} UTC"),
        ("Closed", f"{_time(row.statement.closed_at)} UTC" if row.statement.closed_at else ""),
        ("Due", f"{row.due_on:%-d %b %Y}" if row.due_on else ""),
        ("Rate card", "of " + ", ".join(f"{date:%-d %b %Y}" for date in dates) if dates else ""),
        ("Tax", row.tax_text),
    ]
    return [{"label": label, "value": value, "url": ""} for label, value in facts if value]


def signatures(statement: Statement) -> list[dict[str, str]]:
    """Return the names of the people who closed a month, each with the time."""
    if statement.closed_by is None or statement.closed_at is None:
        return []
    return [
        {"name": statement.closed_by.get_username(), "label": f"Closed, {_time(statement.closed_at)} UTC"}
    ]


def _time(moment: datetime) -> str:
    return f"{moment:%-d %b %Y %H:%M}"
