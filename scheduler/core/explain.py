"""What a viewer wants to know, computed when asked: what would happen if, what would start sooner, who gets how much,
what a drain would touch. Every answer is ``plan()`` on an overlay of the snapshot, never a second copy of a rule."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.core.board import Board
from scheduler.core.model import (
    Ask,
    Placement,
    PoolKind,
    Queued,
    Refusal,
    Running,
    Snapshot,
)
from scheduler.core.planner import plan
from scheduler.core.timeline import Promises

MOST_ALTERNATIVES = 5


def preview(snapshot: Snapshot, queued: Queued, now: int) -> Placement | Refusal:
    """What would become of a workload if it was submitted now. Its id must not be that of another waiting one."""
    overlay = replace(snapshot, queued=(*(q for q in snapshot.queued if q.id != queued.id), queued))
    return _answer(overlay, queued.id, now)


def _answer(snapshot: Snapshot, workload: int, now: int) -> Placement | Refusal:
    planned = plan(snapshot, now)
    answers: list[Placement | Refusal] = [*planned.placements, *planned.refusals]
    return next(answer for answer in answers if answer.workload == workload)


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to ask for nearly the same, found by ``plan()``: it would start now, or at ``expected_start``."""

    ask: Ask
    starts_now: bool
    expected_start: int | None


def sooner(snapshot: Snapshot, workload: int, now: int) -> list[Alternative]:
    """What a waiting workload could ask for instead to start sooner: another model, fewer GPUs, fewer hosts.

    Those that start now come first, then by expected start; within these the least different ask first. Empty when the
    workload is unknown or nothing would help.
    """
    queued = next((q for q in snapshot.queued if q.id == workload), None)
    if queued is None:
        return []
    answer = _answer(snapshot, workload, now)
    if isinstance(answer, Placement):
        return []
    found: list[tuple[int, int, Alternative]] = []
    for rank, ask in enumerate(_other_asks(snapshot, queued)):
        other = preview(snapshot, replace(queued, ask=ask), now)
        if isinstance(other, Placement):
            found.append((now, rank, Alternative(ask, True, now)))
        elif other.expected_start is not None and (
            answer.expected_start is None or other.expected_start < answer.expected_start
        ):
            found.append((other.expected_start, rank, Alternative(ask, False, other.expected_start)))
    found.sort(key=lambda item: item[:2])
    return [alternative for _, _, alternative in found[:MOST_ALTERNATIVES]]


def _other_asks(snapshot: Snapshot, queued: Queued) -> list[Ask]:
    """Asks like this one: each other model, then half the GPUs again and again, then fewer hosts."""
    ask = queued.ask
    hosts = {host.id for host in snapshot.hosts if host.pool == queued.pool}
    models = sorted({unit.model for unit in snapshot.units if unit.host in hosts and unit.profile == ask.profile})
    smaller: list[Ask] = []
    units = ask.units // 2
    while units >= 1:
        smaller.append(replace(ask, units=units))
        units //= 2
    count = ask.hosts // 2
    while count >= 1:
        smaller.append(replace(ask, hosts=count))
        count //= 2
    wanted = set(ask.models) or set(models)
    others = [replace(ask, models=(model,)) for model in models if model not in wanted]
    both = [replace(less, models=(model,)) for less in smaller for model in models if model not in wanted]
    return [*others, *smaller, *both]


@dataclass(frozen=True, slots=True)
class FairnessRow:
    """One team in one pool. Amounts in slots; ``decayed_use`` in slot-seconds; ``share`` is the team's part (0 to 1) of
    all decayed use, and ``fair_share`` the part that its weight stands for among the teams with a quota here."""

    team: int
    name: str
    guaranteed: int
    held: int
    borrowed: int
    waiting: int
    decayed_use: float
    weight: int
    share: float
    fair_share: float


