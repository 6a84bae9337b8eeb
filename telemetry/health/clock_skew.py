"""Record an event for each host whose clock is so wrong that its samples are refused."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from telemetry.models import HealthEvent, ReadingFault
from telemetry.readings.faults import FaultCount

CLOCK_SKEW_CODE = "clock:skew"


def record_clock_skew(faults: Iterable[FaultCount], now: datetime) -> int:
    """Record an event for each host with refused samples, at most one a day (UTC). Return the new events."""
    found = 0
    refused = (fault for fault in faults if fault.kind == ReadingFault.Kind.CLOCK_REFUSED)
    for host, fault in {fault.host: fault for fault in refused}.items():
        _, created = HealthEvent.objects.get_or_create(
            host_id=host,
            event_id=f"clock-skew:{now.astimezone(UTC):%Y-%m-%d}",
            defaults={
                "source": "gpupool",
                "code": CLOCK_SKEW_CODE,
                "detail": clock_skew_detail(fault.last_value or 0.0),
                "at": min(fault.last_at, now),
                "received_at": now,
            },
        )
        found += created
    return found


def clock_skew_detail(offset: float) -> str:
    """Return the event's detail for a clock that is ``offset`` seconds ahead of the server."""
    return f"{abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} the server"
