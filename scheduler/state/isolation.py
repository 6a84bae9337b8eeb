"""Define the isolation levels of hosts. Each level includes all lower levels.

A pool may require a level. Hosts of the pool with a lower level accept no new work. docs/agent.md explains
each level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import models

RESOURCE_LIMITS = ("cpu", "memory", "pids")  # the names that agents use in their reports


class Isolation(models.TextChoices):
    """The levels in ascending order."""

    NONE = "none", "none demanded"
    SANDBOX = "sandbox", "a sandbox"
    TEAM_USERS = "team_users", "a sandbox, and a user id per team"
    LIMITS = "limits", "a sandbox, a user id per team, and limits of CPU, memory and processes"


ISOLATION_LEVELS = tuple(str(level) for level in Isolation)


def is_weaker_isolation(level: str, demanded: str) -> bool:
    """Return True if ``level`` is below ``demanded``.

    An unknown level counts as the lowest level. For example, a newer agent may report an unknown level.
    """
    return _rank(level) < _rank(demanded)


def meets_pool_isolation(host: str) -> models.Q:
    """Return the query condition that a host has at least the level that its pool requires.

    ``host`` is the lookup path of the host in the query.
    """
    weaker = models.Q()
    for at, demanded in enumerate(ISOLATION_LEVELS):
        if at:
            weaker |= models.Q(**{f"{host}__pool__isolation": demanded}) & ~models.Q(
                **{f"{host}__isolation_level__in": ISOLATION_LEVELS[at:]}
            )
    return ~weaker


def _rank(level: str) -> int:
    return ISOLATION_LEVELS.index(level) if level in ISOLATION_LEVELS else 0


def isolation_level(reported: Mapping[str, Any]) -> str:
    """Return a host's level from its reported inventory (``agent.protocol.Inventory`` as a dict).

    A feature that the host does not report counts as missing.
    """
    missing = missing_levels(reported, Isolation.LIMITS)
    if not missing:
        return str(Isolation.LIMITS)
    return ISOLATION_LEVELS[ISOLATION_LEVELS.index(missing[0]) - 1]


def missing_levels(reported: Mapping[str, Any], demanded: str) -> list[str]:
    """Return the levels up to ``demanded`` whose own requirement the host does not meet, lowest level first.

    Example: for the level ``limits``, a host that has only resource limits returns
    ``["sandbox", "team_users"]``.
    """
    limits = reported.get("limits") or []
    has = {
        Isolation.SANDBOX: reported.get("isolation") not in (None, "", "plain"),
        Isolation.TEAM_USERS: bool(reported.get("users_per_team")),
        Isolation.LIMITS: set(RESOURCE_LIMITS) <= set(limits),
    }
    return [str(level) for level, present in has.items() if not present and _rank(level) <= _rank(demanded)]
