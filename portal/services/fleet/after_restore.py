"""Reconcile the hosts with the database after the restore of a backup."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal.models import Organisation
from portal.services import audit
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected


def after_restore(*, now: datetime, via: str = "program") -> scheduling.RestoreResult:
    """Reconcile the hosts with a restored database, and write an audit record.

    No permission is checked, because only people who may run commands on the server can call this function.
    Raises OperationRejected if the database has no organisation, because then no backup was restored.
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
