"""Announce and end the planned maintenance of the database."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks, checked_reason
from portal.models import User
from portal.redis_state.announced_maintenance import publish_maintenance
from portal.services import audit
from scheduler import services as scheduling
from scheduler.models import DatabaseMaintenance

MIN_MINUTES, MAX_MINUTES = 1, 240
AUDITED = ("starts_at", "ends_at", "ended_at", "reason")


def begin_database_maintenance(
    *, actor: User, minutes: Any, why: str, now: datetime, via: str = "web"
) -> DatabaseMaintenance:
    """Announce that the database may be stopped during the next ``minutes``.

    During this time nothing is placed, and running work keeps its leases. The maintenance ends by itself.
    Raises Invalid, NotAllowed. Raises OperationRejected if another maintenance is in progress.
    """
    policy.require(actor, "database_maintenance.change")
    checks = InputChecks()
    clean = checks.count("minutes", minutes, MIN_MINUTES, MAX_MINUTES, "minutes")
    why = checks.text("why", why, most=300)
    checks.done()
    with transaction.atomic():
        maintenance = scheduling.begin_database_maintenance(
            duration=timedelta(minutes=clean), reason=why, announced_by=actor.get_username(), now=now
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="begin_database_maintenance",
            target=maintenance,
            after=audit.audited_fields(maintenance, *AUDITED),
            why=why,
        )
        transaction.on_commit(lambda: publish_maintenance(maintenance))
    return maintenance


def end_database_maintenance(
    *, actor: User, now: datetime, why: str = "", via: str = "web"
) -> DatabaseMaintenance:
    """End the maintenance of the database before its announced end. Work is placed again.

    Raises Invalid, NotAllowed. Raises OperationRejected if none is in progress.
    """
    policy.require(actor, "database_maintenance.change")
    why = checked_reason(why)
    with transaction.atomic():
        maintenance = scheduling.end_database_maintenance(now=now)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="end_database_maintenance",
            target=maintenance,
            before={"ended_at": None},
            after=audit.audited_fields(maintenance, *AUDITED),
            why=why,
        )
        transaction.on_commit(lambda: publish_maintenance(None))
    return maintenance
