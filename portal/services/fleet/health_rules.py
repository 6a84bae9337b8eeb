"""Change, reset, add and remove health rules.

A health rule defines the action that follows hardware events with one code.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from portal import locks, policy
from portal.errors import Invalid
from portal.input_checks import InputChecks, checked_reason, display_value
from portal.models import User
from portal.services import audit
from portal.wording.problems import administration_problems
from scheduler.core.rejection import OperationRejected
from telemetry.models import HealthRule

MAX_REPEATS = 1000
MAX_WINDOW_SECONDS = 30 * 86_400
DEFAULT_WINDOW_SECONDS = 3600
EVENT_KINDS = ("xid", "ecc", "remap", "throttle", "nvlink", "recovery", "nvml")  # as agents report them
EVENT_CODE_PATTERN = re.compile(
    rf"^(xid:(0|[1-9][0-9]{{0,3}})|({'|'.join(EVENT_KINDS[1:])}):[a-z0-9_]{{1,30}})$"
)
EVENT_CODE_HELP = (
    f"xid: and a number, such as xid:201, or {', '.join(EVENT_KINDS[1:])} and a lower-case word, "
    "such as nvlink:down"
)
ANY_EVENT_CODE_PATTERN = re.compile(r"[a-z]+:[a-z0-9_]+", re.ASCII)
KNOWN_CODE_HELP = (
    "a code that has a rule; events of other codes are recorded, and a rule can be added for them"
)
LOCAL_RULE_SOURCE = "this organisation"
RULE_FIELDS = ("action", "repeats", "window_seconds", "counts")


def set_health_rule(
    *,
    actor: User,
    code: str,
    now: datetime,
    action: str | None = None,
    repeats: int | None = None,
    window_seconds: int | None = None,
    counts: str | None = None,
    why: str = "",
    via: str = "web",
) -> HealthRule:
    """Change the rule of an event code.

    ``action`` is taken after ``repeats`` events within ``window_seconds``. ``counts`` selects how events
    count: each event counts, or all events of one person's workloads count as one event. Absent or empty
    arguments keep their values. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "health_rule.change")
    checks = InputChecks()
    given = {"action": action, "repeats": repeats, "window_seconds": window_seconds, "counts": counts}
    clean = _checked_rule_fields(
        checks, {name: value for name, value in given.items() if value not in (None, "")}
    )
    why = checked_reason(why)
    if not clean and not checks.problems:
        checks.note(
            "action", None, administration_problems.NOTHING_TO_CHANGE.format(allowed=", ".join(RULE_FIELDS))
        )
    checks.done()
    with transaction.atomic():
        rule = _locked_rule(code)
        return _change_rule(rule, clean, actor=actor, via=via, now=now, verb="set_health_rule", why=why)


def reset_health_rule(
    *, actor: User, code: str, now: datetime, why: str = "", via: str = "web"
) -> HealthRule:
    """Reset a rule to its default values.

    Raises Invalid, NotAllowed. Raises OperationRejected if the rule has its default values, or if an operator
    added it.
    """
    policy.require(actor, "health_rule.change")
    why = checked_reason(why)
    with transaction.atomic():
        rule = _locked_rule(code)
        if rule.origin == HealthRule.Origin.ADDED:
            raise OperationRejected("health_rule_has_no_default", {"rule": rule.code}, field="code")
        if rule.origin == HealthRule.Origin.DEFAULT:
            raise OperationRejected("health_rule_is_default", {"rule": rule.code}, field="code")
        return _change_rule(
            rule,
            dict(zip(RULE_FIELDS, rule.default, strict=True)),
            actor=actor,
            via=via,
            now=now,
            verb="reset_health_rule",
            why=why,
        )


