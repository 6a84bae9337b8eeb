"""What happens on this host, looked at again and again: its GPUs and who is on them, hardware events, notebooks, homes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from agent.gpu.reader import GpuReader, HardwareEvent, UnitUse
from agent.gpu.stray_processes import STRAY_ENDED_CODE, StrayTracker, WorkloadContext, ended_by_gpu
from agent.host import processes
from agent.host.durable_files import log_disk_errors
from agent.notebook import activity_probe
from agent.notebook.background_activity import is_kernel
from agent.protocol import SampleRow
from agent.runs.declared_load import declared_load
from agent.runs.local_run import LocalRun
from agent.runs.manager import RunManager
from agent.runs.reconcile import StopRun
from agent.server.reporting import ServerReporter
from agent.storage import home_usage_reader

log = logging.getLogger("agent.monitoring")

EVENT_POLL_SECONDS = 1.0
PROBE_STARTING_SECONDS = 0.1  # a notebook that is starting
PROBE_READY_SECONDS = 3.0
OFFLINE_SAMPLES_PER_BATCH = 12  # samples per batch while the edge is away: fewer, larger files


class HostMonitor:
    """Of one host; what it finds goes to ``news``. ``own``: pids of the agent's own programs, that are no strays."""

    def __init__(
        self,
        runs: RunManager,
        meter: GpuReader,
        news: ServerReporter,
        *,
        sample_seconds: float,
        own: Callable[[], list[int]],
    ) -> None:
        self.stray_action = "report"  # as the server last said it
        self.home_created = asyncio.Event()
        self._runs = runs
        self._meter = meter
        self._news = news
        self._sample_seconds = sample_seconds
        self._own = own
        self._strays = StrayTracker()
        self._unsaved: list[SampleRow] = []

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What has to run for as long as the agent does."""
        return self._sample(), self._watch_events(), self._watch_notebooks(), self._watch_homes()

    def save(self) -> None:
        """The last samples, as the agent ends."""
        if self._unsaved:
            with _log_lost_samples():
                self._news.spool.add(self._unsaved)

    # GPUs

    async def _sample(self) -> None:
        while True:
            began = time.monotonic()
            uses = await asyncio.to_thread(self._uses, list(self._runs.holders().items()))
            self._unsaved += await self._meter.sample(uses, time.time())
            self._look_for_strays(uses)
            if self._news.connected or len(self._unsaved) >= OFFLINE_SAMPLES_PER_BATCH * max(
                1, len(self._runs.known_units)
            ):
                rows, self._unsaved = self._unsaved, []
                with _log_lost_samples():
                    await self._news.spool.add_in_thread(rows)
                self._news.due.set()
            await asyncio.sleep(max(0.0, self._sample_seconds - (time.monotonic() - began)))

    def _uses(self, holders: list[tuple[str, LocalRun]]) -> dict[str, UnitUse]:
        everything = processes.scan()
        by_run: dict[str, UnitUse] = {}
        found: dict[str, UnitUse] = {}
        for unit, run in holders:
            if run.id not in by_run:
                by_run[run.id] = _unit_use(run, everything)
            found[unit] = by_run[run.id]
        return found

    def _look_for_strays(self, uses: dict[str, UnitUse]) -> None:
        # As it is now: what was started while the GPUs were read is none.
        holders = {unit: run.id for unit, run in self._runs.holders().items()}
        shims = {run.shim["pid"]: run.id for run in self._runs.runs.values() if "pid" in run.shim}
        known = WorkloadContext(
            uses, holders, shims, self._own(), self._runs.team_users.numbers, self._runs.cgroups.all_run_pids
        )
        if self._strays.look(self._meter.processes(), known, action=self.stray_action, now=time.monotonic()):
            self._news.note_strays(self._strays.seen)
        for gpu, told in ended_by_gpu(self._strays.ended).items():
            self._news.note_event(
                HardwareEvent(uuid.uuid4().hex, gpu, "agent", STRAY_ENDED_CODE, time.time(), told)
            )
        for name, gpu in self._strays.runs_on_foreign_gpus.items():
            run = self._runs.runs.get(name)
            if run is not None and run.state in ("starting", "running"):
                log.warning("run %s is stopped: it uses %s, which it does not hold", name, gpu)
                why = f"stopped: it used {gpu}, which it did not hold"
                self._runs.stop(StopRun(name, "cancelled", run.held().grace_seconds, whatever=True, why=why))

    async def _watch_events(self) -> None:
        for event in await self._meter.earlier(time.time()):
            if not self._news.events.was_reported(event):
                self._news.note_event(event)
        while True:
            failed = self._runs.runs_awaiting_gpu_events()
            for event in await self._meter.events(time.time()):
                self._news.note_event(event)
            for run in failed:
                self._runs.record_gpu_events(run, self._news.events.codes_between)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVENT_POLL_SECONDS):
                    await self._runs.gpu_events_wanted.wait()

    # notebooks

    async def _watch_notebooks(self) -> None:
        asking: dict[str, asyncio.Task[None]] = {}  # one that hangs holds up no other
        asked: dict[str, float] = {}
        while True:
            await asyncio.sleep(PROBE_STARTING_SECONDS)
            now = time.monotonic()
            asking = {name: task for name, task in asking.items() if not task.done()}
            asked = {name: when for name, when in asked.items() if name in self._runs.runs}
            for run in self._runs.runs.values():
                every = PROBE_READY_SECONDS if run.ready else PROBE_STARTING_SECONDS
                due = (
                    run.is_notebook
                    and run.state == "running"
                    and run.secret
                    and now - asked.get(run.id, 0.0) >= every
                )
                if due and run.id not in asking:
                    asked[run.id] = now
                    asking[run.id] = asyncio.create_task(self._ask_notebook(run))

    async def _ask_notebook(self, run: LocalRun) -> None:
        activity = await activity_probe.probe_activity(run.socket, run.secret)
        if run.ended:
            return
        before = (run.step, run.ready, run.activity)
        if activity is not None:
            with log_disk_errors("the end of a notebook's secret"):
                (run.folder / "in" / "secret").unlink(
                    missing_ok=True
                )  # the server has read it; nobody else needs to
            run.ready, run.activity, run.step = (
                True,
                {**activity, "last_background": run.background.last},
                "ready",
            )
        elif not run.ready:
            run.step = "starting JupyterLab"
        if (run.step, run.ready, run.activity) != before:
            self._news.note_change()

    # homes

    async def _watch_homes(self) -> None:
        while True:
            found, pause = await home_usage_reader.read_home_usage(self._runs.homes)
            if found is not None:
                self._news.note_homes(found)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.home_created.wait()
            self.home_created.clear()


@contextlib.contextmanager
def _log_lost_samples() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.error("samples are lost: %s", error)  # a full disk: unknown, not zero


def _unit_use(run: LocalRun, everything: dict[int, processes.Process]) -> UnitUse:
    tree = processes.descendants(everything, run.shim["pid"]) if "pid" in run.shim else []
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
