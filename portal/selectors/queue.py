"""What waits and what runs, in the order the engine judged it, and why one workload is where it is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Sum

from portal import policy
from portal.models import User
from portal.questions import asking, kept, recalled, remember
from portal.selectors import starts
from portal.selectors.starts import Starts
from portal.selectors.work import RELATED, Held, held_by, held_unit
from portal.services.asks import AskFields, gpus_of
from portal.services.reservations import SHORTEST_WINDOW
from scheduler import one_answer
from scheduler import selectors as engine
from scheduler.core.explain import Alternative, Basis, FairnessRow
from scheduler.core.model import SLOTS_PER_GPU, Placement, Snapshot
from scheduler.core.ordering import Turn, place_in_line
from scheduler.models import Leader, Pool, Team, Workload
from scheduler.services import Never, never_starts_of
from scheduler.states import WorkloadState

RUNS = [s.value for s in WorkloadState if s not in (WorkloadState.QUEUED, WorkloadState.ENDED)]
SOONER_SECONDS = 60
MOST_AHEAD = 10
MOST_MODELS_IN_FORM = 3


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
class Ahead:
    """A workload that waits, too, and has its turn first; ``part`` is what decides (``scheduler.core.ordering.Part``). It was asked
    for ``earlier``, is expected to be ``shorter``, or both."""

    workload: Workload
    part: str
    earlier: bool
    shorter: bool


@dataclass(frozen=True)
class AnotherTime:
    """A window in which a reservation of what a workload asks for fits now. ``in_form``: the request form can say all of it."""

    workload: Workload
    start: datetime
    end: datetime
    needs_approval: bool
    in_form: bool


@dataclass(frozen=True)
class Why:
    """``ahead`` are those that may be seen, at most ``MOST_AHEAD``; ``ahead_more`` how many others have their turn first.
    ``never``: why it would not start whatever ended."""

    blockers: list[Blocker]
    sooner: list[Alternative]
    fairness: list[dict[str, Any]]
    ahead: list[Ahead]
    ahead_more: int
    starts: Starts
    windows: list[AnotherTime]
    never: Never | None = None


def why(workload: Workload, user: User, now: datetime) -> Why:
    """Everything about one waiting workload: what blocks it, who goes first, what would start sooner, how the teams of its
    pool stand."""
    with asking(user, now), one_answer.one_answer():
        first, more = ahead(workload, user, now)
        return Why(
            blockers(workload, user),
            sooner(workload, now),
            fairness(workload.pool, workload.project.team_id, now),
            first,
            more,
            starts.of_pools([workload.pool_id], now),
            windows(workload, user, now),
            _never(workload, now),
        )


def _never(workload: Workload, now: datetime) -> Never | None:
    if workload.state != WorkloadState.QUEUED or workload.expected_start is not None:
        return None
    return kept(("never-of", workload.pk), now, lambda: never_starts_of(workload, now))


def ahead(workload: Workload, user: User, now: datetime) -> tuple[list[Ahead], int]:
    """Who has its turn before a waiting workload, as far as the viewer may see them, and how many others."""
    if workload.state != WorkloadState.QUEUED:
        return [], 0
    before = kept(("first", workload.pk), now, lambda: _before(workload, now))
    rows = policy.visible_workloads(user).filter(pk__in=[first[0] for first in before]).select_related(*RELATED)
    seen = {row.pk: row for row in rows}
    # The nearest ones say most about one's own place.
    shown = [Ahead(seen[pk], part, earlier, shorter) for pk, part, earlier, shorter in before if pk in seen][-MOST_AHEAD:]
    return shown, len(before) - len(shown)


def _before(workload: Workload, now: datetime) -> list[tuple[int, str, bool, bool]]:
    submitted, predicted = int(workload.submitted_at.timestamp()), workload.predicted_seconds
    return [
        (turn.queued.id, str(part), turn.queued.submitted < submitted, turn.queued.predicted_seconds < predicted)
        for turn, part in engine.before(workload, now)
    ]


@dataclass(frozen=True)
class WhyThem:
    """Why ``theirs`` and not ``mine``: ``rule`` is a key of ``portal.wording.turns.WHY_FIRST`` with its numbers. ``without``: what
    the plan would say to ``mine`` if ``theirs`` was not there: does it start, and the reason with its numbers."""

    mine: Workload
    theirs: Workload
    rule: str
    numbers: dict[str, Any]
    without_starts: bool
    without_code: str
    without_numbers: dict[str, Any]


def why_them(mine: Workload, theirs: Workload, now: datetime) -> WhyThem | None:
    """Compare a waiting workload with one of the same pool that runs or waits, both of which the viewer may see. None when
    they can't be compared (any more)."""
    if mine.pool_id != theirs.pool_id or mine.state != WorkloadState.QUEUED or mine.pk == theirs.pk:
        return None
    with one_answer.one_answer():
        found = engine.compare(mine, theirs, now)
        taken = one_answer.take([mine.pool_id], now)
    if found is None:
        return None
    rule = str(found.part or found.basis)
    if found.basis is Basis.THERE_FIRST:
        rule = str(found.basis)
    elif found.mine is None:
        rule = "turned_away"
    numbers: dict[str, Any] = {"now": int(now.timestamp()), "half_life": mine.pool.half_life_seconds}
    for name, workload, turn in (("mine", mine, found.mine), ("theirs", theirs, found.theirs)):
        numbers |= {f"{name}_{key}": value for key, value in _facts_of(workload, turn, taken, now).items()}
    without = found.without
    return WhyThem(
        mine, theirs, rule, numbers, isinstance(without, Placement), str(without.code), dict(without.numbers)
    )


