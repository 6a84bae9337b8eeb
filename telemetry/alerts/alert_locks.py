"""Lock the alerts against a concurrent run of the task."""

from __future__ import annotations

from django.db import connection

from telemetry.models import Alert

_ALERT_LOCK = 7_420_033  # any constant that no other advisory lock uses


def try_lock_alerts() -> bool:
    """Lock the evaluation until the transaction ends. Return False if another transaction has the lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, 0)", [_ALERT_LOCK])
        return bool(cursor.fetchone()[0])


def lock_alert(pk: int) -> Alert:
    """Lock an alert until the transaction ends, and return it as it is now."""
    return Alert.objects.select_for_update(of=("self",)).get(pk=pk)


def lock_alerts_of_job(workload: int) -> None:
    """Lock the open alerts of a job until the transaction ends. Two postponements then count one by one."""
    rows = Alert.objects.select_for_update(of=("self",)).filter(workload=workload, ended_at=None)
    list(rows.order_by("pk"))
