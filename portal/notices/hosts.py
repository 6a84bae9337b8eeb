"""Find events of hosts and GPUs for notices.

The events are failures, full disks, hardware events, diagnostics, and changes of the MIG geometry.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q

from portal import policy
from portal.models import User
from portal.notices.pending import PendingNotice
from portal.notices.recipients import display_name, operator_ids
from portal.reads.fleet.host_history import ANONYMOUS_OPERATOR
from scheduler.core.fit.mig_layout import layout_text
from scheduler.models import Diagnostic, GeometryChange, Host, HostStateChange, Run
from scheduler.services.powered_off import parse_powered_off
from scheduler.state.states import DiagnosticState, GeometryState, LeaseState, RepairState
from telemetry.health import stray_processes
from telemetry.models import HealthEvent, HealthRule

# A disk is often full for a short time, until the temporary files of ended work are deleted.
DISK_FULL_NOTICE_AFTER = timedelta(minutes=10)


def host_failures(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each host that failed, or that is powered off according to an operator.

    Operators and the owners of work on the host receive it.
    """
    bad = Q(lease_state=LeaseState.SILENT) | ~Q(repair_state=RepairState.WELL)
    for change in HostStateChange.objects.filter(bad, at__gt=since, at__lte=now).select_related("host"):
        before = HostStateChange.objects.filter(host=change.host, pk__lt=change.pk).order_by("-pk").first()
        off = parse_powered_off(change.reason)
        if before is not None and not off and _same_health(change, before):
            continue  # the lease state and the repair state are unchanged
        owners = Run.objects.filter(host=change.host, ended_at=None).values_list(
            "workload__owner_id", flat=True
        )
        failure = (
            "it fell silent"
            if change.lease_state == LeaseState.SILENT
            else f"its repair state is {change.repair_state}"
        )
        numbers: dict[str, Any] = {"host": change.host.name}
        if off is None:
            numbers |= {"trouble": f"{failure}{f' ({change.reason})' if change.reason else ''}"}
            yield PendingNotice("host_trouble", f"host:{change.pk}", (*operator_ids(), *owners), numbers)
            continue
        name, why = off
        numbers |= {"off_since": change.at.timestamp(), "why": why}
        # As on the host's page, only users who see all teams learn the name of the operator.
        recipients = User.objects.filter(pk__in=(*operator_ids(), *owners)).exclude(username=name)
        may_know = tuple(user.pk for user in recipients if policy.sees_all_teams(user))
        yield PendingNotice(
            "host_trouble", f"host:{change.pk}", may_know, {**numbers, "by": display_name(name)}
        )
        others = tuple(user.pk for user in recipients if user.pk not in may_know)
        yield PendingNotice(
            "host_trouble", f"host:{change.pk}", others, {**numbers, "by": ANONYMOUS_OPERATOR}
        )


def _same_health(change: HostStateChange, before: HostStateChange) -> bool:
    return (change.lease_state, change.repair_state) == (before.lease_state, before.repair_state)


def full_disks(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice to operators about each host whose disk has been full for DISK_FULL_NOTICE_AFTER.

    If the disk gets space and becomes full again, there is a new notice.
    """
    full = Host.objects.filter(
        disk_full=True,
        disk_full_since__gt=since - DISK_FULL_NOTICE_AFTER,
        disk_full_since__lte=now - DISK_FULL_NOTICE_AFTER,
    )
    for host in full.order_by("pk"):
        begun = host.disk_full_since.timestamp() if host.disk_full_since else 0
        yield PendingNotice(
            "disk_is_full",
            f"full:{host.pk}:{begun:.0f}",
            operator_ids(),
            {"host": host.name, "since": begun},
        )


def hardware_events(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield notices to operators about hardware events for which a health rule took an action.

    There is at most one notice for each GPU, event code and hour. Stray processes have their own notices
    (``stray_digests``), because each may belong to another person.
    """
    events = (
        HealthEvent.objects.filter(handled_at__gt=since, handled_at__lte=now)
        .exclude(action_taken__in=("", HealthRule.Action.NOTE))
        .exclude(code=stray_processes.STRAY_CODE)
    )
    meanings = dict(HealthRule.objects.values_list("code", "meaning"))
    for event in events.select_related("host", "gpu").order_by("pk"):
        numbers = {
            "host": event.host.name,
            "gpu": event.gpu.index if event.gpu else None,
            "event": event.code,
            "meaning": meanings.get(event.code, ""),
            "detail": event.detail,
            "action": event.action_taken,
        }
        source = f"hardware:{event.host_id}:{event.gpu_id or 0}:{event.code}"[:60] + f":{event.at:%Y%m%d%H}"
        yield PendingNotice("hardware_event", source, operator_ids(), numbers)


def finished_diagnostics(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice to operators about each GPU that failed its diagnostic.

    Also yield one about each quarantined GPU that passed its diagnostic and returned to service.
    """
    ended = Diagnostic.objects.filter(ended_at__gt=since, ended_at__lte=now).select_related("host", "gpu")
    for row in ended.order_by("pk"):
        numbers = {"host": row.host.name, "gpu": row.gpu.index, "detail": row.detail}
        if row.state == DiagnosticState.FAILED:
            numbers["out"] = row.gpu.repair_state == RepairState.OUT
            yield PendingNotice("diagnostic_failed", f"diagnostic:{row.pk}", operator_ids(), numbers)
        elif row.state == DiagnosticState.PASSED and row.why == Diagnostic.Why.QUARANTINED:
            yield PendingNotice("gpu_is_back", f"diagnostic:{row.pk}", operator_ids(), numbers)


def finished_geometry_changes(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice to operators about each change of a MIG geometry that succeeded or failed."""
    ended = GeometryChange.objects.filter(
        ended_at__gt=since, ended_at__lte=now, state__in=(GeometryState.DONE, GeometryState.FAILED)
    )
    for row in ended.select_related("host", "gpu").order_by("pk"):
        numbers = {
            "host": row.host.name,
            "gpu": row.gpu.index,
            "geometry": layout_text(row.profiles),
            "detail": row.detail,
            "in_service": row.gpu.repair_state in (RepairState.WELL, RepairState.RESHAPING),
        }
        kind = "geometry_changed" if row.state == GeometryState.DONE else "geometry_failed"
        yield PendingNotice(kind, f"geometry:{row.pk}", operator_ids(), numbers)
