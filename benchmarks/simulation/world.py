"""One course of the world, from one seed: hosts, control plane, people, and what goes wrong."""

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
CALM_SECONDS = 40.0  # more than a lease, the grace and the margin, a reboot, and a run that is missed
EMPTY_SECONDS = 25.0
# What a program of the server or of a host falls over with: that too is found, and not only what it leaves behind.
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
    """Whoever watches has seen what they wanted to see."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What became of one seed."""

    seed: int
    steps: int
    digest: str
    violations: list[str]
    story: list[str]


Watch = Callable[["SimulatedWorld"], bool]


class SimulatedWorld:
    """Everything that is, and the one source of chance."""

    def __init__(self, seed: int, folder: Path, loop: asyncio.AbstractEventLoop, enough: Watch) -> None:
        self.seed, self.loop, self.enough = seed, loop, enough
        self.rng = random.Random(seed)
        self.epoch = START.timestamp()
        self.timeline = VirtualTimeline()
        self.network = SimulatedNetwork(self.timeline, self.rng, NetworkConditions())
        self.habits: dict[str, JobHabits] = {}
        self.homes = folder / "homes"
        self.homes.mkdir()
        self.here: SimulatedHost | None = None
        self.lucky = False
        self.model = MODEL
        self.promises = InvariantChecker(self)
        self.site = ControlPlane(self)
        self.machines = [
            SimulatedHost(self, f"host-{number}", [MODEL] * GPUS_PER_HOST, {}, folder / f"host-{number}")
            for number in range(1, HOSTS + 1)
        ]

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Let the agent's coroutine run to its end: no virtual time passes."""
        return self.loop.run_until_complete(coroutine)

    def unlucky(self, share: float) -> bool:
        """Does something go wrong that does so in this share of cases?"""
        return self.rng.random() < share and not self.lucky

    # -- the course ----------------------------------------------------------------------------------------------------------

    def live(self) -> SimulationResult:
        """All of it, in a transaction that is rolled back."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_rolled_back())
            stack.enter_context(simulated_machines(self))
            stack.enter_context(self.site.hints())
            stack.enter_context(mock.patch.object(os, "urandom", self.rng.randbytes))
            try:
                self._settle_in()
                with contextlib.suppress(StopSimulation):
                    self._course()
            except PROGRAM_ERRORS:
                self.promises.broken(f"it fell over: {traceback.format_exc(limit=-6)}")
            finally:
                for machine in self.machines:
                    machine.switch_off()
        timeline = self.timeline
        return SimulationResult(
            self.seed, timeline.steps, timeline.digest, self.promises.found, timeline.story
        )

    def _settle_in(self) -> None:
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

    def _course(self) -> None:
        timeline = self.timeline
        self._plan_people()
        self._plan_trouble()
        timeline.run(FAULTY_SECONDS, self._look)
        self._calm_down()
        timeline.run(timeline.now + CALM_SECONDS, self._look)
        self.site.give_everything_back()
        over = timeline.now + EMPTY_SECONDS
        while timeline.now < over and any(
            self.promises.left()
        ):  # once nothing is left, nothing can come any more
            timeline.run(timeline.now + 1.0, self._look)
        self.promises.check_final()

    def _look(self) -> None:
        self.promises.look()
        if self.enough(self):
            raise StopSimulation

    def _plan_people(self) -> None:
        for _ in range(6):
            self.timeline.after(self.rng.uniform(1, 4), self.site.submit)
        for _ in range(14):
            self._sometime(self.site.submit)
        for _ in range(3):
            self._sometime(self.site.cancel)
        self._sometime(self.site.reserve)
        for _ in range(2):
            self._sometime(self.site.close_or_open_a_host)

    def _sometime(self, act: Callable[[], None]) -> None:
        self.timeline.after(self.rng.uniform(3, FAULTY_SECONDS), act)

    # -- trouble -------------------------------------------------------------------------------------------------------------

    def _plan_trouble(self) -> None:
        troubles = (
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
            self._sometime(self.rng.choice(troubles))

    def _one(self) -> SimulatedHost:
        return self.rng.choice(self.machines)

    def cut_a_host(self) -> None:
        """Nobody reaches it for a moment, or for longer than its lease."""
        self._cut([self._one()], self.rng.choice((1.0, 5.0, 15.0, 40.0)))

    def cut_most_hosts(self) -> None:
        """The control plane's fault, most likely."""
        self._cut(self.machines[1:], self.rng.choice((5.0, 25.0)))

    def _cut(self, machines: list[SimulatedHost], seconds: float) -> None:
        names = {machine.name for machine in machines}
        self.timeline.tell(f"{', '.join(sorted(names))}: cut off for {seconds:g} s")
        self.network.cut |= names
        for machine in machines:
            machine.disconnect()

        def mend() -> None:
            self.network.cut -= names

        self.timeline.after(seconds, mend)

    def kill_an_agent(self) -> None:
        """Between two of its next writes; whoever keeps it starts it again."""
        machine = self._one()
        machine.doom = self.rng.randrange(1, 12)
        self.timeline.tell(f"{machine.name}: its agent has {machine.doom} writes to live")
        self._bring_back(machine)

    def _bring_back(self, machine: SimulatedHost) -> None:
        def again() -> None:
            machine.start_agent()
            if self.timeline.now < FAULTY_SECONDS:
                self.timeline.after(2.0, again)

        self.timeline.after(self.rng.uniform(0.5, 20), again)

    def kill_a_shim(self) -> None:
        """What it kept goes on without it."""
        found = [shim for machine in self.machines for shim in machine.living if shim.kept]
        if found:
            shim = self.rng.choice(found)
            self.timeline.tell(f"{shim.machine.name}: the shim of {shim.wanted.command} is killed")
            shim.lose_keeper()

    def reboot(self) -> None:
        """Power off and on."""
        machine = self._one()
        self.timeline.tell(f"{machine.name}: reboots")
        machine.reboot()

    def kill_an_engine(self) -> None:
        """With a plan in its hands, if it has one."""
        engine = self.rng.choice(self.site.engines)
        self.timeline.tell(f"engine {engine.number}: killed")
        engine.kill()

    def freeze_an_engine(self) -> None:
        """SIGSTOP for longer than a takeover takes; then it goes on as if nothing had been."""
        engine = self.rng.choice(self.site.engines)
        engine.frozen_until = self.timeline.now + self.rng.choice((3.0, 10.0))
        self.timeline.tell(f"engine {engine.number}: frozen until {engine.frozen_until:.1f}")

    def change_a_hosts_clock(self) -> None:
        """An hour, forwards or back."""
        machine = self._one()
        machine.wall_offset += self.rng.choice((-3600.0, 3600.0))
        self.timeline.tell(f"{machine.name}: its clock is {machine.wall_offset:g} s off")

    def change_the_servers_clock(self) -> None:
        """An hour, forwards or back, for all of the control plane at once."""
        self.site.wall_offset += self.rng.choice((-3600.0, 3600.0))
        self.timeline.tell(f"the server's clock is {self.site.wall_offset:g} s off")

    def lose_hints(self) -> None:
        """Redis is away: only sweeps and polls are left."""
        self.site.hints_arrive = False

        def back() -> None:
            self.site.hints_arrive = True

        self.timeline.tell("no hints")
        self.timeline.after(15.0, back)

    def lose_the_edge(self) -> None:
        """Killed, and started again."""
        self.timeline.tell("the edge is killed")
        self.site.lose_edge(self.rng.uniform(0.5, 5))

    def fill_a_disk(self) -> None:
        """Nothing new starts there."""
        machine = self._one()
        machine.disk_is_full = True

        def free() -> None:
            machine.disk_is_full = False

        self.timeline.tell(f"{machine.name}: its disk is full")
        self.timeline.after(10.0, free)

    def _calm_down(self) -> None:
        """From now on nothing goes wrong any more."""
        self.timeline.tell("calm")
        self.lucky = self.network.calm = True
        self.network.cut.clear()
        self.site.hints_arrive = self.site.edge_is_up = True
        for machine in self.machines:
            machine.disk_is_full, machine.doom = False, 0
            machine.start_agent()


@contextlib.contextmanager
def _rolled_back() -> Iterator[None]:
    with transaction.atomic():
        with (
            connection.cursor() as cursor
        ):  # all of it is one transaction, and a busy machine may let it wait
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield
        transaction.set_rollback(True)


def never_stop(_: SimulatedWorld) -> bool:
    """Watch all of a course."""
    return False


def run_simulation(seed: int, enough: Watch = never_stop) -> SimulationResult:
    """The course of one seed, up to the step after which ``enough`` says so. The database of the environment is left as it was."""
    memory = Path("/dev/shm")
    loop = asyncio.new_event_loop()
    try:
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            return SimulatedWorld(seed, Path(folder), loop, enough).live()
    finally:
        loop.close()
