"""What runs write on this host's own disk while they run: their ``/tmp``, and the folder that they answer from.

Nothing that every host has holds a folder to a size, so it is measured, and a run that takes too much is stopped: one that goes
over the limit that the operator set, and when the disk runs low the one that grew most of late, before there is no room for
anybody. Who has had much for long, and let the others be, is not stopped for what they write.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent import processes
from agent.hooks import SYSTEM_PATH
from agent.reconcile import Stop
from agent.run import Run
from agent.runs import LEAST_FREE_BYTES, LEAST_FREE_FILES, Runs

log = logging.getLogger("agent.scratch")

OUTCOME = "out_of_disk"
FULL = "the disk of the host was nearly full"
LOOK_SECONDS = 0.5  # how often the disk's room is looked at
EVERY_SECONDS = 10.0  # how often runs are measured for their limit while the disk has room
LATE_SECONDS = 300.0  # how often it is kept what each has: "of late" is since between one and two of these
MEASURE_SECONDS = 10.0  # for one run: what takes longer to count counts as the largest
GRACE_SECONDS = 5.0  # until KILL: one that ignores TERM goes on writing
SETTLE_SECONDS = 5.0  # after a stopped run has ended: what it wrote is removed in the background
LOW_SHARE = 0.05  # of the disk: with less room, but not more than this, it runs low
MOST_LOW_BYTES, MOST_LOW_FILES = 4 << 30, 20_000
BLAMED_SHARE = 16  # who has less than this part of the room that is to stay is not to blame: its end would help nobody
BLOCK = 512  # bytes; what st_blocks counts in
UNCOUNTED = 1 << 62
KCMP_NUMBERS, KCMP_FILES = {"x86_64": 312, "aarch64": 272}, 2  # of the system call, and what it is asked; kcmp(2)


def low(total: int, *, least: int = LEAST_FREE_BYTES, most: int = MOST_LOW_BYTES) -> int:
    """With less room than this a disk with ``total`` runs low; never less than new work needs to start (``least``)."""
    return max(least, min(most, int(total * LOW_SHARE)))


def over(taken: dict[str, int], most: int) -> dict[str, str]:
    """Which runs have more than the limit of one, each with that in words. ``taken``: bytes by run; ``most``: 0 for none."""
    return {
        run: f"its temporary files took {_mib(took)}; allowed on this host: {_mib(most)}"
        for run, took in taken.items()
        if 0 < most < took
    }


def to_blame(taken: dict[str, int], before: dict[str, int], lacking: int, least: int) -> str:
    """Who has to go on a disk that runs low by ``lacking``: who took most since ``before``. '' where all of them together have not
    taken that since, or nobody has taken ``least``: others filled it."""
    grown = {run: took if took >= UNCOUNTED else took - before.get(run, 0) for run, took in taken.items()}
    if lacking <= 0 or sum(grew for grew in grown.values() if grew > 0) < lacking:
        return ""
    name = max(grown, key=lambda run: grown[run], default="")
    return name if grown.get(name, 0) >= least else ""


def _mib(size: int) -> str:
    return "more than could be counted" if size >= UNCOUNTED else f"{size >> 20} MiB"


def _files(count: int) -> str:
    return "more than could be counted" if count >= UNCOUNTED else f"{count} files"


class Scratch:
    """Watches the runs of one host. ``most_bytes``: of one run; 0: as long as the disk has room."""

    def __init__(self, runs: Runs, most_bytes: int) -> None:
        self._runs = runs
        self._most = most_bytes
        self._measured_at = 0.0
        self._kept_at: float | None = None
        self._kept: tuple[dict[str, int], dict[str, int]] = {}, {}  # what each had then: bytes, files
        self._before = self._kept  # and what it had the time before
        self._stopped: dict[str, float] = {}  # by run, when it was seen to have ended; 0 while it has not
        self._others_filled_it: tuple[float, int, int] | None = None  # when that was found, and the room there was: bytes, files

    async def watch(self) -> None:
        """For ever; ends no run but those that take too much."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look(time.monotonic())
            except (OSError, RuntimeError, subprocess.SubprocessError) as problem:  # no process or thread is to be had, say
                log.error("what runs take of the disk can't be measured: %s", problem)

    async def look(self, now: float) -> None:
        """Measure what is due to be, and stop who takes too much. ``now``: monotonic seconds."""
        folder = self._runs.state.folder
        disk, inodes = shutil.disk_usage(folder), os.statvfs(folder)
        room, room_for_files = low(disk.total), low(inodes.f_files, least=LEAST_FREE_FILES, most=MOST_LOW_FILES)
        lacking, files = room - disk.free, room_for_files - inodes.f_favail if inodes.f_files else 0
        least, least_files = room // BLAMED_SHARE, room_for_files // BLAMED_SHARE
        if self._kept_at is None or now - self._kept_at >= LATE_SECONDS:
            there = self._running()
            kept = await asyncio.to_thread(measure, there), await asyncio.to_thread(measure_files, there)
            self._kept_at, self._before, self._kept = now, self._kept, kept
        as_before = self._is_as_when_others_filled_it(now, disk.free + least, inodes.f_favail + least_files)
        if (lacking > 0 or files > 0) and not as_before and not self._waits_for_room(now):
            there = self._running()
            taken = await asyncio.to_thread(measure, there) if lacking > 0 else {}
            count = await asyncio.to_thread(measure_files, there) if files > 0 else {}
            if self._runs.trash.is_emptied:  # what ended work has left there is nobody's to blame for, and soon gone
                lacking -= await asyncio.to_thread(_bytes, [self._runs.trash.folder])
                files -= await asyncio.to_thread(_count, [self._runs.trash.folder], "--inodes")
            name = to_blame(taken, self._before[0], lacking, least)
            if name:
                self._stop(name, f"{FULL}, and its temporary files took the most of it of late: {_mib(taken[name])}")
            elif name := to_blame(count, self._before[1], files, least_files):
                self._stop(name, f"{FULL}, and it made the most of the files on it of late: {_files(count[name])}")
            elif not self._runs.trash.is_emptied:
                self._others_filled_it = (now, disk.free, inodes.f_favail)
        if self._most and now - self._measured_at >= EVERY_SECONDS:
            self._measured_at = now
            for name, why in over(await asyncio.to_thread(measure, self._running()), self._most).items():
                self._stop(name, why)

    def _is_as_when_others_filled_it(self, now: float, room: int, files: int) -> bool:
        """Was nobody to blame a moment ago, and could nobody have become so since without leaving less than this? To count the
        files of all runs again and again is a load of its own on a disk that others keep low for days."""
        if self._others_filled_it is None:
            return False
        at, room_then, files_then = self._others_filled_it
        return now - at < EVERY_SECONDS and room > room_then and files > files_then

    def _running(self) -> list[Run]:
        return [run for run in self._runs.runs.values() if run.state == "running"]

    def _stop(self, name: str, why: str) -> None:
        run = self._runs.runs.get(name)
        if run is not None and run.state == "running":
            log.warning("run %s is stopped: %s", name, why)
            self._stopped[name] = 0.0
            self._runs.stop(Stop(name, OUTCOME, GRACE_SECONDS, whatever=True, why=why))

    def _waits_for_room(self, now: float) -> bool:
        """Is one that was stopped still there, or what it wrote? Then nobody else is blamed yet."""
        for name, ended_at in list(self._stopped.items()):
            run = self._runs.runs.get(name)
            if ended_at and now - ended_at > SETTLE_SECONDS:
                del self._stopped[name]
            elif not ended_at and (run is None or run.ended):
                self._stopped[name] = now
        return bool(self._stopped)