def fairness_table(snapshot: Snapshot, pool: int, now: int) -> list[FairnessRow]:
    """Why does that team get more? One row per team with a quota in the pool (or its owner), by team id."""
    owner = next(p for p in snapshot.pools if p.id == pool)
    board = Board(snapshot, owner, now)
    ledger = board.ledger
    teams = ledger.teams_with_quota if owner.kind is PoolKind.DYNAMIC else {owner.team}
    rows = [team for team in sorted(snapshot.teams, key=lambda t: t.id) if team.id in teams]
    used = {use.team: use.slot_seconds for use in snapshot.decayed_use if use.pool == pool}
    models = {unit.model for unit in board.units}
    all_use, all_weight = sum(used.get(t.id, 0.0) for t in rows), sum(max(1, t.weight) for t in rows)
    return [
        FairnessRow(
            team=team.id,
            name=team.name,
            guaranteed=(
                int(board.slots.sum())
                if owner.kind is PoolKind.STATIC
                else sum(ledger.guarantee(team.id, model) for model in models)
            ),
            held=sum(ledger.held[team.id, model] for model in models),
            borrowed=sum(max(0, ledger.held[team.id, m] - ledger.guarantee(team.id, m)) for m in models),
            waiting=sum(_slots_asked(board, queued) for queued in board.queued if queued.team == team.id),
            decayed_use=used.get(team.id, 0.0),
            weight=team.weight,
            share=used.get(team.id, 0.0) / all_use if all_use else 0.0,
            fair_share=max(1, team.weight) / all_weight,
        )
        for team in rows
    ]


def _slots_asked(board: Board, queued: Queued) -> int:
    """Slots of its first choice, or 0 for what the pool does not have."""
    kinds = board.kinds_for(queued.ask)
    return board.need_slots(queued.ask, kinds[0]) if kinds else 0


@dataclass(frozen=True, slots=True)
class Moved:
    """A workload that runs on a host that would be drained: it would start elsewhere now, or wait as refused."""

    workload: int
    team: int
    preemptible: bool
    placement: Placement | None
    refusal: Refusal | None


@dataclass(frozen=True, slots=True)
class DrainEffect:
    """What draining a host would touch."""

    moved: tuple[Moved, ...]
    reservations: tuple[int, ...]  # that are bound to units of this host
    unkept: tuple[int, ...]  # to come, that could be kept now and could not be without this host


def drain_effect(snapshot: Snapshot, host: int, now: int) -> DrainEffect:
    """Who would have to leave a host, where each would fit now, and which reservations it would break."""
    units = {unit.id for unit in snapshot.units if unit.host == host}
    leaving = sorted((r for r in snapshot.running if units & set(r.units)), key=lambda r: r.id)
    gone = {r.id for r in leaving}
    overlay = replace(
        snapshot,
        hosts=tuple(replace(h, accepts=False, closed_code="drained") if h.id == host else h for h in snapshot.hosts),
        running=tuple(r for r in snapshot.running if r.id not in gone),
        queued=(*snapshot.queued, *(as_queued(snapshot, r, now) for r in leaving)),
    )
    planned = plan(overlay, now)
    placed = {p.workload: p for p in planned.placements}
    refused = {r.workload: r for r in planned.refusals}
    pool = next((h.pool for h in snapshot.hosts if h.id == host), None)
    kept: list[set[int]] = [
        set(Promises(Board(some, p, now)).witness)
        for p in snapshot.pools
        if p.id == pool
        for some in (snapshot, overlay)
    ]
    return DrainEffect(
        tuple(Moved(r.id, r.team, r.preemptible, placed.get(r.id), refused.get(r.id)) for r in leaving),
        tuple(sorted(r.id for r in snapshot.reservations if units & set(r.units) and r.end > now)),
        tuple(sorted(kept[0] - kept[1])) if kept else (),
    )


def ask_of(snapshot: Snapshot, running: Running) -> Ask:
    """The ask that a running workload's units answer to."""
    mine = set(running.units)
    units = [unit for unit in snapshot.units if unit.id in mine]
    hosts = {unit.host for unit in units}
    first = min(units, key=lambda u: u.id)
    return Ask(
        units=max(1, len(units) // max(1, len(hosts))),
        hosts=max(1, len(hosts)),
        models=(first.model,),
        profile=first.profile,
        cpu_milli=running.cpu_milli,
        memory_mib=running.memory_mib,
    )


def as_queued(snapshot: Snapshot, running: Running, now: int) -> Queued:
    """A running workload as if it waited again, with the run time it has left and its place kept."""
    return Queued(
        id=running.id,
        team=running.team,
        project=running.project,
        user=running.user,
        pool=running.pool,
        ask=ask_of(snapshot, running),
        submitted=running.started,
        max_runtime_seconds=max(60, running.until - now),
        predicted_seconds=max(60, min(running.until, running.predicted_until) - now),
        priority=running.priority,
        preemptible=running.preemptible,
        may_borrow=running.preemptible,
        reservation=running.reservation,
    )
