"""Read alerts and the rules of pools for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Case, Count, IntegerField, QuerySet, Value, When

from portal import policy
from portal.wording.alert_texts import alert_evidence, alert_label, gpu_label
from scheduler.models import Pool
from telemetry.alerts.rules import rules_in_force
from telemetry.core.alerts.judgement import AlertState
from telemetry.core.alerts.kinds import ALERT_KINDS, AlertKind, AlertKindDefinition, AlertThresholds
from telemetry.models import Alert

OPEN_STATES = "open"
ALERT_FILTER_STATES = (OPEN_STATES, *(state.value for state in AlertState), "all")


@dataclass(frozen=True)
class AlertRow:
    """An alert with the names that people read. ``subject`` names a workload, GPU, host or pool."""

    alert: Alert
    label: str
    subject_kind: str
    subject: str
    unit: str
    evidence: str


@dataclass(frozen=True)
class PoolAlertRule:
    """The rule of a kind in a pool. ``is_own`` is False if it is the default."""

    definition: AlertKindDefinition
    thresholds: AlertThresholds
    is_own: bool

    @property
    def kind(self) -> str:
        return self.definition.kind.value


def alerts(
    viewer: policy.Viewer, *, kind: str = "", pool: str = "", state: str = OPEN_STATES
) -> QuerySet[Alert]:
    """Return the visible alerts that match the filters: new ones first, then by their begin, newest first."""
    rows = policy.visible_alerts(viewer)
    if kind:
        rows = rows.filter(kind=kind)
    if pool:
        rows = rows.filter(pool__slug=pool)
    if state == OPEN_STATES:
        rows = rows.filter(ended_at=None)
    elif state != "all":
        rows = rows.filter(state=state)
    order = Case(
        *(When(state=each, then=Value(number)) for number, each in enumerate(AlertState)),
        output_field=IntegerField(),
    )
    related = ("pool", "host", "gpu__host", "workload", "reservation", "acknowledged_by")
    return rows.select_related(*related).order_by(order, "-began_at", "-pk")


def alert_row(alert: Alert) -> AlertRow:
    """Return the alert with the names and the sentence that people read."""
    definition = ALERT_KINDS[AlertKind(alert.kind)]
    return AlertRow(
        alert,
        alert_label(alert.kind),
        definition.subject.value,
        subject_name(alert),
        definition.unit,
        alert_evidence(alert.kind, alert.value, alert.evidence),
    )


def subject_name(alert: Alert) -> str:
    """Return the name of the workload, reservation, GPU, host or pool of an alert."""
    if alert.workload is not None:
        return alert.workload.name
    if alert.reservation is not None:
        return alert.reservation.name
    if alert.gpu is not None:
        return gpu_label(alert.gpu.host.name, alert.gpu.index)
    return alert.host.name if alert.host is not None else alert.pool.name


def pool_alert_rules(pool: Pool) -> list[PoolAlertRule]:
    """Return the rules in force of a pool, one for each kind."""
    rules = rules_in_force()
    return [
        PoolAlertRule(definition, rules.of(pool.pk, kind), rules.is_own(pool.pk, kind))
        for kind, definition in ALERT_KINDS.items()
    ]


def open_alert_counts(pools: Collection[int]) -> list[tuple[int, str, str, int]]:
    """Return the numbers of open alerts as (id of the pool, kind, state, number)."""
    rows = Alert.objects.filter(ended_at=None, pool__in=list(pools))
    counts = rows.values_list("pool_id", "kind", "state").annotate(Count("pk"))
    return list(counts.order_by("pool", "kind", "state"))
