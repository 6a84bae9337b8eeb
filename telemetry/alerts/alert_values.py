"""Define the values that the collectors give to the evaluation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from telemetry.alerts.rules import RulesInForce
from telemetry.core.alerts.judgement import AlertValue
from telemetry.core.alerts.kinds import AlertKind
from telemetry.models import Alert

# Rollups of a minute exist this long after its end.
ROLLUP_LAG = timedelta(minutes=2)


@dataclass(frozen=True)
class SubjectValue:
    """The value of a subject in its pool. ``links`` are the columns of the alert that name the subject."""

    pool: int
    value: AlertValue
    links: Mapping[str, int] = field(default_factory=dict)


# By kind of alert and id of the subject.
KindValues = dict[AlertKind, dict[int, SubjectValue]]


@dataclass(frozen=True)
class AlertEvaluation:
    """One evaluation: its time, the rules and the open alerts, by kind and id of the subject."""

    now: datetime
    rules: RulesInForce
    open_alerts: Mapping[AlertKind, Mapping[int, Alert]]

    @property
    def until(self) -> datetime:
        """Return the end of the minutes that are rolled up."""
        return (self.now - ROLLUP_LAG).replace(second=0, microsecond=0)

    def open_subjects(self, *kinds: AlertKind) -> set[int]:
        return {subject for kind in kinds for subject in self.open_alerts.get(kind, {})}

    def is_open(self, kind: AlertKind, subject: int) -> bool:
        return subject in self.open_alerts.get(kind, {})

    def window_starts(self, pool: int, kind: AlertKind, end: datetime) -> tuple[datetime, datetime]:
        """Return the starts of the windows to begin and to end an alert. Both windows end at ``end``."""
        rule = self.rules.of(pool, kind)
        return end - timedelta(minutes=rule.begin_minutes), end - timedelta(minutes=rule.end_minutes)


def alerts_by_subject(alerts: Collection[Alert]) -> dict[AlertKind, dict[int, Alert]]:
    """Return the alerts by kind and by the id of their subject."""
    found: dict[AlertKind, dict[int, Alert]] = defaultdict(dict)
    for alert in alerts:
        found[AlertKind(alert.kind)][int(alert.subject.partition(":")[2])] = alert
    return found
