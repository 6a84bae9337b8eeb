"""Run the planner in simulated time, event by event.

``run_simulation(snapshot, arrivals, until, start=..., on_event=..., reservations=...)`` plans with an
``IncrementalPlanner`` whenever something has changed. It carries the plan out as the real system would: work
gets a notice, writes a checkpoint, stops and is requeued. It calls ``on_event(SimulationEvent)`` for each
event, in order of time. At the end it returns the snapshot at ``until``. There is no clock and no randomness:
equal arrivals give equal events.

    arrivals = [WorkloadArrival(at=t0, queued=QueuedWorkload(id=1, ..., submitted=t0), runtime_seconds=5400)]
    events: list[SimulationEvent] = []
    after = run_simulation(snapshot, arrivals, until=t0 + 86_400, start=t0, on_event=events.append)

Events:
- QUEUED: the workload arrived, or was requeued after an eviction. ``attempt`` is 1 for its first attempt.
- PLACED: the workload holds ``units`` from now on. ``borrowed_slots``, ``code`` and ``numbers`` are set.
- EVICTED: the workload got the notice. It still runs and holds its units.
- STOPPED: the workload stopped after an eviction. ``code`` is CHECKPOINTED or KILLED_AT_GRACE.
- ENDED: the workload ended without an eviction. ``code`` is FINISHED or TIME_LIMIT.
- RESERVATION_BOUND: the reservation got its ``units``.
- RESERVATION_OVER: the reservation reached its end.

An attempt holds its units from its PLACED event until just before its STOPPED or ENDED event.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import count

from scheduler.core.incremental_planner import IncrementalPlanner
from scheduler.core.model.plan import Eviction, Placement, Plan, Refusal
from scheduler.core.model.quota_ledger import decayed_use
from scheduler.core.model.snapshot import (
    DecayedUseInfo,
    QueuedWorkload,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
)
from scheduler.core.model.snapshot_delta import SnapshotDelta
from scheduler.core.reasons import ReasonCode, ReasonNumbers
from scheduler.core.what_if.requeue import as_requeued


@dataclass(frozen=True, slots=True)
class WorkloadArrival:
    """A workload that is submitted at ``at``, with facts that the planner does not know."""

    at: int
    queued: QueuedWorkload
    runtime_seconds: int  # the runtime that the workload would have without interruptions
    # The seconds between two checkpoints. The workload also writes a checkpoint when it is evicted.
    # None means that the workload writes no checkpoints, so an eviction loses all its progress.
    checkpoint_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ReservationArrival:
    """A reservation that is confirmed at ``at``."""

    at: int
    reservation: ReservationInfo


class SimulationEventKind(StrEnum):
    """The kinds of simulation events. The module's docstring describes them."""

    QUEUED = "queued"
    PLACED = "placed"
    EVICTED = "evicted"
    STOPPED = "stopped"
    ENDED = "ended"
    RESERVATION_BOUND = "reservation_bound"
    RESERVATION_OVER = "reservation_over"


@dataclass(frozen=True, slots=True)
class SimulationEvent:
    """An event at ``at``. Exactly one of ``workload`` and ``reservation`` is set."""

    at: int
    kind: SimulationEventKind
    workload: int | None = None
    reservation: int | None = None
    attempt: int = 0
    units: tuple[int, ...] = ()
    borrowed_slots: int = 0
    code: str = ""
    numbers: ReasonNumbers = ()
    for_workload: int | None = None  # EVICTED and STOPPED: the workload for which this one was evicted
    for_reservation: int | None = None


@dataclass(slots=True)
class SimulatedJob:
    """A workload in the simulation, with its saved progress and its current attempt."""

    arrival: WorkloadArrival
    queued: QueuedWorkload
    attempt: int = 1
    saved_seconds: int = 0  # the seconds of progress that are saved in a checkpoint
    running: RunningWorkload | None = None
    ends: int = 0  # the time at which the attempt ends if it is not interrupted
    eviction: Eviction | None = None


