"""Simulate a GPU host in virtual time.

The host runs the real agent. Its clocks, its processes and the free space of its disk are simulated.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import agent.daemon
import agent.host.durable_files
import agent.host.offered_environment
import agent.host.state
import agent.host.tool_files
import agent.monitoring
import agent.reconciler
import agent.runs.declared_load
import agent.runs.local_run
import agent.runs.manager
import agent.runs.orphaned_runs
import agent.runs.run_observer
import agent.runs.run_orders
import agent.server.reporting
from agent.daemon import Agent, AgentOptions
from agent.gpu.simulated_reader import SimulatedGpuReader
from agent.host.durable_files import read_json
from agent.host.gpu_locks import HeldLocks
from agent.host.state import StateFolder
from agent.isolation.cgroups import Cgroups
from agent.isolation.launchers import PlainLauncher
from agent.isolation.team_users import RunPlacement
from agent.protocol import FRAMES_DOWN, Desired, EnvironmentSeen, Refused, RunWanted, decode, encode
from agent.runs.local_run import ACKNOWLEDGEMENT_FILE, LocalRun
from agent.runs.manager import RunManager
from agent.runs.orphaned_runs import OrphanedRuns
from agent.shim import lifecycle_rules
from agent.storage.file_trees import Trash
from portal.edge.agents.database_calls import AuthenticatedHost
from scheduler.services.host_credentials import CREDENTIAL_PREFIX

if TYPE_CHECKING:
    from benchmarks.simulation.world import SimulatedWorld

T = TypeVar("T")
RECONCILE_SECONDS = 0.5
SHIM_TICK_SECONDS = 0.25
FIRST_PID = 1 << 30  # larger than all real pids
RETRY_SECONDS = 1.0
PLENTIFUL_BYTES = 1 << 40


class SimulatedKill(BaseException):
    """Raised to simulate a SIGKILL of the agent during any of its steps."""


@dataclass(frozen=True, slots=True)
class JobHabits:
    """The behaviour of a workload: its runtime in seconds and its exit code.

    The workload saves ``saves_after`` seconds after a notice, and exits ``leaves_after`` seconds after a
    stop. None means never.
    """

    runs: float
    exit_code: int = 0
    saves_after: float | None = 1.0
    leaves_after: float | None = 0.5


@dataclass
class SimulatedShim:
    """A simulated shim with its workload.

    ``agent.shim.lifecycle_rules`` decides how the workload ends, as in the real shim.
    """

    machine: SimulatedHost
    run: LocalRun
    wanted: RunWanted
    habits: JobHabits
    pid: int
    locks: list[int]  # file descriptors of the lock files, inherited from the agent
    alive_file: int
    started: float | None = None  # start of the workload, in seconds of the machine's boottime
    shim_alive: bool = True  # True while the shim itself is alive
    workload_alive: bool = True  # True while the workload has processes or may still start
    noticed_at: float | None = None
    saved: bool = False
    cause: str = ""
    stop_outcome: str = ""
    stop_whatever: bool = False
    stop_requested_at: float | None = None
    kill_at: float | None = None
    killed: bool = False
    # The end of the lease as last read from the lease file, in seconds of the machine's boottime. It is 0.0
    # until the file has been read once.
    lease_until: float = 0.0

    def tick(self) -> None:
        """Read the shim's files and clocks once, and act on their contents."""
        if not self.shim_alive:
            return
        now, folder = self.machine.boottime(), self.run.folder
        order = read_json(folder / "order.json") or {}
        self.lease_until = _lease(folder, self.lease_until)
        if self.started is None:
            self.cause = lifecycle_rules.start_blocker(order, now, self.lease_until)
            if self.cause:
                self._end_unstarted((order.get("stop") or {}).get("outcome", ""))
                return
            self.started = now
            self.machine.note_started(self)
            self._write("shim.json", self._about(started_at=self.machine.wall()))
        if order.get("notice") and self.noticed_at is None:
            self.noticed_at = now
        elif not order.get("notice"):
            self.noticed_at = None
        if lifecycle_rules.accepts_stop_order(order, self.cause, self._has_ended(now)):
            self.stop_outcome, self.stop_whatever = order["stop"]["outcome"], order["stop"]["whatever"]
            self._stop("stop", order["stop"]["grace_seconds"])
        self._save(now)
        if not self.cause:
            limit = order.get("max_runtime_seconds", self.wanted.max_runtime_seconds)
            cause = lifecycle_rules.stop_cause(
                now, lifecycle_rules.time_limit_deadline(self.started, limit), self.lease_until
            )
            if cause:
                self._stop(cause, self.wanted.grace_seconds)
        self._leave(now)

    def _has_ended(self, now: float) -> bool:
        """Return True if the workload has reached the end of its runtime."""
        return self.started is not None and now >= self.started + self.habits.runs

    def _end_unstarted(self, stop_outcome: str) -> None:
        self._write("shim.json", self._about())
        self._write_end(lifecycle_rules.outcome_of_unstarted(self.cause, stop_outcome), None)

    def _save(self, now: float) -> None:
        due = self.noticed_at is not None and self.habits.saves_after is not None
        if due and not self.saved and now >= (self.noticed_at or 0.0) + (self.habits.saves_after or 0.0):
            self.saved = True
            acknowledgement = self.machine.checkpoint_of(self.wanted.workload) / ACKNOWLEDGEMENT_FILE
            acknowledgement.touch()
            os.utime(acknowledgement, (self.machine.wall(), self.machine.wall()))

    def _stop(self, cause: str, grace: float) -> None:
        self.cause, self.stop_requested_at = cause, self.machine.boottime()
        self.kill_at = self.machine.boottime() + grace
        self._write("stopping.json", {"cause": cause})

    def _leave(self, now: float) -> None:
        by_itself = self._has_ended(now)
        obeys = self.stop_requested_at is not None and self.habits.leaves_after is not None
        obedient = obeys and now >= (self.stop_requested_at or 0.0) + (self.habits.leaves_after or 0.0)
        self.killed = not (by_itself or obedient) and self.kill_at is not None and now >= self.kill_at
        if by_itself or obedient or self.killed:
            self.end(by_itself)

    def end(self, by_itself: bool) -> None:
        """Record the end of the run after its last process has exited."""
        exit_code = self.habits.exit_code if by_itself else 137 if self.killed else 143
        stop_order, saved = (
            (self.stop_outcome, self.stop_whatever),
            self.noticed_at is not None and self.saved,
        )
        self._write_end(
            lifecycle_rules.outcome_of_exit(
                exit_code, self.cause, stop_order, killed=self.killed, saved=saved, out_of_memory=False
            ),
            exit_code,
        )

    def _write_end(self, outcome: str, code: int | None) -> None:
        ended = {"exit_code": code, "ended_at": self.machine.wall(), "error": "", "killed": self.killed}
        self._write("exit.json", {"outcome": outcome, **ended})
        self.shim_alive = False
        self.vanish()

    def vanish(self) -> None:
        """End the shim and all processes of the workload. This frees their locks."""
        if self.workload_alive:
            self.workload_alive = False
            for descriptor in self.locks:
                os.close(descriptor)
        self.lose_shim()

    def lose_shim(self) -> None:
        """End only the shim. The workload may keep running."""
        self.shim_alive = False
        if self.alive_file >= 0:
            os.close(self.alive_file)
            self.alive_file = -1

    def _about(self, **also: Any) -> dict[str, Any]:
        return {"pid": self.pid, "start_ticks": self.pid, "boot_id": self.machine.boot_id, **also}

    def _write(self, name: str, value: dict[str, Any]) -> None:
        if self.run.folder.exists():
            agent.host.durable_files.write_text(self.run.folder / name, json.dumps(value))


