"""A budget that is used up closes a gate; telemetry decides when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from scheduler.coordination import locks
from scheduler.models import BudgetGate, Project, Team
from scheduler.state import nudge


@transaction.atomic
def close_budget_gate(
    *,
    action: str,
    numbers: Mapping[str, Any],
    until: datetime,
    now: datetime,
    team: Team | None = None,
    project: Project | None = None,
) -> BudgetGate:
    """Refuse new work of a team or project, or stop lending to it, until ``until``.

    A gate that is closed already stays, with the new numbers. Once this returns nothing starts that it keeps out: it waits for a
    plan that is being committed, and every later one is checked against it.
    """
    locks.leader()
    gate, _ = BudgetGate.objects.update_or_create(
        team=team,
        project=project,
        action=action,
        defaults={"numbers": dict(numbers), "until": until},
        create_defaults={"numbers": dict(numbers), "until": until, "closed_at": now},
    )
    nudge.engine()
    nudge.pages(nudge.QUEUE)
    return gate


@transaction.atomic
def open_budget_gate(*, action: str, team: Team | None = None, project: Project | None = None) -> bool:
    """Take a closed gate away, for a budget that was raised. False when none was closed."""
    opened, _ = BudgetGate.objects.filter(team=team, project=project, action=action).delete()
    nudge.engine()
    nudge.pages(nudge.QUEUE)
    return bool(opened)
