"""Verbs on what is done about hardware events."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal import policy
from portal.models import User
from portal.services import audit
from portal.validation import Checks
from telemetry.models import HealthRule

MOST_REPEATS = 1000
LONGEST_WINDOW = 30 * 86_400


def set_health_rule(
    *, actor: User, code: str, action: str, repeats: int, window_seconds: int, now: datetime, counts: str = "", via: str = "web"
) -> HealthRule:
    """Change what is done when an event of a code comes ``repeats`` times within the window, each event counting or those of one
    person's work as one (``counts``; empty: as it was). The codes themselves are fixed.

    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "health_rule.change")
    checks = Checks()
    action = checks.choice("action", action, HealthRule.Action.values)
    repeats = checks.count("repeats", repeats, 1, MOST_REPEATS)
    window_seconds = checks.count("window_seconds", window_seconds, 1, LONGEST_WINDOW, "seconds")
    if counts:
        counts = checks.choice("counts", counts, HealthRule.Counts.values)
    code = checks.choice("code", code, list(HealthRule.objects.values_list("code", flat=True)))
    checks.done()
    with transaction.atomic():
        rule = HealthRule.objects.get(code=code)
        before = audit.facts(rule, "action", "repeats", "window_seconds", "counts")
        HealthRule.objects.filter(pk=rule.pk).update(
            action=action, repeats=repeats, window_seconds=window_seconds, counts=counts or rule.counts
        )
        rule.refresh_from_db()
        audit.record(
            actor=actor, via=via, now=now, verb="set_health_rule", target=rule,
            before=before, after=audit.facts(rule, "action", "repeats", "window_seconds", "counts"),
        )  # fmt: skip
    return rule
