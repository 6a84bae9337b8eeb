"""Read the rules for hardware events."""

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
    """Return the rules that match the filters, sorted by kind (such as ``xid``) and number.

    A rule matches if its code or meaning contains every word of ``find`` and its action is ``action``.
    ``changed`` selects only rules that operators changed or added. An empty argument does not filter. The
    rule with the code ``also`` is always included.
    """
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
    """Return a sort key that compares the numbers in codes by value: xid:8, then xid:13, then xid:100."""
    kind, _, which = rule.code.partition(":")
    return kind, int(which) if which.isdecimal() else 0, which
