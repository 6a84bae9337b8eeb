"""Simulate the demo's past: run the real engine in simulated time on random demand from a seed.

The past lasts from the first of last month until the organisation was created. ``demo/past_rows.py`` writes
it as rows that are marked as simulated. ``demo/simulated_usage.py`` writes the usage. The usual code
(``telemetry/money/charges.py``) calculates the charges.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from demo.organisation import first_of_last_month
from demo.workload_demand import DemandedWork, generate_demand
from portal.models import User
from scheduler.core.explain import start_ranges
from scheduler.core.model import plan
from scheduler.core.model import snapshot as model
from scheduler.core.reasons import ReasonCode
from scheduler.core.what_if.simulation import (
    ReservationArrival,
    SimulationEvent,
    SimulationEventKind,
    WorkloadArrival,
    run_simulation,
)
from scheduler.cycle import snapshot
from scheduler.models import (
    Pool,
    Project,
    Team,
)

DEMAND_SEED = 20
CHECKPOINT_INTERVAL_SECONDS = 1800
# host, days after the first of last month, hour, length in hours, kind, reason
SIMULATED_OUTAGES = (
    ("h2", 12, 8, 6, "maintenance", "New firmware"),
    ("h3", 19, 14, 5, "unwell", "XID 79: a GPU fell off the bus"),
    ("h1", 33, 7, 4, "maintenance", "Power supply replaced"),
)
# project, owner, name, GPUs, model, days after the first of last month, hour, length in hours,
# True if work runs inside
PAST_RESERVATIONS = (
    ("mri-foundation", "imaging-lead", "paper timing", 4, "H100-80GB", 6, 13, 5, True),
    ("binder", "folding-member", "design sprint", 4, "H100-80GB", 13, 8, 9, True),
    ("era5", "climate-lead", "course", 2, "A100-80GB", 20, 8, 8, False),
    ("mri-foundation", "imaging-lead", "fold-4 benchmark", 4, "H100-80GB", 27, 13, 5, True),
    ("fold-md", "lead", "referee run", 8, "H100-80GB", 38, 7, 10, True),
)


@dataclass
class SimulatedAttempt:
    placed: int
    units: tuple[int, ...]
    borrowed_slots: int
    code: str
    numbers: dict[str, Any]
    ended: int = 0
    outcome: str = ""


@dataclass
class SimulatedWait:
    """A wait of a workload. Times are in seconds since the epoch.

    At ``told_at``, the page announced the start ``expected_start``, with ``latest`` as the end of its range.
    The wait ended at ``over_at``. ``attempt`` is the number of earlier placements of the workload.
    """

    attempt: int
    told_at: int
    expected_start: int
    latest: int | None
    over_at: int | None = None


@dataclass
class SimulatedCourse:
    """The history of one workload: its attempts, evictions and waits."""

    attempts: list[SimulatedAttempt] = field(default_factory=list)
    evictions: list[SimulationEvent] = field(default_factory=list)
    waits: list[SimulatedWait] = field(default_factory=list)


@dataclass(frozen=True)
class SimulatedPast:
    """The simulated past.

    ``wanted`` and ``courses`` have the demanded and the actual work, by workload number. ``bookings`` and
    ``bound`` have the reservations and their units, by reservation number. ``decayed`` is the decayed use at
    the end.
    """

    start: datetime
    end: datetime
    wanted: dict[int, DemandedWork]
    courses: dict[int, SimulatedCourse]
    bookings: dict[int, model.ReservationInfo]
    bound: dict[int, tuple[int, ...]]
    inside: dict[int, int]  # number of the reservation in which a workload runs, by workload number
    decayed: tuple[model.DecayedUseInfo, ...]


def simulate_past(end: datetime) -> SimulatedPast:
    """Run the engine from the first of last month to ``end``.

    The pools are those of the database, without any work at the start.
    """
    start = first_of_last_month(end)
    teams = {team.slug: team for team in Team.objects.all()}
    pools = {pool.slug: pool for pool in Pool.objects.all()}
    projects = {project.slug: project for project in Project.objects.select_related("team")}
    users = {user.username: user.pk for user in User.objects.all()}
    base = _empty_pool(end, start)
    wanted = dict(enumerate(generate_demand(start=start, end=end, seed=DEMAND_SEED), start=1))
    arrivals = [_to_arrival(number, piece, teams, pools, projects, users) for number, piece in wanted.items()]
    bookings, inside = _past_reservations(start, end, projects, pools, users, wanted, arrivals)
    courses: dict[int, SimulatedCourse] = defaultdict(SimulatedCourse)
    bound: dict[int, tuple[int, ...]] = {}
    recorder = StartEstimateRecorder(
        {arrival.queued.id: arrival.queued.pool for arrival in arrivals}, courses
    )
    after = run_simulation(
        base,
        arrivals,
        until=_to_seconds(end),
        start=_to_seconds(start),
        on_event=lambda event: _record_event(event, courses, bound, recorder),
        on_refusal=recorder.wait,
        reservations=[ReservationArrival(at=r.start - 3 * 86_400, reservation=r) for r in bookings.values()],
    )
    for course in courses.values():
        if course.attempts and not course.attempts[-1].outcome:  # it still runs when the past ends
            course.attempts[-1].ended, course.attempts[-1].outcome = _to_seconds(end), ReasonCode.FINISHED
    return SimulatedPast(start, end, wanted, courses, bookings, bound, inside, after.decayed_use)


def _empty_pool(end: datetime, start: datetime) -> model.Snapshot:
    taken = snapshot.take_snapshot(None, end)
    hosts = {host.name: host.id for host in taken.hosts}
    outages = tuple(
        model.MaintenanceInfo(hosts[name], _to_seconds(begin), _to_seconds(until))
        for name, begin, until, _, _ in outages_before(start, end)
        if name in hosts
    )
    return dataclasses.replace(
        taken,
        hosts=tuple(dataclasses.replace(host, schedulable=True, closed_code="") for host in taken.hosts),
        units=tuple(dataclasses.replace(unit, healthy=True) for unit in taken.units),
        queued=(),
        running=(),
        reservations=(),
        decayed_use=(),
        maintenance=outages,
    )


def outages_before(start: datetime, end: datetime) -> list[tuple[str, datetime, datetime, str, str]]:
    rows = []
    for host, days, hour, hours, kind, why in SIMULATED_OUTAGES:
        begin = start + timedelta(days=days, hours=hour)
        if begin + timedelta(hours=hours) < end:
            rows.append((host, begin, begin + timedelta(hours=hours), kind, why))
    return rows


def _to_arrival(
    number: int,
    piece: DemandedWork,
    teams: dict[str, Team],
    pools: dict[str, Pool],
    projects: dict[str, Project],
    users: dict[str, int],
) -> WorkloadArrival:
    stream = piece.stream
    queued = model.QueuedWorkload(
        id=number,
        team=teams[stream.team].pk,
        project=projects[piece.project].pk,
        user=users[piece.user],
        pool=pools[stream.pool].pk,
        ask=model.Ask(units=piece.units, models=(stream.model,), profile=stream.profile),
        submitted=_to_seconds(piece.at),
        max_runtime_seconds=piece.limit_seconds,
        predicted_seconds=max(60, piece.limit_seconds // 2),
        priority=piece.priority,
        preemptible=stream.preemptible,
        may_borrow=stream.preemptible,
    )
    checkpoints = CHECKPOINT_INTERVAL_SECONDS if stream.preemptible else None
    return WorkloadArrival(queued.submitted, queued, piece.runtime_seconds, checkpoints)


def _past_reservations(
    start: datetime,
    end: datetime,
    projects: dict[str, Project],
    pools: dict[str, Pool],
    users: dict[str, int],
    wanted: dict[int, DemandedWork],
    arrivals: list[WorkloadArrival],
) -> tuple[dict[int, model.ReservationInfo], dict[int, int]]:
    """Return two tables: the past reservations by number, and the reservation number of each workload that
    runs inside a reservation.

    These workloads are added to ``wanted`` and ``arrivals``.
    """
    bookings: dict[int, model.ReservationInfo] = {}
    inside: dict[int, int] = {}
    for number, (project, owner, name, units, gpu, days, hour, hours, used) in enumerate(
        PAST_RESERVATIONS, start=1
    ):
        begin = start + timedelta(days=days, hours=hour)
        until = begin + timedelta(hours=hours)
        if until >= end:
            continue
        team = projects[project].team
        ask = model.Ask(units=units, models=(gpu,))
        bookings[number] = model.ReservationInfo(
            id=number,
            team=team.pk,
            project=projects[project].pk,
            pool=pools["shared"].pk,
            ask=ask,
            start=_to_seconds(begin),
            end=_to_seconds(until),
        )
        if used:
            seconds = (hours * 3600) * 4 // 5
            stream = next(
                s
                for s in _distinct_streams(wanted.values())
                if s.team == team.slug and s.model == gpu and s.kind == "job"
            )
            piece = DemandedWork(
                begin, stream, project, owner, name.replace(" ", "-"), units, seconds, hours * 3600, 88.0
            )
            key = max(wanted) + 1
            wanted[key], inside[key] = piece, number
            queued = model.QueuedWorkload(
                id=key,
                team=team.pk,
                project=projects[project].pk,
                user=users[owner],
                pool=pools["shared"].pk,
                ask=ask,
                submitted=_to_seconds(begin),
                max_runtime_seconds=hours * 3600 - 600,
                predicted_seconds=seconds,
                reservation=number,
            )
            arrivals.append(WorkloadArrival(queued.submitted, queued, seconds, None))
    return bookings, inside


def _distinct_streams(wanted: Iterable[DemandedWork]) -> list[Any]:
    return list(dict.fromkeys(piece.stream for piece in wanted))


class StartEstimateRecorder:
    """A recorder of the starts that the engine expects.

    It derives the range of each start from earlier waits in the same pool, as the scheduler does on a live
    site.
    """

    def __init__(self, pools: dict[int, int], courses: dict[int, SimulatedCourse]) -> None:
        self.pools, self.courses = pools, courses
        self.records: dict[int, start_ranges.EstimateHistory] = defaultdict(start_ranges.EstimateHistory)

    def wait(self, now: int, refusal: plan.Refusal) -> None:
        """Record the expected start when a workload begins to wait."""
        if refusal.expected_start is None:
            return
        course, record = self.courses[refusal.workload], self.records[self.pools[refusal.workload]]
        errors = record.errors(now, refusal.expected_start - now)
        latest = None
        if len(errors) >= start_ranges.MIN_OUTCOMES:
            latest = start_ranges.start_range(now, refusal.expected_start, errors).latest
        record.note_estimate(refusal.workload, now, refusal.expected_start)
        course.waits.append(SimulatedWait(len(course.attempts), now, refusal.expected_start, latest))

    def started(self, workload: int, now: int) -> None:
        """Record that a workload was placed. This ends its wait."""
        self.records[self.pools[workload]].started(workload, now)
        waits = self.courses[workload].waits
        if waits and waits[-1].over_at is None:
            waits[-1].over_at = now


def _record_event(
    event: SimulationEvent,
    courses: dict[int, SimulatedCourse],
    bound: dict[int, tuple[int, ...]],
    recorder: StartEstimateRecorder,
) -> None:
    if event.kind == SimulationEventKind.RESERVATION_BOUND and event.reservation is not None:
        bound[event.reservation] = event.units
    if event.workload is None:
        return
    course = courses[event.workload]
    if event.kind == SimulationEventKind.PLACED:
        recorder.started(event.workload, event.at)
        course.attempts.append(
            SimulatedAttempt(event.at, event.units, event.borrowed_slots, event.code, dict(event.numbers))
        )
    elif event.kind == SimulationEventKind.EVICTED:
        course.evictions.append(event)
    elif event.kind in (SimulationEventKind.STOPPED, SimulationEventKind.ENDED):
        course.attempts[-1].ended, course.attempts[-1].outcome = event.at, event.code


def _to_seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def to_datetime(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
