"""The only place of the portal that locks. Taken before any lock of ``scheduler.coordination.locks``, and held for one short transaction."""

from __future__ import annotations

from portal.models import Organisation
from telemetry.models import HealthRule


def lock_organisation() -> Organisation | None:
    """The one row of the organisation: who changes who runs it waits here for whoever does the same. Inside a transaction."""
    return Organisation.objects.select_for_update(no_key=True).filter(pk=1).first()


def lock_health_rule(code: str) -> HealthRule | None:
    """The rule of a code: whoever changes it meanwhile waits. None where there is none. Inside a transaction."""
    return HealthRule.objects.select_for_update(no_key=True).filter(code=code).first()
