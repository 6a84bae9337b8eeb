"""Runs the agent of one host: stays connected to the edge and reconciles the host with its desired state."""

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

RECONCILE_WAIT_SECONDS = 2.0  # how long a frame waits for its reconciliation: well within a lease
SHIM_POLL_SECONDS = 0.2  # between two reads of the shims' files
GPU_RETRY_SECONDS, MAX_GPU_RETRY_SECONDS = (
    5.0,
    30.0,
)  # first and longest pause between reads of unreadable GPUs
EXIT_NOTICE_SECONDS = 4.0  # on exit: time for jobs to write a checkpoint
EXIT_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class AgentOptions:
    """The options of ``agent run`` that the agent itself uses."""

    edge: str
    join_token: str
    host: str
    sample_seconds: float
    stop_on_exit: bool
    diagnostics: Mapping[str, list[str]] = field(
        default_factory=dict
    )  # command of the operator's own diagnostics, by name
    most_tmp_mib: int = 0  # limit of one run's temporary files; 0: no limit


class Agent:
    """The agent of one host. It uses one event loop; NVML calls, which may block, run in another process."""

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
        self.reporter = ServerReporter(state, runs, here, self._diagnostics, self._geometries)
        self._monitor = HostMonitor(
            runs, meter, self.reporter, sample_seconds=options.sample_seconds, own_pids=self._diagnostics.pids
        )
        self._disk_pressure = DiskPressure(runs, options.most_tmp_mib << 20)
        self._handover = HandoverCheck(state.folder / "units.json", boot_id())
        self._desired: Desired | None = None
        self._leased_from = 0.0  # CLOCK_BOOTTIME from which the server counts the lease
        self._heard_at = 0.0  # CLOCK_BOOTTIME of the last frame that was not out of order
        self._lease_until = 0.0
        self._busy = asyncio.Lock()  # one reconciliation at a time
        self._reconcile_task: asyncio.Task[None] | None = None
        self._reconcile_needed = False  # the desired state has changed since the last one began
        self._streams: WorkspaceStreams | None = None

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT.

        Then the workloads continue under their shims until their leases expire.
        """
        self.runs.adopt()
        log.info("%s", self._startup_summary())
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=20)
        # The default limit of 100 connections would block the sync connection of a host with many open
        # workspaces.
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            loops = (
                self._keep_connection(session),
                self._poll_shims(),
                self._report_changes(self._diagnostics.changed),
                self._report_changes(self._geometries.changed),
                self._disk_pressure.watch(),
                self._retry_unreadable_gpus(),
                *self._monitor.loops(),
            )
            tasks: list[asyncio.Task[object]] = [asyncio.create_task(loop) for loop in loops]
            ended: asyncio.Task[object] = asyncio.create_task(stopped.wait())
            try:
                await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()  # a loop failed: the agent ends, and its supervisor restarts it
            finally:
                remaining = sum(not run.ended for run in self.runs.runs.values())
                log.info("stopping; runs that continue until their leases expire: %d", remaining)
                await cancel_tasks([*tasks, ended])
                await self._close()

    def _startup_summary(self) -> str:
        gpus = [gpu.model for gpu in self._hardware.gpus]
        models = ", ".join(f"{count} x {model}" for model, count in sorted(Counter(gpus).items())) or "no GPU"
        simulated = " (simulated)" if self.gpu_reader.simulated else ""
        adopted = len(self.runs.runs)
        launcher = self.runs.launcher.name
        host = self.options.host
        return f"up as {host}: {models}{simulated}; launcher: {launcher}; runs taken over: {adopted}"

    async def _close(self) -> None:
        if self._reconcile_task is not None:
            await cancel_tasks([self._reconcile_task])
        if self._streams is not None:
            await self._streams.close()
        writes = [
            asyncio.create_task(asyncio.to_thread(self._monitor.save)),
            *self.reporter.pending_event_writes(),
        ]
        await asyncio.wait(writes, timeout=FINAL_WRITE_SECONDS)
        await self._diagnostics.close()
        await self._geometries.close()
        if self.options.stop_on_exit:
            await self._drain_runs()
        await self.gpu_reader.close()

    async def _drain_runs(self) -> None:
        """Give every run notice, wait for checkpoints, stop them. The next agent reports them as drained."""
        drained = [
            run
            for run in self.runs.runs.values()
            if run.state in ("starting", "running") and not run.stop_ordered
        ]
        saved_before = {run.id: run.checkpoint_at for run in drained}
        for run in drained:
            if not run.noticed:
                self.runs.notice(run.id, "drained", time.time() + EXIT_NOTICE_SECONDS)
        jobs = [run for run in drained if not run.is_notebook]
        await self._wait(
            EXIT_NOTICE_SECONDS,
            lambda: all(run.ended or run.checkpoint_at != saved_before[run.id] for run in jobs),
        )
        for run in drained:
            if not run.ended:
                self.runs.stop(StopRun(run.id, "drained", EXIT_GRACE_SECONDS, whatever=True))
        await self._wait(EXIT_GRACE_SECONDS + 3, lambda: all(run.ended for run in drained))

    async def _wait(self, seconds: float, condition: Callable[[], bool]) -> None:
        until = boottime() + seconds
        while boottime() < until and not condition():
            await asyncio.sleep(SHIM_POLL_SECONDS)
            self.runs.look()

    # --- the connection to the edge ---

    async def _keep_connection(self, session: aiohttp.ClientSession) -> None:
        options = self.options

        async def rejoin() -> None:
            await self._join(session)

        if not self.state.identity.credential:
            await rejoin()
            rejoin_once = None
        else:
            rejoin_once = rejoin if options.join_token else None
        self._streams = WorkspaceStreams(
            session, options.edge, lambda: self.state.identity.credential, self._workspace_socket
        )
        await SyncConnection(self, session, options.edge, rejoin_once).keep()

    async def _join(self, session: aiohttp.ClientSession) -> None:
        pause = FIRST_RETRY_SECONDS
        is_logged = False
        while True:
            try:
                await join_pool(
                    session, self.options.edge, self.state, self.options.join_token, self.options.host
                )
                break
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                if not is_logged:
                    why = error or type(error).__name__
                    log.warning("the edge %s does not answer: %s; retrying", self.options.edge, why)
                    is_logged = True
                await asyncio.sleep(pause)
                pause = min(MAX_RETRY_SECONDS, pause * 2)
        with log_disk_errors("the address of the join"):  # if this fails, the next start needs --edge
            self.state.save_edge(self.options.edge)

    def _workspace_socket(self, run_id: str) -> Path | None:
        run = self.runs.runs.get(run_id)
        return run.socket if run is not None and not run.ended else None

    def on_connect(self) -> None:
        """Handle a new sync connection."""
        self.reporter.on_connect()

    def on_disconnect(self) -> None:
        """Handle the end of the sync connection: no workspace streams are dialled until the next one."""
        self.reporter.on_disconnect()
        if self._streams is not None:
            self._streams.rest()

    # --- desired states ---

    # Not split: one step per part of the frame, and leases are renewed before slower steps.
    async def on_desired(self, desired: Desired, leased_from: float) -> None:
        """Apply a desired state.

        ``leased_from``: CLOCK_BOOTTIME from which the server counts this host's lease.
        """
        self.poll_seconds = min(60.0, max(0.2, desired.poll_seconds))
        self._desired = desired
        is_old = leased_from < self._leased_from
        self._leased_from = max(self._leased_from, leased_from)  # an old frame does not shorten the lease
        self._lease_until = self._leased_from + max(1.0, desired.lease_seconds)
        named = {wanted.run for wanted in desired.runs}
        # No lease is renewed for a run that is to stop: if its stop order cannot be delivered, the expired
        # lease stops it.
        self.runs.renew({wanted.run for wanted in desired.runs if wanted.verb != "stop"}, self._lease_until)
        self._note_undesired_runs(named, is_old)
        self._monitor.stray_action = desired.stray_action
        for wanted in desired.runs:
            if wanted.secret and wanted.run in self.runs.runs:
                self.runs.runs[wanted.run].secret = wanted.secret
        for name in [name for name in self.runs.waiting if name not in named]:
            del self.runs.waiting[name]
            self.reporter.note_change()
        with log_disk_errors("the agent starts that the server knows"):
            self.state.starts.known()
        if desired.credential and desired.credential != self.state.identity.credential:
            with log_disk_errors("the credential"):
                self.state.remember(
                    host=desired.host, credential=desired.credential, expires_at=desired.credential_expires_at
                )
        self.reporter.acknowledge(desired)
        if self._streams is not None:
            self._streams.keep(desired.streams, desired.stream_key)
        with log_disk_errors("a diagnostic"):
            self._diagnostics.want(desired.diagnostics)
        with log_disk_errors("a geometry"):
            self._geometries.want(desired.geometries)
        await self._reconcile_with_timeout()

    def _note_undesired_runs(self, named: set[str], is_old: bool) -> None:
        """Record since when the server no longer lists a run.

        A frame that arrived out of order is ignored.
        """
        if not is_old:
            self._heard_at = boottime()
        for run in self.runs.runs.values():
            if run.id in named:
                run.undesired_since = None
            elif not is_old and run.undesired_since is None:
                run.undesired_since = self._heard_at

    async def _reconcile_with_timeout(self) -> None:
        """Start reconciling and wait at most RECONCILE_WAIT_SECONDS.

        The next frame, which renews leases, waits for this.
        """
        await asyncio.wait((self._start_reconciling(),), timeout=RECONCILE_WAIT_SECONDS)
        self._raise_reconcile_error()

    def _start_reconciling(self) -> asyncio.Task[None]:
        """Start reconciling in the background, if it is not running.

        Raises like ``_raise_reconcile_error``.
        """
        self._reconcile_needed = True
        self._raise_reconcile_error()
        if self._reconcile_task is None:
            self._reconcile_task = asyncio.create_task(self._reconcile_until_current())
        return self._reconcile_task

    def _raise_reconcile_error(self) -> None:
        """Raise the exception of a finished reconciliation, once.

        The agent ends with it, and its supervisor restarts it.
        """
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
            before, has_changed = self.runs.seen(), False
            desired, actions = self._desired, self._plan(self._desired)
            tried: set[str] = set()
            while actions:
                if (
                    self._desired is not desired
                ):  # a newer frame arrived during a slow start: continue with that
                    desired = self._desired
                    actions = [
                        action
                        for action in self._plan(desired)
                        if not (isinstance(action, StartRun) and action.wanted.run in tried)
                    ]
                    continue
                action = actions.pop(0)
                if isinstance(action, StartRun):
                    tried.add(action.wanted.run)
                else:
                    has_changed = True
                with log_disk_errors(str(action)[:80]):
                    await self._do(action)
        # A start that still waits is no change: reporting it each time would cause an endless exchange of
        # frames.
        if has_changed or self.runs.seen() != before:
            self.reporter.note_change()

    def _plan(self, desired: Desired) -> list[Action]:
        """Return the actions to do now.

        Starts and other slow actions come last, so that they delay no stop.
        """
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
            return  # the lease has expired: the desired state is too old to start anything
        if self._geometries.busy:
            await self.runs.wait(wanted, "waiting: the MIG geometry of a GPU of this host is being changed")
            return
        self._diagnostics.yield_gpus(wanted.unit_uuids)
        if not await self.runs.is_due(wanted):
            return
        is_new = False  # also if that cannot be found out now
        with contextlib.suppress(CallTimeout):
            is_new = not self.runs.has_home(wanted.owner)
        try:
            if wanted.unit_uuids and self._hardware.unread:
                raise GpuReadError(self._hardware.unread)
            rows, gpu_processes = (
                await self.gpu_reader.occupancy(time.time()) if wanted.unit_uuids else ([], [])
            )
            leftovers = self._handover.left(self.runs.exclusive_units(wanted), rows, gpu_processes)
        except GpuReadError as problem:
            await self.runs.wait_for_readable_gpus(wanted, str(problem))
            return
        if leftovers:
            await self.runs.wait(wanted, f"waiting: {leftovers}")
            return
        if await self.runs.start(wanted, self._lease_until):
            with log_disk_errors("the state of the GPUs before the run"):
                self._handover.record_baseline(self.runs.exclusive_units(wanted), rows, gpu_processes)
            # Only after a start: a waiting run has no home yet, so it would cause a measurement at each try.
            if is_new:
                self._monitor.home_created.set()

    # --- changes on this host ---

    async def _poll_shims(self) -> None:
        while True:
            await asyncio.sleep(SHIM_POLL_SECONDS)
            if self.runs.look():
                self.reporter.note_change()
            self._raise_reconcile_error()
            if self._reconcile_task is None and (
                self.runs.has_starts_awaiting_units or self._has_undesired_runs()
            ):
                self._start_reconciling()  # not awaited: a slow start must not delay the ends of other runs

    def _has_undesired_runs(self) -> bool:
        patience = 2 * self.poll_seconds
        return any(
            run.undesired_since is not None
            and self._heard_at - run.undesired_since >= patience
            and not run.stop_ordered
            for run in self.runs.runs.values()
        )

    async def _report_changes(self, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            self.reporter.note_change()

    async def _retry_unreadable_gpus(self) -> None:
        """Read unreadable GPUs again with growing pauses until they can be read."""
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
                recovered = hardware.recovered_since(self._hardware)
                if recovered:
                    log.info("GPUs can be read again: %s", ", ".join(str(index) for index in recovered))
                else:
                    log.info("the notes on the GPUs have changed: %s", " ".join(hardware.notes))
                self._geometries.know(hardware)
                self._take_over(hardware)

    def _take_over(self, hardware: GpuInventory) -> None:
        """Replace the hardware after a geometry change or after unreadable GPUs became readable."""
        self._hardware = hardware
        self.runs.take_over(hardware)
        self._diagnostics.take_over(hardware)
        self.reporter.note_hardware(hardware, self._isolation_notes)