def measure(runs: Iterable[Run]) -> dict[str, int]:
    """Bytes on the disk, by run; without those that are gone meanwhile. Takes as long as the disk does: not for the event loop."""
    everything = processes.scan()
    found = {}
    for run in runs:
        below = processes.below(everything, run.shim["pid"]) if "pid" in run.shim else []
        with contextlib.suppress(FileNotFoundError):
            found[run.id] = _bytes(_of_run(run)) + _without_name(run.folder, [each.pid for each in below])
    return found


def measure_files(runs: Iterable[Run]) -> dict[str, int]:
    """Files and folders, by run."""
    return {run.id: _count(_of_run(run), "--inodes") for run in runs}


def _of_run(run: Run) -> list[Path]:
    return [run.folder / "tmp", run.folder / "out"]


def _bytes(folders: Iterable[Path]) -> int:
    count = _count(folders, "-k")
    return count if count >= UNCOUNTED else count << 10


def _count(folders: Iterable[Path], unit: str) -> int:
    """Links are not followed and other file systems not entered; files that vanish meanwhile are no mistake. What is closed to this
    agent can't be counted."""
    try:
        done = subprocess.run(
            ["du", "-s", "-x", "-c", unit, "--", *map(str, folders)],
            capture_output=True, timeout=MEASURE_SECONDS, env={"PATH": SYSTEM_PATH, "LC_ALL": "C"}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return UNCOUNTED
    if b"Permission denied" in done.stderr:  # closed by the run itself; root is let in
        return UNCOUNTED
    total = done.stdout.rpartition(b"\ttotal")[0].rpartition(b"\n")[2]
    return int(total) if total.isdigit() else 0


def _without_name(folder: Path, pids: Iterable[int]) -> int:
    """Of files that were removed and are still open or mapped: they take their room as before."""
    device = os.stat(folder).st_dev
    sizes = {
        seen.st_ino: seen.st_blocks * BLOCK
        for pid in pids
        for seen in (*_open_files(pid), *_mapped_files(pid))
        if seen.st_dev == device and seen.st_nlink == 0 and stat.S_ISREG(seen.st_mode)
    }
    return sum(sizes.values())


def _open_files(pid: int) -> Iterator[os.stat_result]:
    """Of every table of open files in the process: threads can have their own, and a first thread that has ended has none."""
    tables: list[int] = []
    for thread in sorted(map(int, _names(f"/proc/{pid}/task"))):
        if any(_share_files(thread, other) for other in tables):
            continue
        tables.append(thread)
        yield from _looked_at(f"/proc/{pid}/task/{thread}/fd", _names(f"/proc/{pid}/task/{thread}/fd"))


def _mapped_files(pid: int) -> Iterator[os.stat_result]:
    """Those without a name. Only root can look at them."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
    except OSError:
        return
    places = (line.split(b" ", 1)[0].decode() for line in lines if line.endswith(b" (deleted)"))
    names = ("-".join(f"{int(end, 16):x}" for end in place.split("-")) for place in places)
    yield from _looked_at(f"/proc/{pid}/map_files", names)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # it has ended, or is not ours to look at


def _looked_at(folder: str, names: Iterable[str]) -> Iterator[os.stat_result]:
    for name in names:
        try:
            yield os.stat(f"{folder}/{name}")
        except OSError:
            continue


def _share_files(one: int, other: int) -> bool:
    """Have two threads the same table of open files? False where the kernel does not say."""
    number = KCMP_NUMBERS.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, one, other, KCMP_FILES, 0, 0) == 0
