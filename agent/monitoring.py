"""Monitors and reports the GPUs, their processes, hardware events, notebooks and homes of this host."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from agent.gpu.reader import GpuReader, HardwareEvent, UnitUse
from agent.gpu.stray_processes import STRAY_ENDED_CODE, StrayTracker, WorkloadContext, ended_by_gpu
from agent.host import processes
from agent.host.clock import boottime
from agent.host.durable_files import log_disk_errors
from agent.notebook import activity_probe
from agent.notebook.background_activity import is_kernel
from agent.protocol import SampleRow
from agent.runs.declared_load import declared_load
from agent.runs.local_run import LocalRun
from agent.runs.manager import RunManager
from agent.runs.reconcile import StopRun
from agent.server.reporting import ServerReporter
from agent.server.sample_spool import BatchUsage
from agent.storage import home_usage_reader
from agent.usage import UsageCollector

log = logging.getLogger("agent.monitoring")

EVENT_POLL_SECONDS = 1.0
PROBE_STARTING_SECONDS = 0.1  # between two probes of a starting notebook
PROBE_READY_SECONDS = 3.0  # between two probes of a ready notebook
OFFLINE_SAMPLES_PER_BATCH = (
    12  # samples per unit in one batch while the edge is unavailable; large batches need fewer files
)


class HostMonitor:
    """Monitors one host and passes the results to ``reporter``.

    A stray is a process on a GPU that is not part of the run that holds the GPU. ``own_pids`` returns the
    pids of the agent's own diagnostics; they are not reported as strays.
    """

    def __init__(
        self,
        runs: RunManager,
        gpu_reader: GpuReader,
        reporter: ServerReporter,
        *,
        sample_seconds: float,
        own_pids: Callable[[], list[int]],
    ) -> None:
        self.stray_action = "report"  # the last value from the server
        self.home_created = asyncio.Event()
        self._runs = runs
        self._gpu_reader = gpu_reader
        self._reporter = reporter
        self._sample_seconds = sample_seconds
        self._own_pids = own_pids
        self._strays = StrayTracker()
        self._unsaved: list[SampleRow] = []
        self._usage = UsageCollector(runs, gpu_reader, sample_seconds)
        self._unsaved_usage = BatchUsage()

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return the coroutines to run as long as the agent runs."""
        return self._sample(), self._watch_events(), self._watch_notebooks(), self._watch_homes()

    def save(self) -> None:
        """Write the samples that are still in memory to the spool. Call this method when the agent ends."""
        if self._unsaved or not self._unsaved_usage.is_empty:
            with _log_lost_samples():
                self._reporter.spool.add(self._unsaved, self._unsaved_usage)

    # --- GPUs ---

    async def _sample(self) -> None:
        while True:
            began = time.monotonic()
            uses = await asyncio.to_thread(self._uses, list(self._runs.holders().items()))
            now, uptime = time.time(), boottime()
            rows = await self._gpu_reader.sample(uses, now)
            if self._usage.due(began):
                self._unsaved_usage.add(await self._usage.collect(uses, now, uptime))
            self._unsaved_usage.runs.extend(self._usage.final_uses())
            self._unsaved += [dataclasses.replace(row, uptime=round(uptime, 6)) for row in rows]
            self._look_for_strays(uses)
            if self._reporter.connected or len(self._unsaved) >= OFFLINE_SAMPLES_PER_BATCH * max(
                1, len(self._runs.known_units)
            ):
                rows, self._unsaved = self._unsaved, []
                usage, self._unsaved_usage = self._unsaved_usage, BatchUsage()
                with _log_lost_samples():
                    await self._reporter.spool.add_in_thread(rows, usage)
                self._reporter.due.set()
            await asyncio.sleep(max(0.0, self._sample_seconds - (time.monotonic() - began)))

    def _uses(self, holders: list[tuple[str, LocalRun]]) -> dict[str, UnitUse]:
        all_processes = processes.scan()
        by_run: dict[str, UnitUse] = {}
        by_unit: dict[str, UnitUse] = {}
        for unit, run in holders:
            if run.id not in by_run:
                by_run[run.id] = _unit_use(run, all_processes)
            by_unit[unit] = by_run[run.id]
        return by_unit

    def _look_for_strays(self, uses: dict[str, UnitUse]) -> None:
        # Read the holders after the sampling. Otherwise, a process of a run that started during the sampling
        # would count as a stray.
        holders = {unit: run.id for unit, run in self._runs.holders().items()}
        shims = {run.shim["pid"]: run.id for run in self._runs.runs.values() if "pid" in run.shim}
        known = WorkloadContext(
            uses,
            holders,
            shims,
            self._own_pids(),
            self._runs.team_users.numbers,
            self._runs.cgroups.all_run_pids,
        )
        if self._strays.look(
            self._gpu_reader.processes(), known, action=self.stray_action, now=time.monotonic()
        ):
            self._reporter.note_strays(self._strays.seen)
        for gpu, detail in ended_by_gpu(self._strays.ended).items():
            self._reporter.note_event(
                HardwareEvent(uuid.uuid4().hex, gpu, "agent", STRAY_ENDED_CODE, time.time(), detail)
            )
        for name, gpu in self._strays.runs_on_foreign_gpus.items():
            run = self._runs.runs.get(name)
            if run is not None and run.state in ("starting", "running"):
                log.warning("run %s is stopped: it uses %s, which it does not hold", name, gpu)
                why = f"stopped: it used {gpu}, which it did not hold"
                self._runs.stop(StopRun(name, "cancelled", run.held().grace_seconds, whatever=True, why=why))

    async def _watch_events(self) -> None:
        for event in await self._gpu_reader.earlier(time.time()):
            if not self._reporter.events.was_reported(event):
                self._reporter.note_event(event)
        while True:
            failed = self._runs.runs_awaiting_gpu_events()
            for event in await self._gpu_reader.events(time.time()):
                self._reporter.note_event(event)
            for run in failed:
                self._runs.record_gpu_events(run, self._reporter.events.codes_between)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVENT_POLL_SECONDS):
                    await self._runs.gpu_events_wanted.wait()

    # --- notebooks ---

    async def _watch_notebooks(self) -> None:
        # Use one task per notebook, so that a notebook that hangs does not delay the probes of the others.
        probes: dict[str, asyncio.Task[None]] = {}
        probed_at: dict[str, float] = {}
        while True:
            await asyncio.sleep(PROBE_STARTING_SECONDS)
            now = time.monotonic()
            probes = {name: task for name, task in probes.items() if not task.done()}
            probed_at = {name: when for name, when in probed_at.items() if name in self._runs.runs}
            for run in self._runs.runs.values():
                interval = PROBE_READY_SECONDS if run.ready else PROBE_STARTING_SECONDS
                due = (
                    run.is_notebook
                    and run.state == "running"
                    and run.secret
                    and now - probed_at.get(run.id, 0.0) >= interval
                )
                if due and run.id not in probes:
                    probed_at[run.id] = now
                    probes[run.id] = asyncio.create_task(self._probe_notebook(run))

    async def _probe_notebook(self, run: LocalRun) -> None:
        activity = await activity_probe.probe_activity(run.socket, run.secret)
        if run.ended:
            return
        before = (run.step, run.ready, run.activity)
        if activity is not None:
            with log_disk_errors("the removal of a notebook's secret"):
                # The notebook server has read the secret, and nothing else needs the file.
                (run.folder / "in" / "secret").unlink(missing_ok=True)
            run.ready, run.activity, run.step = (
                True,
                {**activity, "last_background": run.background.last},
                "ready",
            )
        elif not run.ready:
            run.step = "starting JupyterLab"
        if (run.step, run.ready, run.activity) != before:
            self._reporter.note_change()

    # --- homes ---

    async def _watch_homes(self) -> None:
        while True:
            homes, pause = await home_usage_reader.read_home_usage(self._runs.homes)
            if homes is not None:
                self._reporter.note_homes(homes)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.home_created.wait()
            self.home_created.clear()


@contextlib.contextmanager
def _log_lost_samples() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.error("samples are lost: %s", error)  # the server treats lost samples as unknown, not as zero


def _unit_use(run: LocalRun, all_processes: dict[int, processes.Process]) -> UnitUse:
    tree = processes.descendants(all_processes, run.shim["pid"]) if "pid" in run.shim else []
    own = [process for process in tree if process.name != "bwrap"]
    if run.is_notebook and own:
        run.background.look(own, time.time())
    computing = sum(1 for process in own if is_kernel(process.pid)) if run.is_notebook else min(1, len(own))
    load, memory = declared_load(run, [process.pid for process in own])
    return UnitUse(
        run=run.id,
        pids=frozenset(process.pid for process in own),
        cpu_seconds=sum(process.cpu_seconds for process in own),
        gpu_processes=computing,
        declared_utilisation_percent=load,
        declared_memory_mib=memory,
    )
