"""Runs the agent of one host: its connection to the edge, its loops and its shutdown.

The edge is the server process that agents connect to. A shim is the process that supervises one run.
"""

from __future__ import annotations

import asyncio
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
from agent.gpu.reader import GpuInventory, GpuReader, GpuReadError
from agent.host import offered_environment
from agent.host.clock import boottime
from agent.host.durable_files import log_disk_errors
from agent.host.shutdown import FINAL_WRITE_SECONDS, cancel_tasks
from agent.host.state import StateFolder
from agent.isolation.launchers import Launcher
from agent.monitoring import HostMonitor
from agent.protocol import Desired
from agent.reconciler import SHIM_POLL_SECONDS, HostReconciler
from agent.runs.disk_pressure import DiskPressure
from agent.runs.manager import RunManager
from agent.runs.reconcile import (
    StopRun,
)
from agent.server.connection import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, SyncConnection, join_pool
from agent.server.reporting import ServerReporter, build_inventory
from agent.server.workspace_streams import WorkspaceStreams

log = logging.getLogger("agent")

GPU_RETRY_SECONDS = 5.0  # first pause between two reads of unreadable GPUs
MAX_GPU_RETRY_SECONDS = 30.0  # longest pause between two reads of unreadable GPUs
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
    # the command of each diagnostic that the operator defined, by the name of the diagnostic
    diagnostics: Mapping[str, list[str]] = field(default_factory=dict)
    most_tmp_mib: int = 0  # limit of one run's temporary files; 0: no limit


class Agent:
    """The agent of one host. It runs on one event loop.

    NVML calls run in another process, because they may block.
    """

    def __init__(
        self,
        options: AgentOptions,
        state: StateFolder,
        launcher: Launcher,
        reader: GpuReader,
        hardware: GpuInventory,
        runs: RunManager,
        notes: list[str],
    ) -> None:
        self.options = options
        self.state = state
        self.runs = runs
        self.gpu_reader = reader
        self._diagnostics = DiagnosticRunner(
            state,
            hardware,
            runs.locks_folder,
            simulated=reader.simulated,
            conditions=reader.conditions,
            commands=options.diagnostics,
        )
        self._geometries = GeometryChanges(state, reader, hardware, runs.locks_folder, self._take_over)
        self._isolation_notes = notes
        self._hardware = hardware
        offered = offered_environment.offered_environment(runs.exposed)
        here = build_inventory(hardware, launcher, reader, notes, offered, runs, options.diagnostics)
        self.reporter = ServerReporter(state, runs, here, self._diagnostics, self._geometries)
        self._monitor = HostMonitor(
            runs,
            reader,
            self.reporter,
            sample_seconds=options.sample_seconds,
            own_pids=self._diagnostics.pids,
        )
        self._disk_pressure = DiskPressure(runs, options.most_tmp_mib << 20)
        self.reconciler = HostReconciler(
            state, runs, reader, hardware, self.reporter, self._diagnostics, self._geometries, self._monitor
        )
        self._streams: WorkspaceStreams | None = None

    @property
    def poll_seconds(self) -> float:
        """Return the time between two reports to the server, in seconds. The server sets it."""
        return self.reconciler.poll_seconds

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT.

        With ``stop_on_exit``, the agent then stops all workloads. Otherwise they continue under their shims
        until their leases expire.
        """
        self.runs.adopt()
        log.info("%s", self._startup_summary())
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=20)
        # No limit: each open workspace holds a connection. With the default limit of 100, the sync connection
        # of a host with many open workspaces would wait forever.
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            loops = (
                self._keep_connection(session),
                self.reconciler.poll_shims(),
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
                        task.result()  # raises if a loop failed: the agent then ends, and systemd restarts it
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
        await self.reconciler.close()
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
        """Send every run a stop notice, wait for the checkpoints of the jobs, then stop all runs.

        After its next start, the agent reports these runs with the code ``drained``.
        """
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
        """Handle the end of the sync connection.

        No workspace streams are dialled until a desired state arrives on the next sync connection.
        """
        self.reporter.on_disconnect()
        if self._streams is not None:
            self._streams.rest()

    # --- desired states ---

    async def on_desired(self, desired: Desired, leased_from: float) -> None:
        """Apply a desired state.

        ``leased_from``: the CLOCK_BOOTTIME, in seconds, at which the lease of this host begins.
        """
        self.reconciler.hear(desired, leased_from)  # first, because this call renews the leases
        self._monitor.stray_action = desired.stray_action
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
        await self.reconciler.reconcile_with_timeout()

    # --- changes on this host ---

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
                self._geometries.set_inventory(hardware)
                self._take_over(hardware)

    def _take_over(self, hardware: GpuInventory) -> None:
        """Use this inventory from now on.

        This method is called after a MIG geometry change, and when a new read of unreadable GPUs gives a
        different inventory.
        """
        self._hardware = hardware
        self.runs.take_over(hardware)
        self.reconciler.take_over(hardware)
        self._diagnostics.take_over(hardware)
        self.reporter.note_hardware(hardware, self._isolation_notes)
