"""Lock rows of the portal.

Take these locks before any lock of ``scheduler.coordination.locks``. Hold them for one short transaction.
"""

from __future__ import annotations

from portal.models import Organisation
from telemetry.models import HealthRule


def lock_organisation() -> Organisation | None:
    """Lock and return the organisation; the lock serialises changes of operators. Call in a transaction."""
    return Organisation.objects.select_for_update(no_key=True).filter(pk=1).first()


def lock_health_rule(code: str) -> HealthRule | None:
    """Lock and return the rule of a code; None if there is none. Call in a transaction."""
    return HealthRule.objects.select_for_update(no_key=True).filter(code=code).first()
