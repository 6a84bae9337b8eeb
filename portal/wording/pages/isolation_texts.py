"""Build sentences about the isolation that a pool demands and its hosts provide."""

from __future__ import annotations

from collections.abc import Collection

from scheduler.state.isolation import ISOLATION_LEVELS, Isolation, is_weaker_isolation

BY_FIRST_HOSTS = "The first hosts of the pool provide it."
UNDECIDED = "When its first host has joined, the pool demands the isolation that this host provides."


def isolation_note(demanded: str, provided: Collection[str], is_undecided: bool) -> str:
    """Return what an operator should know about the isolation of a pool; empty if there is nothing.

    ``provided`` are the levels of its hosts. ``is_undecided``: the first hosts of the pool decide.
    """
    if is_undecided:
        return UNDECIDED
    weakest = min(provided, key=ISOLATION_LEVELS.index, default=demanded)
    if is_weaker_isolation(demanded, weakest):
        return f"Every host provides {Isolation(weakest).label}: the pool may demand it."
    if is_weaker_isolation(demanded, Isolation.TEAM_USERS):
        return "Workloads of different teams share a user on its hosts, so the pool does not separate teams."
    if is_weaker_isolation(demanded, Isolation.LIMITS):
        return "Its hosts need not limit CPU, memory and processes: a workload may slow down the others."
    return ""
