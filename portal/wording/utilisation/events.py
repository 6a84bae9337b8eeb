"""Describe the events that the chart of use over time marks."""

from __future__ import annotations

from telemetry.reads.utilisation.events import UseEvent

GAP_CAUSES = {
    "skipped": "batches did not arrive",
    "reinstalled": "the agent was installed again",
    "removed": "the host was removed",
    "clock": "the clock was wrong",
}


def event_text(event: UseEvent, currency: str) -> str:
    """Return what happened, without its time."""
    if event.kind == "price":
        where = f" in {event.detail}" if event.detail else ""
        return f"Price of {event.subject}{where}: {float(event.value):,.2f} {currency} a GPU-hour"
    if event.kind == "maintenance":
        return f"Maintenance of {event.subject}"
    if event.kind == "drain":
        return f"Drain of {event.subject}"
    if event.kind == "gap":
        more = "" if event.count == 1 else f" and {event.count - 1:,} more hosts"
        return f"No telemetry of {event.subject}{more}: {GAP_CAUSES[event.detail]}"
    if event.kind == "month":
        return f"Month {event.subject} closed"
    noun = "GPU" if event.count == 1 else "GPUs"
    return f"{event.subject}: {event.value.strip()} {noun} {event.detail}"


EVENT_LABELS = {
    "price": "price",
    "maintenance": "maintenance",
    "drain": "drain",
    "gap": "no telemetry",
    "month": "month closed",
    "size": "pool size",
}
