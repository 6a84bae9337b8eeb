"""Find similar requests with which a waiting workload would start sooner.

Each similar request is tested by planning a copy of the pool in which it replaces the original request.
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
# At most MAX_CHANGES_TRIED changed requests are examined. At least MIN_CHANGES_TRIED of the promising
# requests are planned, even if MAX_TURNS_EVALUATED has been reached.
MAX_CHANGES_TRIED, MIN_CHANGES_TRIED = 24, 2
# A turn is the decision about one workload in one plan. When all plans together have had this many turns, no
# further request is planned.
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
    """The allowed changes of a request. Its hardware and its runtime limit may always be changed."""

    priority: Priority = Priority.LOW  # the highest allowed priority
    # True if the request may become preemptible. It may then also exceed its team's guarantee.
    preemptible: bool = False


# If several changes of one of these fields help, only the change with the earliest start is shown. If several
# have the same start, only the smallest of them is shown.
MINIMAL_CHANGES = ((ChangedField.RUNTIME,), (ChangedField.PRIORITY,))


@dataclass(frozen=True, slots=True)
class Alternative:
    """A similar request that would start sooner than the original request: now or at ``expected_start``."""

    ask: Ask
    starts_now: bool
    expected_start: int | None
    changed: tuple[ChangedField, ...] = ()
    max_runtime_seconds: int = 0
    preemptible: bool = False
    priority: Priority = Priority.NORMAL


class PoolWhatIf:
    """One pool at a fixed point in time. It is planned repeatedly with different versions of one workload.

    Each plan stops as soon as it has decided about this workload. ``turns_evaluated`` is the number of
    decisions of all plans together.
    """

    def __init__(self, snapshot: Snapshot, pool: PoolInfo, now: int, team: int) -> None:
        self.pool_snapshot, self.now, self.turns_evaluated = PoolSnapshot(snapshot, pool), now, 0
        team_queued = tuple(q for q in snapshot.queued if q.team == team)
        self._team_alone = PoolSnapshot(replace(snapshot, queued=team_queued), pool)

    def answer(self, queued: QueuedWorkload) -> Placement | Refusal:
        """Return the plan's decision about ``queued``.

        In the planned pool, ``queued`` replaces the waiting workload with the same id, if there is one.
        """
        self.pool_snapshot.change_queued((), (queued,))
        return self._answer(self.pool_snapshot, queued)

    def answer_without_other_teams(self, queued: QueuedWorkload) -> Placement | Refusal:
        """Return the decision about ``queued`` of a plan in which no other team has waiting work.

        Such a plan is fast. A plan with all teams does not start the workload sooner than this plan.
        """
        self._team_alone.change_queued((), (queued,))
        return self._answer(self._team_alone, queued)

    def _answer(self, pool_snapshot: PoolSnapshot, queued: QueuedWorkload) -> Placement | Refusal:
        state = plan_pool(pool_snapshot, self.now, explain=True, last_workload=queued.id)
        answers: list[Placement | Refusal] = [*state.placements, *state.refusals]
        self.turns_evaluated += len(answers)
        return next(answer for answer in answers if answer.workload == queued.id)

    def start(self, answer: Placement | Refusal) -> int | None:
        """Return the start time (seconds since the epoch) in a plan's decision, or None if it is unknown."""
        return self.now if isinstance(answer, Placement) else answer.expected_start


def earlier_alternatives(
    snapshot: Snapshot,
    workload: int,
    now: int,
    allowed: AllowedChanges = AllowedChanges(),
    known_refusal: Refusal | None = None,
) -> list[Alternative]:
    """Return similar requests with which a waiting workload would start sooner.

    A similar request has another GPU model, fewer GPUs or hosts, or a shorter runtime limit. If ``allowed``
    says so, it may also be preemptible or of higher priority. The requests are ordered by their start, then
    by the size of the change. The result is empty if the workload is unknown, has a gate or a reservation, or
    if no change would help.

    ``known_refusal`` is the last plan's refusal of the workload. If it is None, the original request is
    planned too.

    The effort is limited. A request that would not start sooner even without other teams is not planned. If
    many workloads are ahead in the queue, only the most promising requests are planned.
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
    """Return the result of ``earlier_alternatives`` for a workload that need not be in the snapshot."""
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
    """Return (start, rank, alternative) for the changed requests that start sooner than the original.

    The rank is the position among the changed requests: smaller changes have lower ranks.
    """
    candidates: list[tuple[int, int, Alternative]] = []
    for tried, (rank, changed_request, changed) in enumerate(changes):
        if len(candidates) == MAX_ALTERNATIVES or (
            tried >= MIN_CHANGES_TRIED and what_if.turns_evaluated >= MAX_TURNS_EVALUATED
        ):
            break
        if changed in MINIMAL_CHANGES and any(
            alternative.changed == changed and at <= now for at, _, alternative in candidates
        ):
            continue  # A smaller change of this field already starts now.
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
    """Return (rank, request, changed fields) for the changed requests that could start sooner.

    Such a request starts sooner than the original in a plan in which no other team has waiting work. The
    request with the earliest start comes first.
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
    """Return the alternatives with at most one change of each field in ``MINIMAL_CHANGES``.

    ``alternatives`` is ordered by start, then by size of the change. If several of them change the same field
    of ``MINIMAL_CHANGES``, only the first is kept. Example: if half the runtime limit already starts now, a
    quarter is dropped.
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
    """Return the first windows of ``length`` seconds in which the workload's hardware could be reserved.

    See ``reservation_windows.free_windows`` for the rules. The windows start on whole minutes, at most
    ``horizon`` seconds after ``now``.
    """
    return reservation_windows.free_windows(
        snapshot, queued.ask, requester, queued.pool, length, now, now, horizon
    )


def _changed_requests(
    snapshot: Snapshot, queued: QueuedWorkload, allowed: AllowedChanges
) -> list[tuple[QueuedWorkload, tuple[ChangedField, ...]]]:
    """Return (changed request, changed fields) for all changes to try, the smallest change first.

    Requests with one changed field come first, then requests with another model and a smaller size.
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
    """Return the pool's GPU models that offer the requested profile, except the requested models.

    The result is empty if the request allows any model.
    """
    hosts = {host.id for host in snapshot.hosts if host.pool == queued.pool}
    models = {
        unit.model for unit in snapshot.units if unit.host in hosts and unit.profile == queued.ask.profile
    }
    return [(model,) for model in sorted(models - (set(queued.ask.models) or models))]


def _halves(count: int) -> list[int]:
    """Return the counts from repeated halving, down to 1. Example: 8 returns [4, 2, 1]."""
    halves = []
    while count > 1:
        count //= 2
        halves.append(count)
    return halves


def _runtimes(queued: QueuedWorkload) -> list[int]:
    """Return shorter runtime limits in seconds: a half and a quarter of the present limit.

    They are rounded down to whole hours. Limits below one hour or below the predicted runtime are left out.
    """
    halves = (queued.max_runtime_seconds // part // 3600 * 3600 for part in (2, 4))
    return [seconds for seconds in halves if seconds >= max(3600, queued.predicted_seconds)]


def _with_shorter_runtime(queued: QueuedWorkload, seconds: int) -> QueuedWorkload:
    return replace(
        queued, max_runtime_seconds=seconds, predicted_seconds=min(queued.predicted_seconds, seconds)
    )
