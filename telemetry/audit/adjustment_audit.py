"""Audit the credits, the manual adjustments and the showback of a month against its statement lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from django.db import connection

from telemetry.audit.adjustments_sql import ADJUSTMENTS_SQL


@dataclass(frozen=True)
class AdjustmentDifference:
    """A difference between the adjustments of a month and its statement lines.

    ``subject`` names the row that differs. ``field`` is ``found`` there, and should be ``expected``.
    """

    subject: str
    field: str
    found: str | None
    expected: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.field} is {self.found or 'empty'}, expected: {self.expected}"

    def as_json(self) -> dict[str, Any]:
        """Return the difference as values for JSON."""
        return {"check": "adjustment", **asdict(self)}


def audit_adjustments(month: date) -> Iterator[AdjustmentDifference]:
    """Yield each difference between approved adjustments or billing modes and the lines of a month."""
    with connection.cursor() as cursor:
        cursor.execute(ADJUSTMENTS_SQL, {"month": month})
        for row in cursor.fetchall():
            yield AdjustmentDifference(*row)
