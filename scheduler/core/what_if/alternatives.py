"""What a viewer wants to know, computed when asked: what would happen if, what would start sooner, who gets how much,
what a drain would touch. Every answer is ``plan()`` on an overlay of the snapshot, never a second copy of a rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from scheduler.core.model.plan import Placement, Refusal
from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.snapshot import Ask, PoolInfo, Priority, QueuedWorkload, Snapshot
from scheduler.core.planner import plan_pool
from scheduler.core.promises import reservation_windows
from scheduler.core.promises.promise_timeline import ReservationRequester
from scheduler.core.promises.reservation_windows import ReservationWindow

MAX_ALTERNATIVES = 5
MAX_CHANGES_TRIED, MIN_CHANGES_TRIED = 24, 2  # ways to ask that are planned for
MAX_TURNS_EVALUATED = 1_600  # turns gone through in all of them


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
    snapshot: Snapshot,
    workload: int,
    now: int,
    allowed: AllowedChanges = AllowedChanges(),
    said: Refusal | None = None,
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
    for tried, (rank, other, changed) in enumerate(
        _promising_changes(what_if, snapshot, queued, allowed, answer)
    ):
        if len(found) == MAX_ALTERNATIVES or (
            tried >= MIN_CHANGES_TRIED and what_if.work >= MAX_TURNS_EVALUATED
        ):
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


def _alternative(
    other: QueuedWorkload, changed: tuple[ChangedField, ...], start: int, starts_now: bool
) -> Alternative:
    runtime, preemptible, priority = other.max_runtime_seconds, other.preemptible, other.priority
    return Alternative(other.ask, starts_now, start, changed, runtime, preemptible, priority)


def reservable_windows(
    snapshot: Snapshot,
    queued: QueuedWorkload,
    whose: ReservationRequester,
    now: int,
    length: int,
    horizon: int,
) -> tuple[ReservationWindow, ...]:
    """Another time: the first windows of ``length`` seconds in which a reservation of what a workload asks for would fit if
    ``whose`` it would be asked for it: by the rule of ``reservation_windows.window_answer``. They begin up to ``horizon`` seconds from
    ``now``, on whole minutes. Empty where there is none."""
    return reservation_windows.free_windows(
        snapshot, queued.ask, whose, queued.pool, length, now, now, horizon
    )


def _changed_requests(
    snapshot: Snapshot, queued: QueuedWorkload, allowed: AllowedChanges
) -> list[tuple[QueuedWorkload, tuple[ChangedField, ...]]]:
    """Workloads like this one, the least different first: one thing changed, then model and size together."""
    ask = queued.ask
    hosts = {host.id for host in snapshot.hosts if host.pool == queued.pool}
    models = sorted(
        {unit.model for unit in snapshot.units if unit.host in hosts and unit.profile == ask.profile}
    )
    wanted = set(ask.models) or set(models)
    others = [(model,) for model in models if model not in wanted]
    units = [replace(ask, units=count) for count in _halves(ask.units)]
    fewer = [replace(ask, hosts=count) for count in _halves(ask.hosts)]
    ways: list[tuple[QueuedWorkload, tuple[ChangedField, ...]]] = []
    ways += [(replace(queued, ask=replace(ask, models=model)), (ChangedField.MODEL,)) for model in others]
    ways += [(replace(queued, ask=less), (ChangedField.UNITS,)) for less in units]
    ways += [(replace(queued, ask=less), (ChangedField.HOSTS,)) for less in fewer]
    ways += [
        (_with_shorter_runtime(queued, seconds), (ChangedField.RUNTIME,)) for seconds in _runtimes(queued)
    ]
    if allowed.preemptible and not queued.preemptible:
        ways.append((replace(queued, preemptible=True, may_borrow=True), (ChangedField.PREEMPTIBLE,)))
    higher = [p for p in Priority if queued.priority < p <= allowed.priority]
    ways += [(replace(queued, priority=priority), (ChangedField.PRIORITY,)) for priority in higher]
    for less, size in [*((a, ChangedField.UNITS) for a in units), *((a, ChangedField.HOSTS) for a in fewer)]:
        ways += [
            (replace(queued, ask=replace(less, models=model)), (size, ChangedField.MODEL)) for model in others
        ]
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
    return replace(
        queued, max_runtime_seconds=seconds, predicted_seconds=min(queued.predicted_seconds, seconds)
    )


# -- why them, not me ------------------------------------------------------------------------------------------------
