"""Reconcile hosts and database after a restore of the database."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal.models import Organisation
from portal.services import audit
from scheduler import services as engine
from scheduler.core.rejection import OperationRejected


def after_restore(*, now: datetime, via: str = "program") -> engine.RestoreResult:
    """Mend the differences between the hosts and a restored database, and record that it was done.

    Anybody who may run commands on the server may do this. Raises OperationRejected if there is no
    organisation: then this database was not restored.
    """
    with transaction.atomic():
        organisation = Organisation.objects.filter(pk=1).first()
        if organisation is None:
            raise OperationRejected("organisation_is_missing")
        done = engine.recover_after_restore(now=now)
        audit.record(
            actor=None,
            via=via,
            now=now,
            verb="after_restore",
            target=organisation,
            after={"generation": done.generation, "hosts": done.hosts, "credentials": done.credentials},
        )
    return done