def _facts_of(workload: Workload, turn: Turn | None, taken: Snapshot, now: datetime) -> dict[str, Any]:
    """What the rules look at in one workload; times in seconds since the epoch, shares in GPU-hours by weight."""
    running = next((row for row in taken.running if row.id == workload.pk), None)
    quotas = engine.quota_effect(team=workload.project.team_id, pool=workload.pool_id, now=now)
    wanted = [quota for quota in quotas if quota.model in workload.models_wanted] or quotas
    facts: dict[str, Any] = {
        "team": workload.project.team.name,
        "units": workload.units,
        "hosts": workload.hosts,
        "profile": workload.profile,
        "priority": workload.priority,
        "submitted": int(workload.submitted_at.timestamp()),
        "waited": int((now - workload.submitted_at).total_seconds()),
        "predicted": workload.predicted_seconds,
        "started": running.started if running else None,
        "quota": [[quota.model, quota.guaranteed, quota.held] for quota in wanted],
    }
    if turn is not None:
        facts |= {
            "predicted": turn.queued.predicted_seconds,
            "place": place_in_line(turn.queued),
            "share": round(turn.share / SLOTS_PER_GPU / 3600, 2),
        }
    return facts


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
        remember(_sooner_key(workload), known, SOONER_SECONDS)
    return known


def sooner_known(workload: Workload) -> list[Alternative] | None:
    """The same where it was worked out lately; None where it was not, and is not now either."""
    known: list[Alternative] | None = recalled(_sooner_key(workload))
    return known


def _sooner_key(workload: Workload) -> str:
    return f"sooner:{workload.pk}:{workload.queued_at.timestamp():.0f}"


def windows(workload: Workload, user: User, now: datetime) -> list[AnotherTime]:
    """When a reservation of what a waiting workload asks for could be had, as long as its limit: for those who may ask for one,
    the first windows that they would be given, and still are when they have filled in the form."""
    pool, project = workload.pool, workload.project
    length = max(timedelta(seconds=workload.max_runtime_seconds), SHORTEST_WINDOW)
    if workload.state != WorkloadState.QUEUED or length.total_seconds() > pool.longest_reservation_seconds:
        return []
    if not project.active or not policy.may(user, "reservation.request", project):
        return []
    ask = AskFields(**{name: getattr(workload, name) for name in AskFields.__dataclass_fields__})
    needs_approval = gpus_of(pool, ask) > pool.approval_above_gpus
    in_form = len(ask.models_wanted) <= MOST_MODELS_IN_FORM
    found = kept(
        ("windows", workload.pk, int(length.total_seconds()), user.pk),  # one person may hold so much
        now,
        lambda: engine.reservable(workload, owner=user, length=length, now=now),
    )
    return [AnotherTime(workload, start, end, needs_approval, in_form) for start, end in found]


def fairness(pool: Pool, mine: Collection[int] | int, now: datetime) -> list[dict[str, Any]]:
    """One row per team of the pool, in GPUs and GPU-hours, the least used first; ``mine``: ids of the viewer's teams, or of
    the one that is looked at. Those who share a pool may know its sums."""
    rows: list[FairnessRow] = kept(("fairness", pool.pk), now, lambda: engine.fairness(pool, now))
    own = {mine} if isinstance(mine, int) else set(mine)
    teams = {team.pk: team for team in Team.objects.filter(pk__in=[row.team for row in rows])}
    drawn = [
        {
            "team": teams[row.team],
            "mine": row.team in own,
            "guaranteed": row.guaranteed / SLOTS_PER_GPU,
            "held": row.held / SLOTS_PER_GPU,
            "borrowed": row.borrowed / SLOTS_PER_GPU,
            "waiting": row.waiting / SLOTS_PER_GPU,
            "gpu_hours": row.decayed_use / SLOTS_PER_GPU / 3600,
            "weight": row.weight,
            "share": row.share,
            "fair_share": row.fair_share,
            "ratio": row.share / row.fair_share if row.fair_share else None,
        }
        for row in rows
        if row.team in teams
    ]
    return sorted(drawn, key=lambda row: (row["ratio"] or 0.0, row["team"].pk))
