"""Processes on a GPU that belong to no allocation: reported at once as a health event, once an hour per unit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from scheduler.models import Unit
from telemetry.models import HealthEvent

CODE = "stray:process"


def report(seen: Mapping[tuple[int, int], tuple[float, int]], now: datetime) -> None:
    """One event per (host, unit) and hour that has stray processes; ``seen`` gives the moment and their number."""
    if not seen:
        return
    units = {unit.pk: unit for unit in Unit.objects.filter(pk__in={unit for _, unit in seen})}
    events = []
    for (host, unit), (moment, count) in sorted(seen.items()):
        at = datetime.fromtimestamp(moment, UTC)
        events.append(
            HealthEvent(
                host_id=host,
                gpu_id=units[unit].gpu_id,
                event_id=f"stray:{unit}:{at:%Y%m%d%H}",
                source="agent",
                code=CODE,
                detail=f"{count} process{'es' if count != 1 else ''} of no workload on {units[unit].uuid}",
                at=at,
                received_at=now,
            )
        )
    HealthEvent.objects.bulk_create(events, ignore_conflicts=True)
