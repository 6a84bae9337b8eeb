"""What a viewer wants to know, computed when asked: what would happen if, what would start sooner, who gets how much,
what a drain would touch. Every answer is ``plan()`` on an overlay of the snapshot, never a second copy of a rule."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import (
    Ask,
    Placement,
    PoolInfo,
    PoolKind,
    Priority,
    QueuedWorkload,
    Refusal,
    ReservationWindow,
    RunningWorkload,
    Snapshot,
)
from scheduler.core.planner import plan, plan_pool
from scheduler.core.promises import reservation_windows
from scheduler.core.promises.promise_timeline import PromiseTimeline, ReservationRequester
from scheduler.core.queue.turn_order import QueueTurn, TurnCriterion, deciding_criterion

MAX_ALTERNATIVES = 5
MAX_CHANGES_TRIED, MIN_CHANGES_TRIED = 24, 2  # ways to ask that are planned for
MAX_TURNS_EVALUATED = 1_600  # turns gone through in all of them


def preview(snapshot: Snapshot, queued: QueuedWorkload, now: int) -> Placement | Refusal:
    """What would become of a workload if it was submitted now. Its id must not be that of another waiting one."""
    overlay = replace(snapshot, queued=(*(q for q in snapshot.queued if q.id != queued.id), queued))
    return _answer(overlay, queued.id, now)


def _answer(snapshot: Snapshot, workload: int, now: int) -> Placement | Refusal:
    planned = plan(snapshot, now)
    answers: list[Placement | Refusal] = [*planned.placements, *planned.refusals]
    return next(answer for answer in answers if answer.workload == workload)


class ChangedField(StrEnum):
    """What an alternative asks for otherwise."""

    MODEL = "model"
    UNITS = "units"
    HOSTS = "hosts"
    RUNTIME = "runtime"
    PREEMPTIBLE = "preemptible"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class AllowedChanges:
    """What a workload may ask for otherwise beside its hardware and time."""

    priority: Priority = Priority.LOW  # the highest
    preemptible: bool = False  # may it be made so, and borrow then?


MINIMAL_CHANGES = ((ChangedField.RUNTIME,), (ChangedField.PRIORITY,))  # the least change that does as well


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to ask for nearly the same, found by ``plan()``: it would start now, or at ``expected_start``."""

    ask: Ask
    starts_now: bool
    expected_start: int | None
    changed: tuple[ChangedField, ...] = ()
    max_runtime_seconds: int = 0
    preemptible: bool = False
    priority: Priority = Priority.NORMAL


class PoolWhatIf:
    """One pool at one moment, asked again and again with one waiting workload that is different each time.

    ``work`` counts the turns gone through: a plan is made only as far as the turn of the one that is asked about."""

    def __init__(self, snapshot: Snapshot, pool: PoolInfo, now: int, team: int) -> None:
        self.facts, self.now, self.work = PoolSnapshot(snapshot, pool), now, 0
        of_team = tuple(q for q in snapshot.queued if q.team == team)
        self._team_alone = PoolSnapshot(replace(snapshot, queued=of_team), pool)

    def answer(self, queued: QueuedWorkload) -> Placement | Refusal:
        """What the plan would say to a workload in the place of the one with its id."""
        self.facts.change_queued((), (queued,))
        return self._answer(self.facts, queued)

    def answer_without_other_teams(self, queued: QueuedWorkload) -> Placement | Refusal:
        """What the plan would say to it if no other team was waiting: sooner than that it does not start."""
        self._team_alone.change_queued((), (queued,))
        return self._answer(self._team_alone, queued)

    def _answer(self, facts: PoolSnapshot, queued: QueuedWorkload) -> Placement | Refusal:
        board = plan_pool(facts, self.now, explain=True, until=queued.id)
        answers: list[Placement | Refusal] = [*board.placements, *board.refusals]
        self.work += len(answers)
        return next(answer for answer in answers if answer.workload == queued.id)

    def start(self, said: Placement | Refusal) -> int | None:
        """When who was told this starts."""
        return self.now if isinstance(said, Placement) else said.expected_start


def earlier_alternatives(
    snapshot: Snapshot, workload: int, now: int, allowed: AllowedChanges = AllowedChanges(), said: Refusal | None = None
) -> list[Alternative]:
    """What a waiting workload could ask for instead to start sooner: another model, fewer GPUs or hosts, less time, and as
    far as it is ``allowed`` to be preemptible and a higher priority.

    Those that start now come first, then by expected start; within these the least different ask first. Empty when the
    workload is unknown or nothing would help. ``said`` is what the last plan said to it, where that is known; otherwise it
    is planned for as well. The work is bounded: what could not start sooner even if no other team waited
    is not tried, and where very many have their turn before it, only the most promising ways are.
    """
    queued = next((q for q in snapshot.queued if q.id == workload), None)
    return [] if queued is None else earlier_alternatives_for(snapshot, queued, now, allowed, said)


