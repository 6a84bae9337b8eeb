"""What waits and what runs, in the order the engine judged it, and why one workload is where it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.cache import cache
from django.db.models import Count, F, Q, QuerySet, Sum

from portal import policy
from portal.models import User
from portal.selectors.work import RELATED, Held, held_by, held_unit
from scheduler import selectors as engine
from scheduler.core.explain import Alternative, FairnessRow
from scheduler.core.model import SLOTS_PER_GPU
from scheduler.models import Leader, Pool, Team, Workload
from scheduler.states import WorkloadState

RUNS = [s.value for s in WorkloadState if s not in (WorkloadState.QUEUED, WorkloadState.ENDED)]
SOONER_SECONDS = 60


@dataclass(frozen=True)
class Totals:
    """Of the pools the person may use, whoever's work it is: numbers only."""

    waiting: int
    gpus_wanted: int
    running: int
    planned_at: datetime | None


def totals(user: User) -> Totals:
    """How many wait for how many units, how many run, and when the engine last planned."""
    pools = policy.visible_pools(user)
    found = Workload.objects.filter(pool__in=pools).aggregate(
        waiting=Count("pk", filter=Q(state=WorkloadState.QUEUED)),
        wanted=Sum(F("units") * F("hosts"), filter=Q(state=WorkloadState.QUEUED)),
        running=Count("pk", filter=Q(state__in=RUNS)),
    )
    planned = Leader.objects.values_list("last_cycle_at", flat=True).first()
    return Totals(found["waiting"], found["wanted"] or 0, found["running"], planned)


def waiting(user: User) -> QuerySet[Workload]:
    """What waits and may be seen, by pool and position."""
    rows = policy.visible_workloads(user).filter(state=WorkloadState.QUEUED).select_related(*RELATED)
    return rows.order_by("pool__name", F("position").asc(nulls_last=True), "submitted_at", "pk")


def running(user: User) -> QuerySet[Workload]:
    """What holds GPUs and may be seen, the newest first."""
    rows = policy.visible_workloads(user).filter(state__in=RUNS).select_related(*RELATED)
    return rows.order_by("pool__name", "-queued_at", "-pk")


def seen_counts(user: User) -> dict[str, dict[str, int]]:
    """How many rows the person may see, of what is ``waiting`` and what is ``running``: ``all``, ``team`` (own ones), ``mine``."""
    shows = {"waiting": Q(state=WorkloadState.QUEUED), "running": Q(state__in=RUNS)}
    whose = {"all": Q(), "team": Q(project__team__in=policy.my_team_ids(user)), "mine": Q(owner=user)}
    found = policy.visible_workloads(user).aggregate(
        **{f"{s}_{w}": Count("pk", filter=shows[s] & whose[w]) for s in shows for w in whose}
    )
    return {s: {w: found[f"{s}_{w}"] for w in whose} for s in shows}


def reason_codes(user: User) -> list[str]:
    """The reasons that stand in the queue now, to filter by."""
    rows = policy.visible_workloads(user).filter(state=WorkloadState.QUEUED).exclude(reason_code="")
    return sorted(set(rows.values_list("reason_code", flat=True)))


def models_in_use(user: User) -> list[str]:
    """GPU models of the pools the person may use, to filter by."""
    return sorted(set(policy.visible_gpus(user).filter(retired_at=None).values_list("model", flat=True)))


@dataclass(frozen=True)
class Blocker:
    """A workload whose end another waits for. ``workload`` is None where the viewer may not see it."""

    workload: Workload | None
    team: Team
    held: list[Held]
    ends_at: datetime | None
    state: str


@dataclass(frozen=True)
class Why:
    blockers: list[Blocker]
    sooner: list[Alternative]
    fairness: list[dict[str, Any]]


def why(workload: Workload, user: User, now: datetime) -> Why:
    """Everything about one waiting workload: what blocks it, what would start sooner, how the teams of its pool stand."""
    return Why(blockers(workload, user), sooner(workload, now), fairness(workload.pool, workload, user, now))


def blockers(workload: Workload, user: User) -> list[Blocker]:
    """Those the engine named, as far as the viewer may know them."""
    rows = {row.pk: row for row in Workload.objects.filter(pk__in=workload.blockers).select_related(*RELATED)}
    seen = set(policy.visible_workloads(user).filter(pk__in=rows).values_list("pk", flat=True))
    held: dict[int, list[Held]] = {}
    for allocation in held_by(rows):
        held.setdefault(allocation.workload_id, []).append(held_unit(allocation))
    found = []
    for pk in workload.blockers:
        row = rows.get(pk)
        if row is None:
            continue
        units = held.get(pk, [])
        since = min((unit.since for unit in units), default=None)
        ends = None if since is None else since + timedelta(seconds=row.max_runtime_seconds)
        found.append(Blocker(row if pk in seen else None, row.project.team, units, ends, row.state))
    return found


def sooner(workload: Workload, now: datetime) -> list[Alternative]:
    """Asks that would start earlier. Each is planned for, so the answer is kept for a while."""
    if workload.state != WorkloadState.QUEUED:
        return []
    known = sooner_known(workload)
    if known is None:
        known = engine.sooner(workload, now)
        cache.set(_sooner_key(workload), known, SOONER_SECONDS)
    return known


def sooner_known(workload: Workload) -> list[Alternative] | None:
    """The same where it was worked out lately; None where it was not, and is not now either."""
    known: list[Alternative] | None = cache.get(_sooner_key(workload))
    return known


def _sooner_key(workload: Workload) -> str:
    return f"sooner:{workload.pk}:{workload.queued_at.timestamp():.0f}"


def fairness(pool: Pool, workload: Workload, user: User, now: datetime) -> list[dict[str, Any]]:
    """One row per team of the pool, in GPUs and GPU-hours, the least used first. Those who share a pool may know its sums."""
    rows: list[FairnessRow] = engine.fairness(pool, now)
    teams = {team.pk: team for team in Team.objects.filter(pk__in=[row.team for row in rows])}
    drawn = [
        {
            "team": teams[row.team],
            "mine": row.team == workload.project.team_id,
            "guaranteed": row.guaranteed / SLOTS_PER_GPU,
            "held": row.held / SLOTS_PER_GPU,
            "borrowed": row.borrowed / SLOTS_PER_GPU,
            "waiting": row.waiting / SLOTS_PER_GPU,
            "gpu_hours": row.decayed_use / SLOTS_PER_GPU / 3600,
            "weight": row.weight,
            "ratio": row.share / row.fair_share if row.fair_share else None,
        }
        for row in rows
        if row.team in teams
    ]
    return sorted(drawn, key=lambda row: (row["ratio"] or 0.0, row["team"].pk))
