"""Lock rows of the portal.

To avoid deadlocks, take these locks before any lock of ``scheduler.coordination.locks``. Hold them for one
short transaction.
"""

from __future__ import annotations

from collections.abc import Collection

from portal.models import Organisation
from telemetry.models import CostCentre, HealthRule


def lock_organisation() -> Organisation | None:
    """Lock and return the row of the organisation. Call it inside a transaction.

    The lock prevents concurrent changes of the operators.
    """
    return Organisation.objects.select_for_update(no_key=True).filter(pk=1).first()


def lock_health_rule(code: str) -> HealthRule | None:
    """Lock and return the rule of an event code; None if it has no rule. Call it inside a transaction."""
    return HealthRule.objects.select_for_update(no_key=True).filter(code=code).first()


def lock_cost_centres(codes: Collection[str]) -> dict[str, CostCentre]:
    """Lock and return the entries of these cost centres, by code. Call it inside a transaction.

    The lock keeps a cost centre from being retired while a new split names it.
    """
    rows = CostCentre.objects.select_for_update(no_key=True).filter(code__in=codes).order_by("code")
    return {row.code: row for row in rows}
