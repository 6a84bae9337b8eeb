"""Read waiting and running workloads, in the order in which the engine evaluated them."""

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
    """Totals of the pools that the person may use, over workloads of everybody."""

    waiting: int
    gpus_wanted: int
    running: int
    planned_at: datetime | None


def queue_totals(user: User) -> QueueTotals:
    """Return the totals: waiting workloads, units they want, running workloads, time of the last cycle."""
    pools = policy.visible_pools(user)
    found = Workload.objects.filter(pool__in=pools).aggregate(
        waiting=Count("pk", filter=Q(state=WorkloadState.QUEUED)),
        wanted=Sum(F("units") * F("hosts"), filter=Q(state=WorkloadState.QUEUED)),
        running=Count("pk", filter=Q(state__in=RUNNING_STATES)),
    )
    planned = Leader.objects.values_list("last_cycle_at", flat=True).first()
    return QueueTotals(found["waiting"], found["wanted"] or 0, found["running"], planned)


def waiting_workloads(user: User) -> QuerySet[Workload]:
    """Return the visible waiting workloads, by pool and position."""
    rows = policy.visible_workloads(user).filter(state=WorkloadState.QUEUED).select_related(*RELATED)
    return rows.order_by("pool__name", F("position").asc(nulls_last=True), "submitted_at", "pk")


def running_workloads(user: User) -> QuerySet[Workload]:
    """Return the visible workloads that hold GPUs, newest first."""
    rows = policy.visible_workloads(user).filter(state__in=RUNNING_STATES).select_related(*RELATED)
    return rows.order_by("pool__name", "-queued_at", "-pk")


def visible_counts(user: User) -> dict[str, dict[str, int]]:
    """Return the numbers of visible waiting and running workloads: ``all``, ``team`` (own), ``mine``."""
    shows = {"waiting": Q(state=WorkloadState.QUEUED), "running": Q(state__in=RUNNING_STATES)}
    whose = {"all": Q(), "team": Q(project__team__in=policy.my_team_ids(user)), "mine": Q(owner=user)}
    found = policy.visible_workloads(user).aggregate(
        **{f"{s}_{w}": Count("pk", filter=shows[s] & whose[w]) for s in shows for w in whose}
    )
    return {s: {w: found[f"{s}_{w}"] for w in whose} for s in shows}


def reason_codes(user: User) -> list[str]:
    """Return the reason codes of the present queue, to filter by."""
    rows = policy.visible_workloads(user).filter(state=WorkloadState.QUEUED).exclude(reason_code="")
    return sorted(set(rows.values_list("reason_code", flat=True)))


def models_in_use(user: User) -> list[str]:
    """Return the GPU models of the pools that the person may use, to filter by."""
    return sorted(set(policy.visible_gpus(user).filter(retired_at=None).values_list("model", flat=True)))
