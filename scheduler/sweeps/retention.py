"""Delete old rows in bounded batches: logs, recorded snapshots, and decisions about ended work."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from scheduler.cycle import recording
from scheduler.models import Decision
from scheduler.runs import logs
from scheduler.state.states import WorkloadState

MIB = 1024 * 1024
MAX_ROWS_PER_CALL = 5_000  # maximum rows of one kind to delete in one call; the next tick continues


def delete_expired_rows(now: datetime) -> tuple[int, int]:
    """Delete decisions and recordings past their retention period.

    Return the numbers of deleted decisions and of deleted recordings. Decisions about work that has not ended
    are kept at any age, because they explain why the work waits or was evicted.
    """
    before = now - timedelta(days=settings.GPUPOOL_DECISION_DAYS)
    old = Decision.objects.filter(at__lt=before, workload__state=WorkloadState.ENDED).order_by("at")
    decisions, _ = Decision.objects.filter(
        pk__in=list(old.values_list("pk", flat=True)[:MAX_ROWS_PER_CALL])
    ).delete()
    recordings = recording.prune_recordings(
        now - timedelta(hours=settings.GPUPOOL_RECORDING_HOURS), MAX_ROWS_PER_CALL
    )
    return decisions, recordings + recording.prune_recordings_to_size(settings.GPUPOOL_RECORDING_MIB * MIB)


def delete_expired_logs(now: datetime) -> int:
    """Delete logs of ended runs past their retention period. Return the number of deleted logs."""
    return logs.delete_old_logs(now - timedelta(days=settings.GPUPOOL_LOG_DAYS), MAX_ROWS_PER_CALL)
