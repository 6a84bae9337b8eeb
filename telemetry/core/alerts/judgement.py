"""Judge whether an alert begins, ends or stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from telemetry.core.alerts.kinds import AlertThresholds


class AlertState(StrEnum):
    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"  # an operator has seen it
    SNOOZED = "snoozed"  # silent until a time that an operator chose; it then fires again
    ENDED = "ended"


OPEN_ALERT_STATES = (AlertState.FIRING, AlertState.ACKNOWLEDGED, AlertState.SNOOZED)
ALERT_STATE_TABLE: dict[str, frozenset[str]] = {
    AlertState.FIRING: frozenset({AlertState.ACKNOWLEDGED, AlertState.SNOOZED, AlertState.ENDED}),
    AlertState.ACKNOWLEDGED: frozenset({AlertState.SNOOZED, AlertState.ENDED}),
    # A snoozed alert can be snoozed for a longer or a shorter time.
    AlertState.SNOOZED: frozenset(
        {AlertState.FIRING, AlertState.ACKNOWLEDGED, AlertState.SNOOZED, AlertState.ENDED}
    ),
    AlertState.ENDED: frozenset(),
}


@dataclass(frozen=True)
class AlertValue:
    """The value of a subject over the windows of its rule; None if it is unknown.

    ``to_begin`` is the lowest value in the window to begin an alert. ``to_end`` is the highest value in the
    window to end it. The value of a share is the share of the window. ``evidence`` has the
    numbers for the sentence of the alert, as JSON values.
    """

    to_begin: float | None
    to_end: float | None
    evidence: Mapping[str, Any] = field(default_factory=dict)


class AlertChange(StrEnum):
    NONE = "none"
    BEGINS = "begins"
    ENDS = "ends"


def alert_change(thresholds: AlertThresholds, value: AlertValue | None, *, is_open: bool) -> AlertChange:
    """Return the change of the alert of one subject. An unknown value changes nothing.

    ``value`` is None if the subject no longer exists, such as work that has ended. A disabled rule has no
    open alert.
    """
    if is_open:
        is_over = value is None or (value.to_end is not None and value.to_end <= thresholds.end)
        return AlertChange.ENDS if is_over or not thresholds.enabled else AlertChange.NONE
    if value is None or value.to_begin is None or not thresholds.enabled:
        return AlertChange.NONE
    return AlertChange.BEGINS if value.to_begin >= thresholds.begin else AlertChange.NONE
