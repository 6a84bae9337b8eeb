"""Drain hosts before their maintenance windows, and return them to their earlier state afterwards."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from scheduler.coordination import locks
from scheduler.models import Host, MaintenanceWindow
from scheduler.services.hosts import drain_workloads, enter_maintenance, leave_maintenance
from scheduler.state.states import AdminState


def sweep_maintenance(now: datetime) -> None:
    """Drain hosts before their maintenance windows, and put them into maintenance at the start.

    Restore the earlier state of each host after its window.
    """
    for window in MaintenanceWindow.objects.filter(end__gt=now).select_related("host__pool"):
        pool = window.host.pool
        if window.start - timedelta(seconds=pool.notice_seconds + pool.grace_seconds) <= now:
            _prepare_window(window, now)
    for host in Host.objects.filter(admin_state=AdminState.MAINTENANCE):
        if not host.maintenance_windows.filter(start__lte=now, end__gt=now).exists():
            leave_maintenance(host, now=now)


def _prepare_window(window: MaintenanceWindow, now: datetime) -> None:
    if window.start <= now and window.host.admin_state != AdminState.MAINTENANCE:
        enter_maintenance(window.host, reason=window.reason, now=now)
    with transaction.atomic():
        host = locks.hosts([window.host_id])[window.host_id]
        drain_workloads(host, now=now, also_unpreemptible=True)
