"""Stops runs that fill the disk of this host.

A run can fill the disk through its ``/tmp`` and through the folder of its workspace socket. Not every host
can limit the size of a folder, so these folders are measured.

A run is stopped if it exceeds the limit that the operator set. Without such a limit, it is stopped if it
takes more than its share of a disk that is half full (see ``agent.runs.default_limits``). When the disk runs
low, the run whose usage has grown most in the last minutes is stopped, before the disk is full. The growth of
other runs never stops a run whose own usage is large but stable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.host import processes
from agent.host.durable_files import log_disk_errors, read_json, write_json
from agent.runs.default_limits import gpu_share, scratch_limit_bytes
from agent.runs.local_run import LocalRun
from agent.runs.manager import MIN_FREE_BYTES, MIN_FREE_FILES, RunManager
from agent.runs.reconcile import StopRun
from agent.storage.disk_usage import UNKNOWN_USAGE, count_bytes, count_files, deleted_open_files

log = logging.getLogger("agent.runs.disk_pressure")

OUT_OF_DISK = "out_of_disk"
DISK_PRESSURE_MESSAGE = "the disk of the host was nearly full"
DISK_CHECK_SECONDS = 0.5  # time between two checks of the free space
LIMIT_CHECK_SECONDS = 10.0  # time between two measurements of the runs against their limit
# Time between two snapshots of the usage. The growth of a run is measured over one to two times this period.
GROWTH_WINDOW_SECONDS = 300.0
STOP_GRACE_SECONDS = 5.0  # time from TERM to KILL; short, because a run that ignores TERM continues to write
SETTLE_SECONDS = 5.0  # pause after the end of a stopped run; its files are removed in this time
STUCK_RUN_SECONDS = (
    30.0  # if a run lives this long after its grace period, another run may be stopped in addition
)
# A disk runs low if less than this share of it is free. On a large disk, the maxima below count instead.
PRESSURE_SHARE = 0.05
MAX_PRESSURE_BYTES, MAX_PRESSURE_FILES = 4 << 30, 20_000
# A run whose growth is less than the threshold divided by this number is not stopped. Its end would free too
# little space.
MIN_EVICTED_DIVISOR = 16
STAT_BLOCK_BYTES = 512  # the unit of st_blocks


def pressure_threshold(total: int, *, least: int = MIN_FREE_BYTES, most: int = MAX_PRESSURE_BYTES) -> int:
    """Return the free space below which a disk of size ``total`` runs low.

    The result is at least ``least``, because the start of a run needs this much, and at most ``most``.
    """
    return max(least, min(most, int(total * PRESSURE_SHARE)))


def runs_over_limit(taken: dict[str, int], limits: dict[str, int]) -> dict[str, str]:
    """Return a sentence for the user of each run above its limit, by id of the run.

    ``taken``: the bytes on the disk by run. ``limits``: the limit in bytes by run; 0 or missing: no limit.
    """
    return {
        run: f"its temporary files took {_format_mib(took)}; allowed on this host: {_format_mib(limits[run])}"
        for run, took in taken.items()
        if 0 < limits.get(run, 0) < took
    }


@dataclass(frozen=True)
class DiskSnapshot:
    """The usage of each run and the free space of the disk at one time."""

    bytes: dict[str, int] = field(default_factory=dict)  # number of bytes by id of the run
    files: dict[str, int] = field(default_factory=dict)  # number of files by id of the run
    free_bytes: int = 0
    free_files: int = 0


def run_to_stop(
    taken: dict[str, int], before: dict[str, int], lacking: int, least: int, gone: int = 0
) -> str:
    """Return the run that caused a lack of ``lacking`` bytes or files; '' if no run is the cause.

    ``taken`` is the present usage by run, and ``before`` is the usage by run in an earlier snapshot. The
    cause is the run whose usage has grown most since ``before``. In two cases, something else has filled the
    disk and no run is the cause: all runs together have grown by less than ``lacking``, or each run has grown
    by less than ``least``.

    The growth of a run is unknown if its usage is UNKNOWN_USAGE now or in ``before``. Such a run is chosen
    only if it uses at least ``least`` now and one of two conditions holds: the rules above give no run, or
    the known growth explains less than half of ``gone``. ``gone`` is the decrease of the free space since
    ``before``.
    """
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
    # Prefer a run whose usage was known in the snapshot. Then prefer the largest usage, then the youngest
    # run.
    return max(reversed(unknown), key=lambda run: (before.get(run) != UNKNOWN_USAGE, taken[run]), default="")


def _format_mib(size: int) -> str:
    return "more than could be measured" if size >= UNKNOWN_USAGE else f"{size >> 20} MiB"


def _format_file_count(count: int) -> str:
    return "more than could be measured" if count >= UNKNOWN_USAGE else f"{count} files"


@dataclass(frozen=True)
class FreeSpace:
    """The free space of a disk, in bytes and in files.

    ``lacking_bytes``, ``lacking_files``: the threshold minus the free space; positive if the disk runs low.
    ``least_bytes``, ``least_files``: a run whose usage grew by less than this is not stopped.
    """

    free_bytes: int
    free_files: int
    lacking_bytes: int
    lacking_files: int
    least_bytes: int
    least_files: int

    @property
    def is_low(self) -> bool:
        """Return True if bytes or files are below their threshold."""
        return self.lacking_bytes > 0 or self.lacking_files > 0


def _read_free_space(folder: Path) -> FreeSpace:
    disk, inodes = shutil.disk_usage(folder), os.statvfs(folder)
    threshold = pressure_threshold(disk.total)
    file_threshold = pressure_threshold(inodes.f_files, least=MIN_FREE_FILES, most=MAX_PRESSURE_FILES)
    return FreeSpace(
        free_bytes=disk.free,
        free_files=inodes.f_favail,
        lacking_bytes=threshold - disk.free,
        # A file system without a limit on files reports a total of 0.
        lacking_files=file_threshold - inodes.f_favail if inodes.f_files else 0,
        least_bytes=threshold // MIN_EVICTED_DIVISOR,
        least_files=file_threshold // MIN_EVICTED_DIVISOR,
    )


class DiskPressure:
    """Watches the disk usage of one host's runs.

    ``most_bytes``: the limit of one run; 0 means its share of the disk, once the disk is half full.
    """

    def __init__(self, runs: RunManager, most_bytes: int) -> None:
        self._runs = runs
        self._most = most_bytes
        self._measured_at = 0.0
        self._kept_at: float | None = None
        self._kept = DiskSnapshot()  # the last snapshot
        self._before = DiskSnapshot()  # the snapshot before the last one
        self._stopped: dict[str, _StoppedRun] = {}  # by id of the run
        # Set when the disk ran low and no run was the cause: (time, free bytes, free files) at this check.
        self._external_fill: tuple[float, int, int] | None = None

    async def watch(self) -> None:
        """Check the disk forever and stop runs that use too much of it."""
        while True:
            await asyncio.sleep(DISK_CHECK_SECONDS)
            try:
                await self.look(time.monotonic())
            # For example if no further process can be started.
            except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
                log.error("the disk usage of runs can't be measured: %s", problem)

    async def look(self, now: float) -> None:
        """Check the free space, measure runs if that is due, and stop a run that uses too much.

        ``now``: seconds of the monotonic clock.
        """
        if self._kept_at is None:
            self._recover_stopped_runs(now)
        space = _read_free_space(self._runs.state.folder)
        if self._kept_at is None or now - self._kept_at >= GROWTH_WINDOW_SECONDS:
            await self._keep(now, space.free_bytes, space.free_files, is_low=space.is_low)
        is_unexplained = space.is_low and not self._unchanged_since_external_fill(now, space)
        if is_unexplained and not self._is_waiting_for_space(now):
            await self._stop_the_largest_run(now, space)
        if now - self._measured_at >= LIMIT_CHECK_SECONDS:
            self._measured_at = now
            await self._stop_runs_over_limit(now)

    async def _stop_runs_over_limit(self, now: float) -> None:
        """Measure the runs that have a limit, and stop those above it."""
        runs = self._active_runs()
        limits = {run.id: self._most for run in runs} if self._most else self._shares_of_disk(runs)
        limited = [run for run in runs if limits[run.id]]
        if limited:
            taken = await asyncio.to_thread(measure_bytes, limited)
            for name, why in runs_over_limit(taken, limits).items():
                self._stop(name, why, now)

    def _shares_of_disk(self, runs: list[LocalRun]) -> dict[str, int]:
        """Return the limit of each run by its share of the GPUs; 0 means no limit."""
        disk = shutil.disk_usage(self._runs.state.folder)
        return {
            run.id: scratch_limit_bytes(
                gpu_share(run.about.get("unit_uuids", ()), self._runs.hardware.gpus), disk.total, disk.used
            )
            for run in runs
        }

    async def _stop_the_largest_run(self, now: float, space: FreeSpace) -> None:
        """Stop the run that caused the lack of bytes, or else the run that caused the lack of files.

        If no run is the cause, something else fills the disk. Then store the free space, so that the runs are
        not measured again at once. Do not store it while files of ended runs are being removed, because the
        removal changes the free space.
        """
        before = self._before
        name, took = await self._find_run_to_stop(
            measure_bytes,
            count_bytes,
            before.bytes,
            space.lacking_bytes,
            space.least_bytes,
            before.free_bytes - space.free_bytes,
        )
        why = f"its temporary files grew most: {_format_mib(took)}"
        if not name:
            name, took = await self._find_run_to_stop(
                measure_files,
                count_files,
                before.files,
                space.lacking_files,
                space.least_files,
                before.free_files - space.free_files,
            )
            why = f"it created most of the new files: {_format_file_count(took)}"
        if name:
            self._stop(name, f"{DISK_PRESSURE_MESSAGE}, and {why}", now, host_full=True)
        elif not self._runs.trash.is_emptied:
            self._external_fill = (now, space.free_bytes, space.free_files)

    async def _find_run_to_stop(
        self,
        measure: Callable[[list[LocalRun]], dict[str, int]],
        count: Callable[[list[Path]], int],
        before: dict[str, int],
        lacking: int,
        least: int,
        gone: int,
    ) -> tuple[str, int]:
        """Return the id of the run to stop and its usage in bytes or files; ('', 0) if there is none.

        Runs that have ended or are being stopped will soon free the space of their files. This space is
        subtracted from ``lacking`` and ``gone``.
        """
        if lacking <= 0:
            return "", 0
        active, trash = self._active_runs(), self._runs.trash
        stopping = [run for run in self._runs.runs.values() if run.state == "stopping"]
        taken = await asyncio.to_thread(measure, [*active, *stopping])
        leftover = [took for took in (taken.pop(run.id, 0) for run in stopping) if took < UNKNOWN_USAGE]
        if trash.is_emptied:
            leftover.append(await asyncio.to_thread(count, [trash.folder]))
        name = run_to_stop(taken, before, lacking - sum(leftover), least, gone - sum(leftover))
        return name, taken.get(name, 0)

    async def _keep(self, now: float, free_bytes: int, free_files: int, *, is_low: bool) -> None:
        """Take a snapshot of the usage of each run.

        The growth of a run is measured against the previous snapshot. The first snapshot after the agent's
        start has no previous one in memory. If the disk already runs low, use the last snapshot on the disk.
        Otherwise assume that the runs from before the start have not grown since then.
        """
        active = self._active_runs()
        bytes_by_run = await asyncio.to_thread(measure_bytes, active)
        files_by_run = await asyncio.to_thread(measure_files, active)
        kept = DiskSnapshot(bytes_by_run, files_by_run, free_bytes, free_files)
        if self._kept_at is not None:
            self._before = self._kept
        elif is_low:
            self._before = _read_snapshot(self._file) or self._before
        else:
            adopted = {run.id for run in active if run.adopted}
            self._before = DiskSnapshot(
                {run: took for run, took in bytes_by_run.items() if run in adopted},
                {run: count for run, count in files_by_run.items() if run in adopted},
                free_bytes,
                free_files,
            )
        self._kept_at, self._kept = now, kept
        with log_disk_errors("the disk usage of each run"):
            await asyncio.to_thread(write_json, self._file, asdict(kept))

    @property
    def _file(self) -> Path:
        return self._runs.state.folder / "scratch.json"

    def _recover_stopped_runs(self, now: float) -> None:
        """Load the runs that were stopped because of the disk before the agent's start.

        Until they have ended or count as stuck, no other run is stopped because the disk is low.
        """
        for run in self._runs.runs.values():
            if not run.ended and run.stop_ordered:
                stop = (read_json(run.folder / "order.json") or {}).get("stop") or {}
                if stop.get("outcome") == OUT_OF_DISK:
                    self._stopped[run.id] = _StoppedRun(now + STOP_GRACE_SECONDS + STUCK_RUN_SECONDS)

    def _unchanged_since_external_fill(self, now: float, space: FreeSpace) -> bool:
        """Return True if a recent check found no run as the cause, and little space was lost since then.

        A disk may stay low for days. Without this check, the files of all runs would be counted every time.
        """
        if self._external_fill is None:
            return False
        at, bytes_then, files_then = self._external_fill
        return (
            now - at < LIMIT_CHECK_SECONDS
            and space.free_bytes + space.least_bytes > bytes_then
            and space.free_files + space.least_files > files_then
        )

    def _active_runs(self) -> list[LocalRun]:
        """Return the starting and running runs. A starting run may already fill the disk."""
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
        """Return True while a stopped run is ending, and while the removal of its files may free space.

        During this time, no other run is stopped because the disk is low. A run above the limit for a single
        run is still stopped.
        """
        for name, stopped in list(self._stopped.items()):
            run = self._runs.runs.get(name)
            if not stopped.has_ended and (run is None or run.ended):
                self._stopped[name] = _StoppedRun(now + SETTLE_SECONDS, has_ended=True)
            elif now >= stopped.until:
                del self._stopped[name]
        return bool(self._stopped)


@dataclass(frozen=True)
class _StoppedRun:
    """A run that was stopped because of the disk.

    Until ``until`` (time.monotonic), no other run is stopped because the disk is low.
    """

    until: float
    has_ended: bool = False


def _read_snapshot(path: Path) -> DiskSnapshot | None:
    """Return the stored snapshot, or None if the file is missing or invalid."""
    try:
        kept: Any = read_json(path)
        if not kept:
            return None
        bytes_by_run, files_by_run = (
            {str(run): int(usage) for run, usage in kept[name].items()} for name in ("bytes", "files")
        )
        return DiskSnapshot(bytes_by_run, files_by_run, int(kept["free_bytes"]), int(kept["free_files"]))
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def measure_bytes(runs: Iterable[LocalRun]) -> dict[str, int]:
    """Return the bytes on the disk by id of the run. Runs without a folder are left out.

    The call blocks: use a thread.
    """
    return _measure_each(
        runs,
        count_bytes,
        lambda deleted: sum(
            file.st_blocks * STAT_BLOCK_BYTES for file in deleted if stat.S_ISREG(file.st_mode)
        ),
    )


def measure_files(runs: Iterable[LocalRun]) -> dict[str, int]:
    """Return the number of files and folders by id of the run, like ``measure_bytes``."""
    return _measure_each(runs, count_files, len)


def _measure_each(
    runs: Iterable[LocalRun],
    count: Callable[[list[Path]], int],
    count_deleted: Callable[[list[os.stat_result]], int],
) -> dict[str, int]:
    all_processes = processes.scan()
    usage = {}
    for run in runs:
        below = processes.descendants(all_processes, run.shim["pid"]) if "pid" in run.shim else []
        with contextlib.suppress(FileNotFoundError):
            deleted = deleted_open_files(run.folder, [process.pid for process in below])
            usage[run.id] = min(UNKNOWN_USAGE, count(_run_folders(run)) + count_deleted(deleted))
    return usage


def _run_folders(run: LocalRun) -> list[Path]:
    return [run.folder / "tmp", run.folder / "out"]
