"""Lock the claims of studies against a concurrent task."""

from __future__ import annotations

from django.db import connection

_CLAIM_LOCK = 7_420_041  # any constant that no other advisory lock uses


def lock_study_claims() -> None:
    """Wait for other tasks that claim a study. The lock is held until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, 0)", [_CLAIM_LOCK])
