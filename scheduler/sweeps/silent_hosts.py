"""Suspect hosts whose agents stopped reporting, then declare them silent and end their runs."""

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
    """So many hosts are quiet at once that the network or this site is suspected rather than they: nobody's work is given up."""

    quiet: int
    hosts: int
    since: datetime


def mass_silence(now: datetime) -> MassSilence | None:
    """Whether that is so now. One query, and another when any host is quiet."""
    quiet = _overdue_hosts(now)
    hosts = _reporting_hosts().count() if quiet else 0
    if not leases.is_mass_silence(len(quiet), hosts):
        return None
    return MassSilence(len(quiet), hosts, max(host.last_sync_at or host.created_at for host in quiet))


def _reporting_hosts() -> QuerySet[Host]:
    """The hosts that have spoken and are not known to be silent."""
    return Host.objects.exclude(lease_state=LeaseState.JOINING).exclude(lease_state=LeaseState.SILENT)


def _overdue_hosts(now: datetime) -> list[Host]:
    """Those of them that are quiet for too long."""
    spoke = Coalesce("last_sync_at", "created_at")
    late = now - timedelta(seconds=leases.lease_rules().suspect_seconds)
    return list(
        _reporting_hosts().annotate(spoke=spoke).filter(spoke__lt=late).select_related("pool").order_by("pk")
    )


def sweep_silent_hosts(now: datetime) -> None:
    """Hosts that stopped speaking become suspect, then silent and their work lost; unless most of them did so at once."""
    quiet = _overdue_hosts(now)
    for host in quiet:
        if host.lease_state == LeaseState.ALIVE:
            _suspect(host, now)
    patience = leases.silence_limits_seconds(quiet) if quiet else {}
    overdue = [host for host in quiet if _silent_seconds(host, now) > patience[host.pk]]
    if overdue and leases.is_mass_silence(len(quiet), _reporting_hosts().count()):
        return  # operators are told by the pages: ``mass_silence``
    for host in overdue:
        _declare_silent(host, now)
    _end_remaining_runs(now)


def _silent_seconds(host: Host, now: datetime) -> float:
    return (now - (host.last_sync_at or host.created_at)).total_seconds()


def _suspect(host: Host, now: datetime) -> None:
    with transaction.atomic():
        fresh = locks.hosts([host.pk])[host.pk]
        if (
            _silent_seconds(fresh, now) > leases.lease_rules().suspect_seconds
            and fresh.lease_state == LeaseState.ALIVE
        ):
            change_state(fresh, "lease_state", old=LeaseState.ALIVE, new=LeaseState.SUSPECT)
            record_host_change(
                fresh, f"its agent has not spoken for {_silent_seconds(fresh, now):.0f} s", now
            )


def _declare_silent(host: Host, now: datetime) -> None:
    with transaction.atomic():
        fresh = locks.hosts([host.pk])[host.pk]
        if _silent_seconds(fresh, now) <= leases.silence_limits_seconds([host])[host.pk]:
            return
        old = LeaseState(fresh.lease_state)
        if old == LeaseState.SILENT or not change_state(
            fresh, "lease_state", old=old, new=LeaseState.SILENT, silent_since=now
        ):
            return
        record_host_change(fresh, "its lease, grace and margin are over", now)
        lost_hosts.end_runs_of_lost_host(fresh, now)


def _end_remaining_runs(now: datetime) -> None:
    """What was placed there in the very moment in which it fell silent."""
    left = Run.objects.filter(host__lease_state=LeaseState.SILENT).exclude(state=RunState.ENDED)
    for pk in left.values_list("host_id", flat=True).distinct():
        with transaction.atomic():
            host = locks.hosts([pk])[pk]
            if host.lease_state == LeaseState.SILENT:
                lost_hosts.end_runs_of_lost_host(host, now)
