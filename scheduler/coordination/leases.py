"""Compute how long a host may be silent. The limits follow from the setting GPUPOOL_LEASE_SECONDS.

While the database does not answer, an edge process renews leases from memory (docs/decisions/0020). The
limits of silent hosts include these renewals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Max

from scheduler.models import EdgeContact, Host, Run
from scheduler.state.states import RunState

MASS_SILENCE_SHARE = 0.55
MASS_SILENCE_MIN_HOSTS = 3
MAX_POLL_SECONDS = 5.0  # a dead host is suspect, and gets no new work, within seconds even if leases are long
MAX_MARGIN_SECONDS = 30.0  # covers delays of processes, which do not grow with the lease
# Longest time in which an edge without contact to the database renews leases. It is longer than the restart,
# the failover or the minor upgrade of a database takes, and limits how long a revoked host or ordered stop
# can be missed. Planned maintenance that takes longer is announced.
MEMORY_RENEWAL_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """The time limits of hosts, in seconds.

    An agent polls at least six times in a lease. A host is suspect after it missed more than two polls. A
    host is silent after its lease, the grace period of its pool and a margin have passed. By then the
    supervisor processes on the host (shims) have stopped every workload whose lease was not renewed.
    """

    lease_seconds: float

    @property
    def poll_seconds(self) -> float:
        return min(self.lease_seconds / 6, MAX_POLL_SECONDS)

    @property
    def suspect_seconds(self) -> float:
        return self.poll_seconds * 2.4

    @property
    def margin_seconds(self) -> float:
        return min(self.lease_seconds / 3, MAX_MARGIN_SECONDS)

    def silent_seconds(self, grace_seconds: float) -> float:
        return self.lease_seconds + grace_seconds + self.margin_seconds


def lease_rules() -> LeaseRules:
    """Return the time limits for the lease length of this installation."""
    return LeaseRules(settings.GPUPOOL_LEASE_SECONDS)


def silence_limits_seconds(hosts: Sequence[Host]) -> dict[int, float]:
    """Return, by host id, the seconds of silence after which all runs of the host have ended.

    Silence begins at ``last_possible_renewal``. Each run keeps the grace period that its pool had when the
    run was placed. The result uses the longest grace period of the host's runs, even if the pool's grace
    period is shorter now. ``hosts`` must be loaded with their pools. This takes one query.
    """
    live = Run.objects.filter(host__in=[host.pk for host in hosts]).exclude(state=RunState.ENDED)
    grace_of_runs = dict(live.values_list("host").annotate(longest=Max("grace_seconds")))
    return {
        h.pk: lease_rules().silent_seconds(max(h.pool.grace_seconds, grace_of_runs.get(h.pk, 0)))
        for h in hosts
    }


def memory_renewal_limit(now: datetime) -> datetime | None:
    """Return the latest time at which an edge may have renewed leases that the database does not know.

    Return None if every edge is in contact: a contact writes all earlier renewals from memory. The result is
    at most ``now``. This takes one query.
    """
    stale = now - timedelta(seconds=lease_rules().margin_seconds)
    latest = EdgeContact.objects.filter(seen_at__lt=stale).aggregate(latest=Max("renews_until"))["latest"]
    return min(now, latest) if latest is not None else None


def last_possible_renewal(heard_at: datetime, memory_limit: datetime | None) -> datetime:
    """Return the latest time at which the lease of a host may have been renewed.

    ``heard_at`` is the time of the host's last stored report, ``memory_limit`` the result of
    ``memory_renewal_limit``.
    """
    return heard_at if memory_limit is None else max(heard_at, memory_limit)


def is_mass_silence(quiet: int, all_hosts: int) -> bool:
    """Return True if so many hosts are silent at once that the cause is probably the control plane."""
    return quiet >= MASS_SILENCE_MIN_HOSTS and quiet > MASS_SILENCE_SHARE * all_hosts
