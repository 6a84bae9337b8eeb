"""Record one event for each GPU that its host no longer reports, so that a pool does not shrink unnoticed."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from scheduler.models import Gpu
from scheduler.state.states import RepairState
from scheduler.sync.host_inventory import NOT_REPORTED
from telemetry.models import HealthEvent

MISSING_GPU_CODE = "gpu:missing"


def record_missing_gpus(now: datetime) -> int:
    """Record an event for each missing GPU, and return the number of new events.

    GPUs that have been missing for more than GPUPOOL_HEALTH_EVENT_DAYS are skipped.
    """
    since = now - timedelta(days=settings.GPUPOOL_HEALTH_EVENT_DAYS)
    found = 0
    for gpu in Gpu.objects.filter(missing_since__gt=since).order_by("pk"):
        at = gpu.missing_since or now
        _, created = HealthEvent.objects.get_or_create(
            host_id=gpu.host_id,
            event_id=f"missing:{gpu.pk}:{at.timestamp():.3f}",
            defaults={
                "gpu": gpu,
                "source": "gpupool",
                "code": MISSING_GPU_CODE,
                "detail": missing_gpu_detail(gpu)[:1000],
                "at": at,
                "received_at": now,
            },
        )
        found += created
    return found


def missing_gpu_detail(gpu: Gpu) -> str:
    """Return the event's detail: the GPU's uuid.

    If the GPU was not well before, its earlier repair state and the reason follow.
    """
    before = (
        "" if gpu.repair_state == RepairState.WELL or gpu.state_reason == NOT_REPORTED else gpu.state_reason
    )
    return gpu.uuid + (f"; before that: {gpu.repair_state}, {before}" if before else "")
