"""Repair state after the database was restored from a backup, before hosts are served again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Max

from scheduler.models import Host
from scheduler.services.host_credentials import CREDENTIAL_TTL

GENERATION_JUMP = 1 << 32  # exceeds the runs since any backup; a bigint has room for two billion jumps


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of the repair.

    ``generation``: new runs have higher generations. ``hosts``: hosts whose agent start was cleared.
    """

    generation: int
    hosts: int
    credentials: int


@transaction.atomic
def recover_after_restore(*, now: datetime) -> RestoreResult:
    """Repair state once after a restore, before hosts are served. Repeating it does no harm.

    Hosts have continued to work since the backup, and they reject a run whose generation is lower than one
    they have seen. So new runs get higher generations. The recorded start of each agent is cleared; otherwise
    an agent that was restarted after the backup would be rejected as a copy. Credentials that were valid at
    the time of the backup stay valid for a day, since newer credentials are derived from them
    (``verify_credential``).
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT setval('scheduler_generation', nextval('scheduler_generation') + %s)", [GENERATION_JUMP]
        )
        row = cursor.fetchone()
    joined = Host.objects.exclude(credential_hash="")
    backup_at = joined.aggregate(last=Max("last_sync_at"))["last"]
    valid = joined.filter(credential_expires_at__gt=backup_at) if backup_at is not None else joined.none()
    credentials = valid.filter(credential_expires_at__lt=now + CREDENTIAL_TTL).update(
        credential_expires_at=now + CREDENTIAL_TTL
    )
    hosts = Host.objects.exclude(agent_start="").update(agent_start="")
    return RestoreResult(generation=int(row[0]) if row else 0, hosts=hosts, credentials=credentials)
