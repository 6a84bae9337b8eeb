"""The control plane in virtual time: the edge, two engines, the ticks and the people, over real PostgreSQL."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
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
from scheduler.state import nudge
from scheduler.state.states import OPEN_RESERVATION_STATES, WorkloadState
from scheduler.sweeps import dependency_release, reservation_windows, silent_hosts, time_limits

if TYPE_CHECKING:
    from benchmarks.simulation.world import SimulatedWorld

T = TypeVar("T")
NUDGE_SECONDS = 0.02
SWEEP_SECONDS = 3.0
TICK_SECONDS = 2.0


@dataclasses.dataclass
class SimulatedEngine:
    """One process that decides. It plans at one moment and commits at another, which may be long after."""

    site: ControlPlane
    number: int
    lives: int = 1
    frozen_until: float = 0.0
    busy: bool = False

    @property
    def holder(self) -> str:
        return f"engine {self.number}, life {self.lives}"

    def wake(self) -> None:
        """A nudge or the sweep."""
        timeline = self.site.world.timeline
        if self.busy or timeline.now < self.frozen_until:
            return
        moment = self.site.read()
        now = moment.wall
        self.site.commit(lambda: clock_correction.correct_clock_step(moment))
        epoch = self.site.commit(lambda: leadership.acquire_or_renew(self.holder, now))
        if epoch is None:
            return
        self.site.commit(lambda: dependency_release.release_dependents(now))
        taken = dataclasses.replace(snapshot.take_snapshot(None, now), epoch=epoch)
        planned = plan(taken, core_values.epoch_seconds(now))
        for sentence in violations(taken, planned, core_values.epoch_seconds(now)):
            self.site.world.promises.broken(f"a plan breaks a promise: {sentence}")
        self.busy, life = True, self.lives
        timeline.after(self.site.thinking(), lambda: self._commit(planned, taken, moment, life))

    def _commit(self, planned: Plan, taken: Snapshot, moment: ClockSample, life: int) -> None:
        timeline = self.site.world.timeline
        if life != self.lives:
            return  # it was killed meanwhile
        if timeline.now < self.frozen_until:
            timeline.after(
                self.frozen_until - timeline.now, lambda: self._commit(planned, taken, moment, life)
            )
            return
        self.busy = False
        at = moment.wall + timedelta(seconds=timeline.now - moment.uptime)
        try:
            with decide_at(moment):
                applied = self.site.commit(lambda: apply_plan(planned, taken, at))
        except StaleEpoch:
            timeline.tell(f"engine {self.number}: its plan comes too late")
            return
        except ClockStepped:
            timeline.tell(f"engine {self.number}: its plan is of another time")
            self.wake()
            return
        if applied is not None and (applied.accepted or applied.rejected):
            timeline.tell(
                f"engine {self.number}: {len(applied.accepted)} accepted, {len(applied.rejected)} not"
            )

    def kill(self) -> None:
        """What it planned is gone; another process takes its place."""
        self.lives, self.busy = self.lives + 1, False


class ControlPlane:
    """Everything of the control plane that is not a row."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.wall_offset = 0.0
        self.edge_is_up = True
        self.hints_arrive = True
        self.answered: dict[str, int] = {}  # per host, the report handled last
        self.reported: dict[str, int] = {}  # and the connection on which that was
        self.engines = [SimulatedEngine(self, 1), SimulatedEngine(self, 2)]
        self.jobs = 0

    def read(self) -> ClockSample:
        """Both clocks of the control plane."""
        wall = datetime.fromtimestamp(self.world.epoch + self.world.timeline.now + self.wall_offset, UTC)
        return ClockSample(wall, "virtual", self.world.timeline.now)

    def now(self) -> datetime:
        """As whoever asks for it has it looked at before (`config/http/clock_check.py`)."""
        moment = self.read()
        clock_correction.correct_clock_step(moment)
        return moment.wall

    def begin(self) -> None:
        """The ticks and sweeps begin."""
        self._every(TICK_SECONDS, self.tick)
        for engine in self.engines:
            self._every(SWEEP_SECONDS, engine.wake)

    def _every(self, seconds: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self.world.timeline.after(seconds, again)

        self.world.timeline.after(seconds * self.world.rng.random(), again)

    def commit(self, act: Callable[[], T]) -> T | None:
        """One transaction of the server. Now and then the database is killed just before the commit: then nothing was."""
        self.world.promises.stale = True
        if not self.world.unlucky(0.01):
            return act()  # it keeps its own transactions, as everywhere
        with transaction.atomic():
            act()
            transaction.set_rollback(True)
        self.world.timeline.tell("the database goes away before a commit")
        return None

    def thinking(self) -> float:
        """How long an engine takes from its snapshot to its commit."""
        return (
            self.world.rng.uniform(0.5, 7) if self.world.unlucky(0.05) else self.world.rng.uniform(0.01, 0.2)
        )

    def tick(self) -> None:
        """What time alone brings about: each task of `scheduler/tasks.py`."""
        self._task(
            time_limits.stop_after_notice, time_limits.stop_at_time_limits, time_limits.requeue_late_starts
        )
        self._task(silent_hosts.sweep_silent_hosts)
        self._task(reservation_windows.sweep_reservations)

    def _task(self, *parts: Callable[[datetime], object]) -> None:
        """One task, as `wall_clock.steadily` does it. Now and then its process stands still after it has looked at the clock."""
        moment = self.read()
        if self.commit(lambda: (clock_correction.correct_clock_step(moment),)) is None:
            return
        if self.world.unlucky(0.1):
            self.world.timeline.after(self.world.rng.uniform(0.01, 3), lambda: self._do(moment, parts))
        else:
            self._do(moment, parts)

    def _do(self, moment: ClockSample, parts: Sequence[Callable[[datetime], object]]) -> None:
        """Where the database goes away, what would come after is not done either."""
        try:
            with decide_at(moment):
                for part in parts:
                    if self.commit(lambda part=part: (part(moment.wall),)) is None:  # type: ignore[misc]
                        return
        except ClockStepped:
            self.world.timeline.tell("a tick is of another time")
            self._task(*parts)
            return
        if abs(self.read().stepped_since(moment)) >= CLOCK_STEP_THRESHOLD:
            self._task(*parts)

    # -- the edge ------------------------------------------------------------------------------------------------------------

    def receive(self, machine: SimulatedHost, connection: int, text: str) -> None:
        """A report arrives."""
        if connection != machine.connection or not self.edge_is_up:
            return
        frame = decode(text, FRAMES_UP)
        try:
            desired = self.commit(lambda: self._sync(machine, frame))
        except edge.AgentConnectionRefused as no:
            refused = encode(Refused(str(no), no.retry))
            self.world.network.carry(machine.name, lambda: machine.hear(connection, refused))
            return
        if desired is None:
            machine.disconnect()
            return
        self.answered[machine.name], self.reported[machine.name] = frame.sequence, connection
        self._send(machine, connection, desired)

    def _sync(self, machine: SimulatedHost, frame: Observed) -> Desired:
        return edge.sync(machine.known, [machine.credential], frame, self.read)

    def push(self, machine: SimulatedHost) -> None:
        """Its desired state has changed without a report."""
        if machine.connection and self.edge_is_up and machine.connection == self.reported.get(machine.name):
            desired = self.commit(lambda: edge.desired_state(machine.known, [machine.credential], self.read))
            if desired is not None:
                self._send(machine, machine.connection, desired)

    def _send(self, machine: SimulatedHost, connection: int, desired: Desired) -> None:
        frame = encode(dataclasses.replace(desired, answers=self.answered[machine.name]))
        self.world.network.carry(machine.name, lambda: machine.hear(connection, frame))

    def lose_edge(self, seconds: float) -> None:
        """The edge is killed and started again: every line breaks."""
        self.edge_is_up = False
        for machine in self.world.machines:
            machine.disconnect()

        def back() -> None:
            self.edge_is_up = True

        self.world.timeline.after(seconds, back)

    # -- hints ---------------------------------------------------------------------------------------------------------------

    def _nudge_engine(self) -> None:
        if self.hints_arrive and not self.world.unlucky(0.1):
            self.world.timeline.after(NUDGE_SECONDS, self.world.rng.choice(self.engines).wake)

    def _nudge_hosts(self, ids: Iterable[int]) -> None:
        for machine in self.world.machines:
            if machine.host in set(ids) and self.hints_arrive and not self.world.unlucky(0.1):
                self.world.timeline.after(NUDGE_SECONDS, lambda machine=machine: self.push(machine))  # type: ignore[misc]

    @contextlib.contextmanager
    def hints(self) -> Iterator[None]:
        """Within it, hints go through virtual time instead of Redis. One that is sent before its commit is only early."""
        with (
            mock.patch.object(nudge, "engine", self._nudge_engine),
            mock.patch.object(nudge, "hosts", lambda ids: self._nudge_hosts(list(ids))),
            mock.patch.object(nudge, "pages", lambda *topics: None),
        ):
            yield

    # -- people --------------------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Somebody asks for something."""
        rng = self.world.rng
        self.jobs += 1
        words = f"job {self.jobs}"
        self.world.habits[words] = JobHabits(
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
        whose = rng.randrange(len(self.world.projects))
        workload = self.commit(
            lambda: services.queue_workload(
                kind="job",
                type="training",
                name=words,
                command=words,
                pool=self.world.pool,
                now=self.now(),
                project=self.world.projects[whose],
                owner=self.world.owners[whose],
                models_wanted=[self.world.model],
                **columns,
            )
        )
        if workload is not None:
            self.world.promises.accepted.append(workload.pk)
        self.world.timeline.tell(f"{words}: {hosts} x {columns['units']}")

    def cancel(self) -> None:
        """An owner changes their mind."""
        found = list(Workload.objects.exclude(state=WorkloadState.ENDED).order_by("pk"))
        if found:
            chosen = self.world.rng.choice(found)
            self.world.timeline.tell(f"{chosen.name}: cancelled while {chosen.state}")
            self.commit(lambda: services.cancel_workload(chosen, now=self.now()))

    def reserve(self) -> None:
        """Somebody wants GPUs soon, for a while."""
        rng, world = self.world.rng, self.world
        start = (self.now() + timedelta(seconds=rng.choice((5, 20)))).replace(microsecond=0)
        whose = rng.randrange(len(world.projects))
        answer = self.commit(
            lambda: services.confirm_reservation(
                owner=world.owners[whose],
                project=world.projects[whose],
                pool=world.pool,
                name="a window",
                start=start,
                end=start + timedelta(seconds=40),
                now=self.now(),
                units=rng.choice((1, 4)),
                models_wanted=[world.model],
            )
        )
        if answer is not None and answer[0] is not None:
            world.timeline.tell("a reservation is promised")

    def close_or_open_a_host(self) -> None:
        """An operator at work."""
        machine = self.world.rng.choice(self.world.machines)
        host = Host.objects.get(pk=machine.host)
        verb = self.world.rng.choice((services.cordon_host, services.drain_host, None, None))
        if verb is None:
            self.commit(lambda: services.return_host(host, now=self.now()))
        else:
            self.commit(lambda: verb(host, reason="a fan", now=self.now()))
        self.world.timeline.tell(f"{machine.name}: {verb.__name__ if verb else 'opened'}")

    def give_everything_back(self) -> None:
        """All is cancelled, every host is open."""
        for reservation in Reservation.objects.filter(state__in=OPEN_RESERVATION_STATES).order_by("pk"):
            services.cancel_reservation(reservation, now=self.now())
        for workload in Workload.objects.exclude(state=WorkloadState.ENDED).order_by("pk"):
            services.cancel_workload(workload, now=self.now())
        for host in Host.objects.order_by("pk"):
            services.return_host(host, now=self.now())