def earlier_alternatives_for(
    snapshot: Snapshot, queued: QueuedWorkload, now: int, allowed: AllowedChanges, said: Refusal | None = None
) -> list[Alternative]:
    """The same for a workload that need not wait yet."""
    pool = next((p for p in snapshot.pools if p.id == queued.pool), None)
    if pool is None or queued.gate or queued.reservation is not None:
        return []
    what_if = PoolWhatIf(snapshot, pool, now, queued.team)
    answer = said or what_if.answer(queued)
    if isinstance(answer, Placement):
        return []
    found: list[tuple[int, int, Alternative]] = []
    for tried, (rank, other, changed) in enumerate(_promising_changes(what_if, snapshot, queued, allowed, answer)):
        if len(found) == MAX_ALTERNATIVES or (tried >= MIN_CHANGES_TRIED and what_if.work >= MAX_TURNS_EVALUATED):
            break
        if changed in MINIMAL_CHANGES and any(way.changed == changed and at <= now for at, _, way in found):
            continue  # the lesser change starts now
        planned = what_if.answer(other)
        start = what_if.start(planned)
        if start is not None and _is_sooner(start, answer):
            found.append((start, rank, _alternative(other, changed, start, isinstance(planned, Placement))))
    found.sort(key=lambda item: item[:2])
    return _drop_larger_changes([alternative for _, _, alternative in found])


def _promising_changes(
    what_if: PoolWhatIf, snapshot: Snapshot, queued: QueuedWorkload, allowed: AllowedChanges, answer: Refusal
) -> list[tuple[int, QueuedWorkload, tuple[ChangedField, ...]]]:
    """The ways to ask that could start sooner if no other team waited, by how soon that is, then the least different first;
    each with its rank among all."""
    found: list[tuple[int, int, QueuedWorkload, tuple[ChangedField, ...]]] = []
    for rank, (other, changed) in enumerate(_changed_requests(snapshot, queued, allowed)[:MAX_CHANGES_TRIED]):
        start = what_if.start(what_if.answer_without_other_teams(other))
        if start is not None and _is_sooner(start, answer):
            found.append((start, rank, other, changed))
    found.sort(key=lambda item: item[:2])
    return [(rank, other, changed) for _, rank, other, changed in found]


def _is_sooner(start: int, answer: Refusal) -> bool:
    return answer.expected_start is None or start < answer.expected_start


def _drop_larger_changes(ways: list[Alternative]) -> list[Alternative]:
    """Without those that change one thing further than another way that starts no later."""
    seen: set[tuple[ChangedField, ...]] = set()
    kept = []
    for way in ways:
        if way.changed not in MINIMAL_CHANGES or way.changed not in seen:
            kept.append(way)
        seen.add(way.changed)
    return kept


def _alternative(other: QueuedWorkload, changed: tuple[ChangedField, ...], start: int, starts_now: bool) -> Alternative:
    runtime, preemptible, priority = other.max_runtime_seconds, other.preemptible, other.priority
    return Alternative(other.ask, starts_now, start, changed, runtime, preemptible, priority)


def reservable_windows(
    snapshot: Snapshot, queued: QueuedWorkload, whose: ReservationRequester, now: int, length: int, horizon: int
) -> tuple[ReservationWindow, ...]:
    """Another time: the first windows of ``length`` seconds in which a reservation of what a workload asks for would fit if
    ``whose`` it would be asked for it: by the rule of ``reservation_windows.window_answer``. They begin up to ``horizon`` seconds from
    ``now``, on whole minutes. Empty where there is none."""
    return reservation_windows.free_windows(snapshot, queued.ask, whose, queued.pool, length, now, now, horizon)


