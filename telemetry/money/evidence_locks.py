"""Order the writers of charge lines and the update of their usage evidence.

The update claims marks and then reads the lines. It could miss a line that is written at the same time with
evidence from older rollups. Therefore the update waits for all writers of lines, and writers wait for the
update. Both take this lock before they lock a statement. A close locks only the statement, so no deadlock is
possible.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date

from django.db import connection

_EVIDENCE_LOCK = 0x45564944


def lock_for_new_lines() -> None:
    """Hold off the update of evidence until this transaction ends. Several writers may hold this lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [_EVIDENCE_LOCK])


def lock_for_update() -> None:
    """Wait until all lines that are being written are committed, and hold off other writers and updates."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_EVIDENCE_LOCK])


def lock_open_months(months: Collection[date]) -> set[date]:
    """Return the months that are open, and keep them open until this transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT month FROM telemetry_statement WHERE month = ANY(%s) AND state = 'open'"
            " ORDER BY month FOR SHARE",
            [sorted(months)],
        )
        return {row[0] for row in cursor.fetchall()}
