"""Lock the packed samples."""

from __future__ import annotations

from django.db import connection


def lock_packed_samples() -> None:
    """Wait for a concurrent change of packed samples, and make others wait until this transaction ends.

    Two changes would read the same packed rows, and the samples of one would be lost.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('telemetry_pack_samples'))")
