"""Reconciles the runs of this host with the last desired state from the server.

A shim is the process that supervises one run. A run whose lease expires is stopped by its shim.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from agent.diagnostics.runner import DiagnosticRunner
from agent.gpu.geometry_changes import GeometryChanges
from agent.gpu.handover import HandoverCheck
from agent.gpu.reader import GpuInventory, GpuReader, GpuReadError
from agent.host.blocking_call import CallTimeout
from agent.host.clock import boot_id, boottime
from agent.host.durable_files import log_disk_errors
from agent.host.shutdown import cancel_tasks
from agent.host.state import StateFolder
from agent.monitoring import HostMonitor
from agent.protocol import Desired, RunWanted
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
from agent.server.reporting import ServerReporter

# After a frame, the agent waits at most this long for the reconciliation. This is much shorter than a lease.
RECONCILE_WAIT_SECONDS = 2.0
SHIM_POLL_SECONDS = 0.2  # between two reads of the shims' files


class HostReconciler:
    """Brings the runs of one host to the last desired state. Only one reconciliation runs at a time."""

    def __init__(
        self,
        state: StateFolder,
        runs: RunManager,
        gpu_reader: GpuReader,
        hardware: GpuInventory,
        reporter: ServerReporter,
        diagnostics: DiagnosticRunner,
        geometries: GeometryChanges,
        monitor: HostMonitor,
    ) -> None:
        self._state = state
        self._runs = runs
        self._gpu_reader = gpu_reader
        self._hardware = hardware
        self._reporter = reporter
        self._diagnostics = diagnostics
        self._geometries = geometries
        self._monitor = monitor
        self._handover = HandoverCheck(state.folder / "units.json", boot_id())
        self.poll_seconds = 5.0
        self.desired: Desired | None = None
        self._leased_from = 0.0  # CLOCK_BOOTTIME from which the server counts the lease
        self._heard_at = 0.0  # CLOCK_BOOTTIME of the last frame that was not out of order
        self._lease_until = 0.0
        self._busy = asyncio.Lock()  # one reconciliation at a time
        self._reconcile_task: asyncio.Task[None] | None = None
        self._reconcile_needed = False  # True: another reconciliation was requested after the last one began

    def take_over(self, hardware: GpuInventory) -> None:
        """Use this inventory from now on."""
        self._hardware = hardware

    async def close(self) -> None:
        """Cancel a reconciliation that is in progress."""
        if self._reconcile_task is not None:
            await cancel_tasks([self._reconcile_task])

    def hear(self, desired: Desired, leased_from: float) -> None:
        """Take over a desired state and renew the leases of its runs.

        ``leased_from``: the CLOCK_BOOTTIME, in seconds, at which the lease of this host begins.
        """
        self.poll_seconds = min(60.0, max(0.2, desired.poll_seconds))
        self.desired = desired
        is_old = leased_from < self._leased_from
        self._leased_from = max(self._leased_from, leased_from)  # an old frame does not shorten the lease
        self._lease_until = self._leased_from + max(1.0, desired.lease_seconds)
        named = {wanted.run for wanted in desired.runs}
        # Do not renew the lease of a run that has to stop. If its shim does not get the stop order, the shim
        # stops the run when the lease expires.
        self._runs.renew({wanted.run for wanted in desired.runs if wanted.verb != "stop"}, self._lease_until)
        self._note_undesired_runs(named, is_old)
        for wanted in desired.runs:
            if wanted.secret and wanted.run in self._runs.runs:
                self._runs.runs[wanted.run].secret = wanted.secret
        for name in [name for name in self._runs.waiting if name not in named]:
            del self._runs.waiting[name]
            self._reporter.note_change()
        with log_disk_errors("the ids of this agent's starts"):
            self._state.starts.known()

    def _note_undesired_runs(self, named: set[str], is_old: bool) -> None:
        """Set ``undesired_since`` of each run that the server no longer lists; clear it for the other runs.

        ``named``: the runs that the server lists. ``is_old``: True if the frame arrived after a newer frame.
        An old frame never sets ``undesired_since``.
        """
        if not is_old:
            self._heard_at = boottime()
        for run in self._runs.runs.values():
            if run.id in named:
                run.undesired_since = None
            elif not is_old and run.undesired_since is None:
                run.undesired_since = self._heard_at

    async def reconcile_with_timeout(self) -> None:
        """Start reconciling and wait at most RECONCILE_WAIT_SECONDS.

        The next frame renews the leases, and it is handled only after this call. A long wait here would
        therefore let the leases expire.
        """
        await asyncio.wait((self._start_reconciling(),), timeout=RECONCILE_WAIT_SECONDS)
        self._raise_reconcile_error()

    def _start_reconciling(self) -> asyncio.Task[None]:
        """Start reconciling in the background, unless a reconciliation is running. Return its task.

        Raises the exception of an earlier reconciliation that has failed.
        """
        self._reconcile_needed = True
        self._raise_reconcile_error()
        if self._reconcile_task is None:
            self._reconcile_task = asyncio.create_task(self._reconcile_until_current())
        return self._reconcile_task

    def _raise_reconcile_error(self) -> None:
        """Raise the exception of a failed reconciliation, once.

        The exception ends the agent, and the agent's supervisor restarts it.
        """
        ended = self._reconcile_task
        if ended is not None and ended.done():
            self._reconcile_task = None
            ended.result()

    async def _reconcile_until_current(self) -> None:
        while self._reconcile_needed:
            self._reconcile_needed = False
            await self.reconcile()

    async def reconcile(self) -> None:
        """Carry out the actions that bring this host's runs to the desired state."""
        if self.desired is None:
            return
        async with self._busy:
            before, has_changed = self._runs.seen(), False
            desired, actions = self.desired, self._plan(self.desired)
            tried: set[str] = set()
            while actions:
                if self.desired is not desired:  # a newer frame arrived during a slow start
                    desired = self.desired
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
        # If a start has failed and its run still waits, the agent reports no change. The server answers each
        # report with a frame, and after each frame the agent tries the start again. A report after each try
        # would therefore cause an endless exchange of frames.
        if has_changed or self._runs.seen() != before:
            self._reporter.note_change()

    def _plan(self, desired: Desired) -> list[Action]:
        """Return the actions to do now, in their order.

        Stops and other fast actions come first, so that no stop waits for a slow action. Refusals and changes
        of time limits are slow, so they follow. Starts come last.
        """
        actions = plan_actions(
            desired,
            [run.held() for run in self._runs.runs.values()],
            refusal=self._state.generations.refusal,
            known_units=self._runs.known_units,
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
                await self._runs.refuse(wanted, outcome, why)
            case SendNotice(wanted):
                self._runs.notice(wanted.run, wanted.code, wanted.stop_at)
            case WithdrawNotice(run):
                self._runs.withdraw(run)
            case ChangeTimeLimit(run, seconds):
                await self._runs.limit(run, seconds)
            case StopRun():
                self._runs.stop(action)
            case ForgetRun(run):
                self._runs.forget(run)

    async def _start(self, wanted: RunWanted) -> None:
        if boottime() >= self._lease_until:
            return  # the lease has expired, so the desired state is too old to start a run
        if self._geometries.busy:
            await self._runs.wait(wanted, "waiting: the MIG geometry of a GPU of this host is being changed")
            return
        self._diagnostics.yield_gpus(wanted.unit_uuids)
        if not await self._runs.is_due(wanted):
            return
        is_new = False  # also False if the check of the home takes too long
        with contextlib.suppress(CallTimeout):
            is_new = not self._runs.has_home(wanted.owner)
        try:
            if wanted.unit_uuids and self._hardware.unread:
                raise GpuReadError(self._hardware.unread)
            rows, gpu_processes = (
                await self._gpu_reader.occupancy(time.time()) if wanted.unit_uuids else ([], [])
            )
            leftovers = self._handover.describe_leftovers(
                self._runs.exclusive_units(wanted), rows, gpu_processes
            )
        except GpuReadError as problem:
            await self._runs.wait_for_readable_gpus(wanted, str(problem))
            return
        if leftovers:
            await self._runs.wait(wanted, f"waiting: {leftovers}")
            return
        if await self._runs.start(wanted, self._lease_until):
            with log_disk_errors("the state of the GPUs before the run"):
                self._handover.record_baseline(self._runs.exclusive_units(wanted), rows, gpu_processes)
            # Wake the home measurement only after a start. A waiting run has no home yet, so each try would
            # cause a useless measurement.
            if is_new:
                self._monitor.home_created.set()

    async def poll_shims(self) -> None:
        """Read the shims' files forever. Report changes, and start reconciling if starts or stops are due."""
        while True:
            await asyncio.sleep(SHIM_POLL_SECONDS)
            if self._runs.look():
                self._reporter.note_change()
            self._raise_reconcile_error()
            if self._reconcile_task is None and (
                self._runs.has_starts_awaiting_units or self.has_undesired_runs()
            ):
                # Not awaited, so that this loop keeps reporting the ends of other runs during a slow start.
                self._start_reconciling()

    def has_undesired_runs(self) -> bool:
        """Return True if the server has stopped listing a run for long enough to stop it."""
        patience = 2 * self.poll_seconds
        return any(
            run.undesired_since is not None
            and self._heard_at - run.undesired_since >= patience
            and not run.stop_ordered
            for run in self._runs.runs.values()
        )
