"""Lock the packing of rollups."""

from __future__ import annotations

from django.db import connection


def lock_packing(resolution: int) -> None:
    """Wait for concurrent packing of this resolution, and make it wait until this transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtext('telemetry_pack_rollups'), %s)", [int(resolution)]
        )
