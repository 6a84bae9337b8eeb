"""Reject new rows of a removed pool or team, such as workloads, reservations, hosts and requests.

Call these functions in the transaction that adds the row. They prevent the removal of the pool or team until
the transaction ends.
"""

from __future__ import annotations

from scheduler.coordination import locks
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, Project, Team


def reject_if_removed(pool: Pool, project: Project) -> None:
    """Raise OperationRejected ``pool_or_team_is_removed`` if the pool or the project's team is removed."""
    if not (locks.prevent_removal(project.team) and locks.prevent_removal(pool)):
        raise OperationRejected("pool_or_team_is_removed", (("pool", pool.name), ("team", project.team.name)))


def reject_if_pool_removed(pool: Pool) -> None:
    """Raise OperationRejected ``pool_is_removed`` if the pool is removed."""
    if not locks.prevent_removal(pool):
        raise OperationRejected("pool_is_removed", (("pool", pool.name),))


def reject_if_team_removed(team: Team) -> None:
    """Raise OperationRejected ``team_is_removed`` if the team is removed."""
    if not locks.prevent_removal(team):
        raise OperationRejected("team_is_removed", (("team", team.name),))
