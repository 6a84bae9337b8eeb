"""Repair the rows of a database that was restored from a backup, before hosts may connect again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Max

from scheduler.models import Host
from scheduler.services.host_credentials import CREDENTIAL_TTL

# The jump exceeds the number of runs that can start between a backup and its restore. The bigint column has
# room for two billion jumps.
GENERATION_JUMP = 1 << 32


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of ``recover_after_restore``.

    ``generation``: the next run gets a higher generation. ``hosts``: number of hosts whose recorded agent
    start was cleared. ``credentials``: number of credentials whose expiry was postponed.
    """

    generation: int
    hosts: int
    credentials: int


@transaction.atomic
def recover_after_restore(*, now: datetime) -> RestoreResult:
    """Repair the restored rows once, before hosts may connect. A second call does no harm.

    Hosts have continued to work since the backup. An agent starts a run only if its generation is higher than
    that of every earlier run on the same units, so new runs get much higher generations. The recorded start
    of each agent is cleared. Otherwise an agent that was restarted after the backup would be rejected as a
    copy. Credentials that were valid at the time of the backup stay valid for a day, because the credentials
    that hosts use now are derived from them (``verify_credential``).
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