class SimulatedRuns(RunManager):
    """The real run manager with simulated processes."""

    machine: SimulatedHost

    def free_bytes(self) -> int:
        return 0 if self.machine.disk_is_full else PLENTIFUL_BYTES

    async def _spawn(self, run: LocalRun, wanted: RunWanted, held: HeldLocks, place: RunPlacement) -> None:
        alive = os.open(run.folder / "alive", os.O_RDONLY | os.O_CREAT, 0o600)
        fcntl.flock(alive, fcntl.LOCK_EX)
        self.machine.spawn(run, wanted, [os.dup(each) for each in held.descriptors], alive)

    def _order(self, run: LocalRun, **fields: Any) -> None:
        agent.host.durable_files.write_json(
            run.folder / "order.json", {**(read_json(run.folder / "order.json") or {}), **fields}
        )

    def call_homes(self, call: Callable[[], T], seconds: float = 0.0) -> T:
        return call()  # not in a thread, because threads run outside virtual time

    async def in_thread(self, call: Callable[[], T]) -> T:
        return call()


class SimulatedOrphanedRuns(OrphanedRuns):
    """The real search for orphaned runs, among the simulated processes."""

    machine: SimulatedHost

    def _kill_rest(self, run: LocalRun) -> bool:
        shims = [
            shim
            for shim in self.machine.shims
            if shim.run.about["mark"] == run.about["mark"] and shim.workload_alive
        ]
        for shim in shims:
            shim.vanish()
        return bool(shims)


