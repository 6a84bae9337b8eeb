"""Evaluate the alert rules of all pools: begin and end alerts, and stop unused work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from scheduler.models import Workload
from scheduler.services.workloads import stop_unused_work
from telemetry.alerts import alert_rows
from telemetry.alerts.alert_locks import lock_alert, try_lock_alerts
from telemetry.alerts.alert_values import AlertEvaluation, KindValues, SubjectValue, alerts_by_subject
from telemetry.alerts.gpu_values import gpu_values
from telemetry.alerts.host_values import host_values
from telemetry.alerts.rules import rules_in_force
from telemetry.alerts.waiting_values import waiting_values
from telemetry.alerts.work_values import was_used_since, work_values
from telemetry.core.alerts.judgement import AlertChange, AlertState, alert_change
from telemetry.core.alerts.kinds import ALERT_KINDS, AlertKind
from telemetry.models import Alert

STOPPING_STATES = (AlertState.FIRING, AlertState.ACKNOWLEDGED)


@dataclass(frozen=True)
class AlertResult:
    """The number of alerts that began and ended, and of workloads that were ordered to stop."""

    begun: int = 0
    ended: int = 0
    stopped: int = 0


def evaluate_alerts(now: datetime) -> AlertResult:
    """Compare the values of all subjects with the rules of their pools.

    The number of queries does not depend on the number of GPUs. A concurrent run does nothing.
    """
    with transaction.atomic():
        if not try_lock_alerts():
            return AlertResult()
        alert_rows.wake_snoozed_alerts(now)
        open_alerts = list(Alert.objects.filter(ended_at=None))
        evaluation = AlertEvaluation(now, rules_in_force(), alerts_by_subject(open_alerts))
        values = _values(evaluation)
        begun = alert_rows.begin_alerts(_beginning(evaluation, values), now)
        over = _ending(evaluation, values)
        ended = alert_rows.end_alerts(over, now)
        remaining = [alert for alert in open_alerts if alert not in over]
        due = _plan_stops(evaluation, [*remaining, *begun])
    stopped = sum(_stop(alert, values, evaluation) for alert in due)
    return AlertResult(len(begun), ended, stopped)


def purge_old_alerts(now: datetime) -> int:
    """Delete alerts that ended more than GPUPOOL_HEALTH_EVENT_DAYS ago, and return their number."""
    return alert_rows.purge_ended_alerts(now - timedelta(days=settings.GPUPOOL_HEALTH_EVENT_DAYS))


def _values(evaluation: AlertEvaluation) -> KindValues:
    values: KindValues = {}
    for collect in (work_values, gpu_values, host_values, waiting_values):
        values |= collect(evaluation)
    return values


def _beginning(evaluation: AlertEvaluation, values: KindValues) -> list[tuple[AlertKind, int, SubjectValue]]:
    return [
        (kind, subject, each)
        for kind, found in values.items()
        for subject, each in sorted(found.items())
        if not evaluation.is_open(kind, subject)
        and alert_change(evaluation.rules.of(each.pool, kind), each.value, is_open=False)
        == AlertChange.BEGINS
    ]


def _ending(evaluation: AlertEvaluation, values: KindValues) -> list[Alert]:
    """Return the open alerts that end. Alerts of subjects that no longer exist end too."""
    over = []
    for kind, alerts in evaluation.open_alerts.items():
        for subject, alert in alerts.items():
            each = values.get(kind, {}).get(subject)
            # An alert of a subject that moved to another pool ends. The new pool may begin its own.
            value = each.value if each is not None and each.pool == alert.pool_id else None
            rule = evaluation.rules.of(alert.pool_id, kind)
            if alert_change(rule, value, is_open=True) == AlertChange.ENDS:
                over.append(alert)
    return over


def _plan_stops(evaluation: AlertEvaluation, alerts: Sequence[Alert]) -> list[Alert]:
    """Plan and withdraw stops as the rules say. Return the alerts whose work is due to be stopped."""
    planned: dict[int, list[Alert]] = defaultdict(list)
    withdrawn, due = [], []
    stopping = [alert for alert in alerts if _stops_work(evaluation, alert)]
    kept = _kept_jobs(stopping, evaluation.now)
    to_stop = {alert.pk for alert in stopping if alert.workload_id not in kept}
    for alert in alerts:
        stops = alert.pk in to_stop
        if alert.stop_at is None:
            if stops:
                rule = evaluation.rules.of(alert.pool_id, AlertKind(alert.kind))
                planned[rule.notice_minutes].append(alert)
        elif not stops:
            withdrawn.append(alert)
        elif alert.stop_at <= evaluation.now and alert.stopped_at is None:
            due.append(alert)
    for minutes, those in planned.items():
        alert_rows.plan_stops(those, timedelta(minutes=minutes), evaluation.now)
    if withdrawn:
        alert_rows.withdraw_stops(withdrawn)
    return due


def _kept_jobs(alerts: Sequence[Alert], now: datetime) -> set[int]:
    """Return the ids of the jobs whose owners postponed the stop beyond now."""
    if not alerts:
        return set()
    jobs = Workload.objects.filter(pk__in=[alert.workload_id for alert in alerts], keep_until__gt=now)
    return set(jobs.values_list("pk", flat=True))


def _stops_work(evaluation: AlertEvaluation, alert: Alert) -> bool:
    """Return True if the pool stops the work of this alert. A snoozed alert stops nothing."""
    kind = AlertKind(alert.kind)
    may_stop = ALERT_KINDS[kind].may_stop and alert.state in STOPPING_STATES
    return may_stop and evaluation.rules.of(alert.pool_id, kind).stop_work


def _stop(alert: Alert, values: KindValues, evaluation: AlertEvaluation) -> bool:
    """Stop the work of an alert if both signals, and the readings since then, say that it is unused.

    The alert is read again: a person may have snoozed it meanwhile.
    """
    kind = AlertKind(alert.kind)
    each = values.get(kind, {}).get(alert.workload_id or 0)
    rule = evaluation.rules.of(alert.pool_id, kind)
    if each is None or each.value.to_begin is None or each.value.to_begin < rule.begin:
        return False
    workload = each.links["workload_id"]
    with transaction.atomic():
        current = lock_alert(alert.pk)
        is_due = current.state in STOPPING_STATES and current.stop_at == alert.stop_at
        if not is_due or current.stopped_at is not None:
            return False
        if was_used_since(workload, evaluation.until, with_processes=kind == AlertKind.HELD_EMPTY):
            return False
        if not stop_unused_work(workload, now=evaluation.now):
            return False
        alert_rows.record_stop(alert, evaluation.now)
    return True
