"""The real engine in simulated time: what would have happened, event by event.

``run(snapshot, arrivals, until, start=…, on_event=…, reservations=…) -> Snapshot`` plans on a ``warm.Standing`` whenever
something changed, carries the plan out as agents would (notice, checkpoint, stop, requeue with the place kept), and
calls ``on_event(Event)`` in order of time. It returns the snapshot at ``until``, from which a living site can go on.
There is no clock and no randomness here: the same arrivals give the same events.

    arrivals = [Arrival(at=t0, queued=Queued(id=1, ..., submitted=t0), runtime_seconds=5400, checkpoint_seconds=600)]
    events: list[Event] = []
    after = run(snapshot, arrivals, until=t0 + 86_400, start=t0, on_event=events.append)

What events tell: QUEUED (arrived, or back in the queue after an eviction, ``attempt`` counting from 1), PLACED (``units``
held from here; ``borrowed_slots``, ``code``, ``numbers``), EVICTED (the notice: it still runs and holds its units),
STOPPED (gone after an eviction, ``code`` CHECKPOINTED or KILLED_AT_GRACE), ENDED (``code`` FINISHED or TIME_LIMIT),
RESERVATION_BOUND (``units``) and RESERVATION_OVER. An attempt holds its units in ``[PLACED.at, STOPPED.at or ENDED.at)``.
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
    """A workload as it is submitted at ``at``, and what only the future knows about it."""

    at: int
    queued: QueuedWorkload
    runtime_seconds: int  # how long its work takes in all, when nobody interrupts it
    checkpoint_seconds: int | None = (
        None  # how often it checkpoints, also on notice; None: an eviction loses everything
    )


@dataclass(frozen=True, slots=True)
class ReservationArrival:
    """A reservation that is confirmed at ``at``."""

    at: int
    reservation: ReservationInfo


class SimulationEventKind(StrEnum):
    QUEUED = "queued"
    PLACED = "placed"
    EVICTED = "evicted"
    STOPPED = "stopped"
    ENDED = "ended"
    RESERVATION_BOUND = "reservation_bound"
    RESERVATION_OVER = "reservation_over"


@dataclass(frozen=True, slots=True)
class SimulationEvent:
    """One thing that happened at ``at``; exactly one of ``workload`` and ``reservation`` is set."""

    at: int
    kind: SimulationEventKind
    workload: int | None = None
    reservation: int | None = None
    attempt: int = 0
    units: tuple[int, ...] = ()
    borrowed_slots: int = 0
    code: str = ""
    numbers: ReasonNumbers = ()
    for_workload: int | None = None  # of EVICTED and STOPPED: for whom room is made
    for_reservation: int | None = None


@dataclass(slots=True)
class SimulatedJob:
    """A workload's course: how much of its work is saved, and its present attempt."""

    arrival: WorkloadArrival
    queued: QueuedWorkload
    attempt: int = 1
    saved_seconds: int = 0  # of its work, safe in a checkpoint
    running: RunningWorkload | None = None
    ends: int = 0  # when the attempt is over if nobody interrupts it
    eviction: Eviction | None = None


