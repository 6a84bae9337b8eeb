"""Reads of the table of what is done about hardware events."""

from __future__ import annotations

from django.db.models import F, Q, QuerySet

from telemetry.models import HealthRule

IS_DEFAULT = Q(
    action=F("default_action"),
    repeats=F("default_repeats"),
    window_seconds=F("default_window_seconds"),
    counts=F("default_counts"),
)


def health_rules(
    *, find: str = "", action: str = "", changed: bool = False, also: str = ""
) -> list[HealthRule]:
    """Rules by kind and number: those whose code or meaning has every word of ``find``, that do ``action``, and with ``changed``
    only what operators changed or added. What is empty asks for nothing; the rule with the code ``also`` is there in any case."""
    wanted = Q()
    for word in find.split():
        wanted &= Q(code__icontains=word) | Q(meaning__icontains=word)
    if action:
        wanted &= Q(action=action)
    if changed:
        wanted &= Q(pk__in=_is_changed().values("pk"))
    rows = HealthRule.objects.filter(wanted | Q(code=also)) if wanted else HealthRule.objects.all()
    return sorted(rows, key=_sort_key)


def _is_changed() -> QuerySet[HealthRule]:
    return HealthRule.objects.exclude(pk__in=HealthRule.objects.filter(IS_DEFAULT).values("pk"))


def _sort_key(rule: HealthRule) -> tuple[str, int, str]:
    """By kind, and numbers as numbers: xid:8 before xid:13 before xid:100."""
    kind, _, which = rule.code.partition(":")
    return kind, int(which) if which.isdecimal() else 0, which
