"""Acknowledge and snooze alerts, and change the alert rules of a pool."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from portal import locks, policy
from portal.input_checks import InputChecks, checked_reason, display_value
from portal.models import User
from portal.services import audit
from portal.wording.problems import administration_problems, input_problems
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool
from telemetry.alerts import alert_rows, rules
from telemetry.core.alerts.kinds import (
    ALERT_KINDS,
    MAX_NOTICE_MINUTES,
    MAX_POSTPONE_MINUTES,
    MAX_POSTPONE_TIMES,
    MAX_WINDOW_MINUTES,
    MIN_NOTICE_MINUTES,
    MIN_POSTPONE_MINUTES,
    MOMENTARY_KINDS,
    THRESHOLD_FIELDS,
    AlertKind,
    AlertKindDefinition,
    AlertThresholds,
)
from telemetry.models import Alert

MIN_SNOOZE_MINUTES = 5
MAX_SNOOZE_MINUTES = 30 * 24 * 60
# Fields of a rule that are whole numbers: lowest, highest and unit.
COUNT_BOUNDS: dict[str, tuple[int, int, str]] = {
    "notice_minutes": (MIN_NOTICE_MINUTES, MAX_NOTICE_MINUTES, "minutes"),
    "postpone_times": (0, MAX_POSTPONE_TIMES, "times"),
    "postpone_minutes": (MIN_POSTPONE_MINUTES, MAX_POSTPONE_MINUTES, "minutes"),
}


def acknowledge_alert(*, actor: User, alert: Alert, now: datetime, why: str = "", via: str = "web") -> Alert:
    """Record that an operator has seen an alert. It stays in the list until it ends.

    Raises Invalid, NotAllowed. Raises OperationRejected if it has ended or is acknowledged already.
    """
    policy.require(actor, "alert.handle")
    why = checked_reason(why)
    with transaction.atomic():
        before = audit.audited_fields(alert, "kind", "state")
        if not alert_rows.acknowledge_alert(alert, by=actor.pk, now=now):
            raise OperationRejected("alert_state", {"state": alert.state}, field="verb")
        _record_alert_change(actor, via, now, "acknowledge_alert", alert, before, why)
    return alert


def snooze_alert(
    *, actor: User, alert: Alert, minutes: int, now: datetime, why: str = "", via: str = "web"
) -> Alert:
    """Silence an alert for some minutes. If its reason remains after them, it is shown as new again.

    Meanwhile unused work is not stopped. Raises Invalid, NotAllowed, OperationRejected.
    """
    policy.require(actor, "alert.handle")
    checks = InputChecks()
    minutes = checks.count("minutes", minutes, MIN_SNOOZE_MINUTES, MAX_SNOOZE_MINUTES, "minutes")
    why = checked_reason(why)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(alert, "kind", "state", "snoozed_until")
        if not alert_rows.snooze_alert(alert, until=now + timedelta(minutes=minutes)):
            raise OperationRejected("alert_state", {"state": alert.state}, field="verb")
        _record_alert_change(actor, via, now, "snooze_alert", alert, before, why)
    return alert


def set_alert_rule(
    *, actor: User, pool: Pool, kind: str, now: datetime, why: str = "", via: str = "web", **given: Any
) -> AlertThresholds:
    """Change the rule of a kind of alert in a pool. Fields that are not given keep their values.

    ``given`` has fields of AlertThresholds. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "alert_rule.change")
    definition = _checked_kind(kind)
    checks = InputChecks()
    why = checked_reason(why)
    with transaction.atomic():
        locks.lock_alert_rules(pool)
        before = rules.rules_in_force().of(pool.pk, definition.kind)
        clean = {name: _checked_value(checks, definition, name, value) for name, value in given.items()}
        if not given:
            allowed = ", ".join(THRESHOLD_FIELDS)
            checks.note("begin", None, administration_problems.NOTHING_TO_CHANGE.format(allowed=allowed))
        checks.done()
        after = AlertThresholds(**(asdict(before) | clean))
        _check_hysteresis(checks, definition, after, set(given))
        checks.done()
        rules.write_rule(pool, definition.kind, asdict(after))
        _record_rule_change(actor, via, now, "set_alert_rule", pool, definition, (before, after), why)
    return after


