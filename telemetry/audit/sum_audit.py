"""Audit the sums of a month: its shares of idle time, and the cents that every page and file adds up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from telemetry.audit.cents_sql import CENTS_SQL, WITH_THREE_DECIMALS, WITHOUT_DECIMALS
from telemetry.audit.idle_shares_sql import IDLE_SHARES_SQL
from telemetry.audit.planner import audit_cursor


@dataclass(frozen=True)
class StatementDifference:
    """A wrong amount of a statement line, of a cell or of a share of idle time.

    ``check`` is cents or idle share. ``expected`` is the value by the rule.
    """

    check: str
    subject: str
    field: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.field} is {self.found}, expected: {self.expected}"

    def as_json(self) -> dict[str, Any]:
        """Return the difference as values for JSON."""
        return asdict(self)


def audit_cents(month: date) -> Iterator[StatementDifference]:
    """Yield each statement line and cell of a month whose cents are not those of its charge lines."""
    values: dict[str, Any] = {
        "month": month,
        "without_decimals": WITHOUT_DECIMALS.split(),
        "with_three_decimals": WITH_THREE_DECIMALS.split(),
    }
    with audit_cursor() as cursor:
        cursor.execute(CENTS_SQL, values)
        for row in cursor.fetchall():
            yield StatementDifference("cents", *row)


def audit_idle_shares(month: date) -> Iterator[StatementDifference]:
    """Yield each wrong share of idle time, and each idle line that is wrongly shared out."""
    with audit_cursor() as cursor:
        cursor.execute(IDLE_SHARES_SQL, {"month": month})
        for row in cursor.fetchall():
            yield StatementDifference("idle share", *row)
