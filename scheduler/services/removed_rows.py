"""Reject new work and reservations of a removed pool or team."""

from __future__ import annotations

from django.db.models import Exists

from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, Project, Team


def reject_if_removed(pool: Pool, project: Project) -> None:
    """Raise OperationRejected ``pool_or_team_is_removed`` if the pool or the project's team was removed
    meanwhile.

    Call it under a lock that the removal takes, or after an insert that refers to the pool.
    """
    teams = Team.objects.filter(Exists(Pool.objects.filter(pk=pool.pk)), pk=project.team_id)
    if not teams.exists():
        raise OperationRejected("pool_or_team_is_removed", (("pool", pool.name), ("team", project.team.name)))