def _changed_requests(snapshot: Snapshot, queued: QueuedWorkload, allowed: AllowedChanges) -> list[tuple[QueuedWorkload, tuple[ChangedField, ...]]]:
    """Workloads like this one, the least different first: one thing changed, then model and size together."""
    ask = queued.ask
    hosts = {host.id for host in snapshot.hosts if host.pool == queued.pool}
    models = sorted({unit.model for unit in snapshot.units if unit.host in hosts and unit.profile == ask.profile})
    wanted = set(ask.models) or set(models)
    others = [(model,) for model in models if model not in wanted]
    units = [replace(ask, units=count) for count in _halves(ask.units)]
    fewer = [replace(ask, hosts=count) for count in _halves(ask.hosts)]
    ways: list[tuple[QueuedWorkload, tuple[ChangedField, ...]]] = []
    ways += [(replace(queued, ask=replace(ask, models=model)), (ChangedField.MODEL,)) for model in others]
    ways += [(replace(queued, ask=less), (ChangedField.UNITS,)) for less in units]
    ways += [(replace(queued, ask=less), (ChangedField.HOSTS,)) for less in fewer]
    ways += [(_with_shorter_runtime(queued, seconds), (ChangedField.RUNTIME,)) for seconds in _runtimes(queued)]
    if allowed.preemptible and not queued.preemptible:
        ways.append((replace(queued, preemptible=True, may_borrow=True), (ChangedField.PREEMPTIBLE,)))
    higher = [p for p in Priority if queued.priority < p <= allowed.priority]
    ways += [(replace(queued, priority=priority), (ChangedField.PRIORITY,)) for priority in higher]
    for less, size in [*((a, ChangedField.UNITS) for a in units), *((a, ChangedField.HOSTS) for a in fewer)]:
        ways += [(replace(queued, ask=replace(less, models=model)), (size, ChangedField.MODEL)) for model in others]
    return ways


def _halves(count: int) -> list[int]:
    """Half of it, again and again, down to 1."""
    found = []
    while count > 1:
        count //= 2
        found.append(count)
    return found


def _runtimes(queued: QueuedWorkload) -> list[int]:
    """Shorter limits in whole hours that still leave it the time it is expected to need: a half and a quarter."""
    halves = (queued.max_runtime_seconds // part // 3600 * 3600 for part in (2, 4))
    return [seconds for seconds in halves if seconds >= max(3600, queued.predicted_seconds)]


def _with_shorter_runtime(queued: QueuedWorkload, seconds: int) -> QueuedWorkload:
    return replace(queued, max_runtime_seconds=seconds, predicted_seconds=min(queued.predicted_seconds, seconds))


# -- why them, not me ------------------------------------------------------------------------------------------------


class ComparisonBasis(StrEnum):
    """On what the comparison of two workloads rests."""

    THERE_FIRST = "there_first"  # it held its units before the other was asked for
    ORDER = "order"  # its turn comes first
    FIT = "fit"  # its turn comes later, but it could use what the other could not


@dataclass(frozen=True, slots=True)
class WorkloadComparison:
    """Why another workload goes, or went, before a waiting one. ``part`` and the turns are those of the cycle that would be
    run at this moment, the other one waiting again where it runs; None where a gate keeps one of them out of the line.
    ``without``: what the plan would say to the waiting one if the other was not there at all."""

    basis: ComparisonBasis
    part: TurnCriterion | None
    mine: QueueTurn | None
    theirs: QueueTurn | None
    without: Placement | Refusal


@dataclass(frozen=True, slots=True)
class PoolTurns:
    """One pool's line as it would be gone through now."""

    turns: dict[int, QueueTurn]

    def before(self, workload: int) -> list[tuple[QueueTurn, TurnCriterion]]:
        """Those whose turn comes before that of a waiting workload, and what decides; in order. Empty if it is not in line."""
        mine = self.turns.get(workload)
        if mine is None:
            return []
        return [(turn, deciding_criterion(turn, mine)) for turn in self.turns.values() if turn.at < mine.at]


def turns_in_pool(snapshot: Snapshot, pool: int, now: int) -> PoolTurns:
    """The line of a pool, as ``plan()`` goes through it."""
    turns: dict[int, QueueTurn] = {}
    for one in snapshot.pools:
        if one.id == pool:
            plan_pool(PoolSnapshot(snapshot, one), now, explain=True, turns=turns)
    return PoolTurns(turns)


def compare_workloads(snapshot: Snapshot, mine: int, other: int, now: int, other_submitted: int) -> WorkloadComparison | None:
    """Why ``other``, which waits or runs in the same pool, and not ``mine``, which waits. ``other_submitted`` is when that
    was asked for (s). None when either is not there."""
    queued = next((q for q in snapshot.queued if q.id == mine), None)
    waits = next((q for q in snapshot.queued if q.id == other), None)
    runs = next((r for r in snapshot.running if r.id == other), None)
    if queued is None or (waits is None and runs is None):
        return None
    gone = replace(
        snapshot,
        queued=tuple(q for q in snapshot.queued if q.id != other),
        running=tuple(r for r in snapshot.running if r.id != other),
    )
    if runs is not None:
        again = replace(as_requeued(snapshot, runs, now), submitted=other_submitted)
        turns = turns_in_pool(replace(gone, queued=(*gone.queued, again)), queued.pool, now).turns
    else:
        turns = turns_in_pool(snapshot, queued.pool, now).turns
    my_turn, its_turn = turns.get(mine), turns.get(other)
    comes_first = my_turn is not None and its_turn is not None and its_turn.at < my_turn.at
    part = deciding_criterion(its_turn, my_turn) if comes_first and its_turn and my_turn else None
    if runs is not None and runs.started <= queued.submitted:
        basis = ComparisonBasis.THERE_FIRST
    else:
        basis = ComparisonBasis.ORDER if comes_first else ComparisonBasis.FIT
    return WorkloadComparison(basis, part, my_turn, its_turn, _answer(gone, mine, now))


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
    board = PoolState(snapshot, owner, now)
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


def _slots_asked(board: PoolState, queued: QueuedWorkload) -> int:
    """Slots of its first choice, or 0 for what the pool does not have."""
    kinds = board.kinds_for(queued.ask)
    return board.slots_needed(queued.ask, kinds[0]) if kinds else 0


@dataclass(frozen=True, slots=True)
class DrainedWorkload:
    """A workload that runs on a host that would be drained: it would start elsewhere now, or wait as refused."""

    workload: int
    team: int
    preemptible: bool
    placement: Placement | None
    refusal: Refusal | None
    begins_anew: bool = False  # there are other homes where it would go: it does not find the checkpoint that it leaves


@dataclass(frozen=True, slots=True)
class DrainEffect:
    """What draining a host would touch."""

    moved: tuple[DrainedWorkload, ...]
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
        queued=(*snapshot.queued, *(as_requeued(snapshot, r, now) for r in leaving)),
    )
    planned = plan(overlay, now)
    placed = {p.workload: p for p in planned.placements}
    refused = {r.workload: r for r in planned.refusals}
    pool = next((h.pool for h in snapshot.hosts if h.id == host), None)
    return DrainEffect(
        tuple(
            DrainedWorkload(r.id, r.team, r.preemptible, placed.get(r.id), refused.get(r.id), _loses_checkpoint(overlay, r, placed.get(r.id)))
            for r in leaving
        ),
        tuple(sorted(r.id for r in snapshot.reservations if units & set(r.units) and r.end > now)),
        tuple(sorted(_keepable_reservations(snapshot, pool, now) - _keepable_reservations(overlay, pool, now))),
    )


