"""How well a host keeps workloads apart, as levels of which each includes those before it. A pool may demand one; hosts that have
less take no new work. docs/agent.md says what each level keeps apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import models

RESOURCE_LIMITS = ("cpu", "memory", "pids")  # as agents name them


class Isolation(models.TextChoices):
    """In order."""

    NONE = "none", "none demanded"
    SANDBOX = "sandbox", "a sandbox"
    TEAM_USERS = "team_users", "a sandbox, and a user id per team"
    LIMITS = "limits", "a sandbox, a user id per team, and limits of CPU, memory and processes"


ISOLATION_LEVELS = tuple(str(level) for level in Isolation)


def is_weaker_isolation(level: str, demanded: str) -> bool:
    """Is ``level`` less than what is demanded? A word that is no level (of a newer agent's, say) counts as the least."""
    return _rank(level) < _rank(demanded)


def meets_pool_isolation(host: str) -> models.Q:
    """Of rows that refer to a host by this path: its level is not weaker than its pool demands."""
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
    """The level of a host from its reported inventory (``agent.protocol.Inventory`` as an object). What is untold is not there."""
    lacks = missing_levels(reported, Isolation.LIMITS)
    if not lacks:
        return str(Isolation.LIMITS)
    return ISOLATION_LEVELS[ISOLATION_LEVELS.index(lacks[0]) - 1]


def missing_levels(reported: Mapping[str, Any], demanded: str) -> list[str]:
    """The levels up to the demanded one that this host does not reach by itself, the lowest first."""
    limits = reported.get("limits") or []
    has = {
        Isolation.SANDBOX: reported.get("isolation") not in (None, "", "plain"),
        Isolation.TEAM_USERS: bool(reported.get("users_per_team")),
        Isolation.LIMITS: set(RESOURCE_LIMITS) <= set(limits),
    }
    return [str(level) for level, there in has.items() if not there and _rank(level) <= _rank(demanded)]
