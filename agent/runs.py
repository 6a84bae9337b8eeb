"""The runs of this host: each has a folder that it shares with its shim, and everything about it can be read from there.

The agent may end at any line of this module: what it finds at its next start is a run that its shim keeps (adopted by boot
id, pid and start time), one that ended, or one that never began (its generation is used up and it is reported as failed).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent import gangs, locks, logs, processes, tenants
from agent.addresses import interface_of
from agent.aside import Aside, Hangs
from agent.background import Background
from agent.cgroups import Cgroups, Limits
from agent.hooks import Hooks
from agent.launchers import Box, Launcher, View, entering, gpu_nodes
from agent.locks import Claim
from agent.meter import Hardware
from agent.network import Network
from agent.protocol import RunSeen, RunWanted
from agent.reconcile import Held, Stop
from agent.state import State, boot_id, read_json, write_json, write_text
from agent.trees import Trash

log = logging.getLogger("agent.runs")

T = TypeVar("T")

SHIM_START_SECONDS = 15.0
EPILOG_MARGIN_SECONDS = 2.0  # after its time, for the shim that runs it to end it
LONGEST_WAIT_SECONDS = 300.0
LOOK_AGAIN_SECONDS = 1.0  # at GPUs that were not as clean as a start needs them
LOOK_SECONDS, PLACE_SECONDS = 0.2, 2.0  # that the homes' file system is waited for: for a look at a file, for a start
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ACKNOWLEDGEMENT = ".done"
LARGEST_DECLARATION = 4096
ORDER_BYTES, END_BYTES = 1024, 4096  # of the room that is kept for a run's orders, and for how it ended
MARK_BYTES = 40
LEAST_FREE_BYTES, LEAST_FREE_FILES = 64 << 20, 2000  # with less on the disk nothing new is started; what runs goes on
FULL = "could not be started: the disk of the host is full"


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME: counts through sleep, never jumps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Run:
    """One run as this agent sees it. ``about`` is what was wanted, without secret and environment."""

    folder: Path
    about: dict[str, Any]
    shim: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, Any] = field(default_factory=dict)
    noticed: bool = False
    stop_ordered: bool = False
    stopping: bool = False
    spawned_at: float = 0.0  # CLOCK_BOOTTIME
    step: str = ""
    ready: bool = False
    activity: dict[str, Any] = field(default_factory=dict)
    background: Background = field(default_factory=Background)
    checkpoint_at: float | None = None
    saved: bool = False  # it has acknowledged a checkpoint since its notice
    word_before_notice: list[int] | None = None  # the acknowledgement as it stood then
    word: os.stat_result | None = None  # its last acknowledgement of a checkpoint, as far as is known
    secret: str = ""
    reported_ended: bool = False
    unnamed_since: float | None = None
    log_sent: int = 0
    epilog_ordered_at: float | None = None  # CLOCK_BOOTTIME: its shim was killed, so another process was started for the epilog

    @property
    def id(self) -> str:
        return str(self.about["run"])

    @property
    def is_notebook(self) -> bool:
        return bool(self.about["kind"] == "notebook")

    @property
    def state(self) -> str:
        if self.ended:
            return "ended"
        if self.stop_ordered or self.stopping:
            return "stopping"
        return "running" if "started_at" in self.shim else "starting"

    @property
    def socket(self) -> Path:
        """Where it answers HTTP: a notebook always, a job if it wants to."""
        return self.folder / "out" / ("notebook.sock" if self.is_notebook else "door.sock")

    def seen(self) -> RunSeen:
        """What the server is told of it."""
        return RunSeen(
            run=self.id,
            generation=self.about["generation"],
            state=self.state,
            step=self.ended.get("error") or self.step,
            ready=self.ready and not self.ended,
            outcome=self.ended.get("outcome", ""),
            exit_code=self.ended.get("exit_code"),
            started_at=self.shim.get("started_at"),
            ended_at=self.ended.get("ended_at"),
            checkpoint_at=self.checkpoint_at,
            saved=self.saved,
            activity=self.activity,
            prolog_failed=bool(self.ended.get("prolog_failed")),
            host_full=bool(self.ended.get("host_full")),
        )

    def held(self) -> Held:
        """What ``reconcile`` needs of it."""
        told = self.reported_ended and logs.end(self.folder / "log") <= self.log_sent
        grace = self.about.get("grace_seconds", Held.grace_seconds)  # an agent of an earlier version did not note it
        limit = self.about.get("max_runtime_seconds")
        return Held(self.id, self.state, self.noticed, self.stop_ordered, told, self.unnamed_since, grace, limit)


@dataclass
class Waiting:
    """A start that has to wait until the last holder of its units is gone, or until its whole gang may begin."""

    wanted: RunWanted
    since: float
    step: str
    prepared: bool = False  # only the gang is waited for
    begun: bool = False  # it is written down: nothing else is waited for
    again_at: float = 0.0  # CLOCK_BOOTTIME: not looked at before


class Runs:
    """Every run this host has, by id, and the only code that starts or ends one."""

    def __init__(
        self,
        state: State,
        launcher: Launcher,
        hardware: Hardware,
        *,
        homes: Path,
        locks_folder: Path,
        exposed: list[Path],
        address: str = "",
        numbers: tenants.Range | None = None,
        cgroups: Cgroups | None = None,
        network: Network | None = None,
        hooks: Hooks | None = None,
        closed: str = "",
    ) -> None:
        self.state = state
        self.launcher = launcher
        self.homes = homes
        self.locks_folder = locks_folder
        self.exposed = exposed
        self.address = address  # where workloads of other hosts reach those of this one; '' nowhere, or unknown
        self.cgroups = cgroups or Cgroups()
        self.tenants = tenants.Tenants(homes, numbers)
        self.network = network or Network("private", "")
        self.hooks = hooks or Hooks()
        self.closed = closed  # why nothing is started here, in words
        self._homes_aside = Aside("homes")
        self.trash = Trash(state.folder / "trash")
        self.runs: dict[str, Run] = {}
        self.waiting: dict[str, Waiting] = {}
        self._claims: dict[str, Claim] = {}
        self.take_over(hardware)

    def take_over(self, hardware: Hardware) -> None:
        """What the host has: at the start, and when a GPU that nobody held was split otherwise."""
        self.hardware = hardware
        self._claims = {
            unit.uuid: Claim(gpu.uuid, unit.first_slot, unit.slots) for gpu in hardware.gpus for unit in gpu.units
        }

    @property
    def waits_for_units(self) -> bool:
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
            run = Run(
                folder, about, spawned_at=0.0, log_sent=(read_json(folder / "log_sent.json") or {}).get("offset", 0)
            )
            order = read_json(folder / "order.json") or {}
            run.noticed, run.stop_ordered = bool(order.get("notice")), bool(order.get("stop"))
            # An agent of an earlier version did not note it: then only a word that is newer than this start counts.
            run.word_before_notice = order["word"] if "word" in order else _told_apart(self._acknowledgement(run))
            self.runs[run.id] = run
            self._look_at_safely(run)
            if run.shim and not run.ended:
                log.info("adopted run %s: its shim is pid %s", run.id, run.shim["pid"])

    def look(self) -> bool:
        """Read what the shims wrote since the last look; whether anything changed that the server should hear of."""
        before = [run.seen() for run in self.runs.values()]
        for run in self.runs.values():
            if not run.ended:
                self._look_at_safely(run)
        return before != [run.seen() for run in self.runs.values()]

    def _look_at_safely(self, run: Run) -> None:
        """One run's trouble is not the others': the agent has their leases to renew."""
        try:
            self._look_at(run)
        except OSError as error:
            log.error("run %s: %s", run.id, error)  # a full disk: looked at again in a moment

    def _look_at(self, run: Run) -> None:
        word = self._acknowledgement(run)
        run.checkpoint_at = word.st_mtime if word else None
        run.saved = run.noticed and word is not None and _told_apart(word) != run.word_before_notice
        ended = read_json(run.folder / "exit.json")
        if ended is not None:
            self._note_end(run, ended)
            return
        if "started_at" not in run.shim:
            run.shim = read_json(run.folder / "shim.json") or {}
            if "started_at" in run.shim and not run.is_notebook:
                run.step = "running"
            run.step = run.shim.get("step", run.step)
        if not run.is_notebook and not run.ready:
            run.ready = _is_socket(run.socket)
        run.stopping = run.stopping or (run.folder / "stopping.json").exists()
        if run.stopping and (run.folder / "epilog.json").exists():
            run.step = "running the operator's epilog"
        if not self._shim_lives(run):
            self._bury(run)

    def _shim_lives(self, run: Run) -> bool:
        if not run.shim:
            return boottime() - run.spawned_at < SHIM_START_SECONDS or self._alive_lock_is_held(run)
        same_boot = run.shim["boot_id"] == boot_id()
        return same_boot and processes.is_alive(run.shim["pid"], run.shim["start_ticks"])

    def _alive_lock_is_held(self, run: Run) -> bool:
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

    def _bury(self, run: Run) -> None:
        """A run whose shim is gone without a word: end what is left of it, then say so."""
        ended = read_json(run.folder / "exit.json")  # it may have ended between our two looks
        if ended is None:
            if self._kill_rest(run) or not self._epilog_is_over(run):
                return  # not empty yet: look again
            ended = self._end_of_lost(run)
            _write_end(run.folder, ended)
        self._note_end(run, ended)

    def _end_of_lost(self, run: Run) -> dict[str, Any]:
        begun = read_json(run.folder / "epilog.json")
        if begun is not None:
            told: dict[str, Any] = begun["ended"]  # the workload had ended before its shim was killed
            if "killed" in told:
                return told
        if run.shim:
            outcome, why = "host_lost", "the process that kept this workload was killed, or the host restarted"
        else:
            outcome, why = "start_failed", "the agent ended while it was starting this workload"
        return {"outcome": outcome, "exit_code": None, "ended_at": time.time(), "error": why, "killed": True}

    def _epilog_is_over(self, run: Run) -> bool:
        """Whether the operator's epilog, if any, has run. It is started here where the shim was killed before it could."""
        hooks = (read_json(run.folder / "spec.json") or {}).get("hooks", {})
        if not run.shim or not hooks.get("epilog"):
            return True
        begun, now = read_json(run.folder / "epilog.json"), boottime()
        if begun is None:
            if run.epilog_ordered_at is None:
                run.epilog_ordered_at = now
                self._spawn_epilog(run)
            return now - run.epilog_ordered_at > SHIM_START_SECONDS  # it could not be started: the log says why
        if begun["boot_id"] != boot_id() or not processes.is_alive(begun["pid"], begun["start_ticks"]):
            return True
        if now > begun["until"] + EPILOG_MARGIN_SECONDS:
            for pid in [begun["pid"], *(each.pid for each in processes.below(processes.scan(), begun["pid"]))]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return False

    def _spawn_epilog(self, run: Run) -> None:
        command = [sys.executable, "-I", "-S", str(self.state.tools / "shim"), str(run.folder), "epilog"]
        try:
            with open(run.folder / "shim.err", "ab") as errors:
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, cwd="/",
                    env={"PATH": SYSTEM_PATH}, timeout=SHIM_START_SECONDS, check=True,
                )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            log.error("run %s: its epilog could not be started: %s", run.id, error)

    def _kill_rest(self, run: Run) -> bool:
        """KILL every process that is in the run's control groups or still carries its mark (which a process may take off);
        whether there was one."""
        mark = f"GPUPOOL_MARK={run.about['mark']}".encode()
        grouped = self.cgroups.members(run.about["mark"])
        found = False
        for pid in processes.scan():
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                environment = []  # not ours to read, so not ours to end
            if mark in environment or pid in grouped:
                found = True
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        return found

    def _note_end(self, run: Run, ended: dict[str, Any]) -> None:
        told = (read_json(run.folder / "order.json") or {}).get("stop") or {}
        if not ended.get("error") and told.get("why") and told["outcome"] == ended["outcome"]:
            ended = {**ended, "error": told["why"]}
        run.ended = ended
        if ended.get("error"):
            log.warning("run %s ended as %s: %s", run.id, ended["outcome"], ended["error"])
        run.shim = run.shim if "started_at" in run.shim else read_json(run.folder / "shim.json") or {}
        run.ready = False
        self.cgroups.remove(run.about["mark"])
        self.network.leave_beside(run.about["mark"])
        (run.folder / "in" / "secret").unlink(missing_ok=True)
        for name in ("tmp", "out"):
            self.trash.throw(run.folder / name)
        (run.folder / "spec.json").unlink(missing_ok=True)

    def _acknowledgement(self, run: Run) -> os.stat_result | None:
        """The workload's last word that its checkpoint was written. The file is the workload's: never follow it."""
        with contextlib.suppress(Hangs):  # then what was last read counts
            run.word = self.beside(lambda: _word(self._checkpoint(run.about["workload"])))
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

    def holders(self) -> dict[str, Run]:
        """By unit uuid: the run that holds it now."""
        return {unit: run for run in self.runs.values() if not run.ended for unit in run.about["unit_uuids"]}

    # what is done

    def wholly(self, wanted: RunWanted) -> list[str]:
        """Those of its units that nobody else can be on: whole GPUs and MIG instances, which NVML tells apart."""
        claims = ((unit, self._claims.get(unit)) for unit in wanted.unit_uuids)
        return [unit for unit, claim in claims if claim is not None and (claim.whole or unit.startswith("MIG-"))]

    async def wait(self, wanted: RunWanted, step: str) -> None:
        """It can't start yet, and says why; after a long while it is given up."""
        entry = self.waiting.setdefault(wanted.run, Waiting(wanted, boottime(), ""))
        entry.step, entry.prepared, entry.again_at = step, False, boottime() + LOOK_AGAIN_SECONDS
        if boottime() - entry.since > LONGEST_WAIT_SECONDS:
            await self.refuse(wanted, "start_failed", step)

    async def is_due(self, wanted: RunWanted) -> bool:
        """May it be tried now? Not while others hold its units, and what waited a moment ago waits on for a moment."""
        entry = self.waiting.get(wanted.run)
        if entry is not None and boottime() < entry.again_at:
            return False
        try:
            self._lock(wanted).close()
        except locks.Busy as busy:
            await self._wait_for(wanted, busy)
            return False
        return True

    def _lock(self, wanted: RunWanted) -> locks.HeldLocks:
        return locks.take(self.locks_folder, [self._claims[unit] for unit in wanted.unit_uuids])

    async def _wait_for(self, wanted: RunWanted, busy: locks.Busy) -> None:
        await self.wait(wanted, f"waiting until {busy.claim.gpu} is free")
        if wanted.run in self.waiting:
            self.waiting[wanted.run].again_at = 0.0  # a lock is cheap to try

    async def start(self, wanted: RunWanted, lease_until: float) -> bool:
        """Start it, or leave it waiting while its units are held; whether it was started. At most once, whatever happens here."""
        if self.closed:
            await self.refuse(wanted, "start_failed", f"could not be started: {self.closed}")
            return False
        if self.is_full():
            await self.refuse(wanted, "start_failed", FULL, host_full=True)
            return False
        try:
            held = self._lock(wanted)
        except locks.Busy as busy:
            await self._wait_for(wanted, busy)
            return False
        if gangs.waits(wanted):
            held.close()
            self.waiting[wanted.run] = Waiting(wanted, boottime(), "waiting for the other hosts", prepared=True)
            return False
        try:
            place = self.beside(lambda: self._place(wanted, lease_until), PLACE_SECONDS)
        except Hangs:
            held.close()
            await self.wait(wanted, "waiting until the file system of the homes answers")
            return False
        except tenants.Settling as settling:
            held.close()
            self.waiting[wanted.run] = Waiting(wanted, boottime(), str(settling))
            return False
        except (tenants.NotAllowed, OSError) as error:
            held.close()
            await self.refuse(wanted, "start_failed", f"could not be started: {error}")
            return False
        try:
            run = await self._written(wanted, lambda: self._write_down(wanted, lease_until, place))
            self.runs[run.id] = run
            await self._spawn(run, wanted, held, place)
            return True
        except (OSError, subprocess.SubprocessError) as error:
            log.error("run %s: could not be started: %s", wanted.run, error)
            await self._clear_away(wanted.run)
            why = f"could not be started: {getattr(error, 'strerror', None) or error}"
            await self.refuse(wanted, "start_failed", why, host_full=getattr(error, "errno", 0) == errno.ENOSPC)
            return False
        finally:
            held.close()

    async def _clear_away(self, run_id: str) -> None:
        """What a start that failed has made by the run's mark, which nobody knows any more after it."""
        run = self.runs.pop(run_id, None)
        if run is not None:
            self.cgroups.remove(run.about["mark"])
            await self.through(lambda: self.network.leave(run.about["mark"]))

    async def through(self, call: Callable[[], T]) -> T:
        """Have something done that waits for the disk, which workloads keep busy, or for a program: the event loop goes on."""
        return await asyncio.to_thread(call)

    async def _written(self, wanted: RunWanted, write: Callable[[], T]) -> T:
        """What ``write`` gives, when it is on the disk. Meanwhile the server hears that the run is here."""
        entry = self.waiting[wanted.run] = Waiting(wanted, boottime(), "being written down", begun=True)
        try:
            return await self.through(write)
        finally:
            if self.waiting.get(wanted.run) is entry:
                del self.waiting[wanted.run]

    def _write_down(self, wanted: RunWanted, lease_until: float, place: tenants.Place) -> Run:
        """That it was started once, before it is: first its generation, then its folder."""
        self.state.generations.use(wanted.generation, wanted.unit_uuids)
        return self._lay_out(wanted, lease_until, place)

    def beside(self, ask: Callable[[], T], seconds: float = LOOK_SECONDS) -> T:
        """Ask the homes' file system something. Raises Hangs when it does not answer in time, and what ``ask`` raises."""
        return self._homes_aside.ask(ask, seconds)

    def has_home(self, owner: str) -> bool:
        """Is there a home of this person? Raises Hangs."""
        return self.beside((self.homes / owner).exists)

    def _place(self, wanted: RunWanted, lease_until: float) -> tenants.Place:
        """Whose user the run starts as, its home and its checkpoint folder. Raises like ``Tenants.home``."""
        user = self.tenants.user(wanted.team_id, wanted.team_user)
        home = self.tenants.home(wanted.owner, user)
        place = tenants.Place(user, home, self.tenants.folder(self._checkpoint(wanted.workload), user))
        if boottime() < lease_until:  # else this answer comes too late, and another host may have begun
            # An earlier attempt's word is not this one's. The folder is the workload's: what it made of that is no trouble of
            # the host.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                (place.checkpoint / ACKNOWLEDGEMENT).unlink()
        return place

    def _lay_out(self, wanted: RunWanted, lease_until: float, place: tenants.Place) -> Run:
        folder = self.state.runs / wanted.run
        for name in ("in", "out", "tmp", "log"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        tenants.hand_over(folder, place.user)
        run = Run(folder, _about(wanted), spawned_at=boottime(), step="starting sandbox", secret=wanted.secret)
        _write_lease(folder, lease_until)
        _write_order(folder, {})
        (folder / "exit.room").write_bytes(b" " * END_BYTES)
        self.keep_log_mark(run, 0)
        if wanted.secret:
            write_text(folder / "in" / "secret", wanted.secret, tenants.READABLE)
        if wanted.gang is not None:
            write_text(folder / "in" / "hostfile", gangs.hostfile(wanted.gang), tenants.READABLE)
        write_json(folder / "run.json", run.about)
        return run

    def free_bytes(self) -> int:
        """Room on the disk of the state folder."""
        return shutil.disk_usage(self.state.folder).free

    def is_full(self) -> bool:
        """Has that disk too little room left, or room for too few files (0 in all: it makes them as they are needed)?"""
        files = os.statvfs(self.state.folder)
        return self.free_bytes() < LEAST_FREE_BYTES or (files.f_files > 0 and files.f_favail < LEAST_FREE_FILES)

    async def _spawn(self, run: Run, wanted: RunWanted, held: locks.HeldLocks, place: tenants.Place) -> None:
        alive = os.open(run.folder / "alive", os.O_RDONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(alive, fcntl.LOCK_EX)
            own = [alive, *held.kept]
            await self.through(lambda: write_json(run.folder / "spec.json", {**self._spec(run, wanted, place), "own_fds": own}))
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

    def _spec(self, run: Run, wanted: RunWanted, place: tenants.Place) -> dict[str, Any]:
        box = self._box(run, wanted, place)
        self.launcher.prepare(box)
        view = self.launcher.view(box)
        launch = self.launcher.launch(box)
        nodes = gpu_nodes(box.devices)
        limits = Limits(wanted.cpu_milli, wanted.memory_mib, self.cgroups.most_processes, nodes)
        groups = self.cgroups.make(run.about["mark"], limits)
        self.network.admit(box.user)
        return {
            **entering(self.launcher, launch),
            "network": self.network.enter(run.about["mark"]),
            "argv": launch.argv,
            "cwd": launch.cwd,
            "cgroup_procs": groups.procs,
            "memory_events": groups.memory_events,
            "env": _environment(
                wanted, view, run.about["mark"], gangs.usual(wanted, self.hardware, interface_of(self.address))
            ),
            "checkpoint_dir": str(box.checkpoint),
            "signal_notice": wanted.kind == "job",
            "grace_seconds": max(0.0, wanted.grace_seconds),
            "max_runtime_seconds": max(0, wanted.max_runtime_seconds),
            **self.hooks.spec(wanted, box),
        }

    def _box(self, run: Run, wanted: RunWanted, place: tenants.Place) -> Box:
        box = Box(
            command=[],
            owner=wanted.owner,
            home=place.home,
            checkpoint=place.checkpoint,
            inbox=run.folder / "in",
            outbox=run.folder / "out",
            tmp=run.folder / "tmp",
            tools=self.state.tools,
            devices=sorted({node for unit in wanted.unit_uuids for node in self.hardware.devices.get(unit, [])}),
            exposed=self.exposed,
            user=place.user,
            memory_mib=wanted.memory_mib,
        )
        view = self.launcher.view(box)
        if wanted.kind == "notebook":
            box.command.extend(
                [sys.executable, str(view.tools / "notebook" / "gpupool_notebook.py"), str(view.inbox / "secret")]
                + [str(view.outbox / "notebook.sock"), str(view.home)]
            )
        else:
            box.command.extend(["/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh", "-c", wanted.command])
        return box

    def _checkpoint(self, workload: str) -> Path:
        """One folder per workload, beside the homes: every host that shares them finds it again."""
        return (self.homes / ".checkpoints" / workload).resolve()

    async def refuse(self, wanted: RunWanted, outcome: str, why: str, *, host_full: bool = False) -> None:
        """Keep a run that never was, as ended, until the server has heard it. ``host_full``: for that, whosever files they are."""
        log.warning("run %s is not started: %s", wanted.run, why)
        ended = {"outcome": outcome, "exit_code": None, "ended_at": time.time(), "error": why, "killed": False}
        if host_full:
            ended["host_full"] = True
        run = Run(self.state.runs / wanted.run, _about(wanted), ended=ended)
        try:
            await self._written(wanted, lambda: self._write_refused(run, wanted))
        except OSError as error:  # a full disk, of which the server should hear all the more
            log.error("run %s: that it was refused could not be written: %s", wanted.run, error)
        self.runs[wanted.run] = run

    def _write_refused(self, run: Run, wanted: RunWanted) -> None:
        self.state.generations.use(wanted.generation, [unit for unit in wanted.unit_uuids if unit in self._claims])
        run.folder.mkdir(exist_ok=True, mode=0o700)
        write_json(run.folder / "exit.json", run.ended)
        write_json(run.folder / "run.json", run.about)

    def notice(self, run_id: str, code: str, stop_at: float | None) -> None:
        """Have the shim tell the workload that it will be stopped."""
        run = self.runs[run_id]
        word = _told_apart(self._acknowledgement(run))
        self._order(run, notice={"code": code, "stop_at": stop_at}, word=word)
        run.noticed, run.word_before_notice = True, word

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

    def stop(self, order: Stop) -> None:
        """TERM now, KILL after the grace, by the shim."""
        run = self.runs[order.run]
        stop: dict[str, Any] = {"outcome": order.outcome, "grace_seconds": order.grace_seconds, "whatever": order.whatever}
        if order.why:
            stop["why"] = order.why
        self._order(run, stop=stop)
        run.stop_ordered = True

    def _order(self, run: Run, **said: Any) -> None:
        """Say so beside what the shim was told before."""
        _write_order(run.folder, {**(read_json(run.folder / "order.json") or {}), **said})
        if run.shim and processes.is_alive(run.shim["pid"], run.shim["start_ticks"]):
            os.kill(run.shim["pid"], signal.SIGUSR2)  # without it the shim looks within a second

    def forget(self, run_id: str) -> None:
        """The server knows its end."""
        run = self.runs.pop(run_id)
        self.trash.throw(run.folder)

    def renew(self, named: set[str], until: float) -> None:
        """Give the named runs' shims a lease up to ``until`` (CLOCK_BOOTTIME)."""
        for run in self.runs.values():
            if run.id in named and not run.ended:
                _write_lease(run.folder, until)

    def keep_log_mark(self, run: Run, offset: int) -> None:
        """The server has this run's log up to ``offset``. Not synced: a mark that is lost is a log that is sent again."""
        _write_in_place(run.folder / "log_sent.json", json.dumps({"offset": offset}).ljust(MARK_BYTES))


def _told_apart(word: os.stat_result | None) -> list[int] | None:
    """What tells one acknowledgement from another, whatever the clock of the file system says, as the shim does it."""
    return [word.st_ino, word.st_mtime_ns, word.st_ctime_ns] if word else None


def _word(checkpoint: Path) -> os.stat_result | None:
    try:
        found = os.lstat(checkpoint / ACKNOWLEDGEMENT)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _is_socket(path: Path) -> bool:
    """Is there a socket? The folder is the workload's: a link to one is none."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _write_lease(folder: Path, until: float) -> None:
    """So that a full disk does not end a workload."""
    _write_in_place(folder / "lease", f"{until:020.3f}")


def _write_order(folder: Path, order: dict[str, Any]) -> None:
    """So that a full disk, which the workload itself can make, keeps nobody from stopping it."""
    _write_in_place(folder / "order.json", json.dumps(order).ljust(ORDER_BYTES))


def _write_in_place(path: Path, text: str) -> None:
    """Over what is there and always as long, so that it takes no room on the disk. Not synced: after a crash nothing runs."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, text.encode(), 0)
        os.ftruncate(descriptor, len(text.encode()))
    finally:
        os.close(descriptor)


def _write_end(folder: Path, ended: dict[str, Any]) -> None:
    """Into the room that was kept for it where the disk is full: as long as a run has not ended, its GPUs are held."""
    try:
        write_json(folder / "exit.json", ended)
    except OSError as error:
        if error.errno != errno.ENOSPC or not (folder / "exit.room").exists():
            raise
        text = json.dumps({**ended, "error": ended["error"][: END_BYTES // 8]})
        _write_in_place(folder / "exit.room", text.ljust(END_BYTES))
        os.replace(folder / "exit.room", folder / "exit.json")


def declared_load(run: Run, pids: Iterable[int]) -> tuple[float | None, int | None]:
    """(utilisation in per cent, memory in MiB) that the workload says of itself, each None where it says nothing.

    The file counts before the environment of its processes (``pids``). The folder is the workload's: links are not followed
    and little is read.
    """
    try:
        descriptor = os.open(run.folder / "out" / "load", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return max((_in_environment(pid) for pid in pids), default=None, key=lambda load: load or 0.0), None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None, None
        return _declaration(os.read(descriptor, LARGEST_DECLARATION).decode("utf-8", "replace"))
    finally:
        os.close(descriptor)


def _in_environment(pid: int) -> float | None:
    return _declaration(processes.environment_value(pid, "GPUPOOL_SIMULATED_UTILISATION") or "")[0]


def _declaration(text: str) -> tuple[float | None, int | None]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None, None
    memory = value.get("memory_mib") if isinstance(value, dict) else None
    load = value.get("utilisation") if isinstance(value, dict) else value
    load = float(load) if isinstance(load, (int, float)) and not isinstance(load, bool) and 0 <= load <= 100 else None
    whole = isinstance(memory, int) and not isinstance(memory, bool) and 0 <= memory < 1 << 24
    return load, memory if whole else None


def _about(wanted: RunWanted) -> dict[str, Any]:
    return {
        "run": wanted.run,
        "workload": wanted.workload,
        "generation": wanted.generation,
        "kind": wanted.kind,
        "owner": wanted.owner,
        "team": wanted.team,
        "attempt": wanted.attempt,
        "unit_uuids": list(wanted.unit_uuids),
        "grace_seconds": max(0.0, wanted.grace_seconds),
        "max_runtime_seconds": max(0, wanted.max_runtime_seconds),
        "mark": secrets.token_hex(8),  # in the environment of its processes: tells them from every other run's
    }


def _environment(wanted: RunWanted, view: View, mark: str, usual: dict[str, str]) -> dict[str, str]:
    """The workload's whole environment: nothing of the agent's own, and the contract last, so that nobody overrides it."""
    programs = os.path.dirname(sys.executable)
    asked = wanted.environment
    return {
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(view.tmp),
        **usual,
        **asked,
        "HOME": str(view.home),
        "USER": wanted.owner,
        "LOGNAME": wanted.owner,
        "PATH": ":".join(filter(None, (str(view.tools / "bin"), asked.get("PATH", ""), programs, SYSTEM_PATH))),
        "PYTHONPATH": ":".join(filter(None, (asked.get("PYTHONPATH", ""), str(view.tools / "python")))),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(wanted.unit_uuids),
        "NVIDIA_VISIBLE_DEVICES": ",".join(wanted.unit_uuids) or "void",
        "GPUPOOL_WORKLOAD": wanted.workload,
        "GPUPOOL_RUN": wanted.run,
        "GPUPOOL_MARK": mark,
        "GPUPOOL_ATTEMPT": str(wanted.attempt),
        **({} if wanted.array_index is None else {"GPUPOOL_ARRAY_INDEX": str(wanted.array_index)}),
        **gangs.facts(wanted, str(view.inbox / "hostfile")),
        **({"GPUPOOL_DOOR": str(view.outbox / "door.sock")} if wanted.kind == "job" else {}),
        "GPUPOOL_NOTICE": str(view.inbox / "notice"),
        "GPUPOOL_CHECKPOINT_DIR": str(view.checkpoint),
        "GPUPOOL_SIMULATED_LOAD": str(view.outbox / "load"),
    }
