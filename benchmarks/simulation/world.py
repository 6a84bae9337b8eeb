"""Run the simulation of one seed: hosts, control plane, users and faults."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import tempfile
import traceback
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from django.contrib.auth import get_user_model
from django.db import DatabaseError, connection, transaction

from benchmarks.simulation.control_plane import ControlPlane
from benchmarks.simulation.invariants import InvariantChecker
from benchmarks.simulation.simulated_host import JobHabits, SimulatedHost, simulated_machines
from benchmarks.simulation.virtual_time import NetworkConditions, SimulatedNetwork, VirtualTimeline
from scheduler import services
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Host, Leader, Pool, Project, Quota, Team
from scheduler.state.states import IllegalTransition

T = TypeVar("T")
START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
MODEL = "H100-80GB"
HOSTS, GPUS_PER_HOST, TEAMS = 4, 4, 3
FAULTY_SECONDS = 45.0
# Enough time for a lease and its grace to end, for a reboot, and for a missing run to be declared lost.
CALM_SECONDS = 40.0
EMPTY_SECONDS = 25.0
# These exceptions of the server's or an agent's code also count as violations.
PROGRAM_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    DatabaseError,
    IllegalTransition,
)


class StopSimulation(Exception):
    """Raised to end a simulation early because ``should_stop`` returned True."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of one seed."""

    seed: int
    steps: int
    digest: str
    violations: list[str]
    story: list[str]


Watch = Callable[["SimulatedWorld"], bool]


