"""Record an operator's statement that a machine is powered off.

Only this statement releases the machine's work before its silence limit has passed, or during a mass silence.
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

POWERED_OFF_PREFIX = "seen powered off by "  # start of the reason; then the name, a colon and the explanation


def parse_powered_off(reason: str) -> tuple[str, str] | None:
    """Return the operator's name and the reason of a host state change; None if it is not a powered-off
    statement.
    """
    if not reason.startswith(POWERED_OFF_PREFIX):
        return None
    name, _, why = reason.removeprefix(POWERED_OFF_PREFIX).partition(":")
    return name, why.strip()


def may_be_powered_off(host: Host, now: datetime) -> bool:
    """Return True if the host's agent has reported before, but not within the suspect limit."""
    heard = host.last_sync_at
    return heard is not None and (now - heard).total_seconds() > leases.lease_rules().suspect_seconds


@transaction.atomic
def attest_powered_off(host: Host, *, reason: str, now: datetime) -> bool:
    """End the host's runs and retire its GPUs, so that the work starts elsewhere and the GPUs may be used
    in another host.

    When the host's own agent reports again, its GPUs return. Returns False, and changes nothing, if the
    agent reported just now or never: then the machine is not off.
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
    # The stored inventory no longer holds: the host's next report is applied in full.
    Host.objects.filter(pk=fresh.pk).update(hardware={**fresh.hardware, "applied": False})
    nudge.engine()
    host.refresh_from_db()
    return True
