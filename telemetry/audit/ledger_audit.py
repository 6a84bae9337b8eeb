"""Audit a month of the ledger: recompute it from the facts and report each difference.

The computation is SQL of its own. It shares no code and no intermediate rows with charging, so an error in
charging cannot hide itself. An import-linter contract enforces this.

The audit covers the month, including its corrections on later statements. It also covers earlier days that
the statement of the month corrects. Names are not compared, because a line keeps the names that were in use
when it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from telemetry.audit.adjustment_audit import AdjustmentDifference, audit_adjustments
from telemetry.audit.calendar_sql import MONTH_BOUNDS_SQL
from telemetry.audit.ledger_sql import AUDIT_SQL, FIRST_DAY_SQL, LATER_LINES_SQL
from telemetry.audit.planner import audit_cursor
from telemetry.audit.sum_audit import StatementDifference, audit_cents, audit_idle_shares

# A larger SQL statement needs more memory for its rows. Planning takes a larger part of a smaller one.
GPUS_PER_STATEMENT = 1_000
# The rules for lost work. Charging has its own copies, and a test compares them.
PREEMPTION_CODES = [
    "checkpointed",
    "killed_at_grace",
    "drained",
    "evicted_for_guarantee",
    "evicted_for_priority",
    "evicted_for_reservation",
]
HARDWARE_CODES = ["gpu_error", "host_lost", "lease_lost", "prolog_failed", "host_full", "gpu_unreadable"]
DAY_MARGIN = timedelta(days=2)
DEFAULT_FORGIVEN_MINUTES = 60  # applies to a pool without a refund limit


@dataclass(frozen=True)
class LedgerDifference:
    """A difference between the ledger and the facts.

    ``line`` is the id of the charge line; None if no line covers the time. ``fact`` names the row that
    contradicts the line. ``check`` is time, owner, amount, reversal, form or month. For the check ``time``,
    ``field`` is the bucket, and ``found`` and ``expected`` are numbers of slots.
    """

    check: str
    line: int | None
    gpu: int
    start: datetime
    end: datetime
    field: str
    found: str | None
    expected: str | None
    fact: str

    def __str__(self) -> str:
        line = f"line {self.line}" if self.line is not None else "no line"
        span = f"{self.start:%Y-%m-%d %H:%M:%S} to {self.end:%Y-%m-%d %H:%M:%S} UTC"
        what = f"slots in {self.field}" if self.check == "time" else self.field
        return (
            f"{line}: GPU {self.gpu}, {span}: {what} is {self.found or 'empty'} in the ledger, "
            f"{self.expected or 'empty'} by the facts ({self.fact})"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the difference as values for JSON."""
        return {**self.__dict__, "start": self.start.isoformat(), "end": self.end.isoformat()}


def audit_month(
    month: date, now: datetime
) -> Iterator[LedgerDifference | AdjustmentDifference | StatementDifference]:
    """Yield each difference of a month: of charge lines, adjustments, shares of idle time, and cents."""
    yield from audit_ledger(month, now)
    yield from audit_adjustments(month)
    yield from audit_idle_shares(month)
    yield from audit_cents(month)


def audit_ledger(month: date, now: datetime) -> Iterator[LedgerDifference]:
    """Yield each difference between the ledger and the facts of a month, in order of GPU and time.

    If the month is not over at ``now``, each GPU is audited up to its last charge.
    """
    values: dict[str, Any] = {
        "month": month,
        "preemption_codes": PREEMPTION_CODES,
        "hardware_codes": HARDWARE_CODES,
        "forgiven_minutes": DEFAULT_FORGIVEN_MINUTES,
    }
    with audit_cursor() as cursor:
        cursor.execute(MONTH_BOUNDS_SQL, values)
        values["start"], values["end"] = cursor.fetchone()
        values["over"] = now >= values["end"]
        cursor.execute(FIRST_DAY_SQL, values)
        # The earliest day of the lines on this statement. The margin allows for lines with a wrong day.
        values["first_day"] = (cursor.fetchone()[0] or month) - DAY_MARGIN
        values["first"] = datetime.combine(values["first_day"], time(), UTC) - DAY_MARGIN
        cursor.execute("SELECT id FROM scheduler_gpu ORDER BY id")
        gpus = [row[0] for row in cursor.fetchall()]
        for index in range(0, len(gpus), GPUS_PER_STATEMENT):
            chunk = gpus[index : index + GPUS_PER_STATEMENT]
            cursor.execute(AUDIT_SQL, {**values, "low_gpu": chunk[0], "high_gpu": chunk[-1]})
            yield from _differences(cursor.fetchall())
        cursor.execute(LATER_LINES_SQL, values)
        yield from _differences(cursor.fetchall())


def _differences(rows: list[tuple[Any, ...]]) -> Iterator[LedgerDifference]:
    for check, line, gpu, start, end, *rest in rows:
        yield LedgerDifference(
            check, line, gpu, datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC), *rest
        )
