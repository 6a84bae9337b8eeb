"""Lock rows of the portal.

To avoid deadlocks, take these locks before any lock of ``scheduler.coordination.locks``. Hold them for one
short transaction.
"""

from __future__ import annotations

from portal.models import Organisation
from telemetry.models import HealthRule


def lock_organisation() -> Organisation | None:
    """Lock and return the row of the organisation. Call it inside a transaction.

    The lock prevents concurrent changes of the operators.
    """
    return Organisation.objects.select_for_update(no_key=True).filter(pk=1).first()


def lock_health_rule(code: str) -> HealthRule | None:
    """Lock and return the rule of an event code; None if it has no rule. Call it inside a transaction."""
    return HealthRule.objects.select_for_update(no_key=True).filter(code=code).first()
