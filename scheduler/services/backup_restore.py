"""The database was restored from a backup, and the hosts have gone on since: what has to be put right before they are heard."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Max

from scheduler.models import Host
from scheduler.services.host_credentials import CREDENTIAL_TTL

GENERATION_JUMP = (
    1 << 32
)  # more claims than are made after a backup; a bigint has room for two thousand million such steps


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was done. ``generation``: the next claims have higher ones; ``hosts``: known anew at their next word."""

    generation: int
    hosts: int
    credentials: int


@transaction.atomic
def recover_after_restore(*, now: datetime) -> RestoreResult:
    """Once after a restore, before hosts are heard; again does no harm.

    Claims get generations above all that hosts have seen since the backup, which refuse any other for ever. Which start of its
    agent each host had is forgotten, or an agent that was started since would be taken for a copy. Credentials that were good
    when the backup was made are good for another day: those that were given out since follow from them (``verify_credential``).
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT setval('scheduler_generation', nextval('scheduler_generation') + %s)", [GENERATION_JUMP]
        )
        row = cursor.fetchone()
    joined = Host.objects.exclude(credential_hash="")
    made_at = joined.aggregate(last=Max("last_sync_at"))["last"]
    good = joined.filter(credential_expires_at__gt=made_at) if made_at is not None else joined.none()
    credentials = good.filter(credential_expires_at__lt=now + CREDENTIAL_TTL).update(
        credential_expires_at=now + CREDENTIAL_TTL
    )
    hosts = Host.objects.exclude(agent_start="").update(agent_start="")
    return RestoreResult(generation=int(row[0]) if row else 0, hosts=hosts, credentials=credentials)
