"""Write the demo's simulated past as database rows. All rows are marked as simulated."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from demo.simulated_past import (
    PAST_RESERVATIONS,
    SimulatedCourse,
    SimulatedPast,
    SimulatedWait,
    outages_before,
    to_datetime,
)
from portal.models import User
from scheduler.core.explain import start_ranges
from scheduler.core.reasons import ReasonCode
from scheduler.models import (
    Allocation,
    BoundUnit,
    DecayedUse,
    Decision,
    Gpu,
    Host,
    HostStateChange,
    MaintenanceWindow,
    Pool,
    Project,
    Reservation,
    Run,
    StartEstimate,
    Unit,
    Workload,
)
from scheduler.state.states import (
    AdminState,
    LeaseState,
    RepairState,
    ReservationState,
    RunState,
    WorkloadState,
)

STARTUP_TIME = timedelta(seconds=4)  # time between the placement of a run and its state "running"


@transaction.atomic
def write_past(past: SimulatedPast) -> None:
    """Write all rows of the past in one transaction.

    Rows that the running site also writes, such as hosts, are written last. Agents renew their leases in the
    rows of hosts. If these rows were locked during the whole transaction, the leases would expire and the
    agents would stop their work.
    """
    reservations = _write_reservations(past)
    kept = {number: course for number, course in past.courses.items() if course.attempts}
    workloads = _write_workloads(past, kept, reservations)
    _write_attempts(past, kept, workloads, reservations)
    _write_decisions(kept, workloads)
    _write_start_estimates(kept, workloads)
    _backdate_hosts(past)
    for use in past.decayed:
        row, _ = DecayedUse.objects.get_or_create(
            team_id=use.team, pool_id=use.pool, defaults={"as_of": past.end}
        )
        DecayedUse.objects.filter(pk=row.pk).update(slot_seconds=row.slot_seconds + use.slot_seconds)


def utilisation_by_workload(past: SimulatedPast) -> dict[int, float]:
    """Return the mean utilisation in per cent of each workload of the past, by workload id.

    The simulated rollups of a workload should have this mean.
    """
    busy = {(piece.name, piece.at): piece.utilisation for piece in past.wanted.values()}
    rows = Workload.objects.filter(simulated=True).values_list("pk", "name", "submitted_at")
    return {pk: busy[name, at] for pk, name, at in rows if (name, at) in busy}


def _backdate_hosts(past: SimulatedPast) -> None:
    """Set the creation of all hosts to the start of the past, so that charges cover the whole past.

    Also write the outages of the hosts.
    """
    Host.objects.update(created_at=past.start)
    Gpu.objects.update(created_at=past.start)
    Unit.objects.update(created_at=past.start)
    HostStateChange.objects.bulk_create([_host_state_change(host, past.start) for host in Host.objects.all()])
    hosts = {host.name: host for host in Host.objects.all()}
    for name, begin, until, kind, why in outages_before(past.start, past.end):
        if name not in hosts:
            continue
        if kind == "maintenance":
            MaintenanceWindow.objects.create(
                host=hosts[name], start=begin, end=until, reason=why, created_at=begin - timedelta(days=5)
            )
            during = _host_state_change(hosts[name], begin, admin=AdminState.MAINTENANCE, reason=why)
        else:
            during = _host_state_change(hosts[name], begin, repair=RepairState.QUARANTINED, reason=why)
        during.save()
        _host_state_change(hosts[name], until).save()


def _host_state_change(
    host: Host,
    at: datetime,
    admin: AdminState = AdminState.IN_SERVICE,
    repair: RepairState = RepairState.WELL,
    reason: str = "",
) -> HostStateChange:
    return HostStateChange(
        host=host, lease_state=LeaseState.ALIVE, admin_state=admin, repair_state=repair, reason=reason, at=at
    )


def _write_reservations(past: SimulatedPast) -> dict[int, Reservation]:
    rows: dict[int, Reservation] = {}
    units = {unit.pk: unit for unit in Unit.objects.all()}
    owners = {user.username: user for user in User.objects.all()}
    for number, (_, owner, name, count, gpu, _, _, _, used) in enumerate(PAST_RESERVATIONS, start=1):
        booking = past.bookings.get(number)
        if booking is None or number not in past.bound:
            continue
        start, end = to_datetime(booking.start), to_datetime(booking.end)
        row = Reservation.objects.create(
            pool_id=booking.pool,
            project_id=booking.project,
            owner=owners[owner],
            name=name,
            units=count,
            models_wanted=[gpu],
            start=start,
            end=end,
            state=ReservationState.OVER,
            first_used_at=start if used else None,
            ended_at=end,
            created_at=start - timedelta(days=3),
        )
        BoundUnit.objects.bulk_create(
            BoundUnit(
                reservation=row, unit=units[pk], slots=units[pk].slots, period=DateTimeTZRange(start, end)
            )
            for pk in past.bound[number]
        )
        rows[number] = row
    return rows


def _write_workloads(
    past: SimulatedPast, kept: dict[int, SimulatedCourse], reservations: dict[int, Reservation]
) -> dict[int, Workload]:
    projects = {project.slug: project for project in Project.objects.all()}
    owners = {user.username: user for user in User.objects.all()}
    pools = {pool.slug: pool for pool in Pool.objects.all()}
    rows: dict[int, Workload] = {}
    for number, course in kept.items():
        piece = past.wanted[number]
        stream, last = piece.stream, course.attempts[-1]
        rows[number] = Workload(
            kind=stream.kind,
            type=stream.type,
            name=piece.name,
            pool=pools[stream.pool],
            project=projects[piece.project],
            owner=owners[piece.user],
            reservation=reservations.get(past.inside.get(number, 0)),
            units=piece.units,
            models_wanted=[stream.model],
            profile=stream.profile,
            priority=piece.priority,
            preemptible=stream.preemptible,
            max_runtime_seconds=piece.limit_seconds,
            predicted_seconds=max(60, piece.limit_seconds // 2),
            state=WorkloadState.ENDED,
            attempt=len(course.attempts),
            submitted_at=piece.at,
            queued_at=piece.at,
            started_at=to_datetime(course.attempts[0].placed) + STARTUP_TIME,
            ended_at=to_datetime(last.ended),
            outcome=last.outcome,
            reason_code=last.code,
            reason_numbers=last.numbers,
            borrowed_slots=last.borrowed_slots,
            simulated=True,
        )
    Workload.objects.bulk_create(rows.values(), batch_size=500)
    return rows


def _write_attempts(
    past: SimulatedPast,
    kept: dict[int, SimulatedCourse],
    workloads: dict[int, Workload],
    reservations: dict[int, Reservation],
) -> None:
    units = {unit.pk: unit for unit in Unit.objects.select_related("gpu")}
    pieces = [
        (number, index, attempt)
        for number, course in kept.items()
        for index, attempt in enumerate(course.attempts, 1)
    ]
    runs = []
    for generation, (number, index, attempt) in enumerate(pieces, start=1):
        placed, ended = to_datetime(attempt.placed), to_datetime(attempt.ended)
        runs.append(
            Run(
                workload=workloads[number],
                attempt=index,
                host_id=units[attempt.units[0]].gpu.host_id,
                generation=-generation,  # negative, so that every real run has a higher generation
                state=RunState.ENDED,
                placed_at=placed,
                starting_at=placed,
                running_at=min(placed + STARTUP_TIME, ended),
                ended_at=ended,
                outcome=attempt.outcome,
                exit_code=0 if attempt.outcome == ReasonCode.FINISHED else None,
                checkpoint_at=ended if attempt.outcome == ReasonCode.CHECKPOINTED else None,
            )
        )
    Run.objects.bulk_create(runs, batch_size=500)
    Allocation.objects.bulk_create(
        (
            Allocation(
                run=row,
                workload=workloads[number],
                project_id=workloads[number].project_id,
                unit=units[pk],
                reservation=reservations.get(past.inside.get(number, 0)),
                slots=units[pk].slots,
                period=DateTimeTZRange(to_datetime(attempt.placed), to_datetime(attempt.ended)),
                borrowed=attempt.borrowed_slots > 0,
                end_code=attempt.outcome,
            )
            for row, (number, _, attempt) in zip(runs, pieces, strict=True)
            for pk in attempt.units
            if attempt.ended > attempt.placed
        ),
        batch_size=1000,
    )


def _write_decisions(kept: dict[int, SimulatedCourse], workloads: dict[int, Workload]) -> None:
    rows = []
    for number, course in kept.items():
        for attempt in course.attempts:
            rows.append(
                Decision(
                    workload=workloads[number],
                    kind=Decision.DecisionKind.PLACED,
                    code=attempt.code,
                    numbers=attempt.numbers,
                    epoch=0,
                    at=to_datetime(attempt.placed),
                )
            )
        for event in course.evictions:
            rows.append(
                Decision(
                    workload=workloads[number],
                    kind=Decision.DecisionKind.EVICTED,
                    code=event.code,
                    numbers=dict(event.numbers),
                    for_workload=workloads.get(event.for_workload or 0),
                    epoch=0,
                    at=to_datetime(event.at),
                )
            )
    Decision.objects.bulk_create(rows, batch_size=1000)


def _write_start_estimates(kept: dict[int, SimulatedCourse], workloads: dict[int, Workload]) -> None:
    """Write the expected and actual starts of the latest waits of each pool.

    The number per pool is limited to ``start_ranges.MAX_OUTCOMES``, because start ranges use no more.
    """
    by_pool: dict[int, list[tuple[int, SimulatedWait]]] = defaultdict(list)
    for number, course in kept.items():
        by_pool[workloads[number].pool_id] += [
            (number, wait) for wait in course.waits if wait.over_at is not None
        ]
    rows = []
    for pool, waits in by_pool.items():
        waits.sort(key=lambda each: (each[1].over_at or 0, each[0]))
        for number, wait in waits[-start_ranges.MAX_OUTCOMES :]:
            rows.append(
                StartEstimate(
                    workload=workloads[number],
                    pool_id=pool,
                    attempt=wait.attempt,
                    told_at=to_datetime(wait.told_at),
                    expected_start=to_datetime(wait.expected_start),
                    latest=None if wait.latest is None else to_datetime(wait.latest),
                    over_at=to_datetime(wait.over_at or 0),
                    started=True,
                )
            )
    StartEstimate.objects.bulk_create(rows, batch_size=1000)
