"""Simulate the control plane in virtual time on a real PostgreSQL.

It consists of the edge, two engines, periodic tasks ("ticks") and users.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from django.db import transaction

from agent.protocol import FRAMES_UP, Desired, Observed, Refused, decode, encode
from benchmarks.plan_verifier import violations
from benchmarks.simulation.simulated_host import JobHabits, SimulatedHost
from portal.edge.agents import database_calls as edge
from scheduler import services
from scheduler.coordination import clock_correction, leadership
from scheduler.coordination.clock_check import CLOCK_STEP_THRESHOLD, ClockSample, ClockStepped, decide_at
from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import Priority, Snapshot
from scheduler.core.planner import plan
from scheduler.cycle import core_values, snapshot
from scheduler.cycle.apply import StaleEpoch, apply_plan
from scheduler.models import Host, Reservation, Workload
from scheduler.requests import WorkloadRequest
from scheduler.state import nudge
from scheduler.state.states import OPEN_RESERVATION_STATES, WorkloadState
from scheduler.sweeps import dependency_release, reservation_windows, silent_hosts, time_limits
from scheduler.sync.agent_rejections import AgentRejected

if TYPE_CHECKING:
    from benchmarks.simulation.world import SimulatedWorld

T = TypeVar("T")
NUDGE_SECONDS = 0.02
SWEEP_SECONDS = 3.0
TICK_SECONDS = 2.0


@dataclasses.dataclass
class SimulatedEngine:
    """An engine process. It plans, and commits each plan after a delay, which is sometimes long."""

    site: ControlPlane
    number: int
    generation: int = 1
    frozen_until: float = 0.0
    busy: bool = False

    @property
    def holder(self) -> str:
        return f"engine {self.number}, generation {self.generation}"

    def wake(self) -> None:
        """Run one cycle: acquire the lease, plan, and schedule the commit of the plan.

        A nudge or a periodic sweep calls this method.
        """
        timeline = self.site.world.timeline
        if self.busy or timeline.now < self.frozen_until:
            return
        clock = self.site.read()
        now = clock.wall
        self.site.commit(lambda: clock_correction.correct_clock_step(clock))
        epoch = self.site.commit(lambda: leadership.acquire_or_renew(self.holder, now))
        if epoch is None:
            return
        self.site.commit(lambda: dependency_release.release_dependents(now))
        state = dataclasses.replace(snapshot.take_snapshot(None, now), epoch=epoch)
        decisions = plan(state, core_values.epoch_seconds(now))
        for sentence in violations(state, decisions, core_values.epoch_seconds(now)):
            self.site.world.invariants.broken(f"a plan breaks a promise: {sentence}")
        self.busy, generation = True, self.generation
        timeline.after(
            self.site.planning_seconds(), lambda: self._commit(decisions, state, clock, generation)
        )

    def _commit(self, decisions: Plan, state: Snapshot, clock: ClockSample, generation: int) -> None:
        timeline = self.site.world.timeline
        if generation != self.generation:
            return  # the engine was killed before the commit
        if timeline.now < self.frozen_until:
            timeline.after(
                self.frozen_until - timeline.now, lambda: self._commit(decisions, state, clock, generation)
            )
            return
        self.busy = False
        at = clock.wall + timedelta(seconds=timeline.now - clock.uptime)
        try:
            with decide_at(clock):
                applied = self.site.commit(lambda: apply_plan(decisions, state, at))
        except StaleEpoch:
            timeline.record(f"engine {self.number}: its plan is stale")
            return
        except ClockStepped:
            timeline.record(f"engine {self.number}: the clock stepped since its plan")
            self.wake()
            return
        if applied is not None and (applied.accepted or applied.rejected):
            timeline.record(
                f"engine {self.number}: {len(applied.accepted)} accepted, {len(applied.rejected)} not"
            )

    def kill(self) -> None:
        """Kill this engine process. Its pending plan is never committed.

        A new process with the next generation takes its place.
        """
        self.generation, self.busy = self.generation + 1, False


class ControlPlane:
    """The state of the control plane that is not in the database."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.wall_offset = 0.0
        self.edge_is_up = True
        self.hints_arrive = True
        self.answered: dict[str, int] = {}  # sequence of the last handled report, by host
        self.reported: dict[str, int] = {}  # number of the connection with that report, by host
        self.engines = [SimulatedEngine(self, 1), SimulatedEngine(self, 2)]
        self.jobs = 0

    def read(self) -> ClockSample:
        """Read the wall clock and the uptime clock of the control plane."""
        wall = datetime.fromtimestamp(self.world.epoch + self.world.timeline.now + self.wall_offset, UTC)
        return ClockSample(wall, "virtual", self.world.timeline.now)

    def now(self) -> datetime:
        """Return the wall clock time, after correcting stored times for a jump of the clock.

        Request handlers do the same (`config/http/clock_check.py`).
        """
        clock = self.read()
        clock_correction.correct_clock_step(clock)
        return clock.wall

    def begin(self) -> None:
        """Start the ticks, and the sweeps of the engines."""
        self._every(TICK_SECONDS, self.tick)
        for engine in self.engines:
            self._every(SWEEP_SECONDS, engine.wake)

    def _every(self, seconds: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self.world.timeline.after(seconds, again)

        self.world.timeline.after(seconds * self.world.rng.random(), again)

    def commit(self, act: Callable[[], T]) -> T | None:
        """Run one transaction of the server and return its result.

        At random, the transaction fails just before its commit. The result is then None.
        """
        self.world.invariants.stale = True
        if not self.world.is_fault_due(0.01):
            return act()  # ``act`` has its own transactions, as in production
        with transaction.atomic():
            act()
            transaction.set_rollback(True)
        self.world.timeline.record("the database dies before a commit")
        return None

    def planning_seconds(self) -> float:
        """Return a random number of seconds between an engine's snapshot and its commit."""
        return (
            self.world.rng.uniform(0.5, 7)
            if self.world.is_fault_due(0.05)
            else self.world.rng.uniform(0.01, 0.2)
        )

    def tick(self) -> None:
        """Run the periodic tasks of `scheduler/tasks.py` that depend on time."""
        self._task(
            time_limits.stop_after_notice, time_limits.stop_at_time_limits, time_limits.requeue_late_starts
        )
        self._task(silent_hosts.sweep_silent_hosts)
        self._task(reservation_windows.sweep_reservations)

    def _task(self, *parts: Callable[[datetime], object]) -> None:
        """Run a periodic task with the same check of the clock as in production.

        At random, the task is delayed after it has read the clock.
        """
        clock = self.read()
        if self.commit(lambda: (clock_correction.correct_clock_step(clock),)) is None:
            return
        if self.world.is_fault_due(0.1):
            self.world.timeline.after(self.world.rng.uniform(0.01, 3), lambda: self._do(clock, parts))
        else:
            self._do(clock, parts)

    def _do(self, clock: ClockSample, parts: Sequence[Callable[[datetime], object]]) -> None:
        """Run the parts of a task one after another.

        If the commit of a part fails, the remaining parts are skipped.
        """
        try:
            with decide_at(clock):
                for part in parts:
                    if self.commit(lambda part=part: (part(clock.wall),)) is None:  # type: ignore[misc]
                        return
        except ClockStepped:
            self.world.timeline.record("the clock stepped since a tick began")
            self._task(*parts)
            return
        if abs(self.read().stepped_since(clock)) >= CLOCK_STEP_THRESHOLD:
            self._task(*parts)

    # -- edge -------------------------------------------------------------------------------------

    def receive(self, machine: SimulatedHost, connection: int, text: str) -> None:
        """Handle a report that arrives at the edge."""
        if connection != machine.connection or not self.edge_is_up:
            return
        frame = decode(text, FRAMES_UP)
        try:
            desired = self.commit(lambda: self._sync(machine, frame))
        except AgentRejected as refusal:
            refused = encode(Refused(refusal.reason, refusal.retry, refusal.code))
            self.world.network.carry(machine.name, lambda: machine.receive(connection, refused))
            return
        if desired is None:
            machine.disconnect()
            return
        self.answered[machine.name], self.reported[machine.name] = frame.sequence, connection
        self._send(machine, connection, desired)

    def _sync(self, machine: SimulatedHost, frame: Observed) -> Desired:
        return edge.sync(machine.known, [machine.credential], frame, self.read)

    def push(self, machine: SimulatedHost) -> None:
        """Send the desired state to a host without a preceding report."""
        if machine.connection and self.edge_is_up and machine.connection == self.reported.get(machine.name):
            desired = self.commit(lambda: edge.desired_state(machine.known, [machine.credential], self.read))
            if desired is not None:
                self._send(machine, machine.connection, desired)

    def _send(self, machine: SimulatedHost, connection: int, desired: Desired) -> None:
        frame = encode(dataclasses.replace(desired, answers=self.answered[machine.name]))
        self.world.network.carry(machine.name, lambda: machine.receive(connection, frame))

    def lose_edge(self, seconds: float) -> None:
        """Kill the edge, which breaks all connections.

        It is restarted after ``seconds``.
        """
        self.edge_is_up = False
        for machine in self.world.machines:
            machine.disconnect()

        def back() -> None:
            self.edge_is_up = True

        self.world.timeline.after(seconds, back)

    # -- hints ------------------------------------------------------------------------------------

    def _nudge_engine(self) -> None:
        if self.hints_arrive and not self.world.is_fault_due(0.1):
            self.world.timeline.after(NUDGE_SECONDS, self.world.rng.choice(self.engines).wake)

    def _nudge_hosts(self, ids: Iterable[int]) -> None:
        for machine in self.world.machines:
            if machine.host in set(ids) and self.hints_arrive and not self.world.is_fault_due(0.1):
                self.world.timeline.after(NUDGE_SECONDS, partial(self.push, machine))

    @contextlib.contextmanager
    def hints(self) -> Iterator[None]:
        """Deliver hints in virtual time instead of over Redis.

        A hint tells an engine or a host to act at once. Here a hint is sent before its transaction commits.
        """
        with (
            mock.patch.object(nudge, "engine", self._nudge_engine),
            mock.patch.object(nudge, "hosts", lambda ids: self._nudge_hosts(list(ids))),
            mock.patch.object(nudge, "pages", lambda *topics: None),
        ):
            yield

    # -- users ------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Submit a job of a random user."""
        rng = self.world.rng
        self.jobs += 1
        name = f"job {self.jobs}"
        self.world.habits[name] = JobHabits(
            runs=rng.choice((2.0, 8.0, 20.0, 60.0, 600.0)),
            exit_code=rng.choice((0, 0, 0, 1)),
            saves_after=rng.choice((0.5, 2.0, None)),
            leaves_after=rng.choice((0.2, 2.0, None)),
        )
        hosts = 2 if rng.random() < 0.2 else 1
        columns: dict[str, Any] = {
            "units": rng.choice((1, 1, 2, 4)),
            "hosts": hosts,
            "preemptible": rng.random() < 0.7,
            "priority": rng.choice((Priority.NORMAL, Priority.NORMAL, Priority.HIGH)),
            "most_retries": rng.choice((0, 1)),
            "max_runtime_seconds": rng.choice((30, 60, 600)),
        }
        team_index = rng.randrange(len(self.world.projects))
        workload = self.commit(
            lambda: services.queue_workload(
                WorkloadRequest(
                    kind="job",
                    type="training",
                    name=name,
                    command=name,
                    pool=self.world.pool,
                    project=self.world.projects[team_index],
                    models_wanted=(self.world.model,),
                    **columns,
                ),
                owner=self.world.owners[team_index],
                now=self.now(),
            )
        )
        if workload is not None:
            self.world.invariants.accepted.append(workload.pk)
        self.world.timeline.record(f"{name}: {hosts} x {columns['units']}")

    def cancel(self) -> None:
        """Cancel a random workload that has not ended."""
        workloads = list(Workload.objects.exclude(state=WorkloadState.ENDED).order_by("pk"))
        if workloads:
            workload = self.world.rng.choice(workloads)
            self.world.timeline.record(f"{workload.name}: cancelled while {workload.state}")
            self.commit(lambda: services.cancel_workload(workload, now=self.now()))

    def reserve(self) -> None:
        """Reserve GPUs for 40 s, starting in 5 or 20 s."""
        rng, world = self.world.rng, self.world
        start = (self.now() + timedelta(seconds=rng.choice((5, 20)))).replace(microsecond=0)
        team_index = rng.randrange(len(world.projects))
        result = self.commit(
            lambda: services.confirm_reservation(
                owner=world.owners[team_index],
                project=world.projects[team_index],
                pool=world.pool,
                name="a window",
                start=start,
                end=start + timedelta(seconds=40),
                now=self.now(),
                units=rng.choice((1, 4)),
                models_wanted=[world.model],
            )
        )
        if result is not None and result[0] is not None:
            world.timeline.record("a reservation is confirmed")

    def close_or_open_a_host(self) -> None:
        """Cordon, drain or reopen a random host."""
        machine = self.world.rng.choice(self.world.machines)
        host = Host.objects.get(pk=machine.host)
        verb = self.world.rng.choice((services.cordon_host, services.drain_host, None, None))
        if verb is None:
            self.commit(lambda: services.return_host(host, now=self.now()))
        else:
            self.commit(lambda: verb(host, reason="a broken fan", now=self.now()))
        self.world.timeline.record(f"{machine.name}: {verb.__name__ if verb else 'opened'}")

    def release_everything(self) -> None:
        """Cancel all reservations and workloads, and reopen all hosts."""
        for reservation in Reservation.objects.filter(state__in=OPEN_RESERVATION_STATES).order_by("pk"):
            services.cancel_reservation(reservation, now=self.now())
        for workload in Workload.objects.exclude(state=WorkloadState.ENDED).order_by("pk"):
            services.cancel_workload(workload, now=self.now())
        for host in Host.objects.order_by("pk"):
            services.return_host(host, now=self.now())
