"""The runs of this host: each has a folder that it shares with its shim, and everything about it can be read from there.

The agent may end at any line of this module: what it finds at its next start is a run that its shim keeps (adopted by boot
id, pid and start time), one that ended, or one that never began (its generation is used up and it is reported as failed).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agent.gpu.reader import GpuInventory
from agent.host import gpu_locks, processes
from agent.host.blocking_call import BlockingCall, CallTimeout
from agent.host.clock import boot_id, boottime
from agent.host.durable_files import log_disk_errors, read_json, write_json, write_text
from agent.host.gpu_locks import SlotClaim
from agent.host.state import StateFolder
from agent.isolation import team_users
from agent.isolation.cgroups import Cgroups
from agent.isolation.launchers import Launcher
from agent.isolation.workload_network import WorkloadNetwork
from agent.protocol import RunSeen, RunWanted
from agent.runs import gangs, launch_spec
from agent.runs.hooks import SYSTEM_PATH, Hooks
from agent.runs.local_run import (
    ACKNOWLEDGEMENT_FILE,
    LocalRun,
    PendingStart,
    acknowledgement_identity,
    is_socket,
    persisted_fields,
    read_acknowledgement,
    reserve_exit_space,
    write_lease,
    write_order,
)
from agent.runs.orphaned_runs import SHIM_START_SECONDS, OrphanedRuns
from agent.runs.reconcile import StopRun
from agent.storage.file_trees import Trash

log = logging.getLogger("agent.runs.manager")

T = TypeVar("T")

MAX_START_WAIT_SECONDS = 300.0
XID_WAIT_SECONDS = 2.0  # that the GPUs of a run that failed may take to say what happened to them
XID_LOOKBACK_SECONDS = 300.0  # of a run: what its GPUs told then may be what it failed of
XID_LOOKAHEAD_SECONDS = 10.0  # the driver's word may be noted a little later than the end
LOCK_HOLDER_CHECK_SECONDS = (
    5.0  # that a lock is waited for before somebody is looked for who has it without a run
)
GPU_UNREADABLE_WAIT_SECONDS = 60.0  # that a start waits for a GPU that can't be asked whether it is clean
HANDOVER_RECHECK_SECONDS = 1.0  # at GPUs that were not as clean as a start needs them
HOMES_READ_TIMEOUT_SECONDS, HOMES_PREPARE_TIMEOUT_SECONDS = (
    0.2,
    2.0,
)  # that the homes' file system is waited for: for a look at a file, for a start
MIN_FREE_BYTES, MIN_FREE_FILES = (
    64 << 20,
    2000,
)  # with less on the disk nothing new is started; what runs goes on
DISK_FULL_MESSAGE = "could not be started: the disk of the host is full"


class RunManager:
    """Every run this host has, by id, and the only code that starts or ends one."""

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
        self.address = (
            address  # where workloads of other hosts reach those of this one; '' nowhere, or unknown
        )
        self.cgroups = cgroups or Cgroups()
        self.team_users = team_users.TeamUsers(homes, numbers)
        self.network = network or WorkloadNetwork("private", "")
        self.hooks = hooks or Hooks()
        self.closed = closed  # why nothing is started here, in words
        self.lost = OrphanedRuns(state.tools, self.cgroups)
        self._homes_call = BlockingCall("homes")
        self.trash = Trash(state.folder / "trash")
        self.runs: dict[str, LocalRun] = {}
        self.waiting: dict[str, PendingStart] = {}
        self._claims: dict[str, SlotClaim] = {}
        self.gpu_events_wanted = asyncio.Event()  # a run failed: see ``failed_now``
        self._was_full = False
        self._renewed: set[str] = set()  # what the server named last, and until when that may run
        self._renewed_until = 0.0
        self.take_over(hardware)

    def take_over(self, hardware: GpuInventory) -> None:
        """What the host has: at the start, and when a GPU that nobody held was split otherwise."""
        self.hardware = hardware
        self._claims = {
            unit.uuid: SlotClaim(gpu.uuid, unit.first_slot, unit.slots)
            for gpu in hardware.gpus
            for unit in gpu.units
        }

    @property
    def has_starts_awaiting_units(self) -> bool:
        """Is there a start that may go on as soon as somebody here is gone? What waits for its gang hears from the server."""
        return any(not entry.prepared and not entry.begun for entry in self.waiting.values())

    @property
    def known_units(self) -> frozenset[str]:
        return frozenset(self._claims)

    # what there is

    def adopt(self) -> None:
        """Take over what an agent before this one left: call once, before anything is started."""
        for folder in sorted(self.state.runs.iterdir()):
            about = read_json(folder / "run.json")
            if about is None:
                shutil.rmtree(folder, ignore_errors=True)  # its start went no further than this
                continue
            run = LocalRun(
                folder,
                about,
                adopted=True,
                log_sent=(read_json(folder / "log_sent.json") or {}).get("offset", 0),
            )
            order = read_json(folder / "order.json") or {}
            run.noticed, run.stop_ordered = bool(order.get("notice")), bool(order.get("stop"))
            # An agent of an earlier version did not note it: then only a word that is newer than this start counts.
            run.acknowledgement_before_notice = (
                order["word"] if "word" in order else acknowledgement_identity(self._acknowledgement(run))
            )
            self.runs[run.id] = run
            self._refresh_or_log(run)
            if run.shim and not run.ended:
                log.info("adopted run %s: its shim is pid %s", run.id, run.shim["pid"])

    def look(self) -> bool:
        """Read what the shims wrote since the last look; whether anything changed that the server should hear of."""
        before = [run.seen() for run in self.runs.values()]
        for run in self.runs.values():
            if not run.ended:
                self._refresh_or_log(run)
        return before != [run.seen() for run in self.runs.values()]

    def _refresh_or_log(self, run: LocalRun) -> None:
        """One run's trouble is not the others': the agent has their leases to renew."""
        try:
            self._look_at(run)
        except OSError as error:
            log.error("run %s: %s", run.id, error)  # a full disk: looked at again in a moment

    def _look_at(self, run: LocalRun) -> None:
        word = self._acknowledgement(run)
        run.checkpoint_at = word.st_mtime if word else None
        run.saved = (
            run.noticed
            and word is not None
            and acknowledgement_identity(word) != run.acknowledgement_before_notice
        )
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
        if not self._shim_lives(run):
            left = self.lost.end(run)
            if left is not None:
                self._note_end(run, left)

    def _shim_lives(self, run: LocalRun) -> bool:
        if not run.shim:
            return boottime() - run.spawned_at < SHIM_START_SECONDS or self._alive_lock_is_held(run)
        same_boot = run.shim["boot_id"] == boot_id()
        return same_boot and processes.is_alive(run.shim["pid"], run.shim["start_ticks"])

    def _alive_lock_is_held(self, run: LocalRun) -> bool:
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

    def _awaits_gpu_events(self, run: LocalRun, ended: dict[str, Any]) -> bool:
        """Whether its end is not told yet: a program that fails may have failed of its GPU, whose word goes with the end."""
        if ended["outcome"] != "failed" or not run.about["unit_uuids"] or run.gpu_events is not None:
            return False
        if run.exit_found_at is None:
            run.exit_found_at = boottime()
            self.gpu_events_wanted.set()
        return boottime() - run.exit_found_at < XID_WAIT_SECONDS

    def runs_awaiting_gpu_events(self) -> list[LocalRun]:
        """Runs whose end is told as soon as their GPUs were asked: ``note_gpus``."""
        self.gpu_events_wanted.clear()
        return [
            run
            for run in self.runs.values()
            if run.exit_found_at is not None and run.gpu_events is None and not run.ended
        ]

    def record_gpu_events(
        self, run: LocalRun, codes: Callable[[frozenset[str], float, float], list[str]]
    ) -> None:
        """The GPUs were asked. ``codes``: what these GPUs (uuids) told from when to when (seconds since the epoch)."""
        ended_at = (read_json(run.folder / "exit.json") or {}).get("ended_at") or time.time()
        shim = run.shim if "started_at" in run.shim else read_json(run.folder / "shim.json") or {}
        since = max(shim.get("started_at") or 0.0, ended_at - XID_LOOKBACK_SECONDS)
        gpus = frozenset(self._claims[unit].gpu for unit in run.about["unit_uuids"] if unit in self._claims)
        run.gpu_events = codes(gpus, since, ended_at + XID_LOOKAHEAD_SECONDS)

    def _note_end(self, run: LocalRun, ended: dict[str, Any]) -> None:
        told = _stop_order_for(run, ended["outcome"])
        run.ended = {**ended, "error": ended.get("error") or str(told.get("why", ""))}
        if told.get("host_full"):
            run.ended["host_full"] = True
        if run.ended["error"]:
            log.warning("run %s ended as %s: %s", run.id, ended["outcome"], run.ended["error"])
        run.shim = run.shim if "started_at" in run.shim else read_json(run.folder / "shim.json") or {}
        run.ready = False
        self.cgroups.remove(run.about["mark"])
        self.network.leave_in_background(run.about["mark"])
        (run.folder / "in" / "secret").unlink(missing_ok=True)
        for name in ("tmp", "out"):
            self.trash.throw(run.folder / name)
        (run.folder / "spec.json").unlink(missing_ok=True)

    def _acknowledgement(self, run: LocalRun) -> os.stat_result | None:
        """The workload's last word that its checkpoint was written. The file is the workload's: never follow it."""
        with contextlib.suppress(CallTimeout):  # then what was last read counts
            run.word = self.beside(lambda: read_acknowledgement(self._checkpoint(run.about["workload"])))
        return run.word

    def seen(self) -> list[RunSeen]:
        """Every run, and every start that waits."""
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
        """By unit uuid: the run that holds it now."""
        return {unit: run for run in self.runs.values() if not run.ended for unit in run.about["unit_uuids"]}

    # what is done

    def exclusive_units(self, wanted: RunWanted) -> list[str]:
        """Those of its units that nobody else can be on: whole GPUs and MIG instances, which NVML tells apart."""
        claims = ((unit, self._claims.get(unit)) for unit in wanted.unit_uuids)
        return [
            unit for unit, claim in claims if claim is not None and (claim.whole or unit.startswith("MIG-"))
        ]

    async def wait(self, wanted: RunWanted, step: str) -> None:
        """It can't start yet, and says why; after a long while it is given up."""
        entry = self.waiting.setdefault(wanted.run, PendingStart(wanted, boottime(), ""))
        entry.step, entry.prepared, entry.next_try_at = step, False, boottime() + HANDOVER_RECHECK_SECONDS
        entry.gpu_unreadable_since = None
        if boottime() - entry.since > MAX_START_WAIT_SECONDS:
            await self.refuse(wanted, "start_failed", step)

    async def wait_for_readable_gpus(self, wanted: RunWanted, problem: str) -> None:
        """It can't start as long as its GPUs can't be asked whether they are clean: given up sooner, for it is not its matter."""
        before = self.waiting.get(wanted.run)
        since = (
            before.gpu_unreadable_since
            if before is not None and before.gpu_unreadable_since is not None
            else boottime()
        )
        step = f"waiting: the GPU can't be asked whether it is clean ({problem})"
        await self.wait(wanted, step)
        if (entry := self.waiting.get(wanted.run)) is None:
            return
        entry.gpu_unreadable_since = since
        if boottime() - since > GPU_UNREADABLE_WAIT_SECONDS:
            await self.refuse(wanted, "start_failed", step, gpu_unreadable=True)

    async def is_due(self, wanted: RunWanted) -> bool:
        """May it be tried now? Not while others hold its units, and what waited a moment ago waits on for a moment."""
        entry = self.waiting.get(wanted.run)
        if entry is not None and boottime() < entry.next_try_at:
            return False
        try:
            self._lock(wanted).close()
        except gpu_locks.SlotsLocked as busy:
            await self._wait_for(wanted, busy)
            return False
        return True

    def _lock(self, wanted: RunWanted) -> gpu_locks.HeldLocks:
        return gpu_locks.lock_slots(self.locks_folder, [self._claims[unit] for unit in wanted.unit_uuids])

    async def _wait_for(self, wanted: RunWanted, busy: gpu_locks.SlotsLocked) -> None:
        before = self.waiting.get(wanted.run)
        await self.wait(
            wanted,
            f"waiting until {busy.claim.gpu} is free{before.lock_holder_text if before is not None else ''}",
        )
        entry = self.waiting.get(wanted.run)
        if entry is None:
            return
        entry.next_try_at = 0.0  # a lock is cheap to try
        now = boottime()
        if now - max(entry.since, entry.asked_at) > LOCK_HOLDER_CHECK_SECONDS:
            entry.asked_at = now
            entry.lock_holder_text = await self._identify_lock_holder(busy)

    async def _identify_lock_holder(self, busy: gpu_locks.SlotsLocked) -> str:
        """Who holds a lock that no run with these slots accounts for, in words to follow others; '' where one does. Without a
        sandbox a workload can take a lock itself: its run is stopped. Looked for by the very file that was locked: a run on
        another slice of the GPU has that of the GPU open by right."""
        claim = busy.claim
        held = (self._claims.get(unit) for unit in self.holders())
        if any(other is not None and other.overlaps(claim) for other in held):
            return ""
        pids, everything = await self.through(lambda: (gpu_locks.pids_with_open(busy.path), processes.scan()))
        said = ""
        for pid in pids:
            run = self._run_of_process(pid, everything)
            if run is not None and run.state in ("starting", "running"):
                why = f"stopped: its process {pid} held the lock of {claim.gpu}, which it did not hold"
                log.warning("run %s is %s", run.id, why)
                self.stop(StopRun(run.id, "cancelled", run.held().grace_seconds, whatever=True, why=why))
            name = everything[pid].name if pid in everything else "gone meanwhile"
            said = (
                said
                or f": process {pid} ({name}){f' of run {run.id}' if run is not None else ''} holds its lock"
            )
        return said

    def _run_of_process(self, pid: int, everything: dict[int, processes.Process]) -> LocalRun | None:
        """The live run whose shim ``pid`` descends from."""
        shims = {run.shim["pid"]: run for run in self.runs.values() if "pid" in run.shim and not run.ended}
        above = everything.get(pid)
        while above is not None and above.pid > 1:
            above = everything.get(above.parent)
            if above is not None and above.pid in shims:
                return shims[above.pid]
        return None

    async def start(self, wanted: RunWanted, lease_until: float) -> bool:
        """Start it, or leave it waiting while its units are held; whether it was started. At most once, whatever happens here."""
        if self.closed:
            await self.refuse(wanted, "start_failed", f"could not be started: {self.closed}")
            return False
        if self.is_full() or not await self._ensure_tools():
            await self.refuse(wanted, "start_failed", DISK_FULL_MESSAGE, host_full=True)
            return False
        try:
            held = self._lock(wanted)
        except gpu_locks.SlotsLocked as busy:
            await self._wait_for(wanted, busy)
            return False
        if gangs.awaits_go(wanted):
            held.close()
            self.waiting[wanted.run] = PendingStart(
                wanted, boottime(), "waiting for the other hosts", prepared=True
            )
            return False
        try:
            place = self.beside(lambda: self._place(wanted, lease_until), HOMES_PREPARE_TIMEOUT_SECONDS)
        except CallTimeout:
            held.close()
            await self.wait(wanted, "waiting until the file system of the homes answers")
            return False
        except team_users.OwnershipChangeInProgress as settling:
            held.close()
            self.waiting[wanted.run] = PendingStart(wanted, boottime(), str(settling))
            return False
        except (team_users.TeamUserError, OSError) as error:
            held.close()
            await self.refuse(wanted, "start_failed", f"could not be started: {error}")
            return False
        try:
            run = await self._persist(wanted, lambda: self._persist_start(wanted, lease_until, place))
            self.runs[run.id] = run
            if run.id in self._renewed:  # heard while it was written down
                write_lease(run.folder, max(lease_until, self._renewed_until))
            await self._spawn(run, wanted, held, place)
            return True
        except (OSError, subprocess.SubprocessError) as error:
            log.error("run %s: could not be started: %s", wanted.run, error)
            await self._clean_up_failed_start(wanted)
            why = f"could not be started: {getattr(error, 'strerror', None) or error}"
            await self.refuse(
                wanted, "start_failed", why, host_full=getattr(error, "errno", 0) == errno.ENOSPC
            )
            return False
        finally:
            held.close()

    async def _ensure_tools(self) -> bool:
        """Are the tools of this version there? What could not be laid out on a full disk is laid out as soon as there is room."""
        if self.state.missing_tools_reason:
            with log_disk_errors("the tools of this version"):
                await self.through(self.state.install_tools)
        return not self.state.missing_tools_reason

    async def _clean_up_failed_start(self, wanted: RunWanted) -> None:
        """What a start that failed has made by the run's mark, which nobody knows any more after it. Meanwhile the server hears
        that the run is here: removing a network may take long."""
        run = self.runs.pop(wanted.run, None)
        if run is not None:
            self.waiting[wanted.run] = PendingStart(
                wanted, boottime(), "could not be started: being cleared away", begun=True
            )
            self.cgroups.remove(run.about["mark"])
            await self.through(lambda: self.network.leave(run.about["mark"]))

    async def through(self, call: Callable[[], T]) -> T:
        """Have something done that waits for the disk, which workloads keep busy, or for a program: the event loop goes on."""
        return await asyncio.to_thread(call)

    async def _persist(self, wanted: RunWanted, write: Callable[[], T]) -> T:
        """What ``write`` gives, when it is on the disk. Meanwhile the server hears that the run is here."""
        entry = self.waiting[wanted.run] = PendingStart(wanted, boottime(), "being written down", begun=True)
        try:
            return await self.through(write)
        finally:
            if self.waiting.get(wanted.run) is entry:
                del self.waiting[wanted.run]

    def _persist_start(
        self, wanted: RunWanted, lease_until: float, place: team_users.RunPlacement
    ) -> LocalRun:
        """That it was started once, before it is: first its generation, then its folder."""
        self.state.generations.use(wanted.generation, wanted.unit_uuids)
        return self._lay_out(wanted, lease_until, place)

    def beside(self, ask: Callable[[], T], seconds: float = HOMES_READ_TIMEOUT_SECONDS) -> T:
        """Ask the homes' file system something. Raises CallTimeout when it does not answer in time, and what ``ask`` raises."""
        return self._homes_call.ask(ask, seconds)

    def has_home(self, owner: str) -> bool:
        """Is there a home of this person? Raises CallTimeout."""
        return self.beside((self.homes / owner).exists)

    def _place(self, wanted: RunWanted, lease_until: float) -> team_users.RunPlacement:
        """Whose user the run starts as, its home and its checkpoint folder. Raises like ``Tenants.home``."""
        user = self.team_users.user(wanted.team_id, wanted.team_user)
        home = self.team_users.home(wanted.owner, user)
        place = team_users.RunPlacement(
            user, home, self.team_users.folder(self._checkpoint(wanted.workload), user)
        )
        if boottime() < lease_until:  # else this answer comes too late, and another host may have begun
            # An earlier attempt's word is not this one's. The folder is the workload's: what it made of that is no trouble of
            # the host.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                (place.checkpoint / ACKNOWLEDGEMENT_FILE).unlink()
        return place

    def _lay_out(self, wanted: RunWanted, lease_until: float, place: team_users.RunPlacement) -> LocalRun:
        folder = self.state.runs / wanted.run
        for name in ("in", "out", "tmp", "log"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        team_users.chown_run_folders(folder, place.user)
        run = LocalRun(
            folder,
            persisted_fields(wanted),
            spawned_at=boottime(),
            step="starting sandbox",
            secret=wanted.secret,
        )
        write_lease(folder, lease_until)
        reserve_exit_space(folder)
        if wanted.secret:
            write_text(folder / "in" / "secret", wanted.secret, team_users.INBOX_FILE_MODE)
        if wanted.gang is not None:
            write_text(
                folder / "in" / "hostfile", gangs.hostfile_text(wanted.gang), team_users.INBOX_FILE_MODE
            )
        write_json(folder / "run.json", run.about)
        return run

    def free_bytes(self) -> int:
        """Room on the disk of the state folder."""
        return shutil.disk_usage(self.state.folder).free

    def is_full(self) -> bool:
        """Has that disk too little room left, or room for too few files (0 in all: it makes them as they are needed)? Once it had,
        there is room again above twice as much: what comes and goes at the mark is no news each time."""
        disk, files = shutil.disk_usage(self.state.folder), os.statvfs(self.state.folder)
        needed = _recovered_free_space(MIN_FREE_BYTES, disk.total) if self._was_full else MIN_FREE_BYTES
        needed_files = (
            _recovered_free_space(MIN_FREE_FILES, files.f_files) if self._was_full else MIN_FREE_FILES
        )
        self._was_full = self.free_bytes() < needed or (files.f_files > 0 and files.f_favail < needed_files)
        return self._was_full

    async def _spawn(
        self, run: LocalRun, wanted: RunWanted, held: gpu_locks.HeldLocks, place: team_users.RunPlacement
    ) -> None:
        alive = os.open(run.folder / "alive", os.O_RDONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(alive, fcntl.LOCK_EX)
            await self.through(lambda: self._write_spec(run, wanted, place, [alive, *held.descriptors]))
            with open(run.folder / "shim.err", "ab") as errors:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(self.state.tools / "shim"), str(run.folder)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=[alive, *held.descriptors],
                    cwd="/",
                    env={"PATH": SYSTEM_PATH},
                )
            await process.wait()  # the first of its two forks: the shim itself has no parent to wait for it
        finally:
            os.close(alive)

    def _checkpoint(self, workload: str) -> Path:
        """One folder per workload, beside the homes: every host that shares them finds it again."""
        return (self.homes / ".checkpoints" / workload).resolve()

    def _write_spec(
        self, run: LocalRun, wanted: RunWanted, place: team_users.RunPlacement, own: list[int]
    ) -> None:
        write_json(
            run.folder / "spec.json", {**launch_spec.launch_spec(self, run, wanted, place), "own_fds": own}
        )

    async def refuse(
        self,
        wanted: RunWanted,
        outcome: str,
        why: str,
        *,
        host_full: bool = False,
        gpu_unreadable: bool = False,
    ) -> None:
        """Keep a run that never was, as ended, until the server has heard it. ``host_full``: for that, whosever files they are."""
        log.warning("run %s is not started: %s", wanted.run, why)
        ended = {
            "outcome": outcome,
            "exit_code": None,
            "ended_at": time.time(),
            "error": why,
            "killed": False,
        }
        if host_full:
            ended["host_full"] = True
        if gpu_unreadable:
            ended["gpu_unreadable"] = True
        run = LocalRun(self.state.runs / wanted.run, persisted_fields(wanted), ended=ended)
        try:
            await self._persist(wanted, lambda: self._write_refused(run, wanted))
        except OSError as error:  # a full disk, of which the server should hear all the more
            log.error("run %s: that it was refused could not be written: %s", wanted.run, error)
        self.runs[wanted.run] = run

    def _write_refused(self, run: LocalRun, wanted: RunWanted) -> None:
        self.state.generations.use(
            wanted.generation, [unit for unit in wanted.unit_uuids if unit in self._claims]
        )
        run.folder.mkdir(exist_ok=True, mode=0o700)
        write_json(run.folder / "exit.json", run.ended)
        write_json(run.folder / "run.json", run.about)

    def notice(self, run_id: str, code: str, stop_at: float | None) -> None:
        """Have the shim tell the workload that it will be stopped."""
        run = self.runs[run_id]
        word = acknowledgement_identity(self._acknowledgement(run))
        self._order(run, notice={"code": code, "stop_at": stop_at}, word=word)
        run.noticed, run.acknowledgement_before_notice = True, word

    def withdraw(self, run_id: str) -> None:
        """It may stay after all."""
        run = self.runs[run_id]
        self._order(run, notice=None)
        run.noticed = False

    async def limit(self, run_id: str, seconds: int) -> None:
        """It ends ``seconds`` after it began, whatever it was told before; 0: it ends when it likes."""
        run = self.runs[run_id]
        self._order(run, max_runtime_seconds=seconds)
        about = {**run.about, "max_runtime_seconds": seconds}
        await self.through(lambda: write_json(run.folder / "run.json", about))
        run.about = about

    def stop(self, order: StopRun) -> None:
        """TERM now, KILL after the grace, by the shim."""
        run = self.runs[order.run]
        stop: dict[str, Any] = {
            "outcome": order.outcome,
            "grace_seconds": order.grace_seconds,
            "whatever": order.whatever,
        }
        if order.why:
            stop["why"] = order.why
        if order.host_full:
            stop["host_full"] = True
        self._order(run, stop=stop)
        run.stop_ordered = True

    def _order(self, run: LocalRun, **said: Any) -> None:
        """Say so beside what the shim was told before."""
        write_order(run.folder, {**(read_json(run.folder / "order.json") or {}), **said})
        if run.shim and processes.is_alive(run.shim["pid"], run.shim["start_ticks"]):
            os.kill(run.shim["pid"], signal.SIGUSR2)  # without it the shim looks within a second

    def forget(self, run_id: str) -> None:
        """The server knows its end."""
        run = self.runs.pop(run_id)
        self.trash.throw(run.folder)

    def renew(self, named: set[str], until: float) -> None:
        """Give the named runs' shims a lease up to ``until`` (CLOCK_BOOTTIME)."""
        self._renewed, self._renewed_until = named, until
        for run in self.runs.values():
            if run.id in named and not run.ended:
                write_lease(run.folder, until)


def _recovered_free_space(least: int, total: int) -> int:
    """How much has to be free on a disk with ``total`` that had less than ``least``; it may be too small for twice that."""
    return min(2 * least, (least + total) // 2)


def _stop_order_for(run: LocalRun, outcome: str) -> dict[str, Any]:
    """What the agent that stopped it said of it, where it ended as that; {} else."""
    with contextlib.suppress(OSError):
        told: dict[str, Any] = (read_json(run.folder / "order.json") or {}).get("stop") or {}
        if told.get("outcome") == outcome:
            return told
    return {}