class Simulation:
    """The simulation of one organisation.

    Future actions are in a heap of (time, number, action). Actions at the same time run in the order of their
    numbers, which is the order in which they were scheduled.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        start: int,
        on_event: Callable[[SimulationEvent], None],
        predict: Callable[[QueuedWorkload], QueuedWorkload] | None = None,
        on_refusal: Callable[[int, Refusal], None] | None = None,
    ) -> None:
        self.base, self.now, self.on_event, self.predict = snapshot, start, on_event, predict
        # If the next plan refuses a workload in ``refusal_requested_for``, ``on_refusal`` is called with
        # (now, refusal).
        self.on_refusal = on_refusal
        self.refusal_requested_for: set[int] = set()
        # If True, a workload is added to ``refusal_requested_for`` each time that it joins the queue.
        self.report_all_refusals = False
        self.planner = IncrementalPlanner(
            replace(snapshot, queued=(), running=(), reservations=(), decayed_use=())
        )
        self.plans = 0
        self.held: dict[tuple[int, int], int] = defaultdict(int)  # by (team, pool): the slots in use
        # The first three sets have the ids of the rows that changed since the last plan. ``checkpointing``
        # has the ids of running work that writes checkpoints. Its rows are compared before each plan, because
        # the time of the latest checkpoint changes without an event.
        self.changed_queued: set[int] = set()
        self.changed_running: set[int] = set()
        self.changed_reservations: set[int] = set()
        self.checkpointing: set[int] = set()
        self.policies = {pool.id: pool.policy for pool in snapshot.pools}
        self.slots = {unit.id: unit.slots for unit in snapshot.units}
        self.queued: dict[int, SimulatedJob] = {}
        self.running: dict[int, SimulatedJob] = {}
        self.reservations: dict[int, ReservationInfo] = {}
        self.use: dict[tuple[int, int], float] = defaultdict(float)
        self.use_updated_at = start
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.number = count()
        self.changed = True  # True if a change since the last plan could affect a plan
        # The pools in which evictions are possible, because of a guarantee or of different priorities.
        self.pools_with_possible_evictions = {quota.pool for quota in snapshot.quotas if quota.guaranteed}
        self.priorities: dict[int, set[int]] = defaultdict(set)
        for use in snapshot.decayed_use:
            self.use[use.team, use.pool] = use.slot_seconds
        for running in snapshot.running:
            self._take_over(running)
        for queued in snapshot.queued:
            self.queued[queued.id] = SimulatedJob(
                WorkloadArrival(start, queued, queued.predicted_seconds), queued
            )
            self.changed_queued.add(queued.id)
            self._note_priority(queued.pool, queued.priority)
        for reservation in snapshot.reservations:
            self._add_reservation(reservation)

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Schedule an action for a time."""
        heapq.heappush(self.heap, (max(time, self.now), next(self.number), action))

    def submit(self, arrival: WorkloadArrival) -> None:
        """Schedule the arrival of a workload."""
        self.at(arrival.at, partial(self.arrive, arrival))

    def run(self, until: int) -> None:
        """Advance to ``until``. At the time of each action, run all actions of this time, then plan once."""
        self._replan()
        while self.heap and self.heap[0][0] < until:
            time = self.heap[0][0]
            self._advance_to(time)
            while self.heap and self.heap[0][0] == time:
                heapq.heappop(self.heap)[2]()
            self._replan()
        self._advance_to(until)

    def snapshot(self) -> Snapshot:
        """Return the snapshot that the planner would get now."""
        use = tuple(DecayedUseInfo(team, pool, amount) for (team, pool), amount in sorted(self.use.items()))
        return replace(
            self.base,
            queued=tuple(job.queued for job in self.queued.values()),
            running=tuple(self._running_row(job) for job in self.running.values()),
            reservations=tuple(self.reservations.values()),
            decayed_use=use,
        )

    # -- arrivals
    # ------------------------------------------------------------------------------------------------

    def arrive(self, arrival: WorkloadArrival) -> None:
        """Queue a workload that arrives now."""
        job = SimulatedJob(arrival, arrival.queued if self.predict is None else self.predict(arrival.queued))
        self.queued[arrival.queued.id] = job
        self._note_priority(job.queued.pool, job.queued.priority)
        self._queue_event(job)
        if arrival.queued.not_before > self.now:
            self.at(arrival.queued.not_before, self._request_replan)

    def _note_priority(self, pool: int, priority: int) -> None:
        self.priorities[pool].add(priority)
        if len(self.priorities[pool]) > 1:
            self.pools_with_possible_evictions.add(pool)

    def _queue_event(self, job: SimulatedJob) -> None:
        self.changed = True
        self.changed_queued.add(job.queued.id)
        if self.report_all_refusals:
            self.refusal_requested_for.add(job.queued.id)
        self.on_event(
            SimulationEvent(self.now, SimulationEventKind.QUEUED, job.queued.id, attempt=job.attempt)
        )

    def _take_over(self, running: RunningWorkload) -> None:
        """Add a workload that already runs when the simulation starts.

        It ends at its predicted end. If it is stopping, it ends at the time by which it must have stopped.
        """
        queued = replace(
            as_requeued(self.base, running, running.started),
            predicted_seconds=max(1, running.predicted_end - running.started),
        )
        arrival = WorkloadArrival(running.started, queued, queued.predicted_seconds)
        job = SimulatedJob(arrival, queued, attempt=1 + running.evictions, running=running)
        self._note_held(running, 1)
        self._note_priority(running.pool, running.priority)
        self.running[running.id] = job
        expected_end = (
            running.stop_by if running.stopping and running.stop_by is not None else running.predicted_end
        )
        job.ends = max(self.now, min(expected_end, running.until))
        self.at(job.ends, lambda: self._end(job, running))

    def book(self, reservation: ReservationInfo) -> None:
        """Add a reservation that is confirmed now."""
        self._add_reservation(reservation)
        self.changed = True

    def _add_reservation(self, reservation: ReservationInfo) -> None:
        self.reservations[reservation.id] = reservation
        self.changed_reservations.add(reservation.id)
        policy = self.policies[reservation.pool]
        self.at(reservation.start - policy.notice_seconds - policy.grace_seconds, self._request_replan)
        self.at(reservation.start, self._request_replan)
        self.at(reservation.end, lambda: self._reservation_over(reservation.id))

    def _reservation_over(self, reservation: int) -> None:
        removed = self.reservations.pop(reservation)
        self.changed_reservations.add(reservation)
        self.changed = True
        self.on_event(
            SimulationEvent(
                self.now, SimulationEventKind.RESERVATION_OVER, reservation=reservation, units=removed.units
            )
        )

    def _request_replan(self) -> None:
        self.changed = True

    # -- planning and carrying out
    # -------------------------------------------------------------------------------

    def _replan(self) -> None:
        """Run the planner if something has changed, and if a workload or reservation waits for units."""
        if self.changed and (self.queued or any(not r.units for r in self.reservations.values())):
            self.planner.change(self._delta())
            self.plans += 1
            planned = self.planner.plan(self.now, explain=bool(self.refusal_requested_for))
            for refusal in planned.refusals if self.refusal_requested_for else ():
                if refusal.workload in self.refusal_requested_for and self.on_refusal is not None:
                    self.on_refusal(self.now, refusal)
            self.refusal_requested_for.clear()
            self._carry_out(planned)
        self.changed = False

    def _delta(self) -> SnapshotDelta:
        """Return the changes since the last plan."""
        for workload in self.checkpointing:
            if self.running[workload].running is not self._running_row(self.running[workload]):
                self.changed_running.add(workload)
        queued, running, reservations = self.changed_queued, self.changed_running, self.changed_reservations
        self.changed_queued, self.changed_running, self.changed_reservations = set(), set(), set()
        return SnapshotDelta(
            queued=tuple(self.queued[q].queued for q in sorted(queued) if q in self.queued),
            queued_gone=tuple(q for q in sorted(queued) if q not in self.queued),
            running=tuple(self._running_row(self.running[r]) for r in sorted(running) if r in self.running),
            running_gone=tuple(r for r in sorted(running) if r not in self.running),
            reservations=tuple(self.reservations[r] for r in sorted(reservations) if r in self.reservations),
            reservations_gone=tuple(r for r in sorted(reservations) if r not in self.reservations),
            decayed_use=tuple(
                DecayedUseInfo(team, pool, amount) for (team, pool), amount in sorted(self.use.items())
            ),
        )

    def _note_held(self, running: RunningWorkload, sign: int) -> None:
        """Add the slots of a workload to the held slots of its team, or subtract them if ``sign`` is -1."""
        self.held[running.team, running.pool] += sign * sum(self.slots[u] for u in running.units)
        self.changed_running.add(running.id)

    def _carry_out(self, planned: Plan) -> None:
        for binding in planned.bindings:
            bound_reservation = replace(self.reservations[binding.reservation], units=binding.units)
            self.reservations[bound_reservation.id] = bound_reservation
            self.changed_reservations.add(bound_reservation.id)
            # Plan again at this time, because work inside the reservation may start now.
            self.at(self.now, self._request_replan)
            self.on_event(
                SimulationEvent(
                    self.now,
                    SimulationEventKind.RESERVATION_BOUND,
                    reservation=bound_reservation.id,
                    units=binding.units,
                )
            )
        for placement in planned.placements:
            self.changed_queued.add(placement.workload)
            self._place(self.queued.pop(placement.workload), placement)
        for eviction in planned.evictions:
            self._evict(self.running[eviction.workload], eviction)

    def _place(self, job: SimulatedJob, placement: Placement) -> None:
        queued, arrival = job.queued, job.arrival
        running = RunningWorkload(
            id=queued.id,
            team=queued.team,
            project=queued.project,
            user=queued.user,
            pool=queued.pool,
            units=placement.units,
            started=self.now,
            until=placement.until,
            predicted_end=min(placement.until, self.now + queued.predicted_seconds),
            priority=queued.priority,
            preemptible=queued.preemptible,
            borrowed_slots=placement.borrowed_slots,
            reservation=queued.reservation,
            evicted_by=queued.evicted_by,
            evictions=job.attempt - 1,
            cpu_milli=queued.ask.cpu_milli,
            memory_mib=queued.ask.memory_mib,
            ask=queued.ask,
        )
        job.running, job.eviction = running, None
        job.ends = min(placement.until, self.now + max(1, arrival.runtime_seconds - job.saved_seconds))
        self.running[queued.id] = job
        self._note_held(running, 1)
        if arrival.checkpoint_seconds:
            self.checkpointing.add(queued.id)
        self.at(job.ends, lambda: self._end(job, running))
        if queued.preemptible and self.queued and queued.pool in self.pools_with_possible_evictions:
            # Plan again after the minimum runtime, when this workload can be evicted for waiting work.
            self.at(self.now + self.policies[queued.pool].minimum_runtime_seconds, self._request_replan)
        self.on_event(
            SimulationEvent(
                self.now,
                SimulationEventKind.PLACED,
                queued.id,
                attempt=job.attempt,
                units=placement.units,
                borrowed_slots=placement.borrowed_slots,
                code=placement.code,
                numbers=placement.numbers,
            )
        )

    def _end(self, job: SimulatedJob, attempt: RunningWorkload) -> None:
        """End an attempt that has reached its end, unless an eviction has already stopped it."""
        if job.running is not attempt:
            return
        self._release_units(job, attempt)
        is_finished = attempt.started + job.arrival.runtime_seconds - job.saved_seconds <= self.now
        code = ReasonCode.FINISHED if is_finished else ReasonCode.TIME_LIMIT
        self.changed = True
        self.on_event(
            SimulationEvent(
                self.now,
                SimulationEventKind.ENDED,
                job.queued.id,
                attempt=job.attempt,
                units=attempt.units,
                code=code,
            )
        )

    def _release_units(self, job: SimulatedJob, attempt: RunningWorkload) -> None:
        """Release the units of a workload."""
        del self.running[attempt.id]
        self._note_held(attempt, -1)
        self.checkpointing.discard(attempt.id)
        job.running = None

    def _evict(self, job: SimulatedJob, eviction: Eviction) -> None:
        running = job.running
        assert running is not None  # A plan evicts only running work.
        policy = self.policies[running.pool]
        job.eviction = eviction
        self.changed_running.add(running.id)
        # Work that writes checkpoints stops on its own after the signal, well before the kill.
        can_checkpoint = job.arrival.checkpoint_seconds is not None
        removed = eviction.stop_at + (policy.grace_seconds // 3 if can_checkpoint else policy.grace_seconds)
        self.at(removed, lambda: self._stopped(job, running, eviction))
        self.on_event(
            SimulationEvent(
                self.now,
                SimulationEventKind.EVICTED,
                running.id,
                attempt=job.attempt,
                units=running.units,
                code=eviction.code,
                numbers=eviction.numbers,
                for_workload=eviction.for_workload,
                for_reservation=eviction.for_reservation,
            )
        )

    def _stopped(self, job: SimulatedJob, attempt: RunningWorkload, eviction: Eviction) -> None:
        """Put a workload back in the queue after it has stopped because of an eviction.

        The workload keeps its submit time. If it writes checkpoints, it also keeps its progress.
        """
        if job.running is not attempt:
            return  # The workload ended before the eviction could stop it.
        self._release_units(job, attempt)
        job.eviction = None
        saves = job.arrival.checkpoint_seconds is not None
        if saves:
            job.saved_seconds += eviction.stop_at - attempt.started
        self.on_event(
            SimulationEvent(
                self.now,
                SimulationEventKind.STOPPED,
                job.queued.id,
                attempt=job.attempt,
                units=attempt.units,
                code=ReasonCode.CHECKPOINTED if saves else ReasonCode.KILLED_AT_GRACE,
                for_workload=eviction.for_workload,
                for_reservation=eviction.for_reservation,
            )
        )
        beneficiary = self.queued.get(eviction.for_workload or 0)
        if beneficiary is not None:
            kept = tuple(sorted({*beneficiary.queued.earmarked_units, *attempt.units}))
            only_own_team = job.queued.team == beneficiary.queued.team
            beneficiary.queued = replace(
                beneficiary.queued,
                earmarked_units=kept,
                room_made_by_own_team=only_own_team and beneficiary.queued.room_made_by_own_team is not False,
            )
            self.changed_queued.add(beneficiary.queued.id)
        remaining_seconds = max(60, job.arrival.queued.predicted_seconds - job.saved_seconds)
        job.attempt += 1
        job.queued = replace(
            job.queued,
            predicted_seconds=remaining_seconds,
            evicted_by=eviction.for_workload,
            earmarked_units=(),
            room_made_by_own_team=None,
        )
        self.queued[job.queued.id] = job
        self._queue_event(job)

    def _running_row(self, job: SimulatedJob) -> RunningWorkload:
        """Return the workload's row with its latest checkpoint and its eviction, if any."""
        running = job.running
        assert running is not None  # The function is called only for running jobs.
        every = job.arrival.checkpoint_seconds
        checkpoint = running.checkpoint_at
        if every:
            rounds = (self.now - running.started) // every
            checkpoint = running.started + rounds * every if rounds else checkpoint
        if job.eviction is None:
            return (
                replace(running, checkpoint_at=checkpoint) if checkpoint != running.checkpoint_at else running
            )
        return replace(
            running,
            checkpoint_at=checkpoint,
            stopping=True,
            stop_by=job.eviction.stop_at + self.policies[running.pool].grace_seconds,
            evicted_for_workload=job.eviction.for_workload,
            evicted_for_reservation=job.eviction.for_reservation,
        )

    # -- decayed use
    # ---------------------------------------------------------------------------------------------

    def _advance_to(self, time: int) -> None:
        """Advance the simulated time and every team's decayed use.

        Decayed use is past use in slot-seconds, which halves with every half-life.
        """
        seconds = time - self.use_updated_at
        if seconds > 0:
            for key in {*self.use, *self.held}:
                half_life = self.policies[key[1]].half_life_seconds
                if half_life:
                    self.use[key] = decayed_use(self.use[key], self.held[key], seconds, half_life)
            self.use_updated_at = time
        self.now = time


def run_simulation(
    snapshot: Snapshot,
    arrivals: Iterable[WorkloadArrival],
    until: int,
    *,
    start: int,
    on_event: Callable[[SimulationEvent], None],
    reservations: Iterable[ReservationArrival] = (),
    predict: Callable[[QueuedWorkload], QueuedWorkload] | None = None,
    on_refusal: Callable[[int, Refusal], None] | None = None,
) -> Snapshot:
    """Simulate the time from ``start`` until just before ``until``, beginning with ``snapshot``.

    The module's docstring describes the events. Return the snapshot at ``until``.

    ``predict`` is called with each workload that arrives. It returns the workload as it shall be queued, for
    example with another predicted runtime.

    A workload joins the queue when it arrives, and again after each eviction. If the next plan refuses it,
    ``on_refusal`` is called with (now, refusal).
    """
    simulation = Simulation(snapshot, start, on_event, predict, on_refusal)
    simulation.report_all_refusals = on_refusal is not None
    for booking in sorted(reservations, key=lambda b: (b.at, b.reservation.id)):
        simulation.at(booking.at, partial(simulation.book, booking.reservation))
    for arrival in sorted(arrivals, key=lambda a: (a.at, a.queued.id)):
        simulation.submit(arrival)
    simulation.run(until)
    return simulation.snapshot()
