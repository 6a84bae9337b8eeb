"""Read the queue: waiting workloads in the engine's order, and running workloads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, F, Q, QuerySet, Sum

from portal import policy
from portal.models import User
from portal.reads.work.workload_details import RELATED
from scheduler.models import Leader, Workload
from scheduler.state.states import WorkloadState

RUNNING_STATES = [s.value for s in WorkloadState if s not in (WorkloadState.QUEUED, WorkloadState.ENDED)]


@dataclass(frozen=True)
class QueueTotals:
    """Totals over the workloads of all teams in the pools that a person may use.

    ``gpus_wanted`` is the number of units that waiting workloads request. ``planned_at`` is the time of the
    engine's last cycle.
    """

    waiting: int
    gpus_wanted: int
    running: int
    planned_at: datetime | None


def queue_totals(user: User) -> QueueTotals:
    """Return the totals of the pools that the user may use."""
    pools = policy.visible_pools(user)
    found = Workload.objects.filter(pool__in=pools).aggregate(
        waiting=Count("pk", filter=Q(state=WorkloadState.QUEUED)),
        wanted=Sum(F("units") * F("hosts"), filter=Q(state=WorkloadState.QUEUED)),
        running=Count("pk", filter=Q(state__in=RUNNING_STATES)),
    )
    planned = Leader.objects.values_list("last_cycle_at", flat=True).first()
    return QueueTotals(found["waiting"], found["wanted"] or 0, found["running"], planned)


def waiting_workloads(user: User) -> QuerySet[Workload]:
    """Return the visible waiting workloads, sorted by pool and queue position."""
    rows = policy.visible_workloads(user).filter(state=WorkloadState.QUEUED).select_related(*RELATED)
    return rows.order_by("pool__name", F("position").asc(nulls_last=True), "submitted_at", "pk")


def running_workloads(user: User) -> QuerySet[Workload]:
    """Return the visible workloads that hold GPUs, sorted by pool. In a pool, the newest comes first."""
    rows = policy.visible_workloads(user).filter(state__in=RUNNING_STATES).select_related(*RELATED)
    return rows.order_by("pool__name", "-queued_at", "-pk")


def visible_counts(user: User) -> dict[str, dict[str, int]]:
    """Return the numbers of visible workloads: all, of the user's teams, and of the user.

    Example: ``{"waiting": {"all": 9, "team": 4, "mine": 1}, "running": {"all": 7, "team": 2, "mine": 0}}``.
    """
    shows = {"waiting": Q(state=WorkloadState.QUEUED), "running": Q(state__in=RUNNING_STATES)}
    whose = {"all": Q(), "team": Q(project__team__in=policy.my_team_ids(user)), "mine": Q(owner=user)}
    found = policy.visible_workloads(user).aggregate(
        **{f"{s}_{w}": Count("pk", filter=shows[s] & whose[w]) for s in shows for w in whose}
    )
    return {s: {w: found[f"{s}_{w}"] for w in whose} for s in shows}


def reason_codes(user: User) -> list[str]:
    """Return the reason codes of the visible waiting workloads, for the queue's filter."""
    rows = policy.visible_workloads(user).filter(state=WorkloadState.QUEUED).exclude(reason_code="")
    return sorted(set(rows.values_list("reason_code", flat=True)))


def models_in_use(user: User) -> list[str]:
    """Return the GPU models of the pools that the user may use, for the queue's filter."""
    return sorted(set(policy.visible_gpus(user).filter(retired_at=None).values_list("model", flat=True)))
