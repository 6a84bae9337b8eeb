"""Change the name and the time zone of the organisation."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import Organisation, User
from portal.services import audit


def change_organisation(
    *, actor: User, name: str, time_zone: str, now: datetime, via: str = "web"
) -> Organisation:
    """Set the name and the time zone of the organisation. Raises Invalid, NotAllowed."""
    policy.require(actor, "pool.change")
    checks = InputChecks()
    name = checks.text("name", name)
    time_zone = checks.time_zone("time_zone", time_zone)
    checks.done()
    with transaction.atomic():
        organisation, _ = Organisation.objects.get_or_create(pk=1, defaults={"name": name})
        before = audit.audited_fields(organisation, "name", "time_zone")
        Organisation.objects.filter(pk=1).update(name=name, time_zone=time_zone)
        organisation.refresh_from_db()
        after = audit.audited_fields(organisation, "name", "time_zone")
        if before != after:
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="change_organisation",
                target=organisation,
                before=before,
                after=after,
            )
    return organisation
