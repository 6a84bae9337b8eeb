"""Repair the rows of a database that was restored from a backup, before hosts may connect again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Max

from scheduler.coordination import locks
from scheduler.models import Host, Run
from scheduler.services.host_credentials import CREDENTIAL_TTL, revoke_credential
from scheduler.services.hosts import record_host_change
from scheduler.state.states import LeaseState, RunState, change_state

# The jump exceeds the number of runs that can start between a backup and its restore. The bigint column has
# room for two billion jumps.
GENERATION_JUMP = 1 << 32


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of ``recover_after_restore``.

    ``generation``: the next run gets a higher generation. ``hosts``: number of hosts whose recorded agent
    start was cleared. ``credentials``: number of credentials whose expiry was postponed. ``reporting``:
    number of hosts that may report within their lease from now on.
    """

    generation: int
    hosts: int
    credentials: int
    reporting: int


@transaction.atomic
def recover_after_restore(*, now: datetime) -> RestoreResult:
    """Repair the restored rows once, before hosts may connect. A second call does no harm.

    Hosts have continued to work since the backup. An agent starts a run only if its generation is higher than
    that of every earlier run on the same units, so new runs get much higher generations. The recorded start
    of each agent is cleared. Otherwise an agent that was restarted after the backup would be rejected as a
    copy. Every host gets a full lease from ``now`` on to report, and no new work until it has reported:
    otherwise its running work would count as lost, because its last recorded report is as old as the backup.
    Credentials that were valid at the time of the backup stay valid for a day, because the credentials
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
    return RestoreResult(
        generation=int(row[0]) if row else 0,
        hosts=hosts,
        credentials=credentials,
        reporting=_restart_leases(now),
    )


def _restart_leases(now: datetime) -> int:
    """Give each host that was not silent a full lease from ``now`` on. Return the number of these hosts."""
    connected = (LeaseState.ALIVE, LeaseState.SUSPECT)
    found = Host.objects.filter(lease_state__in=connected).exclude(last_sync_at=None)
    hosts = locks.hosts(found.values_list("pk", flat=True))
    for host in hosts.values():
        if change_state(host, "lease_state", old=LeaseState.ALIVE, new=LeaseState.SUSPECT):
            record_host_change(host, "the database was restored, and its agent has not reported since", now)
    Host.objects.filter(pk__in=hosts).update(last_sync_at=now)
    Run.objects.filter(host__in=hosts).exclude(state=RunState.ENDED).update(missing_since=None)
    return len(hosts)


@transaction.atomic
def revoke_credentials_again(names: Collection[str], *, now: datetime) -> list[str]:
    """Revoke the credentials of hosts whose credential was revoked after the restored time.

    Return the names of the hosts whose restored credential was valid.
    """
    hosts = Host.objects.filter(name__in=names).exclude(credential_hash="").order_by("name")
    return [host.name for host in hosts if revoke_credential(host, now=now)]
