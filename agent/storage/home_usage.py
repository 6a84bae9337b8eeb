"""Measures the homes of a host: python -m agent.storage.home_usage FOLDER

Prints the result as one JSON object. This module runs as a separate process with the lowest priority, so that
a slow or hanging file system does not delay the agent. Hosts that share the folder also share the work: a
host uses the recent result of another host. The process keeps these files in FOLDER, where workloads can't
reach them:

    .volumes/storage          a random id: hosts that report the same id have the same homes
    .volumes/lock             held by the host that measures
    .volumes/measured.json    the last result
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
from agent.storage.home_limits import limit_of_home

HOME_TIMEOUT_SECONDS = 60.0  # per home; if a home takes longer, its size is a lower bound
ROUND_TIMEOUT_SECONDS = (
    # Time limit for all homes. A home that is not reached keeps its last result and is measured first in the
    # next round.
    600.0
)
MIN_PAUSE_SECONDS = 60.0
MAX_PAUSE_SECONDS = 7200.0
# The pause after a round is this many times the duration of the round, between MIN_PAUSE_SECONDS and
# MAX_PAUSE_SECONDS. Measuring therefore takes only about 1/20 of the time.
PAUSE_FACTOR = 20
MAX_DEPTH = 200  # deepest nesting of folders; each level needs a file descriptor
# Files with several names are remembered, so that each file is counted once. This is the limit per home.
MAX_REMEMBERED_HARD_LINKS = 200_000
STAT_BLOCK_BYTES = 512  # the unit of st_blocks on every file system
METADATA_FOLDER = ".volumes"
RECORD_FORMAT = 2  # version of measured.json


@dataclass
class _UsageCount:
    """The usage that was counted so far in one home.

    ``changed_at``: the newest change, in seconds since the epoch. ``complete``: False if some entries could
    not be counted.
    """

    bytes: int = 0
    files: int = 0
    changed_at: float = 0.0
    complete: bool = True
    hard_links: set[tuple[int, int]] = field(default_factory=set)  # (device, inode) already counted


class _MeasureTimeout(Exception):
    """The home could not be measured within its time limit."""


def measure_home(home: Path, out_of_time: Callable[[], bool], now: float) -> dict[str, Any] | None:
    """Measure the disk usage of a home. Return None if the home can't be opened.

    The result has the keys of ``protocol.HomeSeen`` except the name. Other file systems are not entered.
    Links are not followed, except if the home itself is a link that root created. Measuring stops once
    ``out_of_time`` returns True. Then the counts are lower bounds, and ``complete`` is False.
    """
    usage = _UsageCount()
    place = resolved_home(home)
    try:
        if place is None:
            return None
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        own = os.fstat(descriptor)
        usage.bytes, usage.changed_at = own.st_blocks * STAT_BLOCK_BYTES, own.st_mtime
        _count_folder(descriptor, own.st_dev, 0, usage, out_of_time)
    except _MeasureTimeout:
        usage.complete = False
    finally:
        os.close(descriptor)
    return {
        "bytes": min(usage.bytes, LARGEST_SIZE),
        "files": usage.files,
        "changed_at": min(usage.changed_at, now),  # a file may have any time, even in the future
        "complete": usage.complete,
        "measured_at": now,
        "limit_bytes": limit_of_home(place),
    }


def _count_folder(
    folder: int, device: int, depth: int, usage: _UsageCount, out_of_time: Callable[[], bool]
) -> None:
    """Add everything below the open folder to ``usage``.

    Subfolders are opened through the descriptor ``folder``. Therefore a link is never followed, even if it
    replaces a folder during the count.
    """
    subfolders: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if out_of_time():
                    raise _MeasureTimeout
                _count_entry(entry, device, usage, subfolders)
    except OSError:
        usage.complete = False
    if subfolders and depth >= MAX_DEPTH:
        usage.complete = False
        return
    for name in subfolders:
        try:
            descriptor = os.open(
                name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
            )
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError:
            usage.complete = False
            continue
        try:
            _count_folder(descriptor, device, depth + 1, usage, out_of_time)
        finally:
            os.close(descriptor)


def _count_entry(entry: os.DirEntry[str], device: int, usage: _UsageCount, subfolders: list[str]) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # removed meanwhile
    except OSError:
        usage.complete = False
        return
    if status.st_dev != device:
        return
    if stat.S_ISDIR(status.st_mode):
        subfolders.append(entry.name)
    else:
        if status.st_nlink > 1 and not _is_first_link(status, usage):
            return
        usage.files += 1
    usage.bytes += status.st_blocks * STAT_BLOCK_BYTES
    usage.changed_at = max(usage.changed_at, status.st_mtime)


def _is_first_link(status: os.stat_result, usage: _UsageCount) -> bool:
    key = (status.st_dev, status.st_ino)
    if key in usage.hard_links:
        return False
    if len(usage.hard_links) >= MAX_REMEMBERED_HARD_LINKS:
        usage.complete = False
        return False
    usage.hard_links.add(key)
    return True


def home_names(folder: Path) -> tuple[list[str], int]:
    """Return the sorted names of at most MOST_HOMES homes, and the number of further homes.

    Folders whose names begin with a dot are not homes. They belong to the agent.
    """
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
    """Return True if a home can have this name. Folders with other names were not created by the agent."""
    return name.isprintable() and len(name) <= LONGEST_HOME_NAME


def pause_after(took_seconds: float) -> float:
    """Return the pause in seconds after a round that took ``took_seconds``."""
    return min(MAX_PAUSE_SECONDS, max(MIN_PAUSE_SECONDS, PAUSE_FACTOR * took_seconds))


def read_or_measure(
    folder: Path, now: Callable[[], float], clock: Callable[[], float]
) -> dict[str, Any] | None:
    """Return the usage of the homes in ``folder``. Measure it unless a recent result exists.

    Returns None while another host measures these homes for the first time. ``now`` returns seconds since the
    epoch, and ``clock`` returns seconds of a monotonic clock. Raises OSError.
    """
    metadata = folder / METADATA_FOLDER
    metadata.mkdir(exist_ok=True, mode=0o700)
    known = _current_format(read_json(metadata / "measured.json"))
    resting = known is not None and 0 <= now() - known["measured_at"] < pause_after(known["took_seconds"])
    if known and resting and [home["name"] for home in known["homes"]] == home_names(folder)[0]:
        return known
    lock = os.open(metadata / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return known  # another host measures now
    except OSError:
        print("the homes' file system has no locks: hosts that share it all measure it", file=sys.stderr)
    try:
        found = _measure_round(folder, metadata, known or {}, resting, now, clock)
        write_json(metadata / "measured.json", found)
        return found
    finally:
        os.close(lock)


def _current_format(known: Any) -> dict[str, Any] | None:
    """Return the record if this version of the agent can read its format, otherwise None."""
    return known if isinstance(known, dict) and known.get("format") == RECORD_FORMAT else None


def _measure_round(
    folder: Path,
    metadata: Path,
    known: dict[str, Any],
    resting: bool,
    now: Callable[[], float],
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Measure all homes once and return the new record.

    If ``resting`` is True, the pause after the last round is not over, and only new homes are measured.
    ``known`` is the last record, or {}.
    """
    began, listed_at = clock(), now()
    names, omitted = home_names(folder)
    before = {home["name"]: home for home in known.get("homes", [])}
    unmeasured = {"bytes": None, "files": None, "changed_at": None, "complete": True, "measured_at": None}
    homes = {name: before.get(name, {"name": name, **unmeasured}) for name in names}
    due = [name for name in names if not resting or name not in before]
    for name in sorted(due, key=lambda home: homes[home]["measured_at"] or 0.0):
        if clock() - began > ROUND_TIMEOUT_SECONDS:
            break
        deadline = clock() + HOME_TIMEOUT_SECONDS
        found = measure_home(folder / name, lambda deadline=deadline: clock() > deadline, now())  # type: ignore[misc]
        homes[name] = {"name": name, **(found or unmeasured)}
    disk = shutil.disk_usage(folder)
    return {
        "format": RECORD_FORMAT,
        "storage": _storage_id(metadata),
        "listed_at": listed_at,
        "measured_at": known["measured_at"] if resting else listed_at,
        "took_seconds": known["took_seconds"] if resting else clock() - began,
        "total_bytes": min(disk.total, LARGEST_SIZE),
        "free_bytes": min(disk.free, LARGEST_SIZE),
        "homes": list(homes.values()),
        "left_out": omitted,
    }


def _storage_id(metadata: Path) -> str:
    """Return the id of this folder. The id is created once, and hosts that share the folder share the id."""
    path = metadata / "storage"
    if not path.exists():
        write_text(path, os.urandom(16).hex())
    return path.read_text().strip()


def lower_priority() -> None:
    """Give this process the lowest CPU and I/O priority."""
    os.nice(19)
    try:
        # Linux derives the I/O priority from the scheduling policy.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:
        print(f"measuring homes with an ordinary priority: {error}", file=sys.stderr)


if __name__ == "__main__":
    lower_priority()
    print(json.dumps(read_or_measure(Path(sys.argv[1]), time.time, time.monotonic)))
