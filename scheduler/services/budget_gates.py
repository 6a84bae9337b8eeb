"""Close and open budget gates. Telemetry decides when a budget is used up."""

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
    """Reject new work of a team or project, or stop its borrowing, until ``until``.

    A gate that is already closed gets the new numbers. After this returns, no work starts that the gate
    excludes: the call waits for a plan that is being committed, and every later plan is checked against the
    gate.
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
    """Remove a closed gate, for a budget that was raised. Returns False if none was closed."""
    opened, _ = BudgetGate.objects.filter(team=team, project=project, action=action).delete()
    nudge.engine()
    nudge.pages(nudge.QUEUE)
    return bool(opened)
