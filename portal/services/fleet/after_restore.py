"""Reconcile hosts and database after a restore of the database."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal.models import Organisation
from portal.services import audit
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected


def after_restore(*, now: datetime, via: str = "program") -> scheduling.RestoreResult:
    """Reconcile the hosts with a restored database, and write an audit record.

    Checks no permission: only people who may run commands on the server can call it. Raises OperationRejected
    if there is no organisation, because then the database was not restored.
    """
    with transaction.atomic():
        organisation = Organisation.objects.filter(pk=1).first()
        if organisation is None:
            raise OperationRejected("organisation_is_missing")
        done = scheduling.recover_after_restore(now=now)
        audit.record(
            actor=None,
            via=via,
            now=now,
            verb="after_restore",
            target=organisation,
            after={"generation": done.generation, "hosts": done.hosts, "credentials": done.credentials},
        )
    return done