@dataclass
class SimulatedHost:
    """One simulated host. ``name`` is also the name of its database row."""

    world: SimulatedWorld
    name: str
    models: list[str]
    slices: dict[int, list[str]]
    folder: Path
    host: int = 0  # id of its database row
    boots: int = 1
    booted_at: float = 0.0
    wall_offset: float = 0.0
    disk_is_full: bool = False
    writes_until_kill: int = 0  # calls of ``written`` until the agent is killed; 0 if no kill is planned
    shims: list[SimulatedShim] = field(default_factory=list)
    agent: Agent | None = None
    agents: int = 0  # number of agents started so far; timers of earlier agents are ignored
    connection: int = 0  # number of the present connection; 0 if there is none
    connections: int = 0
    sequence: int = 0
    sent_at: dict[int, float] = field(default_factory=dict)
    next_report_at: float = 0.0
    starts: dict[str, int] = field(default_factory=dict)  # number of starts by run

    @property
    def known(self) -> AuthenticatedHost:
        """Return the host as the edge knows it after authentication."""
        return AuthenticatedHost(self.host, self.name)

    @property
    def credential(self) -> str:
        """Return the host's credential. It is valid for the whole simulation."""
        return f"{CREDENTIAL_PREFIX}.{self.host}.virtual"

    @property
    def boot_id(self) -> str:
        return f"{self.name} {self.boots}"

    def boottime(self) -> float:
        return 100.0 + self.world.timeline.now - self.booted_at

    def wall(self) -> float:
        return self.world.epoch + self.world.timeline.now + self.wall_offset

    def checkpoint_of(self, workload: str) -> Path:
        """Return the checkpoint folder of a workload. All hosts share it, as they share homes."""
        return (self.world.homes / ".checkpoints" / workload).resolve()

    # -- agent ------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Start the agent as systemd would. Do nothing if it is running."""
        if self.agent is not None:
            return
        self.alive(self._begin)
        if self.agent is not None:
            self._every(RECONCILE_SECONDS, self.agents, self.step)
            self.connect(self.agents)

    def _begin(self) -> None:
        state = StateFolder(self.folder)
        gpu_reader = SimulatedGpuReader(self.name, self.models, self.slices, self.folder)
        hardware = self.world.wait(gpu_reader.hardware())
        runs = SimulatedRuns(
            state,
            PlainLauncher(),
            hardware,
            homes=self.world.homes,
            locks_folder=self.folder / "locks",
            exposed=[],
            cgroups=Cgroups(Path(os.devnull)),
        )
        runs.machine = self
        runs.lost = orphaned_runs = SimulatedOrphanedRuns(state.tools, runs.cgroups)
        orphaned_runs.machine = self
        options = AgentOptions("http://edge", "", self.name, 5.0, False)
        self.agent = Agent(options, state, PlainLauncher(), gpu_reader, hardware, runs, [])
        self.agents += 1
        self.sequence, self.connection = 0, 0
        runs.adopt()

    def _every(self, seconds: float, number: int, act: Callable[[], None]) -> None:
        def again() -> None:
            if self.agent is not None and self.agents == number:
                self.alive(act)
                self.world.timeline.after(seconds, again)

        self.world.timeline.after(seconds * self.world.rng.random(), again)

    def alive(self, act: Callable[[], None]) -> None:
        """Run a step of the agent. The agent may be killed during the step."""
        with self.inside():
            try:
                act()
            except SimulatedKill:
                self.world.timeline.record(f"{self.name}: its agent is killed between two writes")
                self.lose_agent()  # ``SimulatedWorld.kill_an_agent`` restarts it later

    def lose_agent(self) -> None:
        """Kill the agent. Its open files are closed, and its shims keep running."""
        if self.agent is not None:
            self.agent.state._lock.close()
            self.agent, self.connection, self.writes_until_kill = None, 0, 0

    def connect(self, number: int) -> None:
        """Connect the agent with the number ``number`` to the edge. Retry until the edge accepts.

        Do nothing if another agent has been started meanwhile.
        """
        if self.agent is None or self.agents != number or self.connection:
            return
        if self.name in self.world.network.cut or not self.world.site.edge_is_up:
            self.world.timeline.after(RETRY_SECONDS, lambda: self.connect(number))
            return
        self.connections += 1
        self.connection = self.connections
        self.sent_at.clear()
        self.next_report_at = 0.0
        with self.inside():
            self.agent.on_connect()

    def disconnect(self) -> None:
        """Break the connection. The agent connects again later."""
        if self.agent is not None and self.connection:
            self.connection = 0
            with self.inside():
                self.agent.on_disconnect()
            number = self.agents
            self.world.timeline.after(RETRY_SECONDS * self.world.rng.random(), lambda: self.connect(number))

    def step(self) -> None:
        """Run one pass of the agent's loops, and send a report if one is due."""
        assert self.agent is not None
        if self.agent.runs.look():
            self.agent.reporter.note_change()
        if self.agent.runs.has_starts_awaiting_units or self.agent.reconciler.has_undesired_runs():
            self.world.wait(self.agent.reconciler.reconcile())
        now = self.boottime()
        if self.connection and (self.agent.reporter.take_change() or now >= self.next_report_at):
            self.next_report_at = now + self.agent.poll_seconds
            self.send_report()

    def send_report(self) -> None:
        """Send a report of the host's full state."""
        assert self.agent is not None
        self.sequence += 1
        observed = self.agent.reporter.observed(self.sequence)
        self.sent_at[self.sequence] = self.boottime()
        text, connection = encode(observed), self.connection
        self.agent.reporter.on_observed_sent(observed)
        self.world.network.carry(self.name, lambda: self.world.site.receive(self, connection, text))

    def receive(self, connection: int, text: str) -> None:
        """Handle a frame from the edge."""
        if self.agent is None or connection != self.connection:
            return  # the frame was sent on an earlier connection
        frame = decode(text, FRAMES_DOWN)
        if isinstance(frame, Refused):
            self.world.timeline.record(
                f"{self.name}: refused, {'come back' if frame.retry else frame.reason}"
            )
            self.disconnect()
        elif isinstance(frame, Desired):
            at = self.sent_at.get(frame.answers, 0.0) if frame.answers else self.boottime()
            current_agent, desired = self.agent, frame
            self.alive(lambda: self.world.wait(current_agent.on_desired(desired, at)))

    # -- processes --------------------------------------------------------------------------------

    def spawn(self, run: LocalRun, wanted: RunWanted, locks: list[int], alive: int) -> None:
        """Start a shim. Its first tick follows after a short delay."""
        habits = self.world.habits[wanted.command]
        shim = SimulatedShim(self, run, wanted, habits, FIRST_PID + len(self.shims), locks, alive)
        self.shims.append(shim)

        def tick() -> None:
            with self.inside():
                shim.tick()
            if shim.shim_alive:
                self.world.timeline.after(SHIM_TICK_SECONDS, tick)

        self.world.timeline.after(self.world.rng.uniform(0.02, 0.4), tick)

    def note_started(self, shim: SimulatedShim) -> None:
        """Record the start of a workload."""
        self.world.invariants.stale = True
        self.starts[shim.run.id] = self.starts.get(shim.run.id, 0) + 1
        self.world.timeline.record(
            f"{self.name}: {shim.wanted.command} starts, attempt {shim.wanted.attempt}"
        )

    @property
    def living(self) -> list[SimulatedShim]:
        """Return the shims whose workload has started and not ended."""
        return [shim for shim in self.shims if shim.workload_alive and shim.started is not None]

    def reboot(self) -> None:
        """End all processes and start the agent again after a delay."""
        self.lose_agent()
        for shim in self.shims:
            shim.vanish()
        self.boots += 1
        self.booted_at = self.world.timeline.now
        self.world.timeline.after(self.world.rng.uniform(1, 20), self.start_agent)

    def is_alive(self, pid: int, _: int) -> bool:
        """Return True if the shim with this pid is alive."""
        return any(shim.shim_alive and shim.pid == pid for shim in self.shims)

    def switch_off(self) -> None:
        """End the agent and all processes when the simulation is over."""
        self.lose_agent()
        for shim in self.shims:
            shim.vanish()

    # -- simulated system interfaces --------------------------------------------------------------

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Make the agent's code use the clocks, processes and boot id of this host inside this context."""
        before, self.world.current_host = self.world.current_host, self
        try:
            yield
        finally:
            self.world.current_host = before

    def written(self) -> None:
        """Count down to the planned kill of the agent, and raise SimulatedKill when the count reaches 0.

        The simulated ``write_json`` calls this method before and after each write, so a write counts twice.
        """
        if self.writes_until_kill:
            self.writes_until_kill -= 1
            if not self.writes_until_kill:
                raise SimulatedKill


