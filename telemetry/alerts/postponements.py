"""Read the planned stops of unused jobs, and what is left of their owners' postponements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum

from telemetry.alerts.rules import rules_in_force
from telemetry.core.alerts.kinds import AlertKind
from telemetry.models import Alert


@dataclass(frozen=True)
class PlannedStop:
    """The planned stop of an unused job. ``alerts`` are the ids of the alerts that plan it.

    The job may be postponed ``times`` times in all, each time by at most ``minutes``. It was postponed
    ``used`` times.
    """

    alerts: tuple[int, ...]
    stop_at: datetime
    times: int
    minutes: int
    used: int

    @property
    def left(self) -> int:
        return max(0, self.times - self.used)


def planned_stops(workloads: Collection[int]) -> dict[int, PlannedStop]:
    """Return the planned stop of each of the jobs that has one, by id of the job.

    If several alerts plan a stop, the stricter rule counts. Runs one query if no stop is planned, else four.
    """
    found: dict[int, list[Alert]] = defaultdict(list)
    rows = Alert.objects.filter(
        workload__in=list(workloads), stop_at__isnull=False, stopped_at=None, ended_at=None
    )
    for alert in rows.order_by("stop_at", "pk"):
        found[alert.workload_id or 0].append(alert)
    if not found:
        return {}
    rules = rules_in_force()
    used = dict(
        Alert.objects.filter(workload__in=list(found))
        .order_by("workload")
        .values_list("workload")
        .annotate(Sum("postponed"))
    )
    stops = {}
    for workload, alerts in found.items():
        of_alerts = [rules.of(alert.pool_id, AlertKind(alert.kind)) for alert in alerts]
        stops[workload] = PlannedStop(
            alerts=tuple(alert.pk for alert in alerts),
            stop_at=min(alert.stop_at for alert in alerts if alert.stop_at is not None),
            times=min(rule.postpone_times for rule in of_alerts),
            minutes=min(rule.postpone_minutes for rule in of_alerts),
            used=used[workload],
        )
    return stops
