"""Write alerts. No other module creates an alert or changes its state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db.models import F

from telemetry.alerts.alert_values import SubjectValue
from telemetry.core.alerts.judgement import AlertState
from telemetry.core.alerts.kinds import ALERT_KINDS, AlertKind
from telemetry.models import ALERT_TRANSITIONS, Alert

PURGE_BATCH_SIZE = 5_000


def begin_alerts(values: Iterable[tuple[AlertKind, int, SubjectValue]], now: datetime) -> list[Alert]:
    """Create an alert for each (kind, id of the subject, value)."""
    rows = [
        Alert(
            pool_id=each.pool,
            kind=kind,
            subject=f"{ALERT_KINDS[kind].subject}:{subject}",
            value=each.value.to_begin if each.value.to_begin is not None else 0.0,
            evidence=dict(each.value.evidence),
            began_at=now,
            **each.links,
        )
        for kind, subject, each in values
    ]
    return Alert.objects.bulk_create(rows)


def end_alerts(alerts: Sequence[Alert], now: datetime) -> int:
    """End alerts, whatever their open state is. Return their number."""
    ended = 0
    for old in {AlertState(alert.state) for alert in alerts}:
        rows = [alert.pk for alert in alerts if alert.state == old]
        ended += _change(rows, old, AlertState.ENDED, ended_at=now, snoozed_until=None, stop_at=None)
    return ended


def wake_snoozed_alerts(now: datetime) -> int:
    """Let alerts fire again whose snooze is over. Return their number."""
    due = Alert.objects.filter(state=AlertState.SNOOZED, snoozed_until__lte=now)
    ids = list(due.values_list("pk", flat=True))
    return _change(ids, AlertState.SNOOZED, AlertState.FIRING, snoozed_until=None) if ids else 0


def acknowledge_alert(alert: Alert, *, by: int, now: datetime) -> bool:
    """Record that a user has seen an alert. Return False if its state does not allow it."""
    return _change_one(
        alert, AlertState.ACKNOWLEDGED, acknowledged_at=now, acknowledged_by_id=by, snoozed_until=None
    )


def snooze_alert(alert: Alert, *, until: datetime) -> bool:
    """Silence an alert until a time. Return False if its state does not allow it.

    Work is not stopped meanwhile. Its owner is warned again when the alert fires again.
    """
    return _change_one(alert, AlertState.SNOOZED, snoozed_until=until, stop_at=None)


def plan_stops(alerts: Iterable[Alert], notice: timedelta, now: datetime) -> None:
    """Set the time at which the unused work of these alerts is stopped."""
    Alert.objects.filter(pk__in=[alert.pk for alert in alerts]).update(stop_at=now + notice)


def withdraw_stops(alerts: Iterable[Alert]) -> None:
    """Withdraw the planned stops of alerts whose pool no longer stops unused work."""
    Alert.objects.filter(pk__in=[alert.pk for alert in alerts]).update(stop_at=None)


def postpone_stops(alerts: Sequence[int]) -> None:
    """Withdraw the planned stops of a job, and count one postponement.

    The stop is planned again when the job is not kept any more, so that its owner is warned again.
    """
    Alert.objects.filter(pk__in=alerts).update(stop_at=None)
    Alert.objects.filter(pk=alerts[0]).update(postponed=F("postponed") + 1)


def record_stop(alert: Alert, now: datetime) -> None:
    """Record that the stop of the unused work was ordered."""
    Alert.objects.filter(pk=alert.pk).update(stopped_at=now)


def purge_ended_alerts(before: datetime) -> int:
    """Delete alerts that ended before a time. Return their number, at most PURGE_BATCH_SIZE."""
    old = Alert.objects.filter(ended_at__lt=before).order_by("ended_at").values_list("pk", flat=True)
    return Alert.objects.filter(pk__in=list(old[:PURGE_BATCH_SIZE])).delete()[0]


def _change_one(alert: Alert, new: AlertState, **also: object) -> bool:
    old = AlertState(alert.state)
    if new not in ALERT_TRANSITIONS[old]:
        return False
    changed = _change([alert.pk], old, new, **also) == 1
    alert.refresh_from_db()
    return changed


def _change(ids: Sequence[int], old: AlertState, new: AlertState, **also: object) -> int:
    """Change the state of alerts that are still in the state ``old``. Return the number of changed alerts."""
    return Alert.objects.filter(pk__in=ids, state=old).update(state=new, **also)