def add_health_rule(
    *,
    actor: User,
    code: str,
    meaning: str,
    action: str,
    now: datetime,
    repeats: int = 1,
    window_seconds: int = DEFAULT_WINDOW_SECONDS,
    counts: str = HealthRule.Counts.EVENTS,
    source: str = "",
    why: str = "",
    via: str = "web",
) -> HealthRule:
    """Add a rule for an event code. Without a rule, events of this code are only recorded.

    ``source`` names who recommends the rule; empty means this organisation. Raises Invalid, NotAllowed,
    OperationRejected.
    """
    policy.require(actor, "health_rule.change")
    checks = InputChecks()
    code = checks.pattern("code", code, EVENT_CODE_PATTERN, EVENT_CODE_HELP)
    meaning = checks.text("meaning", meaning, most=200)
    source = checks.text("source", source or LOCAL_RULE_SOURCE, most=200)
    clean = _checked_rule_fields(
        checks, {"action": action, "repeats": repeats, "window_seconds": window_seconds, "counts": counts}
    )
    why = checked_reason(why)
    checks.done()
    try:
        with transaction.atomic():
            rule = HealthRule.objects.create(code=code, meaning=meaning, source=source, **clean)
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="add_health_rule",
                target=rule,
                why=why,
                after=audit.audited_fields(rule, "meaning", *RULE_FIELDS, "source"),
            )
    except IntegrityError:
        raise OperationRejected("health_rule_exists", {"rule": code}, field="code") from None
    return rule


def remove_health_rule(
    *, actor: User, code: str, now: datetime, why: str = "", via: str = "web"
) -> HealthRule:
    """Remove a rule that an operator added. Later events of its code are only recorded.

    Raises Invalid, NotAllowed. Raises OperationRejected for a built-in rule.
    """
    policy.require(actor, "health_rule.change")
    why = checked_reason(why)
    with transaction.atomic():
        rule = _locked_rule(code)
        if rule.origin != HealthRule.Origin.ADDED:
            raise OperationRejected("health_rule_is_built_in", {"rule": rule.code}, field="code")
        before = audit.audited_fields(rule, "meaning", *RULE_FIELDS, "source")
        audit.record(
            actor=actor, via=via, now=now, verb="remove_health_rule", target=rule, why=why, before=before
        )
        HealthRule.objects.filter(pk=rule.pk).delete()
    return rule


def _checked_rule_fields(checks: InputChecks, given: dict[str, Any]) -> dict[str, Any]:
    """Check the given fields of a rule and return their values."""
    clean: dict[str, Any] = {}
    for name, value in given.items():
        if name == "action":
            clean[name] = checks.choice(name, value, HealthRule.Action.values)
        elif name == "counts":
            clean[name] = checks.choice(name, value, HealthRule.Counts.values)
        elif name == "repeats":
            clean[name] = checks.count(name, value, 1, MAX_REPEATS)
        else:
            clean[name] = checks.count(name, value, 1, MAX_WINDOW_SECONDS, "seconds")
    return clean


def _locked_rule(code: str) -> HealthRule:
    rule = (
        locks.lock_health_rule(code)
        if isinstance(code, str) and ANY_EVENT_CODE_PATTERN.fullmatch(code)
        else None
    )
    if rule is None:
        message = administration_problems.HEALTH_RULE_UNKNOWN.format(
            code=display_value(code), allowed=KNOWN_CODE_HELP
        )
        raise Invalid({"code": message}, {"code": code if isinstance(code, str) else display_value(code)})
    return rule


def _change_rule(
    rule: HealthRule, values: dict[str, Any], *, actor: User, via: str, now: datetime, verb: str, why: str
) -> HealthRule:
    before = audit.audited_fields(rule, *RULE_FIELDS)
    HealthRule.objects.filter(pk=rule.pk).update(**values)
    rule.refresh_from_db()
    audit.record(
        actor=actor,
        via=via,
        now=now,
        verb=verb,
        target=rule,
        why=why,
        before=before,
        after=audit.audited_fields(rule, *RULE_FIELDS),
    )
    return rule
