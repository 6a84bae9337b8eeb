"""Close and open budget gates, and stop the running work of a used-up budget.

A closed gate rejects new work of a team or project, or stops its borrowing. Telemetry decides when a budget
is used up.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonCode
from scheduler.models import BudgetGate, Pool, Project, Team, Workload
from scheduler.runs import commands
from scheduler.state import nudge
from scheduler.state.states import WorkloadState


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
    """Close a gate until the time ``until``.

    The closed gate rejects new work of a team or project, or stops its borrowing. A gate that is already
    closed gets the new numbers and the new time. After this call returns, no work starts that the gate
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


@transaction.atomic
def stop_running_work(*, now: datetime, team: int | None = None, project: int | None = None) -> int:
    """Stop the work of a team or a project because its budget is used up. Return the number of workloads.

    ``team`` and ``project`` are ids; exactly one is given.

    Running work gets the notice of its pool, in which it can write a checkpoint, and then ends. Work that has
    not started yet is stopped at once. Work that has a notice or is stopping is left as it is. So this
    function may be called again at any time.
    """
    live = Workload.objects.filter(state__in=commands.LIVE_STATES)
    live = live.filter(project__team=team) if team is not None else live.filter(project=project)
    pools = Pool.objects.in_bulk(set(live.values_list("pool_id", flat=True)))
    stopped = 0
    for workload in locks.workloads(live.values_list("pk", flat=True)).values():
        pool = pools[workload.pool_id]
        if workload.state == WorkloadState.RUNNING:
            stopped += commands.give_notice(
                workload,
                code=ReasonCode.BUDGET_CLOSED,
                stop_at=now + timedelta(seconds=pool.notice_seconds),
                grace_seconds=pool.grace_seconds,
                now=now,
            )
        elif workload.state not in (WorkloadState.NOTICE, WorkloadState.STOPPING):
            stopped += commands.order_stop(
                workload, code=ReasonCode.BUDGET_CLOSED, grace_seconds=pool.grace_seconds, now=now
            )
    return stopped
