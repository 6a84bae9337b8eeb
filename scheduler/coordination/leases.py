"""Compute how long a host may be silent. All limits follow from the setting GPUPOOL_LEASE_SECONDS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Max

from scheduler.models import Host, Run
from scheduler.state.states import RunState

MASS_SILENCE_SHARE = 0.55
MASS_SILENCE_MIN_HOSTS = 3


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """The time limits of hosts, in seconds.

    An agent polls six times in a lease. A host is suspect after it missed more than two polls. A host is
    silent after its lease, the grace period of its pool and a margin have passed. By then the supervisor
    processes on the host (shims) have stopped every workload whose lease was not renewed.
    """

    lease_seconds: float

    @property
    def poll_seconds(self) -> float:
        return self.lease_seconds / 6

    @property
    def suspect_seconds(self) -> float:
        return self.poll_seconds * 2.4

    def silent_seconds(self, grace_seconds: float) -> float:
        return self.lease_seconds + grace_seconds + self.lease_seconds / 3


def lease_rules() -> LeaseRules:
    """Return the time limits for the lease length of this installation."""
    return LeaseRules(settings.GPUPOOL_LEASE_SECONDS)


def silence_limits_seconds(hosts: Sequence[Host]) -> dict[int, float]:
    """Return, by host id, the seconds of silence after which all runs of the host have ended.

    Each run keeps the grace period that its pool had when the run was placed. The result uses the longest
    grace period of the host's runs, even if the pool's grace period is shorter now. ``hosts`` must be loaded
    with their pools. This takes one query.
    """
    live = Run.objects.filter(host__in=[host.pk for host in hosts]).exclude(state=RunState.ENDED)
    grace_of_runs = dict(live.values_list("host").annotate(longest=Max("grace_seconds")))
    return {
        h.pk: lease_rules().silent_seconds(max(h.pool.grace_seconds, grace_of_runs.get(h.pk, 0)))
        for h in hosts
    }


def is_mass_silence(quiet: int, all_hosts: int) -> bool:
    """Return True if so many hosts are silent at once that the cause is probably the control plane."""
    return quiet >= MASS_SILENCE_MIN_HOSTS and quiet > MASS_SILENCE_SHARE * all_hosts