class Simulation:
    """Simulated time over one organisation. What happens next is a heap of (time, number, what to do)."""

    def __init__(
        self,
        snapshot: Snapshot,
        start: int,
        on_event: Callable[[SimulationEvent], None],
        foresee: Callable[[QueuedWorkload], QueuedWorkload] | None = None,
        on_refusal: Callable[[int, Refusal], None] | None = None,
    ) -> None:
        self.base, self.now, self.tell, self.foresee = snapshot, start, on_event, foresee
        self.on_refusal = on_refusal  # told (now, refusal) of those in ``curious`` at the next plan
        self.curious: set[int] = set()
        self.report_all_refusals = False  # everybody, at the first plan of each wait
        self.standing = IncrementalPlanner(
            replace(snapshot, queued=(), running=(), reservations=(), decayed_use=())
        )
        self.plans = 0
        self.held: dict[tuple[int, int], int] = defaultdict(int)  # (team, pool) -> slots in use
        # What the standing snapshot was not told yet, and whose rows change by themselves as time goes by.
        self.stale_queued: set[int] = set()
        self.stale_running: set[int] = set()
        self.stale_reservations: set[int] = set()
        self.checkpointing: set[int] = set()
        self.policies = {pool.id: pool.policy for pool in snapshot.pools}
        self.slots = {unit.id: unit.slots for unit in snapshot.units}
        self.queued: dict[int, SimulatedJob] = {}
        self.running: dict[int, SimulatedJob] = {}
        self.reservations: dict[int, ReservationInfo] = {}
        self.use: dict[tuple[int, int], float] = defaultdict(float)
        self.use_at = start
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.number = count()
        self.changed = True  # something a plan could answer to
        # Pools in which somebody could be told to go: for a guarantee, or for higher priority.
        self.contested = {quota.pool for quota in snapshot.quotas if quota.guaranteed}
        self.priorities: dict[int, set[int]] = defaultdict(set)
        for use in snapshot.decayed_use:
            self.use[use.team, use.pool] = use.slot_seconds
        for running in snapshot.running:
            self._take_over(running)
        for queued in snapshot.queued:
            self.queued[queued.id] = SimulatedJob(
                WorkloadArrival(start, queued, queued.predicted_seconds), queued
            )
            self.stale_queued.add(queued.id)
            self._note_priority(queued.pool, queued.priority)
        for reservation in snapshot.reservations:
            self._add_reservation(reservation)

    def at(self, time: int, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (max(time, self.now), next(self.number), what))

    def submit(self, arrival: WorkloadArrival) -> None:
        """Have a workload arrive at its time."""
        self.at(arrival.at, partial(self.arrive, arrival))

    def run(self, until: int) -> None:
        """Let time go by until ``until``: all that is due at one moment happens, then one plan answers to it."""
        self._replan()
        while self.heap and self.heap[0][0] < until:
            time = self.heap[0][0]
            self._advance_to(time)
            while self.heap and self.heap[0][0] == time:
                heapq.heappop(self.heap)[2]()
            self._replan()
        self._advance_to(until)

    def snapshot(self) -> Snapshot:
        """What the engine would see now."""
        use = tuple(DecayedUseInfo(team, pool, amount) for (team, pool), amount in sorted(self.use.items()))
        return replace(
            self.base,
            queued=tuple(job.queued for job in self.queued.values()),
            running=tuple(self._running_row(job) for job in self.running.values()),
            reservations=tuple(self.reservations.values()),
            decayed_use=use,
        )

    # -- what arrives ------------------------------------------------------------------------------------------------

    def arrive(self, arrival: WorkloadArrival) -> None:
        job = SimulatedJob(arrival, arrival.queued if self.foresee is None else self.foresee(arrival.queued))
        self.queued[arrival.queued.id] = job
        self._note_priority(job.queued.pool, job.queued.priority)
        self._queue_event(job)
        if arrival.queued.not_before > self.now:
            self.at(arrival.queued.not_before, self._request_replan)

    def _note_priority(self, pool: int, priority: int) -> None:
        self.priorities[pool].add(priority)
        if len(self.priorities[pool]) > 1:
            self.contested.add(pool)

    def _queue_event(self, job: SimulatedJob) -> None:
        self.changed = True
        self.stale_queued.add(job.queued.id)
        if self.report_all_refusals:
            self.curious.add(job.queued.id)
        self.tell(SimulationEvent(self.now, SimulationEventKind.QUEUED, job.queued.id, attempt=job.attempt))

    def _take_over(self, running: RunningWorkload) -> None:
        """Work that runs already when the simulation starts: it ends as predicted."""
        queued = replace(
            as_requeued(self.base, running, running.started),
            predicted_seconds=max(1, running.predicted_until - running.started),
        )
        arrival = WorkloadArrival(running.started, queued, queued.predicted_seconds)
        job = SimulatedJob(arrival, queued, attempt=1 + running.evictions, running=running)
        self._holds(running, 1)
        self._note_priority(running.pool, running.priority)
        self.running[running.id] = job
        leaves = (
            running.stop_by if running.stopping and running.stop_by is not None else running.predicted_until
        )
        job.ends = max(self.now, min(leaves, running.until))
        self.at(job.ends, lambda: self._end(job, running))

    def book(self, reservation: ReservationInfo) -> None:
        """A reservation was confirmed."""
        self._add_reservation(reservation)
        self.changed = True

    def _add_reservation(self, reservation: ReservationInfo) -> None:
        self.reservations[reservation.id] = reservation
        self.stale_reservations.add(reservation.id)
        policy = self.policies[reservation.pool]
        self.at(reservation.start - policy.notice_seconds - policy.grace_seconds, self._request_replan)
        self.at(reservation.start, self._request_replan)
        self.at(reservation.end, lambda: self._reservation_over(reservation.id))

    def _reservation_over(self, reservation: int) -> None:
        gone = self.reservations.pop(reservation)
        self.stale_reservations.add(reservation)
        self.changed = True
        self.tell(
            SimulationEvent(
                self.now, SimulationEventKind.RESERVATION_OVER, reservation=reservation, units=gone.units
            )
        )

    def _request_replan(self) -> None:
        self.changed = True

    # -- planning and carrying out -----------------------------------------------------------------------------------

    def _replan(self) -> None:
        """Plan when something changed that somebody waits for."""
        if self.changed and (self.queued or any(not r.units for r in self.reservations.values())):
            self.standing.change(self._delta())
            self.plans += 1
            planned = self.standing.plan(self.now, explain=bool(self.curious))
            for refusal in planned.refusals if self.curious else ():
                if refusal.workload in self.curious and self.on_refusal is not None:
                    self.on_refusal(self.now, refusal)
            self.curious.clear()
            self._carry_out(planned)
        self.changed = False

    def _delta(self) -> SnapshotDelta:
        """What happened since the last plan."""
        for workload in self.checkpointing:
            if self.running[workload].running is not self._running_row(self.running[workload]):
                self.stale_running.add(workload)
        queued, running, reservations = self.stale_queued, self.stale_running, self.stale_reservations
        self.stale_queued, self.stale_running, self.stale_reservations = set(), set(), set()
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

    def _holds(self, running: RunningWorkload, sign: int) -> None:
        """Note that a workload holds its units from now on, or, with -1, no longer."""
        self.held[running.team, running.pool] += sign * sum(self.slots[u] for u in running.units)
        self.stale_running.add(running.id)

    def _carry_out(self, planned: Plan) -> None:
        for binding in planned.bindings:
            bound = replace(self.reservations[binding.reservation], units=binding.units)
            self.reservations[bound.id] = bound
            self.stale_reservations.add(bound.id)
            self.at(self.now, self._request_replan)  # its own work may start inside it now
            self.tell(
                SimulationEvent(
                    self.now, SimulationEventKind.RESERVATION_BOUND, reservation=bound.id, units=binding.units
                )
            )
        for placement in planned.placements:
            self.stale_queued.add(placement.workload)
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
            predicted_until=min(placement.until, self.now + queued.predicted_seconds),
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
        self._holds(running, 1)
        if arrival.checkpoint_seconds:
            self.checkpointing.add(queued.id)
        self.at(job.ends, lambda: self._end(job, running))
        if queued.preemptible and self.queued and queued.pool in self.contested:
            # From then on it may have to make room for who waits now.
            self.at(self.now + self.policies[queued.pool].minimum_runtime_seconds, self._request_replan)
        self.tell(
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
        """The attempt's own end, unless an eviction was quicker."""
        if job.running is not attempt:
            return
        self._leave(job, attempt)
        done = attempt.started + job.arrival.runtime_seconds - job.saved_seconds <= self.now
        code = ReasonCode.FINISHED if done else ReasonCode.TIME_LIMIT
        self.changed = True
        self.tell(
            SimulationEvent(
                self.now,
                SimulationEventKind.ENDED,
                job.queued.id,
                attempt=job.attempt,
                units=attempt.units,
                code=code,
            )
        )

    def _leave(self, job: SimulatedJob, attempt: RunningWorkload) -> None:
        """A workload gives its units back."""
        del self.running[attempt.id]
        self._holds(attempt, -1)
        self.checkpointing.discard(attempt.id)
        job.running = None

    def _evict(self, job: SimulatedJob, eviction: Eviction) -> None:
        running = job.running
        assert running is not None  # the plan evicts running work only
        policy = self.policies[running.pool]
        job.eviction = eviction
        self.stale_running.add(running.id)
        quick = (
            job.arrival.checkpoint_seconds is not None
        )  # what can checkpoint leaves well before it would be killed
        gone = eviction.stop_at + (policy.grace_seconds // 3 if quick else policy.grace_seconds)
        self.at(gone, lambda: self._stopped(job, running, eviction))
        self.tell(
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
        """Gone after its grace: back in the queue with its place, its work saved if it checkpoints."""
        if job.running is not attempt:
            return  # it ended by itself during its notice
        self._leave(job, attempt)
        job.eviction = None
        saves = job.arrival.checkpoint_seconds is not None
        if saves:
            job.saved_seconds += eviction.stop_at - attempt.started
        self.tell(
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
            beneficiary.queued = replace(beneficiary.queued, earmarked_units=kept)
            self.stale_queued.add(beneficiary.queued.id)
        left = max(60, job.arrival.queued.predicted_seconds - job.saved_seconds)
        job.attempt += 1
        job.queued = replace(
            job.queued, predicted_seconds=left, evicted_by=eviction.for_workload, earmarked_units=()
        )
        self.queued[job.queued.id] = job
        self._queue_event(job)

    def _running_row(self, job: SimulatedJob) -> RunningWorkload:
        """The running row with its last checkpoint, and whether it was told to go."""
        running = job.running
        assert running is not None  # only running jobs are asked
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

    # -- decayed use -------------------------------------------------------------------------------------------------

    def _advance_to(self, time: int) -> None:
        """Move the clock, and every team's decayed use with it."""
        seconds = time - self.use_at
        if seconds > 0:
            for key in {*self.use, *self.held}:
                half_life = self.policies[key[1]].half_life_seconds
                if half_life:
                    self.use[key] = decayed_use(self.use[key], self.held[key], seconds, half_life)
            self.use_at = time
        self.now = time


def run_simulation(
    snapshot: Snapshot,
    arrivals: Iterable[WorkloadArrival],
    until: int,
    *,
    start: int,
    on_event: Callable[[SimulationEvent], None],
    reservations: Iterable[ReservationArrival] = (),
    foresee: Callable[[QueuedWorkload], QueuedWorkload] | None = None,
    on_refusal: Callable[[int, Refusal], None] | None = None,
) -> Snapshot:
    """Simulate ``[start, until)`` from a snapshot; see the module's docstring for what is told and when. ``foresee``
    makes of a workload as it is submitted the row that joins the queue: with its prediction, say. ``on_refusal`` is told
    (now, refusal) of what the first plan of each wait says to who has to wait."""
    simulation = Simulation(snapshot, start, on_event, foresee, on_refusal)
    simulation.report_all_refusals = on_refusal is not None
    for booking in sorted(reservations, key=lambda b: (b.at, b.reservation.id)):
        simulation.at(booking.at, partial(simulation.book, booking.reservation))
    for arrival in sorted(arrivals, key=lambda a: (a.at, a.queued.id)):
        simulation.submit(arrival)
    simulation.run(until)
    return simulation.snapshot()