class SimulatedWorld:
    """The whole state of a simulation, and its only source of random numbers."""

    def __init__(self, seed: int, folder: Path, loop: asyncio.AbstractEventLoop, should_stop: Watch) -> None:
        self.seed, self.loop, self.should_stop = seed, loop, should_stop
        self.rng = random.Random(seed)
        self.epoch = START.timestamp()
        self.timeline = VirtualTimeline()
        self.network = SimulatedNetwork(self.timeline, self.rng, NetworkConditions())
        self.habits: dict[str, JobHabits] = {}
        self.homes = folder / "homes"
        self.homes.mkdir()
        self.current_host: SimulatedHost | None = None
        self.faults_disabled = False
        self.model = MODEL
        self.invariants = InvariantChecker(self)
        self.site = ControlPlane(self)
        self.machines = [
            SimulatedHost(self, f"host-{number}", [MODEL] * GPUS_PER_HOST, {}, folder / f"host-{number}")
            for number in range(1, HOSTS + 1)
        ]

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the agent to its end. No virtual time passes."""
        return self.loop.run_until_complete(coroutine)

    def is_fault_due(self, share: float) -> bool:
        """Return True with probability ``share`` while faults are enabled."""
        return self.rng.random() < share and not self.faults_disabled

    # -- phases -----------------------------------------------------------------------------------

    def live(self) -> SimulationResult:
        """Run the whole simulation in a database transaction that is rolled back at the end."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_rolled_back())
            stack.enter_context(simulated_machines(self))
            stack.enter_context(self.site.hints())
            stack.enter_context(mock.patch.object(os, "urandom", self.rng.randbytes))
            try:
                self._create_rows()
                with contextlib.suppress(StopSimulation):
                    self._run_phases()
            except PROGRAM_ERRORS:
                self.invariants.broken(f"the code raised an exception: {traceback.format_exc(limit=-6)}")
            finally:
                for machine in self.machines:
                    machine.switch_off()
        timeline = self.timeline
        return SimulationResult(
            self.seed, timeline.steps, timeline.digest, self.invariants.found, timeline.story
        )

    def _create_rows(self) -> None:
        Leader.objects.get_or_create(pk=1)
        self.pool = Pool.objects.create(
            slug="simulated",
            name="Simulated",
            kind="dynamic",
            created_at=START,
            notice_seconds=5,
            grace_seconds=4,
            minimum_runtime_seconds=0,
            no_show_seconds=20,
        )
        self.projects, self.owners = [], []
        for number in range(TEAMS):
            team = Team.objects.create(
                slug=f"v{number}", name=f"Virtual {number}", tag=f"V{number}", created_at=START
            )
            self.projects.append(
                Project.objects.create(team=team, slug="main", name="Main", created_at=START)
            )
            self.owners.append(get_user_model().objects.create(username=f"virtual-{number}"))
            guaranteed = (6, 4, 2)[number] * SLOTS_PER_GPU
            Quota.objects.create(
                team=team, pool=self.pool, model=MODEL, guaranteed_slots=guaranteed, updated_at=START
            )
        for machine in self.machines:
            host = services.add_host(pool=self.pool, name=machine.name, now=START)
            machine.host = host.pk
            machine.start_agent()
            assert machine.agent is not None
            with machine.inside():
                instance = machine.agent.state.identity.instance
            Host.objects.filter(pk=host.pk).update(
                credential_hash=hashlib.sha256(machine.credential.encode()).hexdigest(),
                agent_instance=instance,
                boot_id=machine.boot_id,
                credential_expires_at=START + timedelta(days=30),
            )
        self.site.begin()

    def _run_phases(self) -> None:
        timeline = self.timeline
        self._plan_users()
        self._plan_faults()
        timeline.run(FAULTY_SECONDS, self._check)
        self._calm_down()
        timeline.run(timeline.now + CALM_SECONDS, self._check)
        self.site.release_everything()
        deadline = timeline.now + EMPTY_SECONDS
        # The simulation can end as soon as nothing remains, because nothing new can start.
        while timeline.now < deadline and any(self.invariants.left()):
            timeline.run(timeline.now + 1.0, self._check)
        self.invariants.check_final()

    def _check(self) -> None:
        self.invariants.check()
        if self.should_stop(self):
            raise StopSimulation

    def _plan_users(self) -> None:
        for _ in range(6):
            self.timeline.after(self.rng.uniform(1, 4), self.site.submit)
        for _ in range(14):
            self._at_random_time(self.site.submit)
        for _ in range(3):
            self._at_random_time(self.site.cancel)
        self._at_random_time(self.site.reserve)
        for _ in range(2):
            self._at_random_time(self.site.close_or_open_a_host)

    def _at_random_time(self, act: Callable[[], None]) -> None:
        self.timeline.after(self.rng.uniform(3, FAULTY_SECONDS), act)

    # -- faults -----------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        faults = (
            self.cut_a_host,
            self.cut_most_hosts,
            self.kill_an_agent,
            self.kill_an_agent,
            self.kill_a_shim,
            self.reboot,
            self.kill_an_engine,
            self.freeze_an_engine,
            self.change_a_hosts_clock,
            self.lose_hints,
            self.lose_the_edge,
            self.fill_a_disk,
            self.change_the_servers_clock,
        )
        for _ in range(self.rng.randrange(2, 9)):
            self._at_random_time(self.rng.choice(faults))

    def _random_host(self) -> SimulatedHost:
        return self.rng.choice(self.machines)

    def cut_a_host(self) -> None:
        """Cut off a host for a time that is shorter or longer than its lease."""
        self._cut([self._random_host()], self.rng.choice((1.0, 5.0, 15.0, 40.0)))

    def cut_most_hosts(self) -> None:
        """Cut off all hosts but one, as a fault of the control plane's network would."""
        self._cut(self.machines[1:], self.rng.choice((5.0, 25.0)))

    def _cut(self, machines: list[SimulatedHost], seconds: float) -> None:
        names = {machine.name for machine in machines}
        self.timeline.record(f"{', '.join(sorted(names))}: cut off for {seconds:g} s")
        self.network.cut |= names
        for machine in machines:
            machine.disconnect()

        def mend() -> None:
            self.network.cut -= names

        self.timeline.after(seconds, mend)

    def kill_an_agent(self) -> None:
        """Kill an agent before or after one of its next writes. It is restarted later."""
        machine = self._random_host()
        machine.writes_until_kill = self.rng.randrange(1, 12)
        self.timeline.record(f"{machine.name}: its agent has {machine.writes_until_kill} writes to live")
        self._restart_agent_later(machine)

    def _restart_agent_later(self, machine: SimulatedHost) -> None:
        def again() -> None:
            machine.start_agent()
            if self.timeline.now < FAULTY_SECONDS:
                self.timeline.after(2.0, again)

        self.timeline.after(self.rng.uniform(0.5, 20), again)

    def kill_a_shim(self) -> None:
        """Kill a shim. Its workload keeps running without it."""
        shims = [shim for machine in self.machines for shim in machine.living if shim.shim_alive]
        if shims:
            shim = self.rng.choice(shims)
            self.timeline.record(f"{shim.machine.name}: the shim of {shim.wanted.command} is killed")
            shim.lose_shim()

    def reboot(self) -> None:
        """Reboot a host."""
        machine = self._random_host()
        self.timeline.record(f"{machine.name}: reboots")
        machine.reboot()

    def kill_an_engine(self) -> None:
        """Kill an engine. A plan that it has not committed is lost."""
        engine = self.rng.choice(self.site.engines)
        self.timeline.record(f"engine {engine.number}: killed")
        engine.kill()

    def freeze_an_engine(self) -> None:
        """Freeze an engine for 3 or 10 s, so that the other engine may take over.

        Afterwards it continues with its old plan.
        """
        engine = self.rng.choice(self.site.engines)
        engine.frozen_until = self.timeline.now + self.rng.choice((3.0, 10.0))
        self.timeline.record(f"engine {engine.number}: frozen until {engine.frozen_until:.1f}")

    def change_a_hosts_clock(self) -> None:
        """Move a host's clock by an hour, forwards or back."""
        machine = self._random_host()
        machine.wall_offset += self.rng.choice((-3600.0, 3600.0))
        self.timeline.record(f"{machine.name}: its clock is {machine.wall_offset:g} s off")

    def change_the_servers_clock(self) -> None:
        """Move the clock of the whole control plane by an hour, forwards or back."""
        self.site.wall_offset += self.rng.choice((-3600.0, 3600.0))
        self.timeline.record(f"the server's clock is {self.site.wall_offset:g} s off")

    def lose_hints(self) -> None:
        """Lose all hints for 15 s, as if Redis were down.

        Engines and hosts then act only at their periodic sweeps and polls.
        """
        self.site.hints_arrive = False

        def back() -> None:
            self.site.hints_arrive = True

        self.timeline.record("no hints")
        self.timeline.after(15.0, back)

    def lose_the_edge(self) -> None:
        """Kill the edge and restart it."""
        self.timeline.record("the edge is killed")
        self.site.lose_edge(self.rng.uniform(0.5, 5))

    def fill_a_disk(self) -> None:
        """Fill a host's disk for 10 s. Nothing new can start there meanwhile."""
        machine = self._random_host()
        machine.disk_is_full = True

        def free() -> None:
            machine.disk_is_full = False

        self.timeline.record(f"{machine.name}: its disk is full")
        self.timeline.after(10.0, free)

    def _calm_down(self) -> None:
        """End all faults and prevent new ones."""
        self.timeline.record("calm")
        self.faults_disabled = self.network.calm = True
        self.network.cut.clear()
        self.site.hints_arrive = self.site.edge_is_up = True
        for machine in self.machines:
            machine.disk_is_full, machine.writes_until_kill = False, 0
            machine.start_agent()


@contextlib.contextmanager
def _rolled_back() -> Iterator[None]:
    with transaction.atomic():
        with connection.cursor() as cursor:  # on a busy machine, the transaction may be idle for a long time
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield
        transaction.set_rollback(True)


def never_stop(_: SimulatedWorld) -> bool:
    """Return False, so that the simulation is not ended early."""
    return False


def run_simulation(seed: int, should_stop: Watch = never_stop) -> SimulationResult:
    """Run the simulation of one seed.

    It ends early after the step at which ``should_stop`` returns True. The database of the environment is
    left unchanged.
    """
    memory = Path("/dev/shm")
    loop = asyncio.new_event_loop()
    try:
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            return SimulatedWorld(seed, Path(folder), loop, should_stop).live()
    finally:
        loop.close()
