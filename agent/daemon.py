"""The agent itself: keeps the line to the edge, and brings this host to its desired state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from agent.diagnostics.runner import DiagnosticRunner
from agent.gpu.geometry_changes import GeometryChanges
from agent.gpu.handover import HandoverCheck
from agent.gpu.reader import GpuInventory, GpuReader, GpuReadError
from agent.host import offered_environment
from agent.host.blocking_call import CallTimeout
from agent.host.clock import boot_id, boottime
from agent.host.durable_files import log_disk_errors
from agent.host.shutdown import FINAL_WRITE_SECONDS, cancel_tasks
from agent.host.state import StateFolder
from agent.isolation.launchers import Launcher
from agent.monitoring import HostMonitor
from agent.protocol import Desired, RunWanted
from agent.runs.disk_pressure import DiskPressure
from agent.runs.manager import RunManager
from agent.runs.reconcile import (
    Action,
    ChangeTimeLimit,
    ForgetRun,
    RefuseRun,
    SendNotice,
    StartRun,
    StopRun,
    WithdrawNotice,
    plan_actions,
)
from agent.server.connection import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, SyncConnection, join_pool
from agent.server.reporting import ServerReporter, build_inventory
from agent.server.workspace_streams import WorkspaceStreams

log = logging.getLogger("agent")

RECONCILE_WAIT_SECONDS = 2.0  # well within a lease
SHIM_POLL_SECONDS = 0.2  # how often the shims' files are read
GPU_RETRY_SECONDS, MAX_GPU_RETRY_SECONDS = 5.0, 30.0  # GPUs that could not be read, and that still can't
EXIT_NOTICE_SECONDS = 4.0  # on exit: how long jobs have to write a checkpoint
EXIT_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class AgentOptions:
    """How the agent was started."""

    edge: str
    join_token: str
    host: str
    sample_seconds: float
    stop_on_exit: bool
    diagnostics: Mapping[str, list[str]] = field(default_factory=dict)  # the operator's own, by name
    most_tmp_mib: int = 0  # of one run's temporary files; 0: as long as the disk has room


class Agent:
    """One host's agent. Everything is on one event loop; what may block (NVML) is in another process."""

    def __init__(
        self,
        options: AgentOptions,
        state: StateFolder,
        launcher: Launcher,
        meter: GpuReader,
        hardware: GpuInventory,
        runs: RunManager,
        notes: list[str],
    ) -> None:
        self.options = options
        self.state = state
        self.runs = runs
        self.gpu_reader = meter
        self.poll_seconds = 5.0
        self._diagnostics = DiagnosticRunner(
            state,
            hardware,
            runs.locks_folder,
            simulated=meter.simulated,
            conditions=meter.conditions,
            commands=options.diagnostics,
        )
        self._geometries = GeometryChanges(state, meter, hardware, runs.locks_folder, self._take_over)
        self._isolation_notes = notes
        self._hardware = hardware
        offered = offered_environment.offered_environment(runs.exposed)
        here = build_inventory(hardware, launcher, meter, notes, offered, runs, options.diagnostics)
        self.news = ServerReporter(state, runs, here, self._diagnostics, self._geometries)
        self._watch = HostMonitor(
            runs, meter, self.news, sample_seconds=options.sample_seconds, own=self._diagnostics.pids
        )
        self._disk_pressure = DiskPressure(runs, options.most_tmp_mib << 20)
        self._handover = HandoverCheck(state.folder / "units.json", boot_id())
        self._desired: Desired | None = None
        self._spoke_at = 0.0
        self._heard_at = 0.0  # CLOCK_BOOTTIME of the last frame that was not older than one before it
        self._lease_until = 0.0
        self._busy = asyncio.Lock()  # one reconciliation at a time
        self._reconcile_task: asyncio.Task[None] | None = None
        self._reconcile_needed = False  # something was wanted since the last one began
        self._streams: WorkspaceStreams | None = None

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Workloads go on after it, kept by their shims, until their lease ends."""
        self.runs.adopt()
        log.info("%s", self._startup_summary())
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=20)
        # aiohttp's own limit of a hundred connections would keep a host with many open workspaces from its server.
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            loops = (
                self._keep_connection(session),
                self._look(),
                self._tell(self._diagnostics.changed),
                self._tell(self._geometries.changed),
                self._disk_pressure.watch(),
                self._read_again(),
                *self._watch.loops(),
            )
            tasks: list[asyncio.Task[object]] = [asyncio.create_task(loop) for loop in loops]
            ended: asyncio.Task[object] = asyncio.create_task(stopped.wait())
            try:
                await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()  # a loop of ours failed: end, whoever keeps us starts us again
            finally:
                going = sum(not run.ended for run in self.runs.runs.values())
                log.info("ends; runs that go on without it, until their leases are over: %d", going)
                await cancel_tasks([*tasks, ended])
                await self._close()

    def _startup_summary(self) -> str:
        gpus = [gpu.model for gpu in self._hardware.gpus]
        models = ", ".join(f"{count} x {model}" for model, count in sorted(Counter(gpus).items())) or "no GPU"
        simulated = " (simulated)" if self.gpu_reader.simulated else ""
        taken = len(self.runs.runs)
        return f"up as {self.options.host}: {models}{simulated}; launcher: {self.runs.launcher.name}; runs taken over: {taken}"

    async def _close(self) -> None:
        if self._reconcile_task is not None:
            await cancel_tasks([self._reconcile_task])
        if self._streams is not None:
            await self._streams.close()
        kept = [asyncio.create_task(asyncio.to_thread(self._watch.save)), *self.news.pending_event_writes()]
        await asyncio.wait(kept, timeout=FINAL_WRITE_SECONDS)
        await self._diagnostics.close()
        await self._geometries.close()
        if self.options.stop_on_exit:
            await self._drain_runs()
        await self.gpu_reader.close()

    async def _drain_runs(self) -> None:
        """Notice, time to save, stop. The server hears at the next start that they were drained."""
        mine = [
            run
            for run in self.runs.runs.values()
            if run.state in ("starting", "running") and not run.stop_ordered
        ]
        saved_before = {run.id: run.checkpoint_at for run in mine}
        for run in mine:
            if not run.noticed:
                self.runs.notice(run.id, "drained", time.time() + EXIT_NOTICE_SECONDS)
        jobs = [run for run in mine if not run.is_notebook]
        await self._wait(
            EXIT_NOTICE_SECONDS,
            lambda: all(run.ended or run.checkpoint_at != saved_before[run.id] for run in jobs),
        )
        for run in mine:
            if not run.ended:
                self.runs.stop(StopRun(run.id, "drained", EXIT_GRACE_SECONDS, whatever=True))
        await self._wait(EXIT_GRACE_SECONDS + 3, lambda: all(run.ended for run in mine))

    async def _wait(self, seconds: float, happened: Callable[[], bool]) -> None:
        until = boottime() + seconds
        while boottime() < until and not happened():
            await asyncio.sleep(SHIM_POLL_SECONDS)
            self.runs.look()

    # the line to the edge

    async def _keep_connection(self, session: aiohttp.ClientSession) -> None:
        options = self.options

        async def rejoin() -> None:
            await self._join(session)

        if not self.state.identity.credential:
            await rejoin()
            again = None
        else:
            again = rejoin if options.join_token else None
        self._streams = WorkspaceStreams(
            session, options.edge, lambda: self.state.identity.credential, self._door
        )
        await SyncConnection(self, session, options.edge, again).keep()

    async def _join(self, session: aiohttp.ClientSession) -> None:
        pause = FIRST_RETRY_SECONDS
        is_said = False
        while True:
            try:
                await join_pool(
                    session, self.options.edge, self.state, self.options.join_token, self.options.host
                )
                break
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                if not is_said:
                    why = error or type(error).__name__
                    log.warning(
                        "the edge %s is away: %s; tried again until it answers", self.options.edge, why
                    )
                    is_said = True
                await asyncio.sleep(pause)
                pause = min(MAX_RETRY_SECONDS, pause * 2)
        with log_disk_errors(
            "where this host has joined"
        ):  # the next start needs --edge then, and nothing else
            self.state.save_edge(self.options.edge)

    def _door(self, run_id: str) -> Path | None:
        run = self.runs.runs.get(run_id)
        return run.socket if run is not None and not run.ended else None

    def on_connect(self) -> None:
        """A new connection knows nothing of what was sent on the last one."""
        self.news.on_connect()

    def on_disconnect(self) -> None:
        """The line to the edge ended: until there is one again no new workspace connections are dialled."""
        self.news.on_disconnect()
        if self._streams is not None:
            self._streams.rest()

    # what is heard

    async def on_desired(self, desired: Desired, spoke_at: float) -> None:
        """Take over what the server wants. ``spoke_at``: CLOCK_BOOTTIME from which it counts this host's lease."""
        self.poll_seconds = min(60.0, max(0.2, desired.poll_seconds))
        self._desired = desired
        is_old = spoke_at < self._spoke_at
        self._spoke_at = max(self._spoke_at, spoke_at)  # an old frame takes nothing back
        self._lease_until = self._spoke_at + max(1.0, desired.lease_seconds)
        named = {wanted.run for wanted in desired.runs}
        # A stop that has arrived does not look at the lease any more; one that could not be told is carried out by its end.
        self.runs.renew({wanted.run for wanted in desired.runs if wanted.verb != "stop"}, self._lease_until)
        self._note_undesired_runs(named, is_old)
        self._watch.stray_action = desired.stray_action
        for wanted in desired.runs:
            if wanted.secret and wanted.run in self.runs.runs:
                self.runs.runs[wanted.run].secret = wanted.secret
        for name in [name for name in self.runs.waiting if name not in named]:
            del self.runs.waiting[name]
            self.news.note_change()
        with log_disk_errors("which start the server knows"):
            self.state.starts.known()
        if desired.credential and desired.credential != self.state.identity.credential:
            with log_disk_errors("the credential"):
                self.state.remember(
                    host=desired.host, credential=desired.credential, expires_at=desired.credential_expires_at
                )
        self.news.heard(desired)
        if self._streams is not None:
            self._streams.keep(desired.streams, desired.stream_key)
        with log_disk_errors("a diagnostic"):
            self._diagnostics.want(desired.diagnostics)
        with log_disk_errors("a geometry"):
            self._geometries.want(desired.geometries)
        await self._reconcile_with_timeout()

    def _note_undesired_runs(self, named: set[str], is_old: bool) -> None:
        """What a frame leaves out says nothing where the server has said something later already."""
        if not is_old:
            self._heard_at = boottime()
        for run in self.runs.runs.values():
            if run.id in named:
                run.unnamed_since = None
            elif not is_old and run.unnamed_since is None:
                run.unnamed_since = self._heard_at

    async def _reconcile_with_timeout(self) -> None:
        """Have all of it done, and wait for that a moment only: what renews leases comes over the line that waits here."""
        await asyncio.wait((self._start_reconciling(),), timeout=RECONCILE_WAIT_SECONDS)
        self._raise_reconcile_error()

    def _start_reconciling(self) -> asyncio.Task[None]:
        """Have all of it done in the background. Raises like ``_raise_what_went_wrong``."""
        self._reconcile_needed = True
        self._raise_reconcile_error()
        if self._reconcile_task is None:
            self._reconcile_task = asyncio.create_task(self._reconcile_until_current())
        return self._reconcile_task

    def _raise_reconcile_error(self) -> None:
        """In what was done, once, however long that took: an agent that can't do what is wanted ends, and is started again."""
        ended = self._reconcile_task
        if ended is not None and ended.done():
            self._reconcile_task = None
            ended.result()

    async def _reconcile_until_current(self) -> None:
        while self._reconcile_needed:
            self._reconcile_needed = False
            await self._reconcile()

    async def _reconcile(self) -> None:
        if self._desired is None:
            return
        async with self._busy:
            before, is_news = self.runs.seen(), False
            desired, actions = self._desired, self._plan(self._desired)
            tried: set[str] = set()
            while actions:
                if self._desired is not desired:  # heard while a start took long: from here on that counts
                    desired = self._desired
                    actions = [
                        each
                        for each in self._plan(desired)
                        if not (isinstance(each, StartRun) and each.wanted.run in tried)
                    ]
                    continue
                action = actions.pop(0)
                if isinstance(action, StartRun):
                    tried.add(action.wanted.run)
                else:
                    is_news = True
                with log_disk_errors(str(action)[:80]):
                    await self._do(action)
        # A start that waits as it did before is no news: said each time, it would be answered and said again.
        if is_news or self.runs.seen() != before:
            self.news.note_change()

    def _plan(self, desired: Desired) -> list[Action]:
        """What is to be done now; what waits for a disk, or longer, comes last: nobody's stop waits for it."""
        actions = plan_actions(
            desired,
            [run.held() for run in self.runs.runs.values()],
            refusal=self.state.generations.refusal,
            known_units=self.runs.known_units,
            heard_at=self._heard_at,
        )
        return sorted(
            actions,
            key=lambda action: (
                isinstance(action, StartRun),
                isinstance(action, (RefuseRun, ChangeTimeLimit)),
            ),
        )

    async def _do(self, action: object) -> None:
        match action:
            case StartRun(wanted):
                await self._start(wanted)
            case RefuseRun(wanted, outcome, why):
                await self.runs.refuse(wanted, outcome, why)
            case SendNotice(wanted):
                self.runs.notice(wanted.run, wanted.code, wanted.stop_at)
            case WithdrawNotice(run):
                self.runs.withdraw(run)
            case ChangeTimeLimit(run, seconds):
                await self.runs.limit(run, seconds)
            case StopRun():
                self.runs.stop(action)
            case ForgetRun(run):
                self.runs.forget(run)

    async def _start(self, wanted: RunWanted) -> None:
        if boottime() >= self._lease_until:
            return  # what the server wanted is too old to begin anything
        if self._geometries.busy:
            await self.runs.wait(wanted, "waiting: a GPU of this host is being split otherwise")
            return
        self._diagnostics.yield_gpus(wanted.unit_uuids)
        if not await self.runs.is_due(wanted):
            return
        is_new = False  # also where that can't be found out now
        with contextlib.suppress(CallTimeout):
            is_new = not self.runs.has_home(wanted.owner)
        try:
            if wanted.unit_uuids and self._hardware.unread:
                raise GpuReadError(self._hardware.unread)
            rows, found = await self.gpu_reader.occupancy(time.time()) if wanted.unit_uuids else ([], [])
            left = self._handover.left(self.runs.exclusive_units(wanted), rows, found)
        except GpuReadError as problem:
            await self.runs.wait_for_readable_gpus(wanted, str(problem))
            return
        if left:
            await self.runs.wait(wanted, f"waiting: {left}")
            return
        if await self.runs.start(wanted, self._lease_until):
            with log_disk_errors("what was on the GPUs before"):
                self._handover.record_baseline(self.runs.exclusive_units(wanted), rows, found)
            if (
                is_new
            ):  # one that only waits has no home yet: measured again and again, it would be news each time
                self._watch.home_created.set()

    # what happens here

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(SHIM_POLL_SECONDS)
            if self.runs.look():
                self.news.note_change()
            self._raise_reconcile_error()
            if self._reconcile_task is None and (
                self.runs.has_starts_awaiting_units or self._has_undesired_runs()
            ):
                self._start_reconciling()  # not waited for: while a start takes long, the ends of others are seen

    def _has_undesired_runs(self) -> bool:
        patience = 2 * self.poll_seconds
        return any(
            run.unnamed_since is not None
            and self._heard_at - run.unnamed_since >= patience
            and not run.stop_ordered
            for run in self.runs.runs.values()
        )

    async def _tell(self, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            self.news.note_change()

    async def _read_again(self) -> None:
        """GPUs that could not be read, until they can."""
        pause = GPU_RETRY_SECONDS
        while True:
            await asyncio.sleep(pause)
            if self._geometries.busy or not self._hardware.unreadable:
                pause = GPU_RETRY_SECONDS
                continue
            pause = min(MAX_GPU_RETRY_SECONDS, 2 * pause)
            try:
                hardware = await self.gpu_reader.hardware()
            except GpuReadError as problem:
                log.info("the GPUs still can't be read: %s", problem)
                continue
            if hardware != self._hardware:
                again = hardware.recovered_since(self._hardware)
                if again:
                    log.info("GPUs can be read again: %s", ", ".join(str(index) for index in again))
                else:
                    log.info("what is said of the GPUs has changed: %s", " ".join(hardware.notes))
                self._geometries.know(hardware)
                self._take_over(hardware)

    def _take_over(self, hardware: GpuInventory) -> None:
        """The GPUs are other ones than at the start: one was split otherwise, or can be read again."""
        self._hardware = hardware
        self.runs.take_over(hardware)
        self._diagnostics.take_over(hardware)
        self.news.note_hardware(hardware, self._isolation_notes)
