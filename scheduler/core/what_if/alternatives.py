"""Find similar requests with which a waiting workload would start sooner. Every answer comes from ``plan()``
on a changed snapshot.
"""

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
MAX_CHANGES_TRIED, MIN_CHANGES_TRIED = 24, 2  # changed requests that are planned
# Limits the sum over all these plans. A turn is the decision about one queued workload in one plan.
MAX_TURNS_EVALUATED = 1_600


class ChangedField(StrEnum):
    """A field in which an alternative differs from the request."""

    MODEL = "model"
    UNITS = "units"
    HOSTS = "hosts"
    RUNTIME = "runtime"
    PREEMPTIBLE = "preemptible"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class AllowedChanges:
    """The changes of a request that are allowed in addition to changes of hardware and time."""

    priority: Priority = Priority.LOW  # the highest allowed priority
    preemptible: bool = False  # True if it may become preemptible, and then borrow


# fields for which only the smallest sufficient change is shown
MINIMAL_CHANGES = ((ChangedField.RUNTIME,), (ChangedField.PRIORITY,))


@dataclass(frozen=True, slots=True)
class Alternative:
    """A similar request, found by ``plan()``, that would start now or at ``expected_start``."""

    ask: Ask
    starts_now: bool
    expected_start: int | None
    changed: tuple[ChangedField, ...] = ()
    max_runtime_seconds: int = 0
    preemptible: bool = False
    priority: Priority = Priority.NORMAL


class PoolWhatIf:
    """One pool at one time, planned repeatedly with one waiting workload changed.

    ``turns_evaluated`` counts the turns of all plans: each plan stops after the turn of the changed workload.
    """

    def __init__(self, snapshot: Snapshot, pool: PoolInfo, now: int, team: int) -> None:
        self.pool_snapshot, self.now, self.turns_evaluated = PoolSnapshot(snapshot, pool), now, 0
        team_queued = tuple(q for q in snapshot.queued if q.team == team)
        self._team_alone = PoolSnapshot(replace(snapshot, queued=team_queued), pool)

    def answer(self, queued: QueuedWorkload) -> Placement | Refusal:
        """Return the plan's answer to ``queued``, which replaces the waiting workload with the same id."""
        self.pool_snapshot.change_queued((), (queued,))
        return self._answer(self.pool_snapshot, queued)

    def answer_without_other_teams(self, queued: QueuedWorkload) -> Placement | Refusal:
        """Return the plan's answer if no other team had waiting work. With the other teams the workload does
        not start sooner.
        """
        self._team_alone.change_queued((), (queued,))
        return self._answer(self._team_alone, queued)

    def _answer(self, pool_snapshot: PoolSnapshot, queued: QueuedWorkload) -> Placement | Refusal:
        state = plan_pool(pool_snapshot, self.now, explain=True, last_workload=queued.id)
        answers: list[Placement | Refusal] = [*state.placements, *state.refusals]
        self.turns_evaluated += len(answers)
        return next(answer for answer in answers if answer.workload == queued.id)

    def start(self, answer: Placement | Refusal) -> int | None:
        """Return the time at which a workload with this answer starts, or None."""
        return self.now if isinstance(answer, Placement) else answer.expected_start


def earlier_alternatives(
    snapshot: Snapshot,
    workload: int,
    now: int,
    allowed: AllowedChanges = AllowedChanges(),
    known_refusal: Refusal | None = None,
) -> list[Alternative]:
    """Return similar requests with which a waiting workload would start sooner.

    These requests have another model, fewer GPUs or hosts, less time, or, if ``allowed``, are preemptible or
    of higher priority. Requests that start now come first. The others are ordered by expected start, then by
    the size of the change. The result is empty if the workload is unknown or no change would help.
    ``known_refusal`` is the last plan's refusal of the workload. Without it the workload is planned once
    more.

    The computation is bounded. A request that could not start sooner even without other teams is not planned.
    If very many workloads are ahead in the queue, only the most promising requests are planned.
    """
    queued = next((q for q in snapshot.queued if q.id == workload), None)
    return [] if queued is None else earlier_alternatives_for(snapshot, queued, now, allowed, known_refusal)


def earlier_alternatives_for(
    snapshot: Snapshot,
    queued: QueuedWorkload,
    now: int,
    allowed: AllowedChanges,
    known_refusal: Refusal | None = None,
) -> list[Alternative]:
    """Return the result of ``earlier_alternatives`` for a workload that need not be waiting."""
    pool = next((p for p in snapshot.pools if p.id == queued.pool), None)
    if pool is None or queued.gate or queued.reservation is not None:
        return []
    what_if = PoolWhatIf(snapshot, pool, now, queued.team)
    answer = known_refusal or what_if.answer(queued)
    if isinstance(answer, Placement):
        return []
    candidates = _planned_alternatives(
        what_if, _promising_changes(what_if, snapshot, queued, allowed, answer), answer, now
    )
    candidates.sort(key=lambda item: item[:2])
    return _drop_larger_changes([alternative for _, _, alternative in candidates])


def _planned_alternatives(
    what_if: PoolWhatIf,
    changes: list[tuple[int, QueuedWorkload, tuple[ChangedField, ...]]],
    answer: Refusal,
    now: int,
) -> list[tuple[int, int, Alternative]]:
    """Return the changed requests that the planner starts sooner, each with its start and its rank."""
    candidates: list[tuple[int, int, Alternative]] = []
    for tried, (rank, changed_request, changed) in enumerate(changes):
        if len(candidates) == MAX_ALTERNATIVES or (
            tried >= MIN_CHANGES_TRIED and what_if.turns_evaluated >= MAX_TURNS_EVALUATED
        ):
            break
        if changed in MINIMAL_CHANGES and any(
            alternative.changed == changed and at <= now for at, _, alternative in candidates
        ):
            continue  # a smaller change already starts now
        planned = what_if.answer(changed_request)
        start = what_if.start(planned)
        if start is not None and _is_sooner(start, answer):
            candidates.append(
                (start, rank, _alternative(changed_request, changed, start, isinstance(planned, Placement)))
            )
    return candidates


