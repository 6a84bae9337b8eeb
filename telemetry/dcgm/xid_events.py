"""Record XIDs that dcgm-exporter reports as hardware events, once each.

The metric repeats the last XID of a GPU until another one occurs, so only a change is an event. The agent
also reports XIDs, from the driver and from the kernel log. One XID that both report is one event.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from scheduler.models import Gpu, Host
from telemetry.dcgm.fields import XID
from telemetry.dcgm.slow_readings import SlowChange
from telemetry.models import HealthEvent

SOURCE = "dcgm"
# The agent and dcgm-exporter may report one XID this far apart: the agent may be cut off for a while.
SAME_XID_WINDOW = timedelta(minutes=10)


def record_new_xids(host: Host, changes: Iterable[SlowChange], at: datetime) -> int:
    """Record the XIDs among the changes, and return their number.

    The first value of a GPU is no event: its time is unknown, and it may be long past.
    """
    new = {
        change.gpu: change.value
        for change in changes
        if change.reading == XID and change.before is not None and change.value > 0
    }
    recorded = 0
    for gpu in Gpu.objects.filter(pk__in=new).order_by("pk"):
        code = f"xid:{new[gpu.pk]}"
        same = HealthEvent.objects.filter(host=host, gpu=gpu, code=code, at__gt=at - SAME_XID_WINDOW)
        if not same.exclude(source=SOURCE).exists():
            HealthEvent.objects.create(
                host=host,
                gpu=gpu,
                event_id=f"{SOURCE}:{gpu.pk}:{code}:{at.timestamp():.3f}",
                source=SOURCE,
                code=code,
                detail="reported by dcgm-exporter",
                at=at,
                received_at=at,
            )
            recorded += 1
    return recorded


def replace_event(
    host: int, gpu: Gpu | None, *, event_id: str, code: str, at: datetime, **fields: str
) -> bool:
    """Return True if an event of dcgm-exporter is the XID that the agent reports now.

    The event gets the id, the source and the detail of the agent's report (``fields``), and keeps the action
    that was taken.
    """
    if gpu is None or not code.startswith("xid:"):
        return False
    if HealthEvent.objects.filter(host=host, event_id=event_id).exists():
        return False
    window = (at - SAME_XID_WINDOW, at + SAME_XID_WINDOW)
    same = HealthEvent.objects.filter(host=host, gpu=gpu, code=code, source=SOURCE, at__range=window)
    first = same.order_by("at").values_list("pk", flat=True).first()
    return first is not None and same.filter(pk=first).update(event_id=event_id, **fields) == 1