def reset_alert_rule(
    *, actor: User, pool: Pool, kind: str, now: datetime, why: str = "", via: str = "web"
) -> AlertThresholds:
    """Restore the default rule of a kind of alert in a pool.

    Raises Invalid, NotAllowed. Raises OperationRejected if the pool has the default.
    """
    policy.require(actor, "alert_rule.change")
    definition = _checked_kind(kind)
    why = checked_reason(why)
    with transaction.atomic():
        locks.lock_alert_rules(pool)
        before = rules.rules_in_force().of(pool.pk, definition.kind)
        if not rules.remove_rule(pool, definition.kind):
            raise OperationRejected("alert_rule_is_default", {"kind": kind}, field="kind")
        change = (before, definition.defaults)
        _record_rule_change(actor, via, now, "reset_alert_rule", pool, definition, change, why)
    return definition.defaults


def _team_id(alert: Alert) -> int | None:
    subject = alert.workload or alert.reservation
    return None if subject is None else policy.team_id_of(subject)


def _checked_kind(kind: str) -> AlertKindDefinition:
    checks = InputChecks()
    clean = checks.choice("kind", kind, [each.value for each in AlertKind])
    checks.done()
    return ALERT_KINDS[AlertKind(clean)]


def _checked_value(checks: InputChecks, definition: AlertKindDefinition, name: str, value: Any) -> Any:
    """Return the valid value of one field of a rule."""
    if name in ("begin", "end"):
        return _checked_number(checks, name, value, definition.lowest, definition.highest)
    if name in ("begin_minutes", "end_minutes"):
        most = 1 if definition.kind in MOMENTARY_KINDS else MAX_WINDOW_MINUTES
        return checks.count(name, value, 1, most, "minutes")
    if name in COUNT_BOUNDS:
        return checks.count(name, value, *COUNT_BOUNDS[name])
    if name == "enabled":
        return checks.flag(name, value)
    if name == "stop_work":
        clean = checks.flag(name, value)
        if clean and not definition.may_stop:
            kinds = ", ".join(kind for kind, each in ALERT_KINDS.items() if each.may_stop)
            message = administration_problems.ALERT_STOPS_NOTHING.format(kind=definition.kind, kinds=kinds)
            checks.note(name, value, message)
        return clean
    checks.note(
        name,
        value,
        administration_problems.ALERT_FIELD_UNKNOWN.format(field=name, allowed=", ".join(THRESHOLD_FIELDS)),
    )
    return value


def _checked_number(checks: InputChecks, field: str, value: Any, low: float, high: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high:
        allowed = f"a number from {low:g} to {high:,.0f}"
        message = input_problems.NOT_ALLOWED.format(
            field=field, given=f"{value:g}" if is_number else display_value(value), allowed=allowed
        )
        checks.note(field, value if is_number else display_value(value), message)
        return low
    return float(value)


def _check_hysteresis(
    checks: InputChecks, definition: AlertKindDefinition, rule: AlertThresholds, given: set[str]
) -> None:
    """Refuse thresholds with which an alert would begin and end at the same value."""
    if rule.end < rule.begin:
        return None
    if "end" in given or "begin" not in given:
        message = administration_problems.ALERT_END_NOT_BELOW_BEGIN.format(
            end=f"{rule.end:g}", begin=f"{rule.begin:g}", low=f"{definition.lowest:g}"
        )
        return checks.note("end", f"{rule.end:g}", message)
    message = administration_problems.ALERT_BEGIN_NOT_ABOVE_END.format(
        end=f"{rule.end:g}", begin=f"{rule.begin:g}", high=f"{definition.highest:,.0f}"
    )
    return checks.note("begin", f"{rule.begin:g}", message)


def _record_alert_change(
    actor: User, via: str, now: datetime, verb: str, alert: Alert, before: dict[str, Any], why: str
) -> None:
    audit.record(
        actor=actor,
        via=via,
        now=now,
        verb=verb,
        target=alert,
        team_id=_team_id(alert),
        why=why,
        before=before,
        after=audit.audited_fields(alert, *before),
    )


def _record_rule_change(
    actor: User,
    via: str,
    now: datetime,
    verb: str,
    pool: Pool,
    definition: AlertKindDefinition,
    change: tuple[AlertThresholds, AlertThresholds],
    why: str,
) -> None:
    before, after = ({"kind": definition.kind.value, **asdict(each)} for each in change)
    audit.record(actor=actor, via=via, now=now, verb=verb, target=pool, why=why, before=before, after=after)
