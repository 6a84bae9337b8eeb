"""Claim the dcgm-exporters that are due. No other module of this folder locks rows."""

from __future__ import annotations

from datetime import datetime

from django.db import connection, transaction

from telemetry.models import DcgmTarget

_CLAIM_SQL = """
UPDATE telemetry_dcgmtarget AS target SET due_at = %s, scraped_at = %s
WHERE target.id IN (
    SELECT due.id FROM telemetry_dcgmtarget AS due
    JOIN scheduler_host AS host ON host.id = due.host_id AND host.removed_at IS NULL
    WHERE due.due_at <= %s ORDER BY due.due_at, due.id LIMIT %s FOR UPDATE OF due SKIP LOCKED
)
RETURNING target.id
"""


def claim_due_targets(now: datetime, next_due: datetime, most: int) -> list[DcgmTarget]:
    """Return at most ``most`` due targets with their hosts. They become due again at ``next_due``. Rows that
    another run claims at the same time are skipped.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_CLAIM_SQL, [next_due, now, now, most])
        claimed = [pk for (pk,) in cursor.fetchall()]
    return list(DcgmTarget.objects.filter(pk__in=claimed).select_related("host").order_by("pk"))
