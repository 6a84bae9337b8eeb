"""Find the projects and dedicated pools for which a cost centre pays.

A ``Payer`` is such a project or pool. A split states which cost centres pay for a payer from a date on, with
their shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from scheduler.models import Pool, Project
from telemetry.cost_centres.splits import CostSplits, Payer, SplitPeriod, load_splits
from telemetry.models import CostCentreShare


def periods_of(code: str) -> list[tuple[Payer, SplitPeriod]]:
    """Return (payer, period) of each split in which a cost centre has a share, in order of time.

    Runs two queries.
    """
    payers, splits = _splits_with(code)
    found = [
        (payer, period)
        for payer in payers
        for period in splits.periods(payer)
        if any(share.code == code for share in period.split)
    ]
    return sorted(found, key=lambda entry: (entry[1].start, entry[0].project or 0, entry[0].pool or 0))


def paid_from(code: str, moment: datetime) -> set[Payer]:
    """Return the projects and pools for which a cost centre pays at ``moment`` or later."""
    return {payer for payer, period in periods_of(code) if period.end is None or period.end > moment}


def unsettled_payers(before: datetime) -> set[Payer]:
    """Return the projects and pools with a split that charging has not applied yet.

    Only splits that begin before ``before`` count.
    """
    rows = CostCentreShare.objects.filter(settledshare=None, valid_from__lt=before)
    return {Payer(project, pool) for project, pool in rows.values_list("project_id", "pool_id")}


def names_of_payers(payers: Iterable[Payer]) -> list[str]:
    """Return the names of projects as ``team/project`` and of pools, sorted."""
    given = list(payers)
    projects = Project.objects.filter(pk__in=[payer.project for payer in given if payer.project is not None])
    pools = Pool.with_removed.filter(pk__in=[payer.pool for payer in given if payer.pool is not None])
    found = [f"{team}/{slug}" for team, slug in projects.values_list("team__slug", "slug")]
    return sorted([*found, *pools.values_list("slug", flat=True)])


def _splits_with(code: str) -> tuple[list[Payer], CostSplits]:
    rows = CostCentreShare.objects.filter(code=code).values_list("project_id", "pool_id").distinct()
    payers = [Payer(project, pool) for project, pool in rows]
    projects = [payer.project for payer in payers if payer.project is not None]
    return payers, load_splits(projects, [payer.pool for payer in payers if payer.pool is not None])
