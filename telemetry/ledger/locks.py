"""Lock the sums of the ledger."""

from __future__ import annotations

from django.db import connection

LEDGER_LOCK = 7_420_014  # any constant that no other advisory lock of the database uses


def lock_ledger() -> None:
    """Wait until no other transaction writes charges or cents, and keep others out until the commit.

    Take this lock before the first charge line of a transaction is inserted. Otherwise two transactions that
    add to the same sums in another order could wait for each other for ever. The order of locks is:
    evidence (``telemetry/money/evidence_locks.py``), ledger, statement.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LEDGER_LOCK])