def _promising_changes(
    what_if: PoolWhatIf, snapshot: Snapshot, queued: QueuedWorkload, allowed: AllowedChanges, answer: Refusal
) -> list[tuple[int, QueuedWorkload, tuple[ChangedField, ...]]]:
    """Return the changed requests that could start sooner without other teams, the soonest first, each
    with its rank.
    """
    candidates: list[tuple[int, int, QueuedWorkload, tuple[ChangedField, ...]]] = []
    for rank, (changed_request, changed) in enumerate(
        _changed_requests(snapshot, queued, allowed)[:MAX_CHANGES_TRIED]
    ):
        start = what_if.start(what_if.answer_without_other_teams(changed_request))
        if start is not None and _is_sooner(start, answer):
            candidates.append((start, rank, changed_request, changed))
    candidates.sort(key=lambda item: item[:2])
    return [(rank, changed_request, changed) for _, rank, changed_request, changed in candidates]


def _is_sooner(start: int, answer: Refusal) -> bool:
    return answer.expected_start is None or start < answer.expected_start


def _drop_larger_changes(alternatives: list[Alternative]) -> list[Alternative]:
    """Return the alternatives without larger changes of a field than necessary (see ``MINIMAL_CHANGES``).

    A larger change is dropped if a smaller change of the same field starts no later.
    """
    seen: set[tuple[ChangedField, ...]] = set()
    kept = []
    for alternative in alternatives:
        if alternative.changed not in MINIMAL_CHANGES or alternative.changed not in seen:
            kept.append(alternative)
        seen.add(alternative.changed)
    return kept


def _alternative(
    changed_request: QueuedWorkload, changed: tuple[ChangedField, ...], start: int, starts_now: bool
) -> Alternative:
    runtime, preemptible, priority = (
        changed_request.max_runtime_seconds,
        changed_request.preemptible,
        changed_request.priority,
    )
    return Alternative(changed_request.ask, starts_now, start, changed, runtime, preemptible, priority)


def reservable_windows(
    snapshot: Snapshot,
    queued: QueuedWorkload,
    requester: ReservationRequester,
    now: int,
    length: int,
    horizon: int,
) -> tuple[ReservationWindow, ...]:
    """Return the first windows of ``length`` seconds in which a reservation of the workload's ask would
    fit.

    These windows follow the rules of ``reservation_windows.free_windows``. They start on whole minutes, at
    most ``horizon`` seconds after ``now``.
    """
    return reservation_windows.free_windows(
        snapshot, queued.ask, requester, queued.pool, length, now, now, horizon
    )


def _changed_requests(
    snapshot: Snapshot, queued: QueuedWorkload, allowed: AllowedChanges
) -> list[tuple[QueuedWorkload, tuple[ChangedField, ...]]]:
    """Return changed requests, the smallest changes first: one field changed, then model and size
    together.
    """
    ask = queued.ask
    other_models = _other_models(snapshot, queued)
    smaller_asks = [(replace(ask, units=count), ChangedField.UNITS) for count in _halves(ask.units)]
    smaller_asks += [(replace(ask, hosts=count), ChangedField.HOSTS) for count in _halves(ask.hosts)]
    requests: list[tuple[QueuedWorkload, tuple[ChangedField, ...]]] = []
    requests += [
        (replace(queued, ask=replace(ask, models=model)), (ChangedField.MODEL,)) for model in other_models
    ]
    requests += [(replace(queued, ask=smaller), (size,)) for smaller, size in smaller_asks]
    requests += [
        (_with_shorter_runtime(queued, seconds), (ChangedField.RUNTIME,)) for seconds in _runtimes(queued)
    ]
    if allowed.preemptible and not queued.preemptible:
        requests.append((replace(queued, preemptible=True, may_borrow=True), (ChangedField.PREEMPTIBLE,)))
    higher = [p for p in Priority if queued.priority < p <= allowed.priority]
    requests += [(replace(queued, priority=priority), (ChangedField.PRIORITY,)) for priority in higher]
    for smaller, size in smaller_asks:
        requests += [
            (replace(queued, ask=replace(smaller, models=model)), (size, ChangedField.MODEL))
            for model in other_models
        ]
    return requests


def _other_models(snapshot: Snapshot, queued: QueuedWorkload) -> list[tuple[str]]:
    """Return the other models of the pool that offer the profile; empty if the request allows any model."""
    hosts = {host.id for host in snapshot.hosts if host.pool == queued.pool}
    models = {
        unit.model for unit in snapshot.units if unit.host in hosts and unit.profile == queued.ask.profile
    }
    return [(model,) for model in sorted(models - (set(queued.ask.models) or models))]


def _halves(count: int) -> list[int]:
    """Return the counts from repeated halving, down to 1."""
    halves = []
    while count > 1:
        count //= 2
        halves.append(count)
    return halves


def _runtimes(queued: QueuedWorkload) -> list[int]:
    """Return shorter limits in whole hours that still cover the expected runtime: a half and a quarter."""
    halves = (queued.max_runtime_seconds // part // 3600 * 3600 for part in (2, 4))
    return [seconds for seconds in halves if seconds >= max(3600, queued.predicted_seconds)]


def _with_shorter_runtime(queued: QueuedWorkload, seconds: int) -> QueuedWorkload:
    return replace(
        queued, max_runtime_seconds=seconds, predicted_seconds=min(queued.predicted_seconds, seconds)
    )