def _lease(folder: Path, default: float) -> float:
    try:
        return float((folder / "lease").read_text())
    except (OSError, ValueError):
        return default


@contextlib.contextmanager
def simulated_machines(world: SimulatedWorld) -> Iterator[None]:
    """Replace the agent's access to time, processes and files in this context.

    The agent's modules then use the clocks, processes and files of the current host.
    """

    def here() -> SimulatedHost:
        assert world.current_host is not None, "the agent runs only inside a simulated host"
        return world.current_host

    def write_json(path: Path, value: Any) -> None:
        here().written()
        agent.host.durable_files.write_text(path, json.dumps(value))
        here().written()

    clock = types.SimpleNamespace(time=lambda: here().wall(), monotonic=lambda: here().boottime())
    tree = types.SimpleNamespace(
        is_alive=lambda pid, ticks: here().is_alive(pid, ticks),
        scan=dict,
        environment_value=lambda pid, name: None,
    )
    environment = EnvironmentSeen(python="3")
    with contextlib.ExitStack() as stack:
        for module in (
            agent.runs.local_run,
            agent.runs.manager,
            agent.runs.orphaned_runs,
            agent.runs.run_observer,
            agent.runs.run_orders,
            agent.runs.declared_load,
            agent.server.reporting,
            agent.monitoring,
            agent.daemon,
            agent.reconciler,
        ):
            for name, value in (
                ("boottime", lambda: here().boottime()),
                ("boot_id", lambda: here().boot_id),
                ("time", clock),
                ("processes", tree),
                ("write_json", write_json),
            ):
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(mock.patch.object(agent.host.state, "write_json", write_json))
        stack.enter_context(mock.patch.object(agent.host.durable_files, "write_json", write_json))
        stack.enter_context(mock.patch.object(agent.host.durable_files, "fsync_folder", lambda path: None))
        stack.enter_context(mock.patch.object(agent.host.tool_files, "fsync_folder", lambda path: None))
        stack.enter_context(
            mock.patch.object(Trash, "throw", lambda trash, path: shutil.rmtree(path, ignore_errors=True))
        )
        stack.enter_context(
            mock.patch.object(
                agent.host.offered_environment, "offered_environment", lambda exposed: environment
            )
        )
        yield
