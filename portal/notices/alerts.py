"""Find alerts that began, for notices to operators and to the owners of the work or of the reservation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from portal.notices.pending import PendingNotice, grouped_by_array
from portal.notices.recipients import operator_ids
from portal.reads.fleet.alerts import subject_name
from telemetry.alerts.postponements import planned_stops
from telemetry.core.alerts.judgement import AlertState
from telemetry.models import Alert

ID_DIGITS = 8  # of the id of a job in a command
RELATED = ("pool", "host", "gpu__host", "workload__array", "reservation")


def begun_alerts(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield notices about alerts that began: to operators, and to the owner of the work or reservation.

    Operators get one notice for each pool, kind and hour, because a fault can cause many alerts.
    """
    begun = Alert.objects.filter(began_at__gt=since, began_at__lte=now).select_related(*RELATED)
    by_hour: dict[tuple[str, str, str], list[Alert]] = defaultdict(list)
    for alert in begun.order_by("began_at", "pk"):
        by_hour[alert.pool.slug, alert.kind, f"{alert.began_at:%Y%m%d%H}"].append(alert)
        yield from _notice_to_owner(alert)
    operators = operator_ids() if by_hour else ()
    for (pool, kind, hour), those in by_hour.items():
        numbers = {
            "pool": those[0].pool.name,
            "alert": kind,
            "subject": subject_name(those[0]),
            "value": those[0].value,
            "more": len(those) - 1,
            **those[0].evidence,
        }
        yield PendingNotice("alerts_began", f"alerts:{pool}:{kind}:{hour}", operators, numbers)


def _notice_to_owner(alert: Alert) -> Iterator[PendingNotice]:
    numbers: dict[str, Any] = {"alert": alert.kind, "value": alert.value, **alert.evidence}
    if alert.workload is not None:
        name, source = grouped_by_array(alert.workload, f"alert:{alert.public_id}", alert.began_at)
        owner = (alert.workload.owner_id,)
        yield PendingNotice(
            "alert_on_work", source, owner, {**numbers, "name": name}, workload=alert.workload_id
        )
    elif alert.reservation is not None:
        owner = (alert.reservation.owner_id,)
        numbers["name"] = alert.reservation.name
        source = f"alert:{alert.public_id}"
        yield PendingNotice("alert_on_work", source, owner, numbers, reservation=alert.reservation_id)


def planned_stops_of_unused_work(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a warning to the owner of each unused job that will be stopped, with the time of the stop.

    If the time changes, as after a snooze, there is a new warning.
    """
    planned = Alert.objects.filter(stop_at__gt=since, stopped_at=None, workload__isnull=False).exclude(
        state__in=(AlertState.ENDED, AlertState.SNOOZED)
    )
    alerts = list(planned.select_related("workload").order_by("pk"))
    stops = planned_stops([alert.workload_id for alert in alerts if alert.workload_id]) if alerts else {}
    for alert in alerts:
        if alert.workload is not None and alert.stop_at is not None:
            numbers: dict[str, Any] = {"name": alert.workload.name, "stop_at": alert.stop_at.timestamp()}
            if stop := stops.get(alert.workload.pk):
                numbers |= {"left": stop.left, "minutes": stop.minutes}
                numbers["job"] = str(alert.workload.public_id)[:ID_DIGITS]
            source = f"unused:{alert.public_id}:{alert.stop_at.timestamp():.0f}"
            owner = (alert.workload.owner_id,)
            yield PendingNotice("unused_work_stops", source, owner, numbers, workload=alert.workload_id)
