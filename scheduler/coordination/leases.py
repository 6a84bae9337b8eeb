"""Compute the time limits for the silence of hosts from one setting, GPUPOOL_LEASE_SECONDS."""

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
    """The limits in seconds.

    An agent polls six times in a lease. A host is suspect after it missed more than two polls. A host is
    silent when its lease, the grace of its pool and a margin have passed: by then the host's shims have
    stopped every workload whose lease was not renewed.
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
    """Return the rules of this installation."""
    return LeaseRules(settings.GPUPOOL_LEASE_SECONDS)


def silence_limits_seconds(hosts: Sequence[Host]) -> dict[int, float]:
    """Return, by host, the seconds of silence after which all its runs have ended.

    Uses the longest grace that the shims of the host's runs received at their start, even if the pool's grace
    is shorter now. ``hosts`` are loaded with their pools. One query.
    """
    live = Run.objects.filter(host__in=[host.pk for host in hosts]).exclude(state=RunState.ENDED)
    grace_of_runs = dict(live.values_list("host").annotate(longest=Max("grace_seconds")))
    return {
        h.pk: lease_rules().silent_seconds(max(h.pool.grace_seconds, grace_of_runs.get(h.pk, 0)))
        for h in hosts
    }


def is_mass_silence(quiet: int, all_hosts: int) -> bool:
    """Return True if so many hosts are quiet at once that the control plane is suspected, not the hosts."""
    return quiet >= MASS_SILENCE_MIN_HOSTS and quiet > MASS_SILENCE_SHARE * all_hosts
