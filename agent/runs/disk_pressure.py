"""What runs write on this host's own disk while they run: their ``/tmp``, and the folder that they answer from.

Nothing that every host has holds a folder to a size, so it is measured, and a run that takes too much is stopped: one that goes
over the limit that the operator set, and when the disk runs low the one that grew most of late, before there is no room for
anybody. Who has had much for long, and let the others be, is not stopped for what they write.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.host import processes
from agent.host.durable_files import log_disk_errors, read_json, write_json
from agent.runs.hooks import SYSTEM_PATH
from agent.runs.local_run import LocalRun
from agent.runs.manager import MIN_FREE_BYTES, MIN_FREE_FILES, RunManager
from agent.runs.reconcile import StopRun

log = logging.getLogger("agent.runs.disk_pressure")

OUT_OF_DISK = "out_of_disk"
DISK_PRESSURE_MESSAGE = "the disk of the host was nearly full"
DISK_CHECK_SECONDS = 0.5  # how often the disk's room is looked at
LIMIT_CHECK_SECONDS = 10.0  # how often runs are measured for their limit while the disk has room
GROWTH_WINDOW_SECONDS = (
    300.0  # how often it is kept what each has: "of late" is since between one and two of these
)
MEASURE_TIMEOUT_SECONDS = 10.0  # for one run: what takes longer to count counts as the largest
STOP_GRACE_SECONDS = 5.0  # until KILL: one that ignores TERM goes on writing
SETTLE_SECONDS = 5.0  # after a stopped run has ended: what it wrote is removed in the background
STUCK_RUN_SECONDS = 30.0  # after its grace: one that does not end keeps nobody else from being stopped
PRESSURE_SHARE = 0.05  # of the disk: with less room, but not more than this, it runs low
MAX_PRESSURE_BYTES, MAX_PRESSURE_FILES = 4 << 30, 20_000
MIN_EVICTED_DIVISOR = (
    16  # who has less than this part of the room that is to stay is not to blame: its end would help nobody
)
STAT_BLOCK_BYTES = 512  # bytes; what st_blocks counts in
UNKNOWN_USAGE = 1 << 62
KCMP_SYSCALL_NUMBERS, KCMP_FILES = (
    {"x86_64": 312, "aarch64": 272},
    2,
)  # of the system call, and what it is asked; kcmp(2)


def pressure_threshold(total: int, *, least: int = MIN_FREE_BYTES, most: int = MAX_PRESSURE_BYTES) -> int:
    """With less room than this a disk with ``total`` runs low; never less than new work needs to start (``least``)."""
    return max(least, min(most, int(total * PRESSURE_SHARE)))


def runs_over_limit(taken: dict[str, int], most: int) -> dict[str, str]:
    """Which runs have more than the limit of one, each with that in words. ``taken``: bytes by run; ``most``: 0 for none."""
    return {
        run: f"its temporary files took {_format_mib(took)}; allowed on this host: {_format_mib(most)}"
        for run, took in taken.items()
        if 0 < most < took
    }


@dataclass(frozen=True)
class DiskSnapshot:
    """What each run had at a moment, and the room that there was beside that."""

    bytes: dict[str, int] = field(
        default_factory=dict
    )  # by run; one that is not in it began later and had nothing
    files: dict[str, int] = field(default_factory=dict)
    free_bytes: int = 0
    free_files: int = 0


def run_to_stop(
    taken: dict[str, int], before: dict[str, int], lacking: int, least: int, gone: int = 0
) -> str:
    """Who has to go on a disk that runs low by ``lacking``: who took most since ``before``, while ``gone`` was taken in all.
    '' where all of them together have not taken what lacks since then, or nobody has taken ``least``: others filled it.

    How much a run took is not known where it could not be counted, now or then. It goes for what nobody else has taken: where
    those that are known have not even half of it."""
    if lacking <= 0:
        return ""
    unknown = [
        run for run, took in taken.items() if UNKNOWN_USAGE in (took, before.get(run)) and took >= least
    ]
    grown = {
        run: took - before.get(run, 0)
        for run, took in taken.items()
        if UNKNOWN_USAGE not in (took, before.get(run))
    }
    known = sum(grew for grew in grown.values() if grew > 0)
    name = max(grown, key=lambda run: grown[run], default="")
    if grown.get(name, 0) >= least and known >= lacking and (2 * known >= gone or not unknown):
        return name
    # Rather one that could be counted before than one that never can; of several the youngest.
    return max(reversed(unknown), key=lambda run: (before.get(run) != UNKNOWN_USAGE, taken[run]), default="")


def _format_mib(size: int) -> str:
    return "more than could be counted" if size >= UNKNOWN_USAGE else f"{size >> 20} MiB"


def _format_file_count(count: int) -> str:
    return "more than could be counted" if count >= UNKNOWN_USAGE else f"{count} files"


class DiskPressure:
    """Watches the runs of one host. ``most_bytes``: of one run; 0: as long as the disk has room."""

    def __init__(self, runs: RunManager, most_bytes: int) -> None:
        self._runs = runs
        self._most = most_bytes
        self._measured_at = 0.0
        self._kept_at: float | None = None
        self._kept = DiskSnapshot()  # what each had then
        self._before = DiskSnapshot()  # and what it had the time before
        self._stopped: dict[str, _StoppedRun] = {}  # by run
        self._external_fill: tuple[float, int, int] | None = (
            None  # when that was found, and the room there was: bytes, files
        )

    async def watch(self) -> None:
        """For ever; ends no run but those that take too much."""
        while True:
            await asyncio.sleep(DISK_CHECK_SECONDS)
            try:
                await self.look(time.monotonic())
            except (
                OSError,
                RuntimeError,
                subprocess.SubprocessError,
            ) as problem:  # no process or thread is to be had, say
                log.error("what runs take of the disk can't be measured: %s", problem)

    async def look(self, now: float) -> None:
        """Measure what is due to be, and stop who takes too much. ``now``: monotonic seconds."""
        if self._kept_at is None:
            self._recover_stopped_runs(now)
        folder = self._runs.state.folder
        disk, inodes = shutil.disk_usage(folder), os.statvfs(folder)
        room, room_for_files = (
            pressure_threshold(disk.total),
            pressure_threshold(inodes.f_files, least=MIN_FREE_FILES, most=MAX_PRESSURE_FILES),
        )
        lacking, files = room - disk.free, room_for_files - inodes.f_favail if inodes.f_files else 0
        least, least_files = room // MIN_EVICTED_DIVISOR, room_for_files // MIN_EVICTED_DIVISOR
        if self._kept_at is None or now - self._kept_at >= GROWTH_WINDOW_SECONDS:
            await self._keep(now, disk.free, inodes.f_favail, is_low=lacking > 0 or files > 0)
        as_before = self._unchanged_since_external_fill(now, disk.free + least, inodes.f_favail + least_files)
        if (lacking > 0 or files > 0) and not as_before and not self._is_waiting_for_space(now):
            gone, gone_files = self._before.free_bytes - disk.free, self._before.free_files - inodes.f_favail
            name, took = await self._find_run_to_stop(
                measure_bytes, _count_bytes, self._before.bytes, lacking, least, gone
            )
            why = f"its temporary files took the most of it of late: {_format_mib(took)}"
            if not name:
                name, took = await self._find_run_to_stop(
                    measure_files, _count_files, self._before.files, files, least_files, gone_files
                )
                why = f"it made the most of the files on it of late: {_format_file_count(took)}"
            if name:
                self._stop(name, f"{DISK_PRESSURE_MESSAGE}, and {why}", now, host_full=True)
            elif not self._runs.trash.is_emptied:
                self._external_fill = (now, disk.free, inodes.f_favail)
        if self._most and now - self._measured_at >= LIMIT_CHECK_SECONDS:
            self._measured_at = now
            for name, why in runs_over_limit(
                await asyncio.to_thread(measure_bytes, self._at_work()), self._most
            ).items():
                self._stop(name, why, now)

    async def _find_run_to_stop(
        self,
        measured: Callable[[list[LocalRun]], dict[str, int]],
        counted: Callable[[list[Path]], int],
        before: dict[str, int],
        lacking: int,
        least: int,
        gone: int,
    ) -> tuple[str, int]:
        """Who is to blame, and how much it has. For what ended work has left, or what is being stopped has, that is nobody."""
        if lacking <= 0:
            return "", 0
        there, trash = self._at_work(), self._runs.trash
        going = [run for run in self._runs.runs.values() if run.state == "stopping"]
        taken = await asyncio.to_thread(measured, [*there, *going])
        left = [took for took in (taken.pop(run.id, 0) for run in going) if took < UNKNOWN_USAGE]
        if trash.is_emptied:
            left.append(await asyncio.to_thread(counted, [trash.folder]))
        name = run_to_stop(taken, before, lacking - sum(left), least, gone - sum(left))
        return name, taken.get(name, 0)

    async def _keep(self, now: float, free_bytes: int, free_files: int, *, is_low: bool) -> None:
        """Keep what each run has. At an agent's start, those that were there before it have had that for long, unless the disk ran
        low meanwhile: then what the agent before this one kept counts."""
        there = self._at_work()
        each, each_files = (
            await asyncio.to_thread(measure_bytes, there),
            await asyncio.to_thread(measure_files, there),
        )
        kept = DiskSnapshot(each, each_files, free_bytes, free_files)
        if self._kept_at is not None:
            self._before = self._kept
        elif is_low:
            self._before = _read_snapshot(self._file) or self._before
        else:
            adopted = {run.id for run in there if run.adopted}
            self._before = DiskSnapshot(
                {run: took for run, took in each.items() if run in adopted},
                {run: count for run, count in each_files.items() if run in adopted},
                free_bytes,
                free_files,
            )
        self._kept_at, self._kept = now, kept
        with log_disk_errors("what each run has of the disk"):
            await asyncio.to_thread(write_json, self._file, asdict(kept))

    @property
    def _file(self) -> Path:
        return self._runs.state.folder / "scratch.json"

    def _recover_stopped_runs(self, now: float) -> None:
        """Those that an agent before this one has stopped for the disk: nobody else is, until they are gone."""
        for run in self._runs.runs.values():
            if not run.ended and run.stop_ordered:
                told = (read_json(run.folder / "order.json") or {}).get("stop") or {}
                if told.get("outcome") == OUT_OF_DISK:
                    self._stopped[run.id] = _StoppedRun(now + STOP_GRACE_SECONDS + STUCK_RUN_SECONDS)

    def _unchanged_since_external_fill(self, now: float, room: int, files: int) -> bool:
        """Was nobody to blame a moment ago, and could nobody have become so since without leaving less than this? To count the
        files of all runs again and again is a load of its own on a disk that others keep low for days."""
        if self._external_fill is None:
            return False
        at, room_then, files_then = self._external_fill
        return now - at < LIMIT_CHECK_SECONDS and room > room_then and files > files_then

    def _at_work(self) -> list[LocalRun]:
        """Also those not seen running yet: one that fills the disk in its first moment is to be found, not its neighbour."""
        return [run for run in self._runs.runs.values() if run.state in ("starting", "running")]

    def _stop(self, name: str, why: str, now: float, *, host_full: bool = False) -> None:
        run = self._runs.runs.get(name)
        if run is not None and run.state in ("starting", "running"):
            log.warning("run %s is stopped: %s", name, why)
            self._stopped[name] = _StoppedRun(now + STOP_GRACE_SECONDS + STUCK_RUN_SECONDS)
            self._runs.stop(
                StopRun(name, OUT_OF_DISK, STOP_GRACE_SECONDS, whatever=True, why=why, host_full=host_full)
            )

    def _is_waiting_for_space(self, now: float) -> bool:
        """Is one that was stopped still there, or what it wrote? Then nobody else is blamed yet, for a while."""
        for name, stopped in list(self._stopped.items()):
            run = self._runs.runs.get(name)
            if not stopped.has_ended and (run is None or run.ended):
                self._stopped[name] = _StoppedRun(now + SETTLE_SECONDS, has_ended=True)
            elif now >= stopped.until:
                del self._stopped[name]
        return bool(self._stopped)


@dataclass(frozen=True)
class _StoppedRun:
    """A run that was stopped. ``until``: when it is waited for no longer."""

    until: float
    has_ended: bool = False


def _read_snapshot(path: Path) -> DiskSnapshot | None:
    """What an agent before this one kept; None where there is nothing of that kind."""
    try:
        kept: Any = read_json(path)
        if not kept:
            return None
        each, each_files = (
            {str(run): int(has) for run, has in kept[name].items()} for name in ("bytes", "files")
        )
        return DiskSnapshot(each, each_files, int(kept["free_bytes"]), int(kept["free_files"]))
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def measure_bytes(runs: Iterable[LocalRun]) -> dict[str, int]:
    """Bytes on the disk, by run; without those that are gone meanwhile. Takes as long as the disk does: not for the event loop."""
    return _measure_each(
        runs,
        _count_bytes,
        lambda nameless: sum(
            seen.st_blocks * STAT_BLOCK_BYTES for seen in nameless if stat.S_ISREG(seen.st_mode)
        ),
    )


def measure_files(runs: Iterable[LocalRun]) -> dict[str, int]:
    """Files and folders, like ``measure_bytes``."""
    return _measure_each(runs, _count_files, len)


def _measure_each(
    runs: Iterable[LocalRun],
    named: Callable[[list[Path]], int],
    without_name: Callable[[list[os.stat_result]], int],
) -> dict[str, int]:
    everything = processes.scan()
    found = {}
    for run in runs:
        below = processes.descendants(everything, run.shim["pid"]) if "pid" in run.shim else []
        with contextlib.suppress(FileNotFoundError):
            nameless = _deleted_open_files(run.folder, [each.pid for each in below])
            found[run.id] = min(UNKNOWN_USAGE, named(_run_folders(run)) + without_name(nameless))
    return found


def _run_folders(run: LocalRun) -> list[Path]:
    return [run.folder / "tmp", run.folder / "out"]


def _count_bytes(folders: Iterable[Path]) -> int:
    count = _run_du(folders, "-k")
    return count if count >= UNKNOWN_USAGE else count << 10


def _count_files(folders: Iterable[Path]) -> int:
    return _run_du(folders, "--inodes")


def _run_du(folders: Iterable[Path], unit: str) -> int:
    """Links are not followed and other file systems not entered; files that vanish meanwhile are no mistake. What is closed to this
    agent can't be counted."""
    try:
        done = subprocess.run(
            ["du", "-s", "-x", "-c", unit, "--", *map(str, folders)],
            capture_output=True,
            timeout=MEASURE_TIMEOUT_SECONDS,
            env={"PATH": SYSTEM_PATH, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return UNKNOWN_USAGE
    if b"Permission denied" in done.stderr:  # closed by the run itself; root is let in
        return UNKNOWN_USAGE
    total = done.stdout.rpartition(b"\ttotal")[0].rpartition(b"\n")[2]
    return int(total) if total.isdigit() else 0


def _deleted_open_files(folder: Path, pids: Iterable[int]) -> list[os.stat_result]:
    """Files that were removed and are still open or mapped: they take their room as before."""
    device = os.stat(folder).st_dev
    found = {
        seen.st_ino: seen
        for pid in pids
        for seen in (*_open_files(pid), *_mapped_files(pid))
        if seen.st_dev == device and seen.st_nlink == 0
    }
    return list(found.values())


def _open_files(pid: int) -> Iterator[os.stat_result]:
    """Of every table of open files in the process: threads can have their own, and a first thread that has ended has none."""
    tables: list[int] = []
    for thread in sorted(map(int, _list_folder(f"/proc/{pid}/task"))):
        if any(_share_file_table(thread, other) for other in tables):
            continue
        tables.append(thread)
        yield from _confirmed_deleted(
            f"/proc/{pid}/task/{thread}/fd", _list_folder(f"/proc/{pid}/task/{thread}/fd")
        )


def _mapped_files(pid: int) -> Iterator[os.stat_result]:
    """Those without a name. Only root can look at them."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
    except OSError:
        return
    places = (line.split(b" ", 1)[0].decode() for line in lines if line.endswith(b" (deleted)"))
    names = ("-".join(f"{int(end, 16):x}" for end in place.split("-")) for place in places)
    yield from _confirmed_deleted(f"/proc/{pid}/map_files", names)


def _list_folder(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # it has ended, or is not ours to look at


def _confirmed_deleted(folder: str, names: Iterable[str]) -> Iterator[os.stat_result]:
    """Those that have no name any more, as the kernel says by itself: the file system of another (the homes, say) may hang."""
    for name in names:
        with contextlib.suppress(OSError):
            if _is_deleted(f"{folder}/{name}"):
                yield os.stat(f"{folder}/{name}")


def _is_deleted(path: str) -> bool:
    """Of what a link in /proc leads to; also where its path is too long to be told. Raises OSError."""
    try:
        return os.readlink(path).endswith(" (deleted)")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return True
        raise


def _share_file_table(one: int, other: int) -> bool:
    """Have two threads the same table of open files? False where the kernel does not say."""
    number = KCMP_SYSCALL_NUMBERS.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, one, other, KCMP_FILES, 0, 0) == 0
