"""Record an operator's statement that a machine is powered off.

Only this statement can end the machine's work before its silence limit has passed. During a mass silence, the
work of a machine that does not report ends only with this statement. A mass silence means that so many hosts
are silent that the network is the likely cause.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from scheduler.coordination import leases, locks
from scheduler.models import Gpu, Host, Unit
from scheduler.runs import lost_hosts
from scheduler.services.hosts import record_host_change
from scheduler.state import nudge
from scheduler.state.states import LeaseState, change_state

POWERED_OFF_PREFIX = "seen powered off by "  # the reason continues with a name, a colon and an explanation


def parse_powered_off(reason: str) -> tuple[str, str] | None:
    """Return the operator's name and explanation from the reason of a host's state change.

    Return None if the reason is not a statement that the machine is powered off.
    """
    if not reason.startswith(POWERED_OFF_PREFIX):
        return None
    name, _, why = reason.removeprefix(POWERED_OFF_PREFIX).partition(":")
    return name, why.strip()


def may_be_powered_off(host: Host, now: datetime) -> bool:
    """Return True if the host's agent has reported before, but its next report is overdue."""
    heard = host.last_sync_at
    return heard is not None and (now - heard).total_seconds() > leases.lease_rules().suspect_seconds


@transaction.atomic
def attest_powered_off(host: Host, *, reason: str, now: datetime) -> bool:
    """End the host's runs and retire its GPUs.

    The work then starts elsewhere, and the GPUs may be used in another host. When the host's agent reports
    again, its GPUs return. Return False and change nothing if the agent has never reported or its next report
    is not overdue, because then the machine does not seem to be off.
    """
    fresh = locks.hosts([host.pk])[host.pk]
    if not may_be_powered_off(fresh, now):
        return False
    old = LeaseState(fresh.lease_state)
    if old != LeaseState.SILENT:
        change_state(fresh, "lease_state", old=old, new=LeaseState.SILENT, silent_since=now)
    record_host_change(fresh, reason, now)
    lost_hosts.end_runs_of_lost_host(fresh, now)
    gpus = Gpu.objects.filter(host=fresh, retired_at__isnull=True)
    Unit.objects.filter(gpu__in=list(gpus), retired_at__isnull=True).update(retired_at=now)
    gpus.update(retired_at=now)
    # The stored inventory no longer matches the rows. So the host's next report must be applied in full.
    Host.objects.filter(pk=fresh.pk).update(hardware={**fresh.hardware, "applied": False})
    nudge.engine()
    host.refresh_from_db()
    return True
