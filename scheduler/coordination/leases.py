"""How long a host may be quiet. All of it follows from one setting, GPUPOOL_LEASE_SECONDS."""

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
    """Seconds. An agent polls six times in a lease; a host is suspect after it missed more than one poll, and silent when its
    lease, the grace of its pool and a margin are over, because its shims have stopped by then what nobody renewed."""

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
    """The rules of this installation."""
    return LeaseRules(settings.GPUPOOL_LEASE_SECONDS)


def silence_limits_seconds(hosts: Sequence[Host]) -> dict[int, float]:
    """By host: for how many seconds it may be quiet until what it held has ended. With the grace that its shims were told at their
    start, also where its pool has a shorter one by now. ``hosts`` with their pools; one query."""
    live = Run.objects.filter(host__in=[host.pk for host in hosts]).exclude(state=RunState.ENDED)
    told = dict(live.values_list("host").annotate(longest=Max("grace_seconds")))
    return {h.pk: lease_rules().silent_seconds(max(h.pool.grace_seconds, told.get(h.pk, 0))) for h in hosts}


def is_mass_silence(quiet: int, all_hosts: int) -> bool:
    """Are so many hosts quiet at once that the control plane is to be suspected rather than they?"""
    return quiet >= MASS_SILENCE_MIN_HOSTS and quiet > MASS_SILENCE_SHARE * all_hosts
