"""Close and open budget gates.

A closed gate rejects new work of a team or project, or stops its borrowing. Telemetry decides when a budget
is used up.
"""

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
    """Close a gate, which rejects new work of a team or project or stops its borrowing, until ``until``.

    A gate that is already closed gets the new numbers. After this call returns, no work starts that the gate
    excludes. The call waits for a plan that is being committed, and every later plan is checked against the
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
    """Open a gate, because its budget was raised. Return False if the gate was not closed."""
    opened, _ = BudgetGate.objects.filter(team=team, project=project, action=action).delete()
    nudge.engine()
    nudge.pages(nudge.QUEUE)
    return bool(opened)
