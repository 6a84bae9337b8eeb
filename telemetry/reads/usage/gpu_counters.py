"""Return the last value of each counter and flag of a host's GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from scheduler.models import Host
from telemetry.models import SlowReading


@dataclass(frozen=True)
class GpuCounter:
    """The last value of a counter of one GPU. ``since`` is the time at which it got this value."""

    gpu: int  # index
    reading: str
    value: int
    source: str
    since: datetime


def gpu_counters(host: Host) -> list[GpuCounter]:
    """Return the counters that are not 0, by GPU and reading. Runs one query.

    If two sources know a counter, the one that changed last counts.
    """
    rows = (
        SlowReading.objects.filter(gpu__host=host, gpu__retired_at=None)
        .order_by("gpu__index", "gpu", "reading", "-at", "-pk")
        .distinct("gpu__index", "gpu", "reading")
        .values_list("gpu__index", "reading", "value", "source", "at")
    )
    return [GpuCounter(*row) for row in rows if row[2]]
