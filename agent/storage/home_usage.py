"""Measures the homes of a host:  python -m agent.storage.home_usage FOLDER   and prints what it found as one JSON object.

A process of its own, at the lowest priority, so that a slow or hanging file system holds up nothing of the agent. Hosts that
share the folder share its work: what one of them measured lately is taken by the others. In the folder, out of reach of workloads:

.volumes/storage          a random name: hosts that report the same one have the same homes
.volumes/lock             held by the one that measures
.volumes/measured.json    what was found last
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.host.durable_files import read_json, write_json, write_text
from agent.protocol import LARGEST_SIZE, LONGEST_HOME_NAME, MOST_HOMES
from agent.storage.file_trees import resolved_home

HOME_TIMEOUT_SECONDS = 60.0  # for one home: a larger one is known as "at least"
ROUND_TIMEOUT_SECONDS = (
    600.0  # for all of them: those not reached keep what was found before, and go first the next time
)
MIN_PAUSE_SECONDS = 60.0
MAX_PAUSE_SECONDS = 7200.0
PAUSE_FACTOR = 20  # between two rounds: measuring takes at most a twentieth of one core's spare time
MAX_DEPTH = 200  # folders in folders: each open one takes a file descriptor
MAX_REMEMBERED_HARD_LINKS = 200_000  # files with several names that are remembered, so that each counts once
STAT_BLOCK_BYTES = 512  # bytes; what st_blocks counts in, whatever the file system's own blocks are
METADATA_FOLDER = ".volumes"
RECORD_FORMAT = 2  # of what is kept there


@dataclass
class _UsageCount:
    """What was counted in one home so far. ``complete`` is False once something could not be counted."""

    bytes: int = 0
    files: int = 0
    changed_at: float = 0.0
    complete: bool = True
    linked: set[tuple[int, int]] = field(default_factory=set)


class _MeasureTimeout(Exception):
    """The home is larger than its time allows."""


def measure_home(home: Path, out_of_time: Callable[[], bool], now: float) -> dict[str, Any] | None:
    """What a home takes on its disk: bytes, files, changed_at, complete, measured_at; None when it can't be opened.

    Links are not followed (but for a home that root has put elsewhere by one: a workload may have made any other) and other file
    systems not entered. ``out_of_time`` is asked again and again; what was counted until then is a lower bound (``complete``).
    """
    found = _UsageCount()
    place = resolved_home(home)
    try:
        if place is None:
            return None
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        own = os.fstat(descriptor)
        found.bytes, found.changed_at = own.st_blocks * STAT_BLOCK_BYTES, own.st_mtime
        _count_folder(descriptor, own.st_dev, 0, found, out_of_time)
    except _MeasureTimeout:
        found.complete = False
    finally:
        os.close(descriptor)
    return {
        "bytes": min(found.bytes, LARGEST_SIZE),
        "files": found.files,
        "changed_at": min(found.changed_at, now),  # a file may claim any time
        "complete": found.complete,
        "measured_at": now,
    }


def _count_folder(
    folder: int, device: int, depth: int, found: _UsageCount, out_of_time: Callable[[], bool]
) -> None:
    """Everything below the open folder. By descriptors, so that a folder swapped for a link leads nowhere."""
    below: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if out_of_time():
                    raise _MeasureTimeout
                _count_entry(entry, device, found, below)
    except OSError:
        found.complete = False
    if below and depth >= MAX_DEPTH:
        found.complete = False
        return
    for name in below:
        try:
            descriptor = os.open(
                name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
            )
        except FileNotFoundError:
            continue  # gone meanwhile
        except OSError:
            found.complete = False
            continue
        try:
            _count_folder(descriptor, device, depth + 1, found, out_of_time)
        finally:
            os.close(descriptor)


def _count_entry(entry: os.DirEntry[str], device: int, found: _UsageCount, below: list[str]) -> None:
    try:
        seen = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # gone meanwhile
    except OSError:
        found.complete = False
        return
    if seen.st_dev != device:
        return
    if stat.S_ISDIR(seen.st_mode):
        below.append(entry.name)
    else:
        if seen.st_nlink > 1 and not _is_first_link(seen, found):
            return
        found.files += 1
    found.bytes += seen.st_blocks * STAT_BLOCK_BYTES
    found.changed_at = max(found.changed_at, seen.st_mtime)


def _is_first_link(seen: os.stat_result, found: _UsageCount) -> bool:
    key = (seen.st_dev, seen.st_ino)
    if key in found.linked:
        return False
    if len(found.linked) >= MAX_REMEMBERED_HARD_LINKS:
        found.complete = False
        return False
    found.linked.add(key)
    return True


def home_names(folder: Path) -> tuple[list[str], int]:
    """The names of the homes in order, at most MOST_HOMES, and how many more there are. Hidden ones are the agent's own."""
    names = sorted(
        entry.name
        for entry in os.scandir(folder)
        if not entry.name.startswith(".")
        and _is_reportable_name(entry.name)
        and entry.is_dir()
        and resolved_home(folder / entry.name)
    )
    return names[:MOST_HOMES], max(0, len(names) - MOST_HOMES)


