"""Starts the runs of this host.

A generation is the number that the server gives to a run on a host. A shim is the process that supervises a
run. The agent may be killed at any line of a start. Therefore a start is recorded on the disk before the shim
is spawned: first the generation, then the run's folder. So each generation starts at most once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agent.host import gpu_locks, processes
from agent.host.blocking_call import CallTimeout
from agent.host.clock import boottime
from agent.host.durable_files import StateFolderError, log_disk_errors, write_json, write_problem, write_text
from agent.host.system_path import SYSTEM_PATH
from agent.isolation import team_users
from agent.isolation.person_users import PersonUserError, person_folder
from agent.protocol import RunWanted
from agent.runs import gangs, launch_spec
from agent.runs.local_run import (
    ACKNOWLEDGEMENT_FILE,
    LocalRun,
    PendingStart,
    create_lease_memory,
    persisted_fields,
    reserve_exit_space,
    write_lease,
)
from agent.runs.reconcile import StopRun
from agent.runs.run_orders import RunOrders
from agent.storage.locked_record import RecordLocked

log = logging.getLogger("agent.runs.manager")

T = TypeVar("T")

MAX_START_WAIT_SECONDS = 300.0
LOCK_HOLDER_CHECK_SECONDS = 5.0  # if a start waits longer for a lock, look for the process that holds it
GPU_UNREADABLE_WAIT_SECONDS = 60.0  # a start waits this long for a GPU that cannot be read
HANDOVER_RECHECK_SECONDS = 1.0  # between two checks that the GPUs of a start are clean
HOMES_PREPARE_TIMEOUT_SECONDS = 2.0  # time limit for preparing the home of a run
MIN_FREE_BYTES = 64 << 20  # no run is started if the disk has less free space; running work continues
DISK_PROBE_SECONDS = 1.0  # shortest time between two probes whether the disk can be written
MIN_FREE_FILES = 2000  # no run is started if the disk has fewer free inodes; running work continues
DISK_FULL_MESSAGE = "could not be started: the disk of the host is full"


class RunManager(RunOrders):
    """The runs of this host by id, with methods that start them. Only this class starts or stops a run."""

    _was_full = False  # the last result of is_full
    _disk_problem = ""  # the last result of disk_problem
    _disk_probe_at = 0.0  # CLOCK_BOOTTIME of the next probe

    # --- waiting before a start ---

    def exclusive_units(self, wanted: RunWanted) -> list[str]:
        """Return the units of the run that are whole GPUs or MIG instances.

        NVML reports the processes and the memory of these units, but not those of shares of a GPU.
        """
        claims = ((unit, self._claims.get(unit)) for unit in wanted.unit_uuids)
        return [
            unit for unit, claim in claims if claim is not None and (claim.whole or unit.startswith("MIG-"))
        ]

    async def wait(self, wanted: RunWanted, step: str) -> None:
        """Keep a start waiting. ``step``: the reason, shown to users.

        The start is refused when it has waited for longer than MAX_START_WAIT_SECONDS.
        """
        entry = self.waiting.setdefault(wanted.run, PendingStart(wanted, boottime(), ""))
        entry.step, entry.prepared, entry.next_try_at = step, False, boottime() + HANDOVER_RECHECK_SECONDS
        entry.gpu_unreadable_since = None
        if boottime() - entry.since > MAX_START_WAIT_SECONDS:
            await self.refuse(wanted, "start_failed", step)

    async def wait_for_readable_gpus(self, wanted: RunWanted, problem: str) -> None:
        """Keep a start waiting while its GPUs cannot be read.

        After GPU_UNREADABLE_WAIT_SECONDS the start is refused and reported as a fault of the host.
        """
        before = self.waiting.get(wanted.run)
        since = (
            before.gpu_unreadable_since
            if before is not None and before.gpu_unreadable_since is not None
            else boottime()
        )
        step = f"waiting: the GPU can't be checked for earlier processes ({problem})"
        await self.wait(wanted, step)
        if (entry := self.waiting.get(wanted.run)) is None:
            return
        entry.gpu_unreadable_since = since
        if boottime() - since > GPU_UNREADABLE_WAIT_SECONDS:
            await self.refuse(wanted, "start_failed", step, gpu_unreadable=True)

    async def is_due(self, wanted: RunWanted) -> bool:
        """Return True if a start may be tried now.

        Its pause must be over, and no process may hold a lock on its units.
        """
        entry = self.waiting.get(wanted.run)
        if entry is not None and boottime() < entry.next_try_at:
            return False
        try:
            self._lock(wanted).close()
        except gpu_locks.SlotsLocked as locked:
            await self._wait_for_lock(wanted, locked)
            return False
        return True

    def _lock(self, wanted: RunWanted) -> gpu_locks.HeldLocks:
        return gpu_locks.lock_slots(self.locks_folder, [self._claims[unit] for unit in wanted.unit_uuids])

    async def _wait_for_lock(self, wanted: RunWanted, locked: gpu_locks.SlotsLocked) -> None:
        before = self.waiting.get(wanted.run)
        holder = before.lock_holder_text if before is not None else ""
        await self.wait(wanted, f"waiting until {locked.claim.gpu} is free{holder}")
        entry = self.waiting.get(wanted.run)
        if entry is None:
            return
        entry.next_try_at = 0.0  # no pause, because trying a lock costs little
        now = boottime()
        if now - max(entry.since, entry.lock_holder_checked_at) > LOCK_HOLDER_CHECK_SECONDS:
            entry.lock_holder_checked_at = now
            entry.lock_holder_text = await self._identify_lock_holder(locked)

    async def _identify_lock_holder(self, locked: gpu_locks.SlotsLocked) -> str:
        """Return a text that names the process that holds the lock.

        Returns '' if a run of this host holds the slots, or if no process is found. Without a sandbox, a
        workload can lock the file itself. In this case the run of the workload is stopped.

        The search covers only the file that could not be locked. If this is the file of a range of slots, the
        search leaves out the GPU's file, because runs on other slots of the GPU also have that file open.
        """
        claim = locked.claim
        held = (self._claims.get(unit) for unit in self.holders())
        if any(other is not None and other.overlaps(claim) for other in held):
            return ""
        pids, all_processes = await self.in_thread(
            lambda: (gpu_locks.pids_with_open(locked.path), processes.scan())
        )
        text = ""
        for pid in pids:
            run = self._run_of_process(pid, all_processes)
            if run is not None and run.state in ("starting", "running"):
                why = f"stopped: its process {pid} locked slots of {claim.gpu} that the run does not have"
                log.warning("run %s is %s", run.id, why)
                self.stop(StopRun(run.id, "cancelled", run.held().grace_seconds, whatever=True, why=why))
            name = all_processes[pid].name if pid in all_processes else "gone meanwhile"
            text = (
                text
                or f": process {pid} ({name}){f' of run {run.id}' if run is not None else ''} holds its lock"
            )
        return text

    def _run_of_process(self, pid: int, all_processes: dict[int, processes.Process]) -> LocalRun | None:
        """Return the live run whose shim is an ancestor of ``pid``, or None."""
        shims = {run.shim["pid"]: run for run in self.runs.values() if "pid" in run.shim and not run.ended}
        ancestor = all_processes.get(pid)
        while ancestor is not None and ancestor.pid > 1:
            ancestor = all_processes.get(ancestor.parent)
            if ancestor is not None and ancestor.pid in shims:
                return shims[ancestor.pid]
        return None

    # --- the start ---

    async def start(self, wanted: RunWanted, lease_until: float) -> bool:
        """Start a run, keep it waiting, or refuse it. Return True if it was started.

        Each generation is started at most once, even if the agent is killed during the start.
        """
        if self.closed:
            await self.refuse(wanted, "start_failed", f"could not be started: {self.closed}")
            return False
        if problem := self.disk_problem():
            why = f"the disk of the host cannot be written: {problem}"
            await self.refuse(wanted, "start_failed", why, host_full=True)
            return False
        if self.is_full() or not await self._ensure_tools():
            await self.refuse(wanted, "start_failed", DISK_FULL_MESSAGE, host_full=True)
            return False
        try:
            held = self._lock(wanted)
        except gpu_locks.SlotsLocked as locked:
            await self._wait_for_lock(wanted, locked)
            return False
        if gangs.awaits_go(wanted):
            held.close()
            self.waiting[wanted.run] = PendingStart(
                wanted, boottime(), "waiting for the other hosts", prepared=True
            )
            return False
        try:
            place = self.call_homes(
                lambda: self._prepare_placement(wanted, lease_until), HOMES_PREPARE_TIMEOUT_SECONDS
            )
        except CallTimeout:
            held.close()
            await self.wait(wanted, "waiting until the file system of the homes answers")
            return False
        except (team_users.OwnershipChangeInProgress, RecordLocked) as change:
            held.close()
            self.waiting[wanted.run] = PendingStart(wanted, boottime(), str(change))
            return False
        except (team_users.TeamUserError, PersonUserError, OSError) as error:
            held.close()
            await self.refuse(wanted, "start_failed", f"could not be started: {error}")
            return False
        try:
            run = await self._persist(wanted, lambda: self._persist_start(wanted, lease_until, place))
            self.runs[run.id] = run
            if run.id in self._renewed:  # its lease was renewed while the start was being recorded
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
        """Return True if the tools of this version are installed.

        If a full disk has prevented the installation, try it again.
        """
        if self.state.missing_tools_reason:
            with log_disk_errors("the tools of this version"):
                await self.in_thread(self.state.install_tools)
        return not self.state.missing_tools_reason

    async def _clean_up_failed_start(self, wanted: RunWanted) -> None:
        """Remove the control groups and the network of a failed start.

        Their names contain the run's mark, and no record of the mark exists later. Therefore they are removed
        now. The removal of a network may take long, so the run is reported as starting during this time.
        """
        run = self.runs.pop(wanted.run, None)
        if run is not None:
            self.waiting[wanted.run] = PendingStart(
                wanted,
                boottime(),
                "could not be started; its control groups and its network are being removed",
                begun=True,
            )
            self.cgroups.remove(run.about["mark"])
            await self.in_thread(lambda: self.network.leave(run.about["mark"]))

    async def _persist(self, wanted: RunWanted, write: Callable[[], T]) -> T:
        """Run ``write`` in a thread and return its result. Until then, the run is reported as starting."""
        entry = self.waiting[wanted.run] = PendingStart(wanted, boottime(), "being recorded", begun=True)
        try:
            return await self.in_thread(write)
        finally:
            if self.waiting.get(wanted.run) is entry:
                del self.waiting[wanted.run]

    def _persist_start(
        self, wanted: RunWanted, lease_until: float, place: team_users.RunPlacement
    ) -> LocalRun:
        """Record a start before it happens: first the generation, then the run's folder."""
        self.state.generations.use(wanted.generation, wanted.unit_uuids)
        return self._create_folder(wanted, lease_until, place)

    def has_home(self, owner: str) -> bool:
        """Return True if this user has a home. Raises CallTimeout."""
        return self.call_homes((self.homes / owner).exists)

    def _prepare_placement(self, wanted: RunWanted, lease_until: float) -> team_users.RunPlacement:
        """Return the Unix user, the home and the checkpoint folder of a run.

        Raises the same errors as ``TeamUsers.home``.
        """
        checkpoint = self._checkpoint_folder(wanted.workload)
        if wanted.person is not None:
            person = self.person_users.user(wanted.person)
            place = team_users.RunPlacement(
                person.uid, person.home, person_folder(checkpoint, person), person
            )
        else:
            user = self.team_users.user(wanted.team_id, wanted.team_user)
            home = self.team_users.home(wanted.owner, user)
            self._limit_home(home, wanted.home_limit_mib)
            place = team_users.RunPlacement(user, home, self.team_users.folder(checkpoint, user))
        # After the end of the lease, do not touch the acknowledgement. It may be from a later attempt on
        # another host.
        if boottime() < lease_until:
            # The acknowledgement of an earlier attempt must not count for this attempt. The workload owns the
            # folder. If it has made the entry impossible to remove, this is no fault of the host.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                (place.checkpoint / ACKNOWLEDGEMENT_FILE).unlink()
        return place

    def _limit_home(self, home: Path, limit_mib: int) -> None:
        """Limit the size of a home. If this fails, the run starts without a limit, and the log says so."""
        try:
            self.home_limits.apply(home, limit_mib)
        except (OSError, StateFolderError) as error:
            log.warning("the home %s is not limited: %s", home.name, error)

    def _create_folder(
        self, wanted: RunWanted, lease_until: float, place: team_users.RunPlacement
    ) -> LocalRun:
        folder = self.state.runs / wanted.run
        for name in ("in", "out", "tmp", "log"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        team_users.chown_run_folders(folder, place)
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
        """Return the free bytes on the disk of the state folder."""
        return shutil.disk_usage(self.state.folder).free

    def disk_problem(self) -> str:
        """Return why the state folder cannot be written, or '' if it can. Space does not count (``is_full``).

        A read-only file system is one of the reasons. The answer may be DISK_PROBE_SECONDS old.
        """
        if boottime() >= self._disk_probe_at:
            self._disk_probe_at = boottime() + DISK_PROBE_SECONDS
            self._disk_problem = write_problem(self.state.folder)
        return self._disk_problem

    def is_full(self) -> bool:
        """Return True if the disk of the state folder lacks free space or free inodes for a new run.

        If a file system allocates inodes dynamically, it reports a total of 0, and its inodes are not
        checked. After a disk was full, it counts as free again only at about twice the threshold. Otherwise
        the result would change all the time.
        """
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
        lease = create_lease_memory()
        try:
            fcntl.flock(alive, fcntl.LOCK_EX)
            kept = [alive, *held.descriptors, lease]
            await self.in_thread(lambda: self._write_spec(run, wanted, place, kept, lease))
            with open(run.folder / "shim.err", "ab") as errors:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(self.state.tools / "shim"), str(run.folder)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=kept,
                    cwd="/",
                    env={"PATH": SYSTEM_PATH},
                )
            # This process ends at once, and the shim continues as its detached descendant.
            await process.wait()
        finally:
            os.close(alive)
            os.close(lease)

    def _write_spec(
        self,
        run: LocalRun,
        wanted: RunWanted,
        place: team_users.RunPlacement,
        own_fds: list[int],
        lease_fd: int,
    ) -> None:
        spec: dict[str, Any] = launch_spec.launch_spec(self, run, wanted, place)
        write_json(run.folder / "spec.json", {**spec, "own_fds": own_fds, "lease_fd": lease_fd})

    # --- refusals ---

    async def refuse(
        self,
        wanted: RunWanted,
        outcome: str,
        why: str,
        *,
        host_full: bool = False,
        gpu_unreadable: bool = False,
    ) -> None:
        """Record a run as ended without starting it. The record is kept until the server has recorded the
        end.

        - ``outcome``: the reason code of the end.
        - ``why``: a sentence for the run's user.
        - ``host_full``: True if the reason is a full disk of the host.
        - ``gpu_unreadable``: True if the reason is that the run's GPUs can't be read.
        """
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
        except OSError as error:  # such as a full disk; continue, because the server must get the refusal
            log.error("run %s: its refusal could not be written: %s", wanted.run, error)
        self.runs[wanted.run] = run

    def _write_refused(self, run: LocalRun, wanted: RunWanted) -> None:
        self.state.generations.use(
            wanted.generation, [unit for unit in wanted.unit_uuids if unit in self._claims]
        )
        run.folder.mkdir(exist_ok=True, mode=0o700)
        write_json(run.folder / "exit.json", run.ended)
        write_json(run.folder / "run.json", run.about)


def _recovered_free_space(threshold: int, total: int) -> int:
    """Return the amount of free bytes or inodes at which a full disk counts as free again.

    The result is twice ``threshold``. On a small disk it is the mean of ``threshold`` and ``total``.
    """
    return min(2 * threshold, (threshold + total) // 2)
