"""Lock the report of a workload against a concurrent run of the task."""

from __future__ import annotations

from django.db import connection

_REPORT_LOCKS = 7_420_015  # any pair of constants that no other advisory lock uses


def try_lock_report(workload: int) -> bool:
    """Lock a report until the transaction ends. Return False if another transaction has the lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [_REPORT_LOCKS, workload % 2**31])
        return bool(cursor.fetchone()[0])
