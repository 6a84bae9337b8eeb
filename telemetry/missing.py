"""GPUs that their host stopped reporting: each is one event, so that nobody's pool gets smaller without a word."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from scheduler.inventory import NOT_REPORTED
from scheduler.models import Gpu
from scheduler.states import RepairState
from telemetry.models import HealthEvent

CODE = "gpu:missing"


def watch(now: datetime) -> int:
    """Note an event for each GPU that is missing; how many are new. Not as long ago as events are forgotten."""
    since = now - timedelta(days=settings.GPUPOOL_HEALTH_EVENT_DAYS)
    found = 0
    for gpu in Gpu.objects.filter(missing_since__gt=since).order_by("pk"):
        at = gpu.missing_since or now
        _, created = HealthEvent.objects.get_or_create(
            host_id=gpu.host_id,
            event_id=f"missing:{gpu.pk}:{at.timestamp():.3f}",
            defaults={
                "gpu": gpu, "source": "gpupool", "code": CODE, "detail": in_words(gpu)[:1000], "at": at, "received_at": now,
            },
        )  # fmt: skip
        found += created
    return found


def in_words(gpu: Gpu) -> str:
    """Which one it is, and what was known against it before it went."""
    before = "" if gpu.repair_state == RepairState.WELL or gpu.state_reason == NOT_REPORTED else gpu.state_reason
    return gpu.uuid + (f"; before that: {gpu.repair_state}, {before}" if before else "")
