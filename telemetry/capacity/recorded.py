"""Read the recorded demand of a pool: requests with their waits and run lengths, and reservations."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Max, Q, QuerySet

from scheduler.core.model.snapshot import QueuedWorkload, ReservationInfo, Snapshot
from scheduler.cycle.core_values import ask_from_row, epoch_seconds
from scheduler.cycle.snapshot import TimeEffects, take_empty_snapshot
from scheduler.cycle.snapshot_rows import QUEUED_COLUMNS
from scheduler.models import Dependency, Gpu, Reservation, Workload
from scheduler.state.states import ReservationState, WorkloadState
from telemetry.core.capacity.quarter_replay import RecordedDemand, RecordedRequest

MAX_REQUESTS = 10_000  # of a busier pool, only the latest requests are replayed
# The replay uses the present GPUs. If their number differed by more, the recorded waits had other causes.
MAX_GPU_CHANGE = 0.05
CHECKPOINT_SECONDS = 600  # assumed interval: the rows do not have the real one
HELD_SQL = (
    "SELECT r.workload_id, r.attempt, extract(epoch FROM min(lower(a.period)))::bigint,"
    " extract(epoch FROM max(coalesce(upper(a.period), %s)))::bigint, bool_or(upper(a.period) IS NULL),"
    " extract(epoch FROM max(r.checkpoint_at))::bigint"
    " FROM scheduler_run r JOIN scheduler_allocation a ON a.run_id = r.id"
    " JOIN scheduler_workload w ON w.id = r.workload_id"
    " WHERE w.pool_id = %s AND w.submitted_at < %s AND (w.ended_at IS NULL OR w.ended_at > %s)"
    " AND lower(a.period) < %s GROUP BY 1, 2 ORDER BY 1, 2"
)


@dataclass(frozen=True)
class DemandFacts:
    """The counts of recorded demand, and the requests that were left out.

    ``requests_of_period`` is the number of requests of the period that was asked for. ``never_started`` were
    withdrawn before they started, so their run length is unknown. ``not_compared`` take part in the replay,
    but their waits had other causes than the number of GPUs, or began before the period. ``changed_models``
    are the models whose number of GPUs was another one at some time since the first request.
    """

    requests_of_period: int
    requests: int
    never_started: int
    not_compared: int
    reservations: int
    changed_models: list[str] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class _Attempt:
    start: int
    end: int
    is_open: bool
    checkpoint: int | None


def recorded_demand(
    pool: int, start: datetime, end: datetime, now: datetime, max_requests: int = MAX_REQUESTS
) -> tuple[RecordedDemand, DemandFacts]:
    """Return the demand of a pool in ``[start, end)``, on its present GPUs, and the facts about it.

    If the period has more than ``max_requests`` requests, the demand begins later.
    """
    submitted = Workload.objects.filter(pool=pool, submitted_at__gte=start, submitted_at__lt=end)
    count = submitted.count()
    if count > max_requests:
        start = _later_start(submitted, max_requests)
    hardware = _in_service(take_empty_snapshot([pool], now))
    reservations = _reservations(pool, start, end)
    reader = _Requests(pool, start, end, {row.pk for row in reservations})
    queued, requests = reader.read()
    snapshot = dataclasses.replace(
        hardware, queued=tuple(queued), reservations=tuple(_reservation_info(row) for row in reservations)
    )
    booked = tuple((row.pk, epoch_seconds(max(start, row.created_at))) for row in reservations)
    demand = RecordedDemand(snapshot, epoch_seconds(start), epoch_seconds(end), tuple(requests), booked)
    not_compared = sum(not request.counts for request in requests)
    first = min((request.at for request in requests), default=demand.end)
    changed = _changed_models(pool, datetime.fromtimestamp(first, UTC), end)
    facts = DemandFacts(count, len(requests), reader.never_started, not_compared, len(reservations), changed)
    return demand, facts


def _changed_models(pool: int, start: datetime, end: datetime) -> list[str]:
    """Return the models whose number of GPUs in ``[start, end)`` differed from that at the end."""
    changes: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    gpus = Gpu.objects.filter(pool=pool, created_at__lt=end).exclude(retired_at__lte=start)
    for model, created, retired in gpus.values_list("model", "created_at", "retired_at"):
        changes[model].append((max(start, created), 1))
        if retired is not None and retired < end:
            changes[model].append((retired, -1))
    found = []
    for model, of_model in changes.items():
        count, levels = 0, {start: 0}
        for at, change in sorted(of_model):
            count += change
            levels[at] = count  # several changes at one time are one step
        if any(abs(level - count) > MAX_GPU_CHANGE * count for level in levels.values()):
            found.append(model)
    return sorted(found)


def _later_start(submitted: QuerySet[Workload], most: int) -> datetime:
    """Return the first full hour after which at most ``most`` requests were submitted."""
    first: datetime = submitted.order_by("-submitted_at").values_list("submitted_at", flat=True)[most]
    return first.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


def _in_service(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot as if each host and GPU were in service."""
    return dataclasses.replace(
        snapshot,
        hosts=tuple(dataclasses.replace(row, schedulable=True, closed_code="") for row in snapshot.hosts),
        units=tuple(dataclasses.replace(row, healthy=True) for row in snapshot.units),
        reservations=(),
        maintenance=(),
    )