def _is_reportable_name(name: str) -> bool:
    """Names of users are; a folder that somebody else put there may be called anything."""
    return name.isprintable() and len(name) <= LONGEST_HOME_NAME


def pause_after(took_seconds: float) -> float:
    """How long measuring rests after a round that took so long."""
    return min(MAX_PAUSE_SECONDS, max(MIN_PAUSE_SECONDS, PAUSE_FACTOR * took_seconds))


def read_or_measure(
    folder: Path, now: Callable[[], float], clock: Callable[[], float]
) -> dict[str, Any] | None:
    """What is known of the homes in ``folder``, measured now unless that was done lately; None while another one measures for the
    first time. ``clock`` counts seconds for the deadlines, ``now`` is seconds since the epoch. Raises OSError."""
    marks = folder / METADATA_FOLDER
    marks.mkdir(exist_ok=True, mode=0o700)
    known = _current_format(read_json(marks / "measured.json"))
    resting = known is not None and 0 <= now() - known["measured_at"] < pause_after(known["took_seconds"])
    if known and resting and [home["name"] for home in known["homes"]] == home_names(folder)[0]:
        return known
    lock = os.open(marks / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return known  # another host is at it
    except OSError:
        print("the homes' file system has no locks: hosts that share it all measure it", file=sys.stderr)
    try:
        found = _measure_round(folder, marks, known or {}, resting, now, clock)
        write_json(marks / "measured.json", found)
        return found
    finally:
        os.close(lock)


def _current_format(known: Any) -> dict[str, Any] | None:
    """What an agent of this version wrote; another one's is measured anew."""
    return known if isinstance(known, dict) and known.get("format") == RECORD_FORMAT else None


def _measure_round(
    folder: Path,
    marks: Path,
    known: dict[str, Any],
    resting: bool,
    now: Callable[[], float],
    clock: Callable[[], float],
) -> dict[str, Any]:
    """One look at all homes; ``resting``: only at those that are new, which may come at any time."""
    began, listed_at = clock(), now()
    names, left_out = home_names(folder)
    before = {home["name"]: home for home in known.get("homes", [])}
    unmeasured = {"bytes": None, "files": None, "changed_at": None, "complete": True, "measured_at": None}
    homes = {name: before.get(name, {"name": name, **unmeasured}) for name in names}
    due = [name for name in names if not resting or name not in before]
    for name in sorted(due, key=lambda each: homes[each]["measured_at"] or 0.0):
        if clock() - began > ROUND_TIMEOUT_SECONDS:
            break
        ends = clock() + HOME_TIMEOUT_SECONDS
        found = measure_home(folder / name, lambda ends=ends: clock() > ends, now())  # type: ignore[misc]
        homes[name] = {"name": name, **(found or unmeasured)}
    disk = shutil.disk_usage(folder)
    return {
        "format": RECORD_FORMAT,
        "storage": _storage_id(marks),
        "listed_at": listed_at,
        "measured_at": known["measured_at"] if resting else listed_at,
        "took_seconds": known["took_seconds"] if resting else clock() - began,
        "total_bytes": min(disk.total, LARGEST_SIZE),
        "free_bytes": min(disk.free, LARGEST_SIZE),
        "homes": list(homes.values()),
        "left_out": left_out,
    }


def _storage_id(marks: Path) -> str:
    """The name by which hosts that share this folder are known to do so: made once."""
    path = marks / "storage"
    if not path.exists():
        write_text(path, os.urandom(16).hex())
    return path.read_text().strip()


def lower_priority() -> None:
    """Run only when nothing else wants the processor or the disk."""
    os.nice(19)
    try:
        os.sched_setscheduler(
            0, os.SCHED_IDLE, os.sched_param(0)
        )  # Linux takes the priority of reading from it too
    except OSError as error:
        print(f"measuring homes with an ordinary priority: {error}", file=sys.stderr)


if __name__ == "__main__":
    lower_priority()
    print(json.dumps(read_or_measure(Path(sys.argv[1]), time.time, time.monotonic)))
