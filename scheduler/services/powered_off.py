"""An operator's word that a machine is off: the one way to what it held before its time is over, or while most hosts are quiet."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from scheduler.coordination import leases, locks
from scheduler.models import Gpu, Host, Unit
from scheduler.runs import lost_hosts
from scheduler.services.hosts import record_host_change
from scheduler.state import nudge
from scheduler.state.states import LeaseState, change_state

POWERED_OFF_PREFIX = (
    "seen powered off by "  # how the reason of such a change begins; then the name, a colon and why
)


def parse_powered_off(reason: str) -> tuple[str, str] | None:
    """The name of the one who has seen it off, and why, out of the reason of a change; None: it is another reason."""
    if not reason.startswith(POWERED_OFF_PREFIX):
        return None
    name, _, why = reason.removeprefix(POWERED_OFF_PREFIX).partition(":")
    return name, why.strip()


def may_be_powered_off(host: Host, now: datetime) -> bool:
    """Whether its agent has spoken once, and not just now."""
    heard = host.last_sync_at
    return heard is not None and (now - heard).total_seconds() > leases.lease_rules().suspect_seconds


@transaction.atomic
def attest_powered_off(host: Host, *, reason: str, now: datetime) -> bool:
    """Its work is lost and may start elsewhere at once, and its GPUs may turn up in another machine. When its own agent speaks
    again they come back as themselves. False when its agent has spoken just now, or never: then the machine is not off.
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
    # What was taken over of its inventory is so no more: its next report is applied anew.
    Host.objects.filter(pk=fresh.pk).update(hardware={**fresh.hardware, "applied": False})
    nudge.engine()
    host.refresh_from_db()
    return True