class _Requests:
    """Reads the requests that waited for GPUs or held them in ``[start, end)``."""

    def __init__(self, pool: int, start: datetime, end: datetime, reservations: set[int]) -> None:
        self.pool, self.start_at, self.end_at = pool, start, end
        self.start, self.end = epoch_seconds(start), epoch_seconds(end)
        self.reservations = reservations
        self.effects = TimeEffects({}, {})
        self.never_started = 0

    def read(self) -> tuple[list[QueuedWorkload], list[RecordedRequest]]:
        """Return the requests at their submission, and their recorded courses, in order of id."""
        attempts, settled = self._attempts(), self._dependencies()
        rows = Workload.objects.filter(pool=self.pool, submitted_at__lt=self.end_at)
        rows = rows.filter(Q(ended_at=None) | Q(ended_at__gt=self.start_at)).order_by("pk")
        queued, requests = [], []
        for row in rows.values(*QUEUED_COLUMNS, "state"):
            request = self._request(row, attempts.get(row["pk"], []), settled.get(row["pk"]))
            if request is not None:
                requests.append(request)
                queued.append(self._queued(row))
        return queued, requests

    def _request(
        self, row: dict[str, Any], attempts: list[_Attempt], settled: tuple[int, int | None] | None
    ) -> RecordedRequest | None:
        """Return the recorded course of a request; None if it can't be replayed."""
        at = epoch_seconds(row["submitted_at"])
        counts = at >= self.start
        if settled is not None:
            waiting_for, last = settled
            if waiting_for and not attempts:
                return None  # another workload has not ended yet
            at = max(at, last or at)
        if not attempts:
            if row["state"] != WorkloadState.QUEUED:
                self.never_started += at >= self.start
                return None
            return self._waiting(row, at, counts)
        first = attempts[0].start
        if row["array__most_at_once"]:
            at, counts = first, False  # it waited for other tasks of its array
        runtime = self._runtime(row, attempts)
        if runtime <= 0:
            return None  # it ended before the record begins
        return RecordedRequest(
            row["pk"],
            max(at, self.start),
            runtime,
            CHECKPOINT_SECONDS if any(each.checkpoint for each in attempts) else None,
            max(0, first - at),
            counts and row["reservation_id"] is None,
        )

    def _waiting(self, row: dict[str, Any], at: int, counts: bool) -> RecordedRequest:
        at = max(at, self.start)
        return RecordedRequest(row["pk"], at, max(1, row["predicted_seconds"]), None, self.end - at, counts)

    def _runtime(self, row: dict[str, Any], attempts: list[_Attempt]) -> int:
        """Return the seconds for which the request needs GPUs from ``start`` on, without interruptions.

        It is the length of its last attempt, with the progress that earlier attempts had saved.
        """
        last = attempts[-1]
        saved = sum(max(0, each.checkpoint - each.start) for each in attempts[:-1] if each.checkpoint)
        needed = last.end - last.start + saved
        if last.is_open:
            needed = max(needed, row["predicted_seconds"])
        done = sum(max(0, min(each.end, self.start) - each.start) for each in attempts)
        return needed - min(done, needed) if done and last.start < self.start else needed

    def _queued(self, row: dict[str, Any]) -> QueuedWorkload:
        """Return the planner's row of a request at its submission, without changes by its attempts."""
        queued = self.effects.queued(row)
        return dataclasses.replace(
            queued,
            predicted_seconds=min(queued.predicted_seconds, queued.max_runtime_seconds),
            may_borrow=row["preemptible"],
            reservation=queued.reservation if queued.reservation in self.reservations else None,
            not_before=0,
            evicted_by=None,
            gate="",
            gate_numbers=(),
            earmarked_units=(),
            room_made_by_own_team=None,
            avoids=(),
            avoids_until=0,
            checkpoint_storage=None,
        )

    def _attempts(self) -> dict[int, list[_Attempt]]:
        """Return the attempts of each request that began before the end, in order."""
        found: dict[int, list[_Attempt]] = defaultdict(list)
        with connection.cursor() as cursor:
            cursor.execute(HELD_SQL, [self.end_at, self.pool, self.end_at, self.start_at, self.end_at])
            for workload, _, start, end, is_open, checkpoint in cursor.fetchall():
                found[workload].append(_Attempt(start, end, is_open, checkpoint))
        return found

    def _dependencies(self) -> dict[int, tuple[int, int | None]]:
        """Return (number of conditions that are not settled, time of the last settled one) by workload."""
        rows = Dependency.objects.filter(workload__pool=self.pool, workload__submitted_at__lt=self.end_at)
        open_ones: dict[int, int] = defaultdict(int)
        for workload in rows.filter(settled_at=None).values_list("workload_id", flat=True):
            open_ones[workload] += 1
        last = rows.values_list("workload_id").annotate(last=Max("settled_at"))
        return {
            workload: (open_ones[workload], None if at is None else epoch_seconds(at))
            for workload, at in last
        }


def _reservations(pool: int, start: datetime, end: datetime) -> list[Reservation]:
    """Return the reservations that took GPUs in the period. One that was cancelled before is left out."""
    rows = Reservation.objects.filter(pool=pool, start__lt=end, end__gt=start).select_related("project")
    taken = ~Q(state=ReservationState.CANCELLED) | Q(ended_at__isnull=False)
    return [row for row in rows.filter(taken).order_by("pk") if _end_of(row) > max(row.start, start)]


def _end_of(row: Reservation) -> datetime:
    """Return when a reservation gave its GPUs back."""
    return min(row.end, row.ended_at) if row.ended_at is not None else row.end


def _reservation_info(row: Reservation) -> ReservationInfo:
    return ReservationInfo(
        id=row.pk,
        team=row.project.team_id,
        project=row.project_id,
        pool=row.pool_id,
        ask=ask_from_row(row),
        start=epoch_seconds(row.start),
        end=epoch_seconds(_end_of(row)),
        may_exceed_guarantee=row.may_exceed_guarantee,
        user=row.owner_id,
    )
