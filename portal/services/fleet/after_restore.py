"""Reconcile the hosts and the access of people with the database after the restore of a backup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import transaction

from portal.models import Organisation
from portal.services import audit
from portal.services.people.restored_access import RevokedAccess, revoke_again, revoke_all_tokens
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected


def after_restore(
    *,
    now: datetime,
    access: Mapping[str, Any] | None = None,
    keeps_tokens: bool = False,
    via: str = "program",
) -> tuple[scheduling.RestoreResult, RevokedAccess]:
    """Reconcile hosts and access with a restored database, and write an audit record.

    ``access``: the `present_access` of a newer state of the database, which stays in force. ``keeps_tokens``:
    True if the database has been recovered to the end of its log, so that it has every revocation. Without
    both, all tokens are revoked, because the revocations since the backup are unknown.

    No permission is checked, because only people who may run commands on the server can call this function.
    Raises OperationRejected if the database has no organisation, because then no backup was restored.
    """
    with transaction.atomic():
        organisation = Organisation.objects.filter(pk=1).first()
        if organisation is None:
            raise OperationRejected("organisation_is_missing")
        done = scheduling.recover_after_restore(now=now)
        if access is not None:
            revoked = revoke_again(access, now=now, via=via)
        else:
            revoked = RevokedAccess() if keeps_tokens else revoke_all_tokens(now=now, via=via)
        audit.record(
            actor=None,
            via=via,
            now=now,
            verb="after_restore",
            target=organisation,
            after={
                "generation": done.generation,
                "hosts": done.hosts,
                "credentials": done.credentials,
                "reporting": done.reporting,
                **{f"revoked_{name}": len(names) for name, names in asdict(revoked).items()},
            },
        )
    return done, revoked
