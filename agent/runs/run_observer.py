"""Reads the state of the runs of this host from their folders, into which their shims write.

A shim is the process that supervises a run. The agent may end at any time. At its next start it finds three
kinds of runs. Some runs still have their shim, which is identified by boot id, pid and start time. Some runs
have ended. Some runs never began; they are reported as failed, because they can't be started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agent.gpu.reader import GpuInventory
from agent.host import processes
from agent.host.blocking_call import BlockingCall, CallTimeout
from agent.host.clock import boot_id, boottime
from agent.host.durable_files import read_json
from agent.host.gpu_locks import SlotClaim
from agent.host.state import StateFolder
from agent.isolation import team_users
from agent.isolation.cgroups import Cgroups
from agent.isolation.launchers import Launcher
from agent.isolation.person_users import PersonUsers
from agent.isolation.workload_network import WorkloadNetwork
from agent.protocol import RunSeen, RunUseSeen
from agent.runs.hooks import Hooks
from agent.runs.local_run import (
    LocalRun,
    PendingStart,
    acknowledgement_identity,
    is_socket,
    read_acknowledgement,
)
from agent.runs.orphaned_runs import SHIM_START_SECONDS, OrphanedRuns
from agent.storage.file_trees import Trash
from agent.storage.home_limits import open_home_limits

log = logging.getLogger("agent.runs.run_observer")

T = TypeVar("T")

# The report of a failed run waits for this long, because the driver may log XIDs (GPU errors) late.
XID_WAIT_SECONDS = 2.0
# GPU events within this time before the end of a run may be the cause of its failure.
XID_LOOKBACK_SECONDS = 300.0
# GPU events within this time after the end of a run may be the cause too, because the driver may log late.
XID_LOOKAHEAD_SECONDS = 10.0
MAX_FINAL_USES = 1_000  # ended runs whose use waits for the next sample
HOMES_READ_TIMEOUT_SECONDS = 0.2  # time limit of one read of the homes' file system


class RunObserver:
    """The runs of this host by id, with the state that their shims report.

    This class starts and stops no run.
    """

    def __init__(
        self,
        state: StateFolder,
        launcher: Launcher,
        hardware: GpuInventory,
        *,
        homes: Path,
        locks_folder: Path,
        exposed: list[Path],
        address: str = "",
        numbers: team_users.UidRange | None = None,
        person_users: PersonUsers | None = None,
        cgroups: Cgroups | None = None,
        network: WorkloadNetwork | None = None,
        hooks: Hooks | None = None,
        closed: str = "",
    ) -> None:
        self.state = state
        self.launcher = launcher
        self.homes = homes
        self.locks_folder = locks_folder
        self.exposed = exposed
        # Address at which workloads of other hosts reach workloads of this host; '' if unreachable or
        # unknown.
        self.address = address
        self.cgroups = cgroups or Cgroups()
        self.team_users = team_users.TeamUsers(homes, numbers)
        self.person_users = person_users or PersonUsers()
        self.home_limits = open_home_limits(homes)
        self.network = network or WorkloadNetwork("private", "")
        self.hooks = hooks or Hooks()
        self.closed = closed  # the reason why this host starts no run, as a sentence; '' if it may start runs
        self.lost = OrphanedRuns(state.tools, self.cgroups)
        self._homes_call = BlockingCall("homes")
        self.trash = Trash(state.folder / "trash")
        self.runs: dict[str, LocalRun] = {}
        self.final_uses: deque[RunUseSeen] = deque(maxlen=MAX_FINAL_USES)  # of runs that have ended
        self.waiting: dict[str, PendingStart] = {}
        self._claims: dict[str, SlotClaim] = {}  # by unit uuid: the slots that a run on the unit locks
        self.gpu_events_wanted = asyncio.Event()  # set when a run fails: see runs_awaiting_gpu_events
        self.take_over(hardware)

    def take_over(self, hardware: GpuInventory) -> None:
        """Use this inventory from now on.

        This method is called at the start, and when the GPUs, their units or the notes on them have changed.
        """
        self.hardware = hardware
        self._claims = {
            unit.uuid: SlotClaim(gpu.uuid, unit.first_slot, unit.slots)
            for gpu in hardware.gpus
            for unit in gpu.units
        }

    @property
    def has_starts_awaiting_units(self) -> bool:
        """Return True if a start waits for a condition on this host, such as free units.

        A prepared part of a gang does not count, because it waits for the server. A start that is being
        recorded does not count either.
        """
        return any(not entry.prepared and not entry.begun for entry in self.waiting.values())

    @property
    def known_units(self) -> frozenset[str]:
        return frozenset(self._claims)

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run a blocking call, such as a disk write, in a thread, so that the event loop keeps running."""
        return await asyncio.to_thread(call)

    def call_homes(self, call: Callable[[], T], seconds: float = HOMES_READ_TIMEOUT_SECONDS) -> T:
        """Run a call on the homes' file system and return its result.

        Raises CallTimeout if it does not return within ``seconds``, and every exception of ``call``.
        """
        return self._homes_call.run(call, seconds)

    def _checkpoint_folder(self, workload: str) -> Path:
        """Return the checkpoint folder of a workload.

        The folder is next to the homes. Hosts that share the homes therefore share the checkpoints.
        """
        return (self.homes / ".checkpoints" / workload).resolve()

    # --- reading the folders of the runs ---

    def adopt(self) -> None:
        """Load the runs from before the agent's start. Call this method once, before any run is started."""
        for folder in sorted(self.state.runs.iterdir()):
            about = read_json(folder / "run.json")
            if about is None:
                shutil.rmtree(
                    folder, ignore_errors=True
                )  # the agent ended during the start of this run, before it wrote run.json
                continue
            run = LocalRun(
                folder,
                about,
                adopted=True,
                log_sent=(read_json(folder / "log_sent.json") or {}).get("offset", 0),
            )
            order = read_json(folder / "order.json") or {}
            run.noticed, run.stop_ordered = bool(order.get("notice")), bool(order.get("stop"))
            # An older version of the agent did not record the acknowledgement at the notice. Use the present
            # acknowledgement instead.
            run.acknowledgement_before_notice = (
                order["word"] if "word" in order else acknowledgement_identity(self._acknowledgement(run))
            )
            self.runs[run.id] = run
            self._refresh_or_log(run)
            if run.shim and not run.ended:
                log.info("adopted run %s: its shim is pid %s", run.id, run.shim["pid"])

    def look(self) -> bool:
        """Read the files that the shims have written.

        Return True if the observed state of any run has changed.
        """
        before = [run.seen() for run in self.runs.values()]
        for run in self.runs.values():
            if not run.ended:
                self._refresh_or_log(run)
        return before != [run.seen() for run in self.runs.values()]

    def _refresh_or_log(self, run: LocalRun) -> None:
        """Read the files of one run.

        An OSError is only logged. A raised error would end the agent, and nothing would renew the leases of
        the other runs.
        """
        try:
            self._refresh(run)
        except OSError as error:
            # This may be a full disk. The next call of ``look`` tries again.
            log.error("run %s: %s", run.id, error)

    # Not split: it reads each file of the run once, in the order in which the shim writes it.
    def _refresh(self, run: LocalRun) -> None:
        self._read_checkpoint(run)
        ended = read_json(run.folder / "exit.json")
        if ended is not None:
            if not self._awaits_gpu_events(run, ended):
                self._note_end(run, ended)
            return
        if "started_at" not in run.shim:
            run.shim = read_json(run.folder / "shim.json") or {}
            if "started_at" in run.shim and not run.is_notebook:
                run.step = "running"
            run.step = run.shim.get("step", run.step)
        if not run.is_notebook and not run.ready:
            run.ready = is_socket(run.socket)
        run.stopping = run.stopping or (run.folder / "stopping.json").exists()
        if run.stopping and (run.folder / "epilog.json").exists():
            run.step = "running the operator's epilog"
        if not _is_shim_alive(run):
            ended = self.lost.end(run)
            if ended is not None:
                self._note_end(run, ended)

    def _read_checkpoint(self, run: LocalRun) -> None:
        acknowledgement = self._acknowledgement(run)
        run.checkpoint_at = acknowledgement.st_mtime if acknowledgement else None
        run.saved = (
            run.noticed
            and acknowledgement is not None
            and acknowledgement_identity(acknowledgement) != run.acknowledgement_before_notice
        )

    def _acknowledgement(self, run: LocalRun) -> os.stat_result | None:
        """Return the stat of the workload's checkpoint acknowledgement file; None if there is none.

        A symbolic link does not count. If the file system of the homes does not answer, return the last
        result.
        """
        with contextlib.suppress(CallTimeout):
            run.acknowledgement = self.call_homes(
                lambda: read_acknowledgement(self._checkpoint_folder(run.about["workload"]))
            )
        return run.acknowledgement

    # --- the end of a run ---

    def _awaits_gpu_events(self, run: LocalRun, ended: dict[str, Any]) -> bool:
        """Return True while the report of a failed run must wait for GPU events."""
        if ended["outcome"] != "failed" or not run.about["unit_uuids"] or run.gpu_events is not None:
            return False
        if run.exit_found_at is None:
            run.exit_found_at = boottime()
            self.gpu_events_wanted.set()
        return boottime() - run.exit_found_at < XID_WAIT_SECONDS

    def runs_awaiting_gpu_events(self) -> list[LocalRun]:
        """Return the failed runs whose report waits for a call of ``record_gpu_events``."""
        self.gpu_events_wanted.clear()
        return [
            run
            for run in self.runs.values()
            if run.exit_found_at is not None and run.gpu_events is None and not run.ended
        ]

    def record_gpu_events(
        self, run: LocalRun, codes: Callable[[frozenset[str], float, float], list[str]]
    ) -> None:
        """Record the event codes of a run's GPUs around the end of the run.

        ``codes(gpus, since, until)`` returns the event codes of GPUs between two times. ``gpus`` contains
        uuids, and the times are in seconds since the epoch.
        """
        ended_at = (read_json(run.folder / "exit.json") or {}).get("ended_at") or time.time()
        shim = run.shim if "started_at" in run.shim else read_json(run.folder / "shim.json") or {}
        since = max(shim.get("started_at") or 0.0, ended_at - XID_LOOKBACK_SECONDS)
        gpus = frozenset(self._claims[unit].gpu for unit in run.about["unit_uuids"] if unit in self._claims)
        run.gpu_events = codes(gpus, since, ended_at + XID_LOOKAHEAD_SECONDS)

    def _note_end(self, run: LocalRun, ended: dict[str, Any]) -> None:
        # The workload may have written its checkpoint between the last read and its end.
        self._read_checkpoint(run)
        stop_order = _stop_order_for(run, ended["outcome"])
        run.ended = {**ended, "error": ended.get("error") or str(stop_order.get("why", ""))}
        if stop_order.get("host_full"):
            run.ended["host_full"] = True
        if run.ended["error"]:
            log.warning("run %s ended as %s: %s", run.id, ended["outcome"], run.ended["error"])
        run.shim = run.shim if "started_at" in run.shim else read_json(run.folder / "shim.json") or {}
        run.ready = False
        # If the agent restarts before the server has the report, the groups are gone and the use is unknown.
        use = self.cgroups.use(run.about["mark"])
        run.ended |= {"cpu_seconds": use.cpu_seconds, "memory_peak_mib": use.memory_peak_mib}
        self.final_uses.append(
            RunUseSeen(run.id, time.time(), round(boottime(), 6), **dataclasses.asdict(use))
        )
        self.cgroups.remove(run.about["mark"])
        self.network.leave_in_background(run.about["mark"])
        (run.folder / "in" / "secret").unlink(missing_ok=True)
        for name in ("tmp", "out"):
            self.trash.throw(run.folder / name)
        (run.folder / "spec.json").unlink(missing_ok=True)

    # --- reports ---

    def seen(self) -> list[RunSeen]:
        """Return the observed state of every run and of every pending start."""
        waiting = [
            RunSeen(
                run=name,
                generation=entry.wanted.generation,
                state="starting",
                step=entry.step,
                prepared=entry.prepared,
            )
            for name, entry in self.waiting.items()
        ]
        return [run.seen() for run in self.runs.values()] + waiting

    def holders(self) -> dict[str, LocalRun]:
        """Return the run that holds each unit now, by unit uuid."""
        return {unit: run for run in self.runs.values() if not run.ended for unit in run.about["unit_uuids"]}


def _is_shim_alive(run: LocalRun) -> bool:
    if not run.shim:
        return boottime() - run.spawned_at < SHIM_START_SECONDS or _is_alive_file_locked(run)
    same_boot = run.shim["boot_id"] == boot_id()
    return same_boot and processes.is_alive(run.shim["pid"], run.shim["start_ticks"])


def _is_alive_file_locked(run: LocalRun) -> bool:
    """Return True if a process holds the lock of the run's ``alive`` file.

    A shim holds this lock from its start, even before it has written shim.json.
    """
    try:
        descriptor = os.open(run.folder / "alive", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _stop_order_for(run: LocalRun, outcome: str) -> dict[str, Any]:
    """Return the agent's stop order; {} unless the run has ended with the outcome in this order."""
    with contextlib.suppress(OSError):
        order: dict[str, Any] = (read_json(run.folder / "order.json") or {}).get("stop") or {}
        if order.get("outcome") == outcome:
            return order
    return {}
