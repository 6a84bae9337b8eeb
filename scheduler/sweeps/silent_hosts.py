"""Declare a host suspect, and later silent, if its agent stops reporting. End the runs of silent hosts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Coalesce

from scheduler.coordination import leases, locks
from scheduler.models import Host, Run
from scheduler.runs import lost_hosts
from scheduler.services.hosts import record_host_change
from scheduler.state.states import LeaseState, RunState, change_state


@dataclass(frozen=True, slots=True)
class MassSilence:
    """A state in which so many hosts are overdue that the cause is probably the network or this site.

    While this state lasts, no host is declared silent and no work is ended.
    """

    quiet: int  # hosts that are overdue
    hosts: int  # hosts that should report
    since: datetime


def mass_silence(now: datetime) -> MassSilence | None:
    """Return the state of mass silence, or None if there is no mass silence.

    This takes one query, or two queries if a host is overdue.
    """
    overdue = _overdue_hosts(now)
    hosts = _reporting_hosts().count() if overdue else 0
    if not leases.is_mass_silence(len(overdue), hosts):
        return None
    return MassSilence(len(overdue), hosts, max(host.last_sync_at or host.created_at for host in overdue))


def _reporting_hosts() -> QuerySet[Host]:
    """Return the hosts that have reported at least once and are not declared silent."""
    return Host.objects.exclude(lease_state=LeaseState.JOINING).exclude(lease_state=LeaseState.SILENT)


def _overdue_hosts(now: datetime) -> list[Host]:
    """Return the reporting hosts whose last report is older than the suspect limit."""
    last_report = Coalesce("last_sync_at", "created_at")
    late = now - timedelta(seconds=leases.lease_rules().suspect_seconds)
    return list(
        _reporting_hosts()
        .annotate(last_report=last_report)
        .filter(last_report__lt=late)
        .select_related("pool")
        .order_by("pk")
    )


def sweep_silent_hosts(now: datetime) -> None:
    """Mark overdue hosts as suspect. After its silence limit, declare a host silent and end its runs.

    During a mass silence, no host is declared silent.
    """
    overdue = _overdue_hosts(now)
    for host in overdue:
        if host.lease_state == LeaseState.ALIVE:
            _suspect(host, now)
    limits = leases.silence_limits_seconds(overdue) if overdue else {}
    long_silent = [host for host in overdue if _silent_seconds(host, now) > limits[host.pk]]
    # Leases that an edge has renewed from memory may last longer than the stored reports show.
    renewable = leases.memory_renewal_limit(now) if long_silent else None
    expired = [h for h in long_silent if _unrenewed_seconds(h, renewable, now) > limits[h.pk]]
    if expired and leases.is_mass_silence(len(overdue), _reporting_hosts().count()):
        return  # pages show the mass silence to operators (``mass_silence``)
    for host in expired:
        _declare_silent(host, now)
    _end_remaining_runs(now)


def _silent_seconds(host: Host, now: datetime) -> float:
    return (now - (host.last_sync_at or host.created_at)).total_seconds()


def _unrenewed_seconds(host: Host, renewable: datetime | None, now: datetime) -> float:
    heard_at = host.last_sync_at or host.created_at
    return (now - leases.last_possible_renewal(heard_at, renewable)).total_seconds()


def _suspect(host: Host, now: datetime) -> None:
    with transaction.atomic():
        fresh = locks.hosts([host.pk])[host.pk]
        if (
            _silent_seconds(fresh, now) > leases.lease_rules().suspect_seconds
            and fresh.lease_state == LeaseState.ALIVE
        ):
            change_state(fresh, "lease_state", old=LeaseState.ALIVE, new=LeaseState.SUSPECT)
            record_host_change(
                fresh, f"its agent has been silent for {_silent_seconds(fresh, now):.0f} s", now
            )


def _declare_silent(host: Host, now: datetime) -> None:
    with transaction.atomic():
        fresh = locks.hosts([host.pk])[host.pk]
        renewable = leases.memory_renewal_limit(now)
        if _unrenewed_seconds(fresh, renewable, now) <= leases.silence_limits_seconds([host])[host.pk]:
            return
        old = LeaseState(fresh.lease_state)
        if old == LeaseState.SILENT or not change_state(
            fresh, "lease_state", old=old, new=LeaseState.SILENT, silent_since=now
        ):
            return
        record_host_change(fresh, "its lease, grace and margin are over", now)
        lost_hosts.end_runs_of_lost_host(fresh, now)


def _end_remaining_runs(now: datetime) -> None:
    """End runs that were placed on a host while another process declared the host silent."""
    remaining = Run.objects.filter(host__lease_state=LeaseState.SILENT).exclude(state=RunState.ENDED)
    for pk in remaining.values_list("host_id", flat=True).distinct():
        with transaction.atomic():
            host = locks.hosts([pk])[pk]
            if host.lease_state == LeaseState.SILENT:
                lost_hosts.end_runs_of_lost_host(host, now)
