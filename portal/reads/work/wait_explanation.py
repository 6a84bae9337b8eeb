"""Explain why a workload waits and which changes would start it sooner."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from portal import policy
from portal.answer_cache import cache_get, cache_set, cached_answer
from portal.hardware_request import MIN_RESERVATION_WINDOW, exceeds_approval_threshold
from portal.models import User
from portal.planner_budget import metered_planning
from portal.reads.work import expected_starts
from portal.reads.work.expected_starts import StartRecords
from portal.reads.work.workload_details import RELATED, HeldUnit, held_by, held_unit
from scheduler.core.model.plan import Placement
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.model.waiting_queue import effective_submit_time
from scheduler.core.queue.turn import QueueTurn
from scheduler.core.what_if.alternatives import Alternative
from scheduler.core.what_if.comparison import ComparisonBasis
from scheduler.core.what_if.fairness import FairnessRow
from scheduler.cycle import request_snapshot_cache
from scheduler.models import Pool, Team, Workload
from scheduler.reads import capacity, explanations
from scheduler.requests import HardwareRequest
from scheduler.services import ImpossibleStart, impossible_start_of
from scheduler.state.states import WorkloadState

FASTER_REQUESTS_TTL_SECONDS = 60
MAX_WORKLOADS_AHEAD = 10
MAX_FORM_MODELS = 3


@dataclass(frozen=True)
class Blocker:
    """A workload that must end before the explained workload can start.

    ``workload`` is None if the viewer may not see the blocking workload.
    """

    workload: Workload | None
    team: Team
    held: list[HeldUnit]
    ends_at: datetime | None
    state: str


@dataclass(frozen=True)
class WorkloadAhead:
    """A waiting workload that is ahead of the explained workload in the queue.

    ``part`` is the criterion that decides their order: a ``scheduler.core.queue.turn.TurnCriterion``.
    ``earlier`` is True if this workload was submitted earlier than the explained workload. ``shorter`` is
    True if its expected runtime is shorter.
    """

    workload: Workload
    part: str
    earlier: bool
    shorter: bool


@dataclass(frozen=True)
class AlternativeWindow:
    """A time window in which the workload's hardware can be reserved.

    ``in_form`` is True if the request form can express the request: the form takes at most MAX_FORM_MODELS
    models.
    """

    workload: Workload
    start: datetime
    end: datetime
    needs_approval: bool
    in_form: bool


@dataclass(frozen=True)
class WaitExplanation:
    """The explanation why a workload waits.

    ``sooner`` are changed requests that would start earlier. ``fairness`` has the use of each team. ``ahead``
    are the visible workloads ahead in the queue, at most MAX_WORKLOADS_AHEAD. ``ahead_more`` is the number of
    all other workloads ahead. ``never`` is set if the workload could not start even if all other work ended.
    """

    blockers: list[Blocker]
    sooner: list[Alternative]
    fairness: list[dict[str, Any]]
    ahead: list[WorkloadAhead]
    ahead_more: int
    starts: StartRecords
    windows: list[AlternativeWindow]
    never: ImpossibleStart | None = None


def explain_wait(workload: Workload, user: User, now: datetime) -> WaitExplanation:
    """Return the explanation of a waiting workload: its blockers, and changes that would start it sooner."""
    with metered_planning(user, now), request_snapshot_cache.share_snapshots():
        first, more = workloads_ahead(workload, user, now)
        return WaitExplanation(
            blockers(workload, user),
            faster_requests(workload, now),
            fair_share_rows(workload.pool, workload.project.team_id, now),
            first,
            more,
            expected_starts.start_records_of_pools([workload.pool_id], now),
            alternative_windows(workload, user, now),
            _never_starts(workload, now),
        )


def _never_starts(workload: Workload, now: datetime) -> ImpossibleStart | None:
    if workload.state != WorkloadState.QUEUED or workload.expected_start is not None:
        return None
    return cached_answer(("never-of", workload.pk), now, lambda: impossible_start_of(workload, now))


def workloads_ahead(workload: Workload, user: User, now: datetime) -> tuple[list[WorkloadAhead], int]:
    """Return (workloads, more): the workloads ahead of a waiting workload in the queue.

    ``workloads`` are at most MAX_WORKLOADS_AHEAD that the user may see. ``more`` is the number of all others.
    """
    if workload.state != WorkloadState.QUEUED:
        return [], 0
    before = cached_answer(("first", workload.pk), now, lambda: _planned_ahead(workload, now))
    rows = (
        policy.visible_workloads(user).filter(pk__in=[first[0] for first in before]).select_related(*RELATED)
    )
    seen = {row.pk: row for row in rows}
    # Keep the workloads directly ahead: they explain the position best.
    shown = [
        WorkloadAhead(seen[pk], part, earlier, shorter) for pk, part, earlier, shorter in before if pk in seen
    ][-MAX_WORKLOADS_AHEAD:]
    return shown, len(before) - len(shown)


def _planned_ahead(workload: Workload, now: datetime) -> list[tuple[int, str, bool, bool]]:
    submitted, predicted = int(workload.submitted_at.timestamp()), workload.predicted_seconds
    return [
        (
            turn.queued.id,
            str(part),
            turn.queued.submitted < submitted,
            turn.queued.predicted_seconds < predicted,
        )
        for turn, part in explanations.turns_before(workload, now)
    ]


@dataclass(frozen=True)
class QueueComparison:
    """A comparison of ``mine``, a waiting workload, with ``theirs``, another workload of the pool.

    ``rule`` decides their order: it is a key of ``queue_order_texts.QUEUE_ORDER_RULES``. ``numbers`` are the
    values in the rule's sentence. ``without_starts`` is True if ``mine`` would start now in a plan without
    ``theirs``. ``without_code`` and ``without_numbers`` are the reason that this plan gives for ``mine``.
    """

    mine: Workload
    theirs: Workload
    rule: str
    numbers: dict[str, Any]
    without_starts: bool
    without_code: str
    without_numbers: dict[str, Any]


def compare_in_queue(mine: Workload, theirs: Workload, now: datetime) -> QueueComparison | None:
    """Compare a waiting workload with a running or waiting workload of its pool.

    The caller has checked that the viewer may see both. Return None if they cannot be compared, such as after
    ``mine`` has started.
    """
    if mine.pool_id != theirs.pool_id or mine.state != WorkloadState.QUEUED or mine.pk == theirs.pk:
        return None
    with request_snapshot_cache.share_snapshots():
        found = explanations.compare_turns(mine, theirs, now)
        taken = request_snapshot_cache.take_cached_snapshot([mine.pool_id], now)
    if found is None:
        return None
    rule = str(found.criterion or found.basis)
    if found.basis is ComparisonBasis.THERE_FIRST:
        rule = str(found.basis)
    elif found.own_turn is None:
        rule = "turned_away"
    numbers: dict[str, Any] = {"now": int(now.timestamp()), "half_life": mine.pool.half_life_seconds}
    for name, workload, turn in (("mine", mine, found.own_turn), ("theirs", theirs, found.other_turn)):
        numbers |= {
            f"{name}_{key}": value for key, value in _comparison_facts(workload, turn, taken, now).items()
        }
    without = found.answer_without_other
    return QueueComparison(
        mine, theirs, rule, numbers, isinstance(without, Placement), str(without.code), dict(without.numbers)
    )


def _comparison_facts(
    workload: Workload, turn: QueueTurn | None, taken: Snapshot, now: datetime
) -> dict[str, Any]:
    """Return the facts of one workload that the rules of the queue order compare.

    Times are in seconds since the epoch, durations in seconds. ``share`` is the team's past use in GPU-hours,
    divided by the team's weight. It is 0 unless the whole request is borrowed.
    """
    running = next((row for row in taken.running if row.id == workload.pk), None)
    quotas = capacity.quota_use(team=workload.project.team_id, pool=workload.pool_id, now=now)
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
            "place": effective_submit_time(turn.queued),
            "share": round(turn.share / SLOTS_PER_GPU / 3600, 2),
        }
    return facts


def blockers(workload: Workload, user: User) -> list[Blocker]:
    """Return the blocking workloads that the engine found.

    Each has its team, its GPUs and its latest end. The workload itself is included only if the user may see
    it.
    """
    rows = {row.pk: row for row in Workload.objects.filter(pk__in=workload.blockers).select_related(*RELATED)}
    seen = set(policy.visible_workloads(user).filter(pk__in=rows).values_list("pk", flat=True))
    held: dict[int, list[HeldUnit]] = {}
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


def faster_requests(workload: Workload, now: datetime) -> list[Alternative]:
    """Return changed requests that would start earlier than the workload.

    Each changed request needs a plan of its own, so the result is cached for FASTER_REQUESTS_TTL_SECONDS.
    """
    if workload.state != WorkloadState.QUEUED:
        return []
    known = cached_faster_requests(workload)
    if known is None:
        known = explanations.sooner_alternatives(workload, now)
        cache_set(_faster_requests_key(workload), known, FASTER_REQUESTS_TTL_SECONDS)
    return known


def cached_faster_requests(workload: Workload) -> list[Alternative] | None:
    """Return the cached result of ``faster_requests``; None if nothing is cached."""
    known: list[Alternative] | None = cache_get(_faster_requests_key(workload))
    return known


def _faster_requests_key(workload: Workload) -> str:
    return f"sooner:{workload.pk}:{workload.queued_at.timestamp():.0f}"


def alternative_windows(workload: Workload, user: User, now: datetime) -> list[AlternativeWindow]:
    """Return the first windows in which a waiting workload's hardware can be reserved for its runtime limit.

    The result is empty if the workload no longer waits, if its runtime limit is longer than the pool's
    longest reservation, or if the user may not reserve for the project. Each window starts late enough that
    the user can fill in the form first.
    """
    pool, project = workload.pool, workload.project
    length = max(timedelta(seconds=workload.max_runtime_seconds), MIN_RESERVATION_WINDOW)
    if workload.state != WorkloadState.QUEUED or length.total_seconds() > pool.longest_reservation_seconds:
        return []
    if not project.active or not policy.may(user, "reservation.request", project):
        return []
    ask = HardwareRequest.from_row(workload)
    needs_approval = exceeds_approval_threshold(pool, ask)
    in_form = len(ask.models_wanted) <= MAX_FORM_MODELS
    found = cached_answer(
        # the windows depend on the limits of the user
        ("windows", workload.pk, int(length.total_seconds()), user.pk),
        now,
        lambda: explanations.reservable_windows(workload, owner=user, length=length, now=now),
    )
    return [AlternativeWindow(workload, start, end, needs_approval, in_form) for start, end in found]


def fair_share_rows(pool: Pool, mine: Collection[int] | int, now: datetime) -> list[dict[str, Any]]:
    """Return one row per team of the pool, with its use in GPUs and GPU-hours.

    The team with the least use relative to its fair share comes first. ``mine`` is the id of the team
    whose row is marked, or the ids of several teams. Rows of other teams are included, because every user of
    a pool may see the sums of its teams.
    """
    rows: list[FairnessRow] = cached_answer(
        ("fairness", pool.pk), now, lambda: explanations.fairness_rows(pool, now)
    )
    own = {mine} if isinstance(mine, int) else set(mine)
    teams = {team.pk: team for team in Team.with_removed.filter(pk__in=[row.team for row in rows])}
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