def _loses_checkpoint(overlay: Snapshot, running: RunningWorkload, placement: Placement | None) -> bool:
    """Are the homes surely other ones where it goes, or where it waits, wherever it may go?"""
    homes = home_storage_of(overlay, running)
    if homes is None:
        return False
    by_host = {unit.id: unit.host for unit in overlay.units}
    there = {by_host[unit] for unit in placement.units} if placement is not None else None
    rows = [h for h in overlay.hosts if (h.pool == running.pool and h.accepts if there is None else h.id in there)]
    others = [host.homes for host in rows]
    return bool(others) and None not in others and (homes not in others or (there is not None and set(others) != {homes}))


def reservations_broken_without(snapshot: Snapshot, pool: int, units: Collection[int], now: int) -> tuple[int, ...]:
    """Reservations to come that could be kept now and could not be without these units, such as a GPU's that is split otherwise."""
    overlay = replace(snapshot, units=tuple(replace(u, well=False) if u.id in units else u for u in snapshot.units))
    return tuple(sorted(_keepable_reservations(snapshot, pool, now) - _keepable_reservations(overlay, pool, now)))


def _keepable_reservations(snapshot: Snapshot, pool: int | None, now: int) -> set[int]:
    """Reservations of a pool for which there is room in their windows."""
    return {kept for p in snapshot.pools if p.id == pool for kept in PromiseTimeline(PoolState(snapshot, p, now)).tentative_units}


def ask_of(snapshot: Snapshot, running: RunningWorkload) -> Ask:
    """What a running workload asked for; where that is not known, the ask that its units answer to."""
    if running.ask is not None:
        return running.ask
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


def home_storage_of(snapshot: Snapshot, running: RunningWorkload) -> int | None:
    """The homes that all its hosts share; None where they don't, or it is not known."""
    mine = set(running.units)
    hosts = {unit.host for unit in snapshot.units if unit.id in mine}
    homes = {host.homes for host in snapshot.hosts if host.id in hosts}
    return homes.pop() if len(homes) == 1 else None


def as_requeued(snapshot: Snapshot, running: RunningWorkload, now: int) -> QueuedWorkload:
    """A running workload as if it waited again, with the run time it has left and its place kept."""
    return QueuedWorkload(
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
        homes=home_storage_of(snapshot, running),  # where it writes its checkpoint when it is told to go
    )
